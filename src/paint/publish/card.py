"""The model card of an exported checkpoint, from its run and its evaluations.

Its text is the template card.md.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

import jinja2
import yaml
from huggingface_hub import (
    EvalResult,
    EvalResultEntry,
    ModelCard,
    ModelCardData,
    eval_result_entries_to_yaml,
)

from paint.config.recipe import differences
from paint.config.schema import Config
from paint.core.errors import PaintError, escape_markdown_cell
from paint.core.hub import local_file
from paint.core.storage import read_jsonl
from paint.data.benchmarks import PUBLISHED, Benchmark
from paint.data.decontaminate import NGRAM, build_index, contaminated
from paint.data.problems import from_row, problems_digest, read_problems
from paint.demo.files import model_path
from paint.evaluation.frame import (
    Measurement,
    Report,
    read_report,
    select_rows,
    to_markdown,
)
from paint.evaluation.generate import checkpoint_digest
from paint.evaluation.store import StoreError, find_stores, read_settings
from paint.evaluation.summary import MACRO, SUMMARY
from paint.models.weights import Rounding
from paint.objective.messages import student_messages
from paint.training.check import check_config

LOCAL = (
    *("model.path", "data.path", "validation.path", "log."),
    *("rollout.server", "rollout.urls"),
)
"""Settings of this machine, which the list of settings leaves out."""

SAMPLING = ("samples", "thinking", "temperature", "top_p", "top_k", "max_new_tokens", "seed")
"""Settings of an evaluation that the card names."""


@dataclass(frozen=True)
class Export:
    """An exported checkpoint."""

    name: str
    config: Config
    run_info: Mapping[str, Any]  # run.json
    step: int
    merged: bool
    dtype: str
    rounding: Rounding
    license: str = ""


@dataclass(frozen=True)
class CheckpointEvaluation:
    """An evaluation with this checkpoint among its policies."""

    policy: str  # the checkpoint's name in it
    report: Report  # of every policy
    settings: Mapping[str, Any]  # how it sampled
    benchmarks: Sequence[Benchmark]

    @property
    def tables(self) -> str:
        """The tables of the evaluation as Markdown."""
        return to_markdown(self.report.tables).strip()

    def rows(self, metric: str) -> list[Measurement]:
        """The checkpoint's rows of a metric, without the mean over benchmarks."""
        rows = select_rows(self.report.rows, policy=self.policy, metric=metric)
        return [row for row in rows if row.benchmark != MACRO]


def find_evaluation(folder: Path, trained: Path) -> CheckpointEvaluation:
    """Find a checkpoint in an evaluation, by the digest of its weights.

    Raises:
        StoreError: the evaluation does not have it, or is not complete. CorruptFileError: a file of
            it cannot be read.
    """
    hint = f"`paint grade {folder}` writes it again"
    identity = checkpoint_digest(trained)
    settings = {}
    for store in find_stores(folder):
        found = read_settings(store)
        if identity in (found.get("adapter"), found.get("weights")):
            settings[store] = found
    if not settings:
        raise StoreError(
            f"{folder} has no samples of {trained.parent}; evaluate it with paint eval"
        )
    path = folder / f"{SUMMARY}.json"
    if not path.exists():
        raise StoreError(f"{folder} has no {path.name}; {hint}")
    benchmarks = []
    for store in settings:
        problems = []
        for row in read_jsonl(store / "problems.jsonl", hint):
            problems.append(from_row(row))
        benchmarks.append(Benchmark(store.name, problems))
    store = next(iter(settings))
    return CheckpointEvaluation(
        store.parent.name, read_report(path, hint), settings[store], benchmarks
    )


