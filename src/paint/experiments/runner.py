"""An experiment: several settings, several seeds, and one file of results for its tables and plots.

    runs/demo/
      results.jsonl                       a line for every policy that is trained and evaluated
      results.md, results.svg, .png       the tables and the plot, made of these lines alone
      demo-paint/seed-0/                  a run like any other, and its log.txt
      evaluation/seed-0/demo-paint/demo/  its samples (paint.evaluation.store); other ways to count
                                          them: `paint grade runs/demo/evaluation/seed-0`
      evaluation/seed-0/demo-paint-step-000005/demo/    those of an earlier checkpoint

Every cell is trained with every seed from the same base. The last checkpoints of all cells, or
every checkpoint, are asked the same problems with the same seed, so cells are compared seed by seed
and problem by problem. The work goes seed by seed, so that an interrupted experiment has whole
seeds. Killed at any moment, the same command goes on where it was. Given in a second terminal, or
on another machine that sees the folder, it works on other cells.

Left out on purpose: reporting a checkpoint that was chosen by its result; figures of a part of the
cells or seeds.
"""

import io
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from time import monotonic

import numpy as np

from paint.config.recipe import differences, from_table, require_trainable, to_table
from paint.config.run_folder import (
    RunError,
    latest_checkpoint,
    read_history,
    read_run,
    read_run_json,
    step_folder,
    step_of,
)
from paint.config.schema import Config, ConfigError, ModelConfig
from paint.core.display import LOG_WIDTH, Counter, Display, Terminal
from paint.core.errors import Interrupted, wrap_errors
from paint.core.storage import FolderInUse, lock_folder
from paint.data.gold_answer_checks import name_unparsed
from paint.evaluation.generate import (
    EvalTask,
    SamplingProtocol,
    base_as_rank1_adapter,
    collect_samples,
    deployment_prompts,
    load_eval_policy,
)
from paint.evaluation.grade import grade
from paint.evaluation.metrics import GradedSamples
from paint.experiments.eval_protocols import EvalProtocol
from paint.experiments.report import BASE, Result, by_step, read_results, write_results
from paint.grading.registry import find_grader
from paint.inference.registry import server_engine
from paint.models.weights import trained_in
from paint.training.trainer import train

CHANGEABLE_SETTINGS = {"rollout.urls", "rollout.server_gpus", "rollout.max_logprob_mismatch"}
"""Keys of a config that may differ between two calls that work on one experiment."""

FREE_SPACE = "free some space, or choose another place (--folder); the same command goes on"


@dataclass(frozen=True)
class ExperimentRun:
    """One row of a table.

    Attributes:
        name: in tables, and of its folder.
        config: what is trained.
    """

    name: str
    config: Config

    @property
    def seed(self) -> int:
        return self.config.train.seed

    @property
    def label(self) -> str:
        return f"{self.name}, seed {self.seed}"

    def steps(self, *, every_checkpoint: bool) -> list[int]:
        """The steps whose checkpoints are evaluated, the last one last; 0 is the base model.

        They follow from the config: a run that was interrupted has checkpoints at others, too.
        """
        if self.name == BASE:
            return [0]
        train = self.config.train
        earlier = range(train.checkpoint_every, train.steps, train.checkpoint_every)
        return [*(earlier if every_checkpoint else ()), train.steps]

    def served(self, server_gpus: tuple[str, ...]) -> "ExperimentRun":
        """Trained with vLLM servers on these GPUs; without any, as it is, and so where no method
        generates."""
        if not server_gpus or not self.config.algorithm.needs_rollouts:
            return self
        engine = server_engine(self.config.rollout.engine)
        rollout = replace(self.config.rollout, engine=engine, server_gpus=server_gpus)
        return ExperimentRun(self.name, replace(self.config, rollout=rollout))

    def with_seed(self, seed: int) -> "ExperimentRun":
        return ExperimentRun(
            self.name, replace(self.config, train=replace(self.config.train, seed=seed))
        )


