"""An experiment: several settings, several seeds, one file of results that its tables and plots are made of.

    runs/lab/
      results.jsonl                       a line for every policy that is trained and evaluated
      results.md, results.svg, .png       the tables and the plot, made of these lines alone
      lab-paint/seed-0/                   a run like any other (paint.runlog); log.txt is what it said
      evaluation/seed-0/lab-paint/lab/    its answers (paint.evaluation.store); `paint grade runs/lab/evaluation/seed-0` counts
                                          them in other ways

Every cell is trained from the same base with every seed, and its last checkpoint answers the same problems with the
same seed as all others': cells are compared seed by seed and problem by problem. The work goes seed by seed, so that an
interrupted experiment has whole seeds. Killed at any moment, the same call goes on where it was.

Left out on purpose: choosing a checkpoint by its result; figures of a part of the cells or seeds; work on several cells
at once (for many GPUs, rollouts and answers come from vLLM servers: docs/engines.md).
"""

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from time import monotonic
from typing import IO, Any

import numpy as np
from rich.console import Console

from paint import Stopped
from paint.config import Config, ConfigError, Model, Rollout, Train
from paint.data.problem_sets import Benchmark
from paint.data.problems import problems_digest
from paint.display import LOG_WIDTH, Counter, Display
from paint.engines.protocol import Sampling, sampling_of
from paint.evaluation.asking import Protocol, Task, asked, deployment_prompts, load_asked
from paint.evaluation.metrics import GradedSamples
from paint.evaluation.stages import grade
from paint.experiments.results import BASE, Result, by_cell, read_results, write_results
from paint.files import locked
from paint.grading.grader import Grader
from paint.model.weights import trained_in
from paint.recipe import differences, from_table, require_trainable, to_table
from paint.runs import RunError, latest_checkpoint, read_facts, read_metrics, read_run, step_of
from paint.training.run import train

MAY_CHANGE = {"rollout.urls"}


@dataclass(frozen=True)
class Cell:
    """One row of a table: its name, which is its folder's, and what is trained."""

    name: str
    config: Config

    @property
    def seed(self) -> int:
        return self.config.train.seed

    @property
    def key(self) -> tuple[str, int]:
        """What tells its line of results.jsonl from others."""
        return self.name, self.seed

    @property
    def label(self) -> str:
        return f"{self.name}, seed {self.seed}"

    def with_seed(self, seed: int) -> "Cell":
        return Cell(self.name, replace(self.config, train=replace(self.config.train, seed=seed)))


@dataclass(frozen=True)
class Exam:
    """What every policy of an experiment is asked, and how; the seed of the answers is that of the training.

    Attributes:
        rollout: the sampling, and the engine that answers.
    """

    benchmark: Benchmark
    samples: int
    thinking: bool
    rollout: Rollout

    @property
    def sampling(self) -> Sampling:
        return sampling_of(self.rollout)

    @property
    def table(self) -> dict[str, Any]:
        """What two results must have in common, as JSON keeps it."""
        problems = self.benchmark.problems
        facts = {
            "benchmark": self.benchmark.name,
            "problems": len(problems),
            "problems_digest": problems_digest(problems),
        }
        facts |= {"samples": self.samples, "thinking": self.thinking, **asdict(self.sampling)}
        return facts | {"engine": self.rollout.engine}


def run_cells(
    cells: Sequence[Cell], seeds: Sequence[int], folder: Path, exam: Exam, display: Display
) -> list[Result]:
    """Train and evaluate every cell with every seed, and the base model; return a result for each.

    What results.jsonl holds is not done again, and a run or an evaluation that was begun goes on.

    Raises:
        ConfigError: the cells cannot be compared. RunError: the folder holds another experiment, or cannot be written.
        Stopped: a signal ended a training, which is saved. Other PaintErrors: of training and evaluating.
    """
    base = _require_comparable(cells)
    tasks = [cell.with_seed(seed) for seed in seeds for cell in [base, *cells]]
    folder.mkdir(parents=True, exist_ok=True)
    with locked(folder):
        results = {(result.cell, result.seed): result for result in read_results(folder)}
        _require_same(folder, tasks, results, exam)
        missing = [task for task in tasks if task.key not in results]
        if not missing:
            display.note(
                f"{folder / 'results.jsonl'} holds all of this already, and nothing was trained or evaluated; to do so "
                f"anew, name another --folder"
            )
        elif len(missing) < len(tasks):
            display.note(
                f"{len(tasks) - len(missing)} of {len(tasks)} are in {folder / 'results.jsonl'} already"
            )
        spent: dict[str, list[float]] = {}
        for task in missing:
            rest = [other.name for other in missing[missing.index(task) :]]
            display.note(
                f"{tasks.index(task) + 1} of {len(tasks)}: {task.label}{_words_left(spent, rest)}"
            )
            began = monotonic()
            results[task.key] = _run(task, folder, exam, display)
            by_cell(list(results.values()))  # refuses what cannot be compared, before it is written
            write_results(folder, list(results.values()))
            spent.setdefault(task.name, []).append(monotonic() - began)
    return [results[task.key] for task in tasks]


