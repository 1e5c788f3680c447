"""A prompt baked into an adapter: measured before, trained by segments, and measured after each.

``prompt_evaluator`` has the views of the model, and what is measured of them.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from paint.config.recipe import require_paths
from paint.config.run_folder import latest_checkpoint, step_of
from paint.config.schema import Config, ConfigError, EvaluationConfig
from paint.core.display import Display
from paint.core.distributed import require_one_process
from paint.core.errors import Interrupted, wrap_errors
from paint.core.settings import require_count
from paint.core.storage import digest, write_atomic
from paint.core.workspace import Workspace
from paint.data.contexts import Contexts
from paint.data.problems import DataError, batch_indices, read_problems
from paint.evaluation.evaluate import evaluate
from paint.evaluation.frame import (
    Chart,
    Measurement,
    Report,
    Unit,
    select_rows,
    table_of,
    to_terminal,
    write_report,
)
from paint.evaluation.generate import with_date
from paint.evaluation.summary import SUMMARY
from paint.experiments.prompt_evaluator import (
    BAKED,
    HELD_OUT,
    PLAIN,
    PROMPTED,
    REFERENCES,
    UNRELATED,
    Groups,
    open_evaluator,
)
from paint.inference.engine import sampling_from
from paint.training.callbacks import Callback
from paint.training.check import check_config
from paint.training.trainer import train

COLUMNS: dict[str, tuple[str, Unit]] = {
    "follows": ("follows", "%"),
    "kl": ("KL a token", ""),
    "auc": ("AUC", ""),
    "completion_tokens": ("tokens an answer", ""),
}
"""Head and unit of each metric."""


@dataclass(frozen=True)
class StopAtCheckpoints(Callback):
    """Ends the training at each checkpoint, so that it can be measured; resuming continues."""

    every: int

    def on_step(self, step: int, *_: Any) -> bool:
        return step % self.every == 0


def bake(
    config: Config,
    folder: Path,
    *,
    held_out: int,
    samples: int,
    unrelated: str = "",
    benchmark: str = "",
    force: bool = False,
) -> Report:
    """Train until plain and prompted answers cannot be distinguished; print and write the report.

    It trains ``train.checkpoint_every`` steps at a time, ``train.steps`` at most. The same call
    continues an interrupted one. The config has the rules as context.file; the other arguments are
    those of ``paint.bake``.
    """
    _require_bakeable(config, held_out, samples)
    rules, display = config.context.file, Display()
    workspace = Workspace(folder, "measurements.jsonl", "a bake", ConfigError, "bake again")
    config, groups = _prepare(config, workspace, held_out)
    config = replace(config, model=with_date(config.model, folder))
    if unrelated:
        data = replace(config.data, path=unrelated, limit=held_out)
        groups[UNRELATED] = read_problems(data, needs={}).problems

    with open_evaluator(config, folder, groups, display) as evaluator:
        base = evaluator.base_answers(groups, samples)
        rows = evaluator.base_rows(groups, base)
    found = f"{describe_auc(rows, PROMPTED)}\n{describe_auc(rows, PLAIN)}"
    display.note(found)
    if not (force or is_distinguishable(rows, PLAIN) or _follows_differ(rows)):
        raise ConfigError(
            f"{rules} changes nothing that is measured: neither likelihood nor grader tells plain "
            f"from prompted answers ({found}); take another text, more questions (--held-out) or "
            f"samples, or train all the same with --force"
        )

    # Measurements of other answers are not comparable with those that follow.
    key = {"samples": samples, "held_out": held_out, "grader": list(config.grading.grader)}
    workspace.append({"step": 0, "key": key})
    run = folder / "run"
    while True:
        checkpoint = latest_checkpoint(run) if (run / "run.json").exists() else None
        if checkpoint:
            step = step_of(checkpoint)
            with open_evaluator(config, folder, groups, display, checkpoint) as evaluator:
                baked = evaluator.baked_rows(groups, base, samples)
            display.note(f"step {step}: {describe_auc(baked, BAKED)}")
            workspace.append({"step": step, "key": key, "rows": [asdict(row) for row in baked]})
            if step >= config.train.steps or not is_distinguishable(baked, BAKED):
                break
        _train_to_next_checkpoint(config, run, display)

    report = _report([*rows, *baked, *_earlier_rows(workspace, key, step)], list(groups))
    write_report(folder, SUMMARY, report, ConfigError)
    to_terminal(report.tables, display.console)
    display.note(
        f"written to {folder}: {SUMMARY}.json, {SUMMARY}.md; `paint export {run} FOLDER` "
        f"writes the adapter"
    )
    if benchmark:
        _evaluate_adapter(config, folder, checkpoint, benchmark, samples)
    return report


def _require_bakeable(config: Config, held_out: int, samples: int) -> None:
    require_paths(config)
    require_count("held_out", held_out)
    require_count("samples", samples)
    require_one_process("paint bake")
    if config.model.train_mode != "lora" or config.context.source != ("file",):
        raise ConfigError('`paint bake` needs model.train_mode "lora" and context.source "file"')


def _evaluate_adapter(
    config: Config, folder: Path, checkpoint: Path, benchmark: str, samples: int
) -> None:
    """Compare base and baked model on a benchmark, as `paint eval` does."""
    rollout = replace(EvaluationConfig().rollout, **asdict(sampling_from(config.rollout)))
    evaluation = EvaluationConfig(
        benchmarks=(benchmark,),
        samples=samples,
        thinking=config.model.student_thinking,
        output_dir=str(folder / "benchmark"),
        rollout=rollout,
    )
    evaluate(evaluation, [str(checkpoint)])


def _train_to_next_checkpoint(config: Config, run: Path, display: Display) -> None:
    stop = StopAtCheckpoints(config.train.checkpoint_every)
    is_begun = (run / "run.json").exists()
    try:
        train(config, run, resume=is_begun, display=display, callbacks=[stop])
    except Interrupted as stopped:
        message = f"stopped in {run}, and saved; the same command resumes"
        raise Interrupted(message, stopped.signal_number) from None


def is_distinguishable(rows: Sequence[Measurement], view: str) -> bool:
    """True if held-out answers of the view differ from the reference's: AUC above 1/2."""
    found = select_rows(rows, policy=view, benchmark=HELD_OUT, metric="auc")
    return any(row.low is not None and row.low > 0.5 for row in found)