def run_experiment(
    cells: Sequence[ExperimentRun],
    seeds: Sequence[int],
    folder: Path,
    exam: EvalProtocol,
    display: Display,
    *,
    every_checkpoint: bool = False,
) -> list[Result]:
    """Train and evaluate every cell with every seed, and the base model; return a result for each.

    What results.jsonl holds is not done again, and an unfinished run or evaluation goes on.

    Args:
        every_checkpoint: evaluate all of a run's checkpoints, and return a result for each, the
            last one last; otherwise the last one alone.

    Raises:
        ConfigError: the cells cannot be compared, or have no checkpoints but the last.
        RunError: the folder holds another experiment, or cannot be written.
        Interrupted: a signal ended a training, which is saved.
        PaintError: what else ends a training or an evaluation.
    """
    base = _require_comparable(cells)
    steps = {cell.name: cell.steps(every_checkpoint=every_checkpoint) for cell in [base, *cells]}
    if every_checkpoint and all(len(asked) == 1 for asked in steps.values()):
        raise ConfigError(
            "no run has a checkpoint before its last one, and every checkpoint was asked for; set "
            "train.checkpoint_every below train.steps"
        )
    name_unparsed(exam.benchmark.name, exam.benchmark.problems, display.note)
    seeded = [cell.with_seed(seed) for seed in seeds for cell in [base, *cells]]
    with wrap_errors(folder, RunError, "choose another place (--folder)"):
        folder.mkdir(parents=True, exist_ok=True)

    path = folder / "results.jsonl"
    with lock_folder(folder, waiting=display.note):
        results = _stored(folder)
        missing = [cell for cell in seeded if _missing_steps(cell, steps[cell.name], results)]
        _require_same(folder, seeded, missing, list(results.values()), exam)
    if not missing:
        display.note(
            f"{path} holds all of this already, and nothing was trained or evaluated; "
            f"to do so anew, name another --folder"
        )
    elif len(missing) < len(seeded):
        display.note(f"{len(seeded) - len(missing)} of {len(seeded)} are in {path} already")

    places = {(cell.name, cell.seed): number for number, cell in enumerate(seeded)}

    def place(result: Result) -> int:
        return places.get((result.cell, result.seed), -1)

    spent: dict[str, list[float]] = {}
    while missing:
        with _claimed_run(missing, folder, display) as cell:
            if lacking := _missing_steps(cell, steps[cell.name], _stored(folder)):
                processes = 1 + missing.index(cell)  # others work on those before it
                time_left = _time_left(spent, [other.name for other in missing], processes)
                number = seeded.index(cell) + 1
                display.note(f"{number} of {len(seeded)}: {cell.label}{time_left}")

                began = monotonic()
                found = _run(cell, lacking, folder, exam, display)
                with lock_folder(folder, waiting=display.note):
                    together = sorted([*read_results(folder), *found], key=place)
                    by_step(together)  # Refuses what cannot be compared before it is written.
                    write_results(folder, together)
                spent.setdefault(cell.name, []).append(monotonic() - began)

        results = _stored(folder)
        missing = [cell for cell in seeded if _missing_steps(cell, steps[cell.name], results)]
    return [results[cell.name, cell.seed, step] for cell in seeded for step in steps[cell.name]]


class LogFile(io.TextIOBase):
    """A text file that grows; a disk that does not take it is said as such."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with wrap_errors(path, RunError, FREE_SPACE):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()

    def write(self, text: str) -> int:
        with wrap_errors(self.path, RunError, FREE_SPACE), self.path.open("ab") as file:
            file.write(text.encode("utf-8", "replace"))
        return len(text)


class RunDisplay(Display):
    """Writes a run's messages to a file, and shows its progress on a counter."""

    def __init__(self, file: LogFile, counter: Counter) -> None:
        super().__init__()
        self.console = Terminal(file, width=LOG_WIDTH)
        self.counter = counter

    def step(self, metrics: Mapping[str, float]) -> None:
        super().step(metrics)
        self.counter.to(int(metrics["step"]))


