"""An experiment: several settings, several seeds, and one file of results for its tables and plots.

    runs/lab/
      results.jsonl                       a line for every policy that is trained and evaluated
      results.md, results.svg, .png       the tables and the plot, made of these lines alone
      lab-paint/seed-0/                   a run like any other (paint.runs), and its log.txt
      evaluation/seed-0/lab-paint/lab/    its samples (paint.evaluation.store); other ways to count
                                          them: `paint grade runs/lab/evaluation/seed-0`

Every cell is trained with every seed from the same base. The last checkpoints of all cells are
asked the same problems with the same seed, so cells are compared seed by seed and problem by
problem. The work goes seed by seed, so that an interrupted experiment has whole seeds. Killed at
any moment, the same command goes on where it was.

Left out on purpose: choosing a checkpoint by its result; figures of a part of the cells or seeds;
work on several cells at once (for many GPUs, vLLM servers generate: docs/engines.md).
"""

import io
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from time import monotonic

import numpy as np

from paint.config import Config, ConfigError, Model
from paint.data.golds import name_unparsed
from paint.display import LOG_WIDTH, Counter, Display, Terminal
from paint.errors import Stopped, explained
from paint.evaluation.asking import Protocol, Task, asked, deployment_prompts, load_asked, untrained
from paint.evaluation.metrics import GradedSamples
from paint.evaluation.stages import grade
from paint.experiments.exams import Exam
from paint.experiments.results import BASE, Result, by_cell, read_results, write_results
from paint.files import locked
from paint.grading.grader import Grader
from paint.model.weights import trained_in
from paint.recipe import differences, from_table, require_trainable, to_table
from paint.runs import RunError, latest_checkpoint, read_facts, read_history, read_run, step_of
from paint.training.run import train

MAY_CHANGE = {"rollout.urls"}
"""Keys of a config that may differ between two calls that work on one experiment."""

FREE_SPACE = "free some space, or choose another place (--folder); the same command goes on"


@dataclass(frozen=True)
class Cell:
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
    def key(self) -> tuple[str, int]:
        """The identity of its line in results.jsonl."""
        return self.name, self.seed

    @property
    def label(self) -> str:
        return f"{self.name}, seed {self.seed}"

    def with_seed(self, seed: int) -> "Cell":
        return Cell(self.name, replace(self.config, train=replace(self.config.train, seed=seed)))


def run_cells(
    cells: Sequence[Cell], seeds: Sequence[int], folder: Path, exam: Exam, display: Display
) -> list[Result]:
    """Train and evaluate every cell with every seed, and the base model; return a result for each.

    What results.jsonl holds is not done again, and an unfinished run or evaluation goes on.

    Raises:
        ConfigError: the cells cannot be compared.
        RunError: the folder holds another experiment, or cannot be written.
        FolderInUse: another process works in the folder.
        Stopped: a signal ended a training, which is saved.
        PaintError: what else ends a training or an evaluation.
    """
    base = _require_comparable(cells)
    name_unparsed(exam.benchmark.name, exam.benchmark.problems, display.note)
    seeded = [cell.with_seed(seed) for seed in seeds for cell in [base, *cells]]
    with explained(folder, RunError, "choose another place (--folder)"):
        folder.mkdir(parents=True, exist_ok=True)

    with locked(folder):
        results = {(result.cell, result.seed): result for result in read_results(folder)}
        _require_same(folder, seeded, results, exam)

        path = folder / "results.jsonl"
        missing = [cell for cell in seeded if cell.key not in results]
        if not missing:
            display.note(
                f"{path} holds all of this already, and nothing was trained or evaluated; "
                f"to do so anew, name another --folder"
            )
        elif len(missing) < len(seeded):
            display.note(f"{len(seeded) - len(missing)} of {len(seeded)} are in {path} already")

        spent: dict[str, list[float]] = {}
        for index, cell in enumerate(missing):
            time_left = _time_left(spent, [other.name for other in missing[index:]])
            number = seeded.index(cell) + 1
            display.note(f"{number} of {len(seeded)}: {cell.label}{time_left}")

            began = monotonic()
            results[cell.key] = _run(cell, folder, exam, display)
            by_cell(list(results.values()))  # Refuses what cannot be compared before it is written.
            write_results(folder, list(results.values()))
            spent.setdefault(cell.name, []).append(monotonic() - began)
    return [results[cell.key] for cell in seeded]


