"""What commands return: handles of runs, evaluations and other results on disk.

A handle holds a path. Its properties read the files each time, so that it shows the latest state.
This module imports neither torch nor pandas until a property needs them.
"""

import html
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paint.config.recipe import from_table, varied_settings
from paint.config.run_folder import (
    RunError,
    checkpoint_of,
    read_metrics,
    read_run,
    read_run_json,
    step_folder,
    step_of,
    step_paths,
)
from paint.config.run_folder import checkpoints as list_checkpoints
from paint.config.schema import Config
from paint.core.errors import ConfigError
from paint.core.storage import read_jsonl
from paint.core.trust import begin_call, trust_records, vouch_for
from paint.evaluation.store import find_stores, reopen_store

if TYPE_CHECKING:
    import pandas as pd

    from paint.evaluation.frame import Report


WATCH_SECONDS = 0.5  # between looks for a run that has not begun


@dataclass(frozen=True)
class Handle:
    """A result of a command on disk."""

    path: Path  # its folder

    def show(self, **options: Any) -> "Page":
        """Write its page (docs/how-to/inspect-rollouts.md); options are those of ``paint.show``."""
        return write_page_of([self.path], **options)


class Run(Handle):
    """A training run. Nothing is cached, so a run under way shows its latest steps."""

    @property
    def config(self) -> Config:
        """The resolved settings. Raises RunError where the folder holds no run."""
        return read_run(self.path)

    @property
    def metrics(self) -> "pd.DataFrame":
        """One row per step, indexed by it; docs/reference/metrics.md has the columns."""
        frame = frame_of(read_metrics(self.path))
        return frame if frame.empty else frame.set_index("step")

    @property
    def steps(self) -> list[int]:
        """The steps whose rollouts are stored."""
        return [step_of(path) for path in step_paths(self.path / "rollouts", ".jsonl")]

    def rollouts(self, step: int | None = None) -> "pd.DataFrame":
        """One row per rollout of a step: text, verdict, overlap, mask ratio, context and ids.

        Steps count from 1; None is the last stored one. Raises RunError for one without rollouts.
        """
        path = step_folder(self.path / "rollouts", self._step(step)).with_suffix(".jsonl")
        return frame_of(list(read_jsonl(path, "restore it, or start a new run")))

    def tokens(self, step: int | None = None) -> "pd.DataFrame":
        """One row per token of the first ``log.token_rows`` rollouts of a step.

        Columns: docs/reference/run-folder.md. Raises RunError for a step without rollouts, and
        CorruptFileError if the file was changed or ``log.token_rows`` was 0.
        """
        import pandas as pd

        from paint.training.token_log import read_tokens, tokens_path

        by_row = read_tokens(tokens_path(self.path, self._step(step)))
        return pd.concat([pd.DataFrame(columns) for columns in by_row.values()], ignore_index=True)

    @property
    def checkpoints(self) -> list[Path]:
        """The complete checkpoints, by step."""
        return list_checkpoints(self.path)

    @property
    def adapter(self) -> Path:
        """The last checkpoint's adapter in peft's format, or its complete model.

        Raises RunError if there is no checkpoint yet.
        """
        checkpoint = checkpoint_of(self.path)
        if self.config.model.train_mode == "full":
            return checkpoint / "model"
        return checkpoint / "adapter"

    def _step(self, step: int | None) -> int:
        steps = self.steps
        if step is None and steps:
            return steps[-1]
        if step not in steps:
            stored = f"steps {steps[0]} to {steps[-1]}" if steps else "no rollouts"
            raise RunError(f"{self.path} has no rollouts of step {step}; it has {stored}")
        return int(step)

    def _repr_html_(self) -> str:
        """Return a notebook's view: the run's folder and the metrics of its last step."""
        metrics = self.metrics.tail(1).T
        return f"<b>{html.escape(str(self.path))}</b>{metrics.to_html()}"


class Measured(Handle):
    """What a command measured: rows with intervals, tables, and findings in words."""

    @property
    def report(self) -> "Report":
        """Everything that summary.json holds. Raises CorruptFileError."""
        from paint.evaluation.frame import read_report

        hint = "repeat the command; of samples, `paint grade`"
        return read_report(self.path / "summary.json", hint)

    @property
    def table(self) -> "pd.DataFrame":
        """One row per policy, benchmark and metric: mean, 95 % interval and number of problems.

        Of ``advise``, a policy is a context; of ``bake``, it is a view of the model.
        """
        from paint.evaluation.frame import select_rows, to_frame

        return to_frame(select_rows(self.report.rows))

    def _repr_html_(self) -> str:
        """A notebook's view: the findings in words, and the tables that the terminal shows."""
        import pandas as pd

        report = self.report
        parts = [f"<li>{html.escape(line)}</li>" for line in report.lines]
        text = f"<ul>{''.join(parts)}</ul>"
        for table in report.tables:
            frame = pd.DataFrame(table.rows, columns=table.columns)
            text += f"<b>{html.escape(table.title)}</b>{frame.to_html(index=False)}"
        return text


class Evaluation(Measured):
    """An evaluation: graded samples, and tables with intervals."""

    @property
    def comparisons(self) -> "pd.DataFrame":
        """One row per policy and benchmark: its difference to the first policy, problem by problem.

        The columns are the mean difference, its 95 % interval, the p-value and the smallest
        difference that this many problems can detect.
        """
        from paint.evaluation.frame import select_rows, to_frame

        return to_frame([row for row in select_rows(self.report.rows, against=...) if row.against])

    @property
    def samples(self) -> "pd.DataFrame":
        """One row per sample of every policy and benchmark: text, verdict, reason and feedback.

        Raises StoreError where a sample is not graded.
        """
        rows = []
        for folder in find_stores(self.path):
            with reopen_store(folder) as store:
                graded = store.graded()
            for sample, grade in graded:
                row: dict[str, Any] = {"policy": folder.parent.name, "benchmark": folder.name}
                row |= {
                    "problem_id": sample.problem.id,
                    "sample": sample.row,
                    "text": sample.text,
                    "tokens": len(sample.completion.ids),
                    "truncated": sample.completion.truncated,
                    "source": sample.completion.source,
                }
                for name in ("correct", "answer", "reason", "reward", "rewards", "feedback"):
                    if name in grade:
                        row[name] = grade[name]
                row |= grade.get("metrics", {})
                rows.append(row)
        return frame_of(rows)


