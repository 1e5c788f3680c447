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
from paint.core.storage import read_json, read_jsonl
from paint.data.benchmarks import PUBLISHED, Benchmark
from paint.data.decontaminate import NGRAM, build_index, contaminated
from paint.data.problems import from_row, problems_digest, read_problems
from paint.demo.files import model_path
from paint.evaluation.generate import checkpoint_digest
from paint.evaluation.store import StoreError, find_stores, read_settings
from paint.models.weights import Rounding
from paint.objective.prompts import student_messages
from paint.training.check import check_config

LOCAL = (
    *("model.path", "data.path", "validation.path", "log."),
    *("rollout.server", "rollout.urls", "rollout.adapter_folder"),
)
"""Settings of this machine, which the list of settings leaves out."""

SAMPLING = ("samples", "thinking", "temperature", "top_p", "top_k", "max_new_tokens", "seed")
"""Settings of an evaluation that the card names."""


@dataclass(frozen=True)
class Export:
    """An exported checkpoint."""

    name: str
    config: Config
    facts: Mapping[str, Any]  # run.json
    step: int
    merged: bool
    dtype: str
    rounding: Rounding
    license: str = ""


@dataclass(frozen=True)
class Figures:
    """An evaluation with this checkpoint among its policies."""

    folder: Path
    policy: str  # the checkpoint's name in it
    summary: Mapping[str, Any]
    settings: Mapping[str, Any]  # how it sampled
    benchmarks: Sequence[Benchmark]

    @property
    def tables(self) -> str:
        """The tables of the evaluation, which have every policy of it."""
        return (self.folder / "summary.md").read_text("utf-8").strip()


def find_figures(folder: Path, trained: Path) -> Figures:
    """Find a checkpoint in an evaluation, by the digest of its weights.

    Raises:
        StoreError: the evaluation does not have it, or is not complete. CorruptFileError: a file of
            it cannot be read.
    """
    hint = f"`paint grade {folder}` writes it again"
    identity, asked = checkpoint_digest(trained), {}
    for store in find_stores(folder):
        settings = read_settings(store)
        if identity in (settings.get("adapter"), settings.get("weights")):
            asked[store] = settings
    if not asked:
        raise StoreError(
            f"{folder} has no samples of {trained.parent}; evaluate it with paint eval"
        )
    if not (folder / "summary.json").exists():
        raise StoreError(f"{folder} has no summary.json; {hint}")
    benchmarks = [
        Benchmark(store.name, [from_row(row) for row in read_jsonl(store / "problems.jsonl", hint)])
        for store in asked
    ]
    store, settings = next(iter(asked.items()))
    summary = read_json(folder / "summary.json", hint)
    return Figures(folder, store.parent.name, summary, settings, benchmarks)


def write_card(export: Export, figures: Sequence[Figures], folder: Path) -> None:
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
        eval_results=[result for found in figures for result in _results(found)] or None,
    )
    environment = jinja2.Environment(
        trim_blocks=True, keep_trailing_newline=True, undefined=jinja2.StrictUndefined
    )
    template = environment.from_string((files("paint.publish") / "card.md").read_text("utf-8"))
    settings = [line for line in differences(Config(), config) if not line.startswith(LOCAL)]
    text = template.render(
        export=export,
        config=config,
        facts=export.facts,
        base=_public(base),
        served=_public(base) if is_hub_model else "BASE",
        data=_public(data),
        prompt=config.prompts.student or student_messages("PROBLEM")[0]["content"],
        settings=settings,
        figures=figures,
        sampling=SAMPLING,
        contamination=_contamination(config, export.facts, figures),
        license=card_data.license,
    )
    ModelCard(f"---\n{card_data}\n---\n\n{text}").save(folder / "README.md")
    for found in figures:
        for entry in _hub_entries(found):
            path = folder / ".eval_results" / f"{entry.dataset_id.replace('/', '--')}.yaml"
            path.parent.mkdir(exist_ok=True)
            path.write_text(yaml.safe_dump(eval_result_entries_to_yaml([entry]), sort_keys=False))


def _contamination(
    config: Config, facts: Mapping[str, Any], figures: Sequence[Figures]
) -> list[str]:
    """How many training problems repeat a problem of the evaluations."""
    benchmarks = list({b.name: b for found in figures for b in found.benchmarks}.values())
    if not benchmarks:
        return ["Not checked: there is no evaluation."]
    try:
        problems = read_problems(config.data, needs=check_config(config).needed_fields).problems
    except PaintError:
        return ["Not checked: the training data could not be read."]
    lines = []
    if problems_digest(problems) != facts["problems"]:
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


def _results(found: Figures) -> list[EvalResult]:
    """Metadata of the main figures: the mean reward, or Avg@k, in percent."""
    results = []
    for benchmark, metrics in found.summary["figures"][found.policy].items():
        if benchmark == "macro":
            continue
        kind = "reward" if "reward" in metrics else "avg_at_k"
        value = {end: round(100 * x, 2) for end, x in metrics[kind].items() if x is not None}
        results.append(
            EvalResult(
                task_type="text-generation",
                dataset_type=_source(benchmark),
                dataset_name=benchmark,
                metric_type=kind,
                metric_name=f"{kind}, k = {found.settings['samples']}, "
                f"95 % interval {json.dumps([value.get('low'), value.get('high')])}",
                metric_value=value["mean"],
            )
        )
    return results


def _hub_entries(found: Figures) -> list[EvalResultEntry]:
    """Results of complete benchmarks of the hub, in percent; parts of one are not comparable."""
    figures = found.summary["figures"][found.policy]
    asked = found.settings
    return [
        EvalResultEntry(
            dataset_id=_source(benchmark.name),
            task_id=_source(benchmark.name),
            value=round(100 * figures[benchmark.name]["avg_at_k"]["mean"], 2),
            notes=f"Avg@{asked['samples']}, temperature {asked['temperature']}, "
            f"thinking {asked['thinking']}, up to {asked['max_new_tokens']} tokens",
        )
        for benchmark in found.benchmarks
        if "/" in _source(benchmark.name)
        and len(benchmark.problems) == PUBLISHED[benchmark.name].size
    ]


def _source(benchmark: str) -> str:
    """The hub data set of a known benchmark; the name itself for others."""
    known = PUBLISHED.get(benchmark)
    is_on_hub = known is not None and not Path(known.source).exists()
    return known.source.split("@")[0] if known is not None and is_on_hub else benchmark


def _license_of(base: str) -> str | None:
    """The licence in the base's card, where the card is on this machine."""
    card = local_file(model_path(base), "README.md")
    if card is None:
        return None
    found = ModelCard.load(card, ignore_metadata_errors=True).data.license
    return found if isinstance(found, str) else None


def _public(path: str) -> str:
    """A hub name, or the last part of a path of this machine."""
    return escape_markdown_cell(Path(path).name if Path(path).exists() else path)