class LogFile(io.TextIOBase):
    """A text file that grows; a disk that does not take it is said as such."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with explained(path, RunError, FREE_SPACE):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()

    def write(self, text: str) -> int:
        with explained(self.path, RunError, FREE_SPACE), self.path.open("ab") as file:
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


def _run(cell: Cell, folder: Path, exam: Exam, display: Display) -> Result:
    """Train the cell unless it is the base, evaluate its last checkpoint, and sum up the cost."""
    run = folder / cell.name / f"seed-{cell.seed}"
    checkpoint = None if cell.name == BASE else _train(cell, run, display)
    graded = _evaluate(cell, checkpoint, folder, exam, display)

    metrics = [] if checkpoint is None else read_history(run, cell.config.train.steps)
    return Result(
        cell=cell.name,
        seed=cell.seed,
        config=to_table(cell.config),
        exam=exam.table,
        trained_on=str(read_facts(run)["problems"]) if checkpoint else "",
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


def _train(cell: Cell, run: Path, display: Display) -> Path:
    """Train in the run's folder, or go on there, and return the last checkpoint."""
    checkpoint, steps = latest_checkpoint(run), cell.config.train.steps
    done = step_of(checkpoint) if checkpoint else 0
    if checkpoint is not None and done == steps:
        return checkpoint

    log = LogFile(run / "log.txt")
    try:
        with display.counting(f"training {cell.label}", steps, done) as counter:
            return train(
                cell.config,
                run,
                resume=(run / "run.json").exists(),
                display=RunDisplay(log, counter),
            )
    except Stopped as stopped:
        message = f"stopped in {cell.label}, all is saved; the same command goes on"
        raise Stopped(message, stopped.signal_number) from None


def _evaluate(
    cell: Cell, checkpoint: Path | None, folder: Path, exam: Exam, display: Display
) -> GradedSamples:
    """The graded samples of the checkpoint, or of the base model; missing ones are generated."""
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
    return Cell(BASE, Config(model=untrained(Model(path=model.path, dtype=model.dtype))))


def _require_same(
    folder: Path, seeded: Sequence[Cell], results: Mapping[tuple[str, int], Result], exam: Exam
) -> None:
    """Refuse to mix results or unfinished runs with those of other settings."""
    for cell in seeded:
        result, run = results.get(cell.key), folder / cell.name / f"seed-{cell.seed}"
        source = run / "run.json" if result is None else folder / "results.jsonl"
        lines: list[str] = []
        if result is not None:
            before = from_table(result.config, source=str(source))
            lines += [
                f"{name}: {result.exam.get(name)!r} -> {value!r}"
                for name, value in exam.table.items()
                if result.exam.get(name) != value
            ]
        elif source.exists():
            before = read_run(run)
        else:
            continue

        changes = differences(before, cell.config)
        lines += [line for line in changes if line.split(":")[0] not in MAY_CHANGE]
        if lines:
            raise RunError(
                f"{folder} holds {cell.label}, in another setting:\n  "
                + "\n  ".join(lines)
                + f"\nRepeat that setting (it is in {source}) to go on with it, or choose another "
                f"place (--folder)"
            )


def _time_left(spent: Mapping[str, Sequence[float]], names: Sequence[str]) -> str:
    """How long the cells of these names will take, in words; nothing before the first training.

    A cell takes what it took with other seeds, or else what trained cells took on average.
    """
    trained = [seconds for name in spent if name != BASE for seconds in spent[name]]
    if not trained:
        return ""
    seconds = sum(float(np.mean(spent.get(name, trained))) for name in names)
    return f"; about {math.ceil(seconds / 60):,} min left"