def write_card(export: Export, evaluations: Sequence[CheckpointEvaluation], folder: Path) -> None:
    """Write README.md, and .eval_results for benchmarks of the hub."""
    config = export.config
    base, data = config.model.path, config.data.path
    is_hub_model, is_hub_data = not Path(model_path(base)).exists(), "/" in data
    card_data = ModelCardData(
        base_model=base if is_hub_model else None,
        base_model_relation=("finetune" if export.merged else "adapter") if is_hub_model else None,
        datasets=[data.split("@")[0].split(":")[0]]
        if is_hub_data and not Path(data).exists()
        else None,
        library_name="transformers" if export.merged else "peft",
        license=export.license or _license_of(base),
        model_name=export.name,
        pipeline_tag="text-generation",
        tags=["paint", "self-distillation"] + ([] if export.merged else ["lora"]),
        eval_results=[result for found in evaluations for result in _results(found)] or None,
    )
    environment = jinja2.Environment(
        trim_blocks=True, keep_trailing_newline=True, undefined=jinja2.StrictUndefined
    )
    template = environment.from_string((files("paint.publish") / "card.md").read_text("utf-8"))
    settings = []
    for line in differences(Config(), config):
        if not line.startswith(LOCAL):
            settings.append(line)
    text = template.render(
        export=export,
        config=config,
        run_info=export.run_info,
        base=_public(base),
        served=_public(base) if is_hub_model else "BASE",
        data=_public(data),
        prompt=config.prompts.student or student_messages("PROBLEM")[0]["content"],
        settings=settings,
        evaluations=evaluations,
        sampling=SAMPLING,
        contamination=_contamination(config, export.run_info, evaluations),
        license=card_data.license,
    )
    ModelCard(f"---\n{card_data}\n---\n\n{text}").save(folder / "README.md")
    for found in evaluations:
        for entry in _hub_entries(found):
            path = folder / ".eval_results" / f"{entry.dataset_id.replace('/', '--')}.yaml"
            path.parent.mkdir(exist_ok=True)
            path.write_text(yaml.safe_dump(eval_result_entries_to_yaml([entry]), sort_keys=False))


def _contamination(
    config: Config, run_info: Mapping[str, Any], evaluations: Sequence[CheckpointEvaluation]
) -> list[str]:
    """How many training problems repeat a problem of the evaluations."""
    benchmarks = list({b.name: b for found in evaluations for b in found.benchmarks}.values())
    if not benchmarks:
        return ["Not checked: there is no evaluation."]
    try:
        problems = read_problems(config.data, needs=check_config(config).needed_fields).problems
    except PaintError:
        return ["Not checked: the training data could not be read."]
    lines = []
    if problems_digest(problems) != run_info["problems"]:
        lines += ["The data hold other rows than were trained on: left out, or changed since.", ""]
    for benchmark in benchmarks:
        index = build_index([benchmark])
        count = sum(contaminated(problem.problem, index) is not None for problem in problems)
        lines.append(
            f"- {escape_markdown_cell(benchmark.name)}: {count:,} of {len(problems):,} training "
            f"problems repeat one of its {len(benchmark.problems):,} (shared passages of {NGRAM} "
            f"words; paraphrases are not found)."
        )
    return lines


def _results(found: CheckpointEvaluation) -> list[EvalResult]:
    """Metadata of the main results: the mean reward, or Avg@k, in percent."""
    metric = "reward" if found.rows("reward") else "avg_at_k"
    results = []
    for row in found.rows(metric):
        ends = []
        for end in (row.low, row.high):
            ends.append(None if end is None else round(100 * end, 2))
        samples = found.settings["samples"]
        results.append(
            EvalResult(
                task_type="text-generation",
                dataset_type=_source(row.benchmark),
                dataset_name=row.benchmark,
                metric_type=metric,
                metric_name=f"{metric}, k = {samples}, 95 % interval {json.dumps(ends)}",
                metric_value=round(100 * row.mean, 2),
            )
        )
    return results


def _hub_entries(found: CheckpointEvaluation) -> list[EvalResultEntry]:
    """Results of complete benchmarks of the hub, in percent; parts of one are not comparable."""
    settings = found.settings
    means = {}
    for row in found.rows("avg_at_k"):
        means[row.benchmark] = row.mean
    entries = []
    for benchmark in found.benchmarks:
        source = _source(benchmark.name)
        if "/" in source and len(benchmark.problems) == PUBLISHED[benchmark.name].size:
            entries.append(
                EvalResultEntry(
                    dataset_id=source,
                    task_id=source,
                    value=round(100 * means[benchmark.name], 2),
                    notes=f"Avg@{settings['samples']}, temperature {settings['temperature']}, "
                    f"thinking {settings['thinking']}, up to {settings['max_new_tokens']} tokens",
                )
            )
    return entries


def _source(benchmark: str) -> str:
    """The hub data set of a known benchmark; the name itself for others."""
    known = PUBLISHED.get(benchmark)
    is_on_hub = known is not None and not Path(known.source).exists()
    if known is not None and is_on_hub:
        return known.source.split("@")[0]
    return benchmark


def _license_of(base: str) -> str | None:
    """The licence in the base's card, where the card is on this machine."""
    card = local_file(model_path(base), "README.md")
    if card is None:
        return None
    found = ModelCard.load(card, ignore_metadata_errors=True).data.license
    if isinstance(found, str):
        return found
    return None


def _public(path: str) -> str:
    """A hub name, or the last part of a path of this machine."""
    return escape_markdown_cell(Path(path).name if Path(path).exists() else path)