def _follows_differ(rows: Sequence[Measurement]) -> bool:
    """Whether the intervals of *follows* of the two base views do not overlap."""
    found = select_rows(rows, benchmark=HELD_OUT, metric="follows")
    if not found:
        return False
    lows = []
    for row in found:
        if row.low is not None:
            lows.append(row.low)
    highs = [row.high for row in found if row.high is not None]
    return max(lows) > min(highs)


def describe_auc(rows: Sequence[Measurement], view: str) -> str:
    """A view's metrics of held-out questions in one line."""
    parts = []
    for row in select_rows(rows, policy=view, benchmark=HELD_OUT):
        head, unit = COLUMNS[row.metric]
        parts.append(f"{head}{' (%)' if unit == '%' else ''} {row.text(unit)}")
    return f"{view}: {', '.join(parts)}"


def _earlier_rows(workspace: Workspace, key: dict[str, Any], step: int) -> list[Measurement]:
    """What was measured of earlier checkpoints, and of the last one, with their steps."""
    by_step: dict[int, list[Measurement]] = {}
    for row in workspace.rows():
        if row["key"] == key and 0 < row["step"] <= step:
            found = []
            for values in row["rows"]:
                found.append(Measurement(**values))
            by_step[row["step"]] = [replace(one, step=row["step"]) for one in found]
    rows: list[Measurement] = []
    for number in sorted(by_step):
        rows += by_step[number]
    return rows


def _report(rows: list[Measurement], groups: Sequence[str]) -> Report:
    """The tables and charts of all views; of earlier checkpoints, the held-out questions."""
    tables = []
    for group in groups:
        columns = {**COLUMNS, "kl": (f"KL a token to the {REFERENCES[group]}", COLUMNS["kl"][1])}
        title = f"{group.replace('_', ' ')} questions, with 95 % intervals (follows in %)"
        tables.append(table_of(select_rows(rows, benchmark=group, step=None), title, columns))
    charts = []
    for group in groups:
        name = group.replace("_", " ")
        charts.append(Chart(f"AUC, {name}", "auc", "", "1/2: cannot be distinguished", group))
    charts.append(Chart("Follows", "follows", "%", "answers that the grader accepts", HELD_OUT))
    return Report(rows, tables, charts)


def _prepare(config: Config, workspace: Workspace, count: int) -> tuple[Config, Groups]:
    """Copy rules and training questions to the folder; the rest of the questions is held out."""
    questions = read_problems(config.data, needs=check_config(config).needed_fields).problems
    if len(questions) < 2:
        raise DataError(
            f"{config.data.path} has one question; add some, to train on and to hold out"
        )
    count = min(count, len(questions) // 2)
    chosen = set(batch_indices(len(questions), count, 0, config.train.seed))
    rows = []
    for i, p in enumerate(questions):
        if i not in chosen:
            rows.append(json.dumps(p.fields))
    rules = Contexts(config.context, questions).shared
    text = "\n".join([*rows, ""])
    settings = {"rules": digest(rules), "questions": digest(text)}
    workspace.require_same(settings)
    workspace.begin(settings)
    paths = workspace.folder / "rules.md", workspace.folder / "questions.jsonl"
    with wrap_errors(workspace.folder, ConfigError, "choose another place (--output-dir)"):
        write_atomic(paths[0], rules)
        write_atomic(paths[1], text)
    config = config.changed("data", path=str(paths[1]), limit=None)
    config = config.changed("context", file=str(paths[0]))
    return config, {HELD_OUT: [p for i, p in enumerate(questions) if i in chosen]}