def _run(
    cell: ExperimentRun, steps: Sequence[int], folder: Path, exam: EvalProtocol, display: Display
) -> list[Result]:
    """Train the cell unless it is the base, evaluate it after these steps, and sum up the cost."""
    run, is_base = folder / cell.name / f"seed-{cell.seed}", cell.name == BASE
    if not is_base:
        train_run(cell, run, display)
    checkpoints = {step: None if is_base else _checkpoint(run, step) for step in steps}
    graded = _evaluate(cell, checkpoints, folder, exam, display)

    history = [] if is_base else read_history(run, max(steps))
    trained_on = "" if is_base else str(read_run_json(run)["problems"])
    return [
        Result(
            cell=cell.name,
            seed=cell.seed,
            config=to_table(cell.config),
            exam=exam.table,
            trained_on=trained_on,
            steps=step,
            rollout_tokens=round(sum(row["rollout_tokens"] for row in history[:step])),
            seconds=sum(
                row[name]
                for row in history[:step]
                for name in row
                if name.startswith("seconds_") and name != "seconds_left"
            ),
            problems=samples.problems,
            right=samples.correct.sum(axis=1).tolist(),
            answer_tokens=float(samples.tokens.mean()),
        )
        for step, samples in graded.items()
    ]


def train_run(cell: ExperimentRun, run: Path, display: Display) -> None:
    """Train in the run's folder, or go on there, to the last checkpoint."""
    checkpoint, steps = latest_checkpoint(run), cell.config.train.steps
    done = step_of(checkpoint) if checkpoint else 0
    if done == steps:
        return

    log = LogFile(run / "log.txt")
    try:
        with display.counting(f"training {cell.label}", steps, done) as counter:
            train(
                cell.config,
                run,
                resume=(run / "run.json").exists(),
                display=RunDisplay(log, counter),
            )
    except Interrupted as stopped:
        message = f"stopped in {cell.label}, all is saved; the same command goes on"
        raise Interrupted(message, stopped.signal_number) from None


def _checkpoint(run: Path, step: int) -> Path:
    """The run's checkpoint of the step. Raises RunError where it is gone."""
    checkpoint = step_folder(run / "checkpoints", step)
    if not checkpoint.is_dir():
        raise RunError(
            f"{checkpoint} is to be evaluated, and is gone; put it back, or delete the later ones "
            f"beside it, and the same command does these steps again"
        )
    return checkpoint


def _evaluate(
    cell: ExperimentRun,
    checkpoints: Mapping[int, Path | None],
    folder: Path,
    exam: EvalProtocol,
    display: Display,
) -> dict[int, GradedSamples]:
    """The graded samples after each step; missing ones are generated. None is the base model."""
    model = replace(cell.config.model, student_thinking=exam.thinking, gradient_checkpointing=False)
    protocol = SamplingProtocol(exam.samples, exam.thinking, exam.sampling, cell.seed)
    place = folder / "evaluation" / f"seed-{cell.seed}"
    problems = exam.benchmark.problems

    policy = load_eval_policy(model, exam.rollout, seed=cell.seed)
    prompts = deployment_prompts(policy, problems, thinking=exam.thinking)
    tasks = []
    for step, checkpoint in checkpoints.items():
        is_last = [step] == cell.steps(every_checkpoint=False)
        name = cell.name if is_last else f"{cell.name}-step-{step:06d}"
        trained = trained_in(checkpoint, model.train_mode) if checkpoint else None
        tasks.append(
            EvalTask(place / name / exam.benchmark.name, problems, prompts, protocol, trained)
        )

    with (
        collect_samples(policy, model, exam.rollout, tasks, place / cell.name, display) as stores,
        find_grader(cell.config.grading.grader, deadline=cell.config.grading.deadline) as grader,
    ):
        return {
            step: grade(store, grader, display)
            for step, store in zip(checkpoints, stores, strict=True)
        }