class Result(Measured):
    """What ``paint.advise`` or ``paint.bake`` measured."""

    @property
    def run(self) -> Run:
        """The training of ``paint.bake``; its last checkpoint is the baked adapter."""
        return load_run(self.path / "run")

    @property
    def lines(self) -> list[str]:
        """The advice and its reasons; of ``bake``, none."""
        return self.report.lines


@dataclass(frozen=True)
class Page:
    """A page as one HTML file. A notebook shows it in a frame."""

    path: Path
    height: int = field(default=720, repr=False)
    """Height of the frame in pixels."""

    def _repr_html_(self) -> str:
        # srcdoc works in every notebook server, whatever folders it serves.
        page = html.escape(self.path.read_text("utf-8"))
        return f'<iframe srcdoc="{page}" width="100%" height="{self.height}"></iframe>'


def load_run(run: Run | str | Path) -> Run:
    """Load a run from its folder.

    Raises RunError if the folder holds no run, CorruptFileError if run.json cannot be read.
    """
    loaded = run if isinstance(run, Run) else Run(path_of(run))
    read_run_json(loaded.path)
    return loaded


def path_of(target: Handle | str | Path) -> Path:
    """Return the path of a handle or a target. Raises ConfigError for an empty text."""
    if isinstance(target, Handle):
        return target.path
    if not str(target).strip():  # Path would take it for the working directory
        raise ConfigError("a path is empty; name a run or a folder")
    return Path(target)


def paths_of(targets: Sequence[Handle | str | Path | Sequence[Handle | str | Path]]) -> list[Path]:
    """Return the paths of some targets, of which each may be a list of several."""
    paths = []
    for target in targets:
        several = [target] if isinstance(target, Handle | str | Path) else target
        paths += [path_of(each) for each in several]
    return paths


def frame_of(rows: Sequence[Mapping[str, Any]]) -> "pd.DataFrame":
    import pandas as pd

    return pd.DataFrame(list(rows))


def frame_of_results(results: Sequence[Any]) -> "pd.DataFrame":
    """Return the results of an experiment as rows, with scores and the settings that differ."""
    from paint.evaluation.intervals import with_value
    from paint.lab.checkpoint_results import BASE, rewards_of, shares

    configs = [None if row.run == BASE else from_table(row.config) for row in results]
    # The seed is a column of its own.
    settings = setting_columns(configs, left_out="train.seed")
    rows = []
    for result, columns in zip(results, settings, strict=True):
        row = asdict(result) | columns | {"avg_at_k": with_value(shares([result])).mean()}
        if result.rewards is not None:
            row["reward"] = with_value(rewards_of([result])).mean()
        rows.append(row)
    return frame_of(rows)


def setting_columns(configs: Sequence[Config | None], *, left_out: str) -> list[dict[str, Any]]:
    """Return the settings in which configs differ, for each; {} for None. Lists become text."""
    varied = varied_settings([config for config in configs if config is not None])
    varied.pop(left_out, None)
    rows: list[dict[str, Any]] = [{} for _ in configs]
    present = [row for row, config in zip(rows, configs, strict=True) if config is not None]
    for name, values in varied.items():
        for row, value in zip(present, values, strict=True):
            if isinstance(value, list):
                value = ", ".join(map(str, value))
            row[name] = value
    return rows


def write_page_of(
    targets: Sequence[Path],
    *,
    steps: Sequence[int] = (),
    row: int | None = None,
    contexts: Sequence[str] = (),
    rescore: bool = True,
    out: str | Path | None = None,
    open: bool = False,
    watch: bool = False,
    trust: bool = False,
) -> Page:
    """Write the page of some targets; the arguments are those of ``paint.show``."""
    if not targets:
        raise ConfigError("nothing to show; name a run, or a folder that `paint eval` made")
    if watch:
        _await_runs(targets)
    # Before torch is imported, which takes seconds.
    for target in targets:
        if not _holds_something(target):
            raise ConfigError(
                f"{target} holds neither a run (run.json), an evaluation (completions.jsonl) nor "
                f"a report of advice, a comparison or a bake"
            )
    from paint.core.display import Display
    from paint.lab.viewer.run import PageSpec
    from paint.lab.viewer.show import show_targets

    page = PageSpec(tuple(steps), row, tuple(contexts), rescore)
    with begin_call():
        vouch_for(contexts)
        if trust:
            trust_records()
        place = Path(out) if out else None
        path = show_targets(targets, Display(), page, out=place, opens=open, live=watch)
    return Page(path)


def _holds_something(target: Path) -> bool:
    return any(target.glob("*.json")) or any(target.rglob("run.json")) or bool(find_stores(target))


def _await_runs(targets: Sequence[Path]) -> None:
    """Wait until each folder holds something: a run writes its first file when it has started."""
    from paint.core.display import Display

    missing = [target for target in targets if not _holds_something(target)]
    if missing:
        Display().note(f"waiting for a run in {missing[0]}; Ctrl-C ends it")
    while not all(map(_holds_something, targets)):
        time.sleep(WATCH_SECONDS)