class RunDisplay(Display):
    """What a run says goes to a file; how far it is, to a counter."""

    def __init__(self, file: IO[str], counter: Counter) -> None:
        super().__init__()
        self.console = Console(file=file, width=LOG_WIDTH, highlight=False, soft_wrap=True)
        self.counter = counter

    def step(self, metrics: Mapping[str, float]) -> None:
        super().step(metrics)
        self.counter.to(int(metrics["step"]))


def _run(task: Cell, folder: Path, exam: Exam, display: Display) -> Result:
    """Train the cell (the base model is left as it is), ask its last checkpoint, and sum up what it cost."""
    run = folder / task.name / f"seed-{task.seed}"
    checkpoint = None if task.name == BASE else _train(task, run, display)
    graded = _examine(task, checkpoint, folder, exam, display)
    metrics = [] if checkpoint is None else read_metrics(run)
    return Result(
        cell=task.name,
        seed=task.seed,
        config=to_table(task.config),
        exam=exam.table,
        trained_on=str(read_facts(run).get("problems", "")) if checkpoint else "",
        steps=len(metrics),
        rollout_tokens=round(sum(row["rollout_tokens"] for row in metrics)),
        seconds=sum(
            row[name]
            for row in metrics
            for name in row
            if name.startswith("seconds_") and name != "seconds_left"
        ),
        problems=graded.problems,
        right=graded.correct.sum(axis=1).tolist(),
        answer_tokens=float(graded.tokens.mean()),
    )


def _train(task: Cell, run: Path, display: Display) -> Path:
    """Train in the run's folder, or go on there, and return its last checkpoint."""
    before, steps = latest_checkpoint(run), task.config.train.steps
    done = step_of(before) if before else 0
    if before is not None and done == steps:
        return before
    run.mkdir(parents=True, exist_ok=True)
    try:
        with (
            (run / "log.txt").open("a") as log,
            display.counting(f"training {task.label}", steps, done) as counter,
        ):
            return train(
                task.config,
                run,
                resume=(run / "run.json").exists(),
                display=RunDisplay(log, counter),
            )
    except Stopped as stopped:
        message = f"stopped in {task.label}, all is saved; the same command goes on"
        raise Stopped(message, stopped.signal_number) from None


def _examine(
    cell: Cell, checkpoint: Path | None, folder: Path, exam: Exam, display: Display
) -> GradedSamples:
    """The graded samples of the checkpoint, or of the base model; those that are missing are asked for."""
    model = replace(cell.config.model, student_thinking=exam.thinking, gradient_checkpointing=False)
    protocol = Protocol(exam.samples, exam.thinking, exam.sampling, cell.seed)
    store_folder = folder / "evaluation" / f"seed-{cell.seed}" / cell.name / exam.benchmark.name
    trained = trained_in(checkpoint, model.tuning) if checkpoint else None
    problems = exam.benchmark.problems

    policy = load_asked(model, exam.rollout, seed=cell.seed)
    prompts = deployment_prompts(policy, problems, thinking=exam.thinking)
    task = Task(store_folder, problems, prompts, protocol, trained)
    with (
        asked(policy, model, exam.rollout, [task], store_folder.parent, display) as [store],
        Grader() as grader,
    ):
        return grade(store, grader, display)


def _require_comparable(cells: Sequence[Cell]) -> Cell:
    """The cell of the base model, which all others are trained from."""
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise ConfigError(
            "an experiment is one process; for many GPUs, start vLLM servers and name them: rollout.urls"
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
                    f"model.{key} of {cell.name} is {mine!r}, and that of {names[0]} {first!r}; what is compared "
                    f"starts from the same model"
                )
    model = cells[0].config.model
    # As small an adapter as there can be, which changes nothing.
    return Cell(
        BASE,
        Config(
            model=Model(path=model.path, dtype=model.dtype, lora_rank=1, lora_alpha=1),
            train=Train(),
        ),
    )


def _require_same(
    folder: Path, tasks: Sequence[Cell], results: Mapping[tuple[str, int], Result], exam: Exam
) -> None:
    """Refuse to mix results, or runs that were begun, with those of other settings."""
    for task in tasks:
        lines, result = [], results.get(task.key)
        run = folder / task.name / f"seed-{task.seed}"
        if result is not None:
            before = from_table(result.config, source=str(folder / "results.jsonl"))
            lines += [
                f"{name}: {result.exam.get(name)!r} -> {value!r}"
                for name, value in exam.table.items()
                if result.exam.get(name) != value
            ]
        elif (run / "run.json").exists():
            before = read_run(run)
        else:
            continue
        lines += [
            line
            for line in differences(before, task.config)
            if line.split(":")[0] not in MAY_CHANGE
        ]
        if lines:
            raise RunError(
                f"{folder} holds {task.label}, in another setting:\n  "
                + "\n  ".join(lines)
                + "\nRepeat that setting to go on with it, or choose another place (--folder)"
            )


def _words_left(spent: Mapping[str, Sequence[float]], rest: Sequence[str]) -> str:
    """How long the cells that are left will take: each what it took before, or what the trained ones took."""
    trained = [seconds for name in spent if name != BASE for seconds in spent[name]]
    if not trained:
        return ""
    seconds = sum(float(np.mean(spent.get(name, trained))) for name in rest)
    return f"; about {math.ceil(seconds / 60):,} min left"