def _require_comparable(cells: Sequence[ExperimentRun]) -> ExperimentRun:
    """The cell of the base model, from which all others must be trained."""
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise ConfigError(
            "an experiment is one process; for many GPUs, start vLLM servers and name them: "
            "rollout.urls"
        )

    names = [cell.name for cell in cells]
    for cell in cells:
        require_trainable(cell.config)
        if names.count(cell.name) > 1 or cell.name in (BASE, "evaluation"):
            raise ConfigError(
                f"{cell.name} is the name of one thing in an experiment; rename the recipe"
            )
        for key in ("path", "dtype"):
            mine, first = getattr(cell.config.model, key), getattr(cells[0].config.model, key)
            if mine != first:
                raise ConfigError(
                    f"model.{key} of {cell.name} is {mine!r}, and that of {names[0]} {first!r}; "
                    f"what is compared starts from the same model"
                )

    model = cells[0].config.model
    return ExperimentRun(
        BASE, Config(model=base_as_rank1_adapter(ModelConfig(path=model.path, dtype=model.dtype)))
    )


def _require_same(
    folder: Path,
    seeded: Sequence[ExperimentRun],
    missing: Sequence[ExperimentRun],
    results: Sequence[Result],
    exam: EvalProtocol,
) -> None:
    """Refuse to mix results, or the runs of what is missing, with those of other settings."""
    path = folder / "results.jsonl"
    for cell in seeded:
        found = [
            (path, from_table(result.config, source=str(path)), result.exam)
            for result in results
            if (result.cell, result.seed) == (cell.name, cell.seed)
        ]
        run = folder / cell.name / f"seed-{cell.seed}"
        if cell in missing and (run / "run.json").exists():
            found.append((run / "run.json", read_run(run), exam.table))

        for source, config, asked_before in found:
            lines = [
                f"{name}: {asked_before.get(name)!r} -> {value!r}"
                for name, value in exam.table.items()
                if asked_before.get(name) != value
            ]
            changes = differences(config, cell.config)
            lines += [line for line in changes if line.split(":")[0] not in CHANGEABLE_SETTINGS]
            if lines:
                raise RunError(
                    f"{folder} holds {cell.label}, in another setting:\n  "
                    + "\n  ".join(lines)
                    + f"\nRepeat that setting (it is in {source}) to go on with it, or choose "
                    f"another place (--folder)"
                )


def _stored(folder: Path) -> dict[tuple[str, int, int], Result]:
    return {_key(result): result for result in read_results(folder)}


def _key(result: Result) -> tuple[str, int, int]:
    return result.cell, result.seed, result.steps


def _missing_steps(
    cell: ExperimentRun, steps: Sequence[int], results: Mapping[tuple[str, int, int], Result]
) -> list[int]:
    """Those of a cell's steps that have no result yet."""
    return [step for step in steps if (cell.name, cell.seed, step) not in results]


@contextmanager
def _claimed_run(
    missing: Sequence[ExperimentRun], folder: Path, display: Display
) -> Iterator[ExperimentRun]:
    """Lock the first cell that no other process works on; if there is none, wait for the first.

    The lock's file is removed with the cell's results in place; after an error it stays, so that a
    process which waits for it and one that comes later lock the same file.
    """
    with ExitStack() as stack:
        for cell in missing:
            with suppress(FolderInUse):
                stack.enter_context(lock_folder(folder, _lock_name(cell)))
                break
        else:
            cell = missing[0]
            stack.enter_context(lock_folder(folder, _lock_name(cell), waiting=display.note))
        yield cell
        (folder / _lock_name(cell)).unlink(missing_ok=True)


def _lock_name(cell: ExperimentRun) -> str:
    return f".lock-{cell.name}-seed-{cell.seed}"


def _time_left(spent: Mapping[str, Sequence[float]], names: Sequence[str], processes: int) -> str:
    """How long the cells of these names will take, in words; nothing before the first training.

    A cell takes what it took with other seeds, or else what trained cells took on average.
    """
    trained = [seconds for name in spent if name != BASE for seconds in spent[name]]
    if not trained:
        return ""
    seconds = sum(float(np.mean(spent.get(name, trained))) for name in names)
    return f"; about {math.ceil(seconds / 60 / processes):,} min left"
