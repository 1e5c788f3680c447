"""An experiment: several settings, several seeds, one file of results that its tables and plots are made of.

    runs/lab/
      results.jsonl                       a line for every policy that is trained and evaluated
      results.md, results.svg, .png       the tables and the plot, made of these lines alone
      lab-paint/seed-0/                   a run like any other (paint.runlog); log.txt is what it said
      evaluation/seed-0/lab-paint/lab/    its answers (paint.store); `paint grade runs/lab/evaluation/seed-0` counts
                                          them in other ways

Every cell is trained from the same base with every seed, and its last checkpoint answers the same problems with the
same seed as all others': cells are compared seed by seed and problem by problem. The work goes seed by seed, so that an
interrupted experiment has whole seeds. Killed at any moment, the same call goes on where it was.

Left out on purpose: choosing a checkpoint by its result; figures of a part of the cells or seeds; work on several cells
at once (for many GPUs, rollouts and answers come from vLLM servers: docs/engines.md).
"""

import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import timedelta
from itertools import groupby
from pathlib import Path
from time import monotonic
from typing import IO, Any

import numpy as np
from accelerate import PartialState
from jaxtyping import Float
from rich.console import Console

from paint import Stopped
from paint.benchmarks import Benchmark
from paint.config import Config, ConfigError, Data, Model, Rollout, Train
from paint.data import digest
from paint.display import LOG_WIDTH, Counter, Display
from paint.evaluate import Protocol, generate, grade, open_evaluation, require_room
from paint.figures import SHARE, Answers, Interval, compare_seeds, over_seeds
from paint.grading import Grader
from paint.plot import Panel, draw
from paint.policy import load_policy, load_trained, trained_in
from paint.recipe import differences, from_table, require_trainable, to_table
from paint.rollout import Sampling
from paint.runlog import RunError, latest_checkpoint, read_metrics, read_run, trained_on
from paint.store import locked, write
from paint.summary import Sheet, markdown, print_sheets
from paint.train import open_engine, train

BASE = "base"
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
        options = self.rollout
        return Sampling(options.temperature, options.top_p, options.top_k, options.max_new_tokens)

    @property
    def table(self) -> dict[str, Any]:
        """What two results must have in common, as JSON keeps it."""
        problems = self.benchmark.problems
        facts = {"benchmark": self.benchmark.name, "problems": len(problems), "problems_digest": digest(problems)}
        facts |= {"samples": self.samples, "thinking": self.thinking, **asdict(self.sampling)}
        return facts | {"engine": self.rollout.engine}


@dataclass(frozen=True)
class Result:
    """One line of results.jsonl: a cell, trained with one seed and evaluated.

    Attributes:
        config, exam: the settings, as nested plain values.
        trained_on: what tells the training problems from others; empty for the base model.
        steps: optimizer steps; rollout_tokens: tokens that were sampled for them; seconds: wall time of them, without
            what a kill undid, start-up and evaluation. All 0 for the base model.
        problems: what tells each problem from others; right: its number of right answers, of the exam's samples.
        answer_tokens: mean length of an answer, in tokens.
    """

    cell: str
    seed: int
    config: dict[str, Any]
    exam: dict[str, Any]
    trained_on: str
    steps: int
    rollout_tokens: int
    seconds: float
    problems: list[str]
    right: list[int]
    answer_tokens: float


@dataclass(frozen=True)
class Report:
    """What is made of results.

    Attributes:
        name: of the files, without ending; title: of the tables and the plot.
        labels: by cell, what a row is called, in the order of the rows; the base model comes before them.
        pairs: by the cell in whose row it stands: a cell, and the one that it is compared with.
        pairing: what these differences are, as the plot's axis says it.
    """

    name: str
    title: str
    labels: Mapping[str, str]
    pairs: Mapping[str, tuple[str, str]]
    pairing: str


def run_cells(cells: Sequence[Cell], seeds: Sequence[int], folder: Path, exam: Exam, display: Display) -> list[Result]:
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
            display.note(f"{len(tasks) - len(missing)} of {len(tasks)} are in {folder / 'results.jsonl'} already")
        spent: dict[str, list[float]] = {}
        for task in missing:
            rest = [other.name for other in missing[missing.index(task) :]]
            display.note(f"{tasks.index(task) + 1} of {len(tasks)}: {task.label}{_words_left(spent, rest)}")
            began = monotonic()
            results[task.key] = _run(task, folder, exam, display)
            by_cell(list(results.values()))  # refuses what cannot be compared, before it is written
            lines = [json.dumps(asdict(result), ensure_ascii=False) + "\n" for result in results.values()]
            write(folder / "results.jsonl", "".join(lines))
            spent.setdefault(task.name, []).append(monotonic() - began)
    return [results[task.key] for task in tasks]


def read_results(folder: Path) -> list[Result]:
    """The complete lines of results.jsonl; a last one that was cut short is left out, and made again.

    Raises:
        RunError: a line is damaged.
    """
    path = folder / "results.jsonl"
    lines = path.read_bytes().splitlines(keepends=True) if path.exists() else []
    results = []
    for number, line in enumerate(lines, start=1):
        if line.endswith(b"\n"):
            try:
                results.append(Result(**json.loads(line)))
            except (ValueError, TypeError) as error:
                raise RunError(
                    f"{path} line {number} is damaged ({error}); delete it, and the same command makes it again from "
                    f"the run and its answers, which are stored"
                ) from None
    return results


def report(found: Report, results: Sequence[Result], folder: Path, display: Display) -> None:
    """Print the tables; write them to NAME.md, and draw them to NAME.svg and NAME.png.

    Raises:
        RunError: results of different problems, or files that cannot be written.
    """
    made = sheets(found, results)
    print_sheets(display.console, made)
    write(folder / f"{found.name}.md", markdown(made))
    try:
        draw(folder / found.name, *picture(found, results))
    except OSError as error:
        raise RunError(f"{folder / found.name}.svg and .png could not be written: {error.strerror}") from error
    display.note(f"in {folder}: {found.name}.md, {found.name}.svg, {found.name}.png, made of results.jsonl")


def sheets(found: Report, results: Sequence[Result]) -> list[Sheet]:
    """Score, gain and cost of every cell; the paired differences; each seed by itself, if there are several."""
    rows, labels = by_cell(results), {BASE: BASE} | dict(found.labels)
    scores = {name: shares(rows[name]) for name in labels}
    score, seeds = f"Avg@{results[0].exam['samples']}", [result.seed for result in rows[BASE]]
    columns = ["", score, "gain over base", "rollout tokens", "training time", "tokens an answer"]
    main = [
        [label, over_seeds(scores[name], bounds=SHARE).points(), *_gain(name, scores), *_cost(name, rows[name])]
        for name, label in labels.items()
    ]
    made = [Sheet(f"{found.title}: {score} on {_asked(results)}, in % with 95 % interval", columns, main)]
    if any(other != BASE for _, other in found.pairs.values()):
        pairs = [
            [f"{labels[cell]} less {labels[other]}", compare_seeds(scores[other], scores[cell]).points(sign=True)]
            for cell, other in found.pairs.values()
        ]
        title = f"Differences of {score} on the same seeds and problems, in points with 95 % interval"
        made.append(Sheet(title, ["", "difference"], pairs))
    if len(seeds) > 1:
        each = [[label, *(f"{100 * x:.1f}" for x in scores[name].mean(axis=1))] for name, label in labels.items()]
        made.append(Sheet(f"{score} of each seed, in %", ["", *(f"seed {seed}" for seed in seeds)], each))
    return made


def picture(found: Report, results: Sequence[Result]) -> tuple[str, list[str], list[Panel]]:
    """Title, labels and panels of the plot: the score of every cell, and its paired difference."""
    rows, labels = by_cell(results), {BASE: BASE} | dict(found.labels)
    scores = {name: shares(rows[name]) for name in labels}
    score, several = f"Avg@{results[0].exam['samples']}", len(rows[BASE]) > 1
    levels: list[Interval | None] = [over_seeds(scores[name], bounds=SHARE) for name in labels]
    differences: list[Interval | None] = [None] * len(labels)
    means: list[Sequence[float]] = [scores[name].mean(axis=1).tolist() if several else () for name in labels]
    gaps: list[Sequence[float]] = [()] * len(labels)
    for place, name in enumerate(labels):
        if name in found.pairs:
            cell, other = found.pairs[name]
            differences[place] = compare_seeds(scores[other], scores[cell])
            gaps[place] = (scores[cell] - scores[other]).mean(axis=1).tolist() if several else ()
    panels = [
        Panel(f"{score}, %", levels, means, zero=False),
        Panel(f"{score}: {found.pairing}, points", differences, gaps, zero=True),
    ]
    marks = "; ticks: single seeds" if several else ""
    return f"{found.title}\n{_asked(results)}; bars: 95 % intervals{marks}", list(labels.values()), panels


def by_cell(results: Sequence[Result]) -> dict[str, list[Result]]:
    """The results of each cell, by seed.

    Raises:
        RunError: they were trained on, or asked, different problems, and cannot be compared.
    """
    trained = [result for result in results if result.trained_on]
    for result in trained:
        if result.trained_on != trained[0].trained_on:
            raise RunError(
                f"{result.cell}, seed {result.seed} was trained on other problems than {trained[0].cell}, seed "
                f"{trained[0].seed} (the file behind data.path has changed); choose another place (--folder)"
            )
    for result in results:
        if result.problems != results[0].problems:
            raise RunError(
                f"{result.cell}, seed {result.seed} was asked other problems than {results[0].cell}, seed "
                f"{results[0].seed} (the file of problems has changed); choose another place (--folder)"
            )
    ordered = sorted(results, key=lambda result: (result.cell, result.seed))
    return {name: list(group) for name, group in groupby(ordered, key=lambda result: result.cell)}


def shares(results: Sequence[Result]) -> Float[np.ndarray, "s p"]:
    """Share of right answers by seed and problem."""
    samples: int = results[0].exam["samples"]
    return np.array([result.right for result in results]) / samples


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
    answers = _examine(task, checkpoint, folder, exam, display)
    metrics = [] if checkpoint is None else read_metrics(run)
    return Result(
        cell=task.name,
        seed=task.seed,
        config=to_table(task.config),
        exam=exam.table,
        trained_on=trained_on(run) if checkpoint else "",
        steps=len(metrics),
        rollout_tokens=round(sum(row["rollout_tokens"] for row in metrics)),
        seconds=sum(
            row[name] for row in metrics for name in row if name.startswith("seconds_") and name != "seconds_left"
        ),
        problems=answers.problems,
        right=answers.correct.sum(axis=1).tolist(),
        answer_tokens=float(answers.tokens.mean()),
    )


def _train(task: Cell, run: Path, display: Display) -> Path:
    """Train in the run's folder, or go on there, and return its last checkpoint."""
    before, steps = latest_checkpoint(run), task.config.train.steps
    done = int(before.name.removeprefix("step-")) if before else 0
    if before is not None and done == steps:
        return before
    run.mkdir(parents=True, exist_ok=True)
    try:
        with (run / "log.txt").open("a") as log, display.counting(f"training {task.label}", steps, done) as counter:
            return train(task.config, run, resume=(run / "run.json").exists(), display=RunDisplay(log, counter))
    except Stopped as stopped:
        message = f"stopped in {task.label}, all is saved; the same command goes on"
        raise Stopped(message, stopped.signal_number) from None


def _examine(task: Cell, checkpoint: Path | None, folder: Path, exam: Exam, display: Display) -> Answers:
    """The graded answers of the checkpoint, or of the base model: all that are missing are asked for."""
    model = replace(task.config.model, student_thinking=exam.thinking, gradient_checkpointing=False)
    # With servers, this process only writes adapters and checks log-probs: the GPU is theirs.
    device = "cpu" if exam.rollout.engine == "vllm" else PartialState().device
    policy = load_policy(model, seed=task.seed, device=device)
    problems = exam.benchmark.problems
    protocol = Protocol(exam.samples, exam.thinking, exam.sampling, task.seed)
    longest = require_room(policy, problems, protocol)
    place = folder / "evaluation" / f"seed-{task.seed}" / task.name / exam.benchmark.name
    trained = trained_in(checkpoint, model.tuning) if checkpoint else None
    opened = open_evaluation(policy, place, model.path, trained, problems, protocol, exam.rollout.engine)
    with opened as store, Grader() as grader:
        if store.missing:
            if trained is not None:
                load_trained(policy, trained)
            config = Config(model=model, rollout=exam.rollout, data=Data(max_prompt_tokens=longest))
            with open_engine(policy, config, place.parent, display, problems) as engine:
                engine.adopt()
                generate(policy, engine, store, protocol, display, f"answers of {task.label}")
        return grade(store, grader, display)


def _require_comparable(cells: Sequence[Cell]) -> Cell:
    """The cell of the base model, which all others are trained from."""
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise ConfigError("an experiment is one process; for many GPUs, start vLLM servers and name them: rollout.urls")
    names = [cell.name for cell in cells]
    for cell in cells:
        require_trainable(cell.config)
        if names.count(cell.name) > 1 or cell.name in (BASE, "evaluation"):
            raise ConfigError(f"{cell.name} is the name of one thing in an experiment; rename the recipe")
        for key in ("path", "dtype"):
            mine, first = getattr(cell.config.model, key), getattr(cells[0].config.model, key)
            if mine != first:
                raise ConfigError(
                    f"model.{key} of {cell.name} is {mine!r}, and that of {names[0]} {first!r}; what is compared "
                    f"starts from the same model"
                )
    model = cells[0].config.model
    # As small an adapter as there can be, which changes nothing.
    return Cell(BASE, Config(model=Model(path=model.path, dtype=model.dtype, lora_rank=1, lora_alpha=1), train=Train()))


def _require_same(folder: Path, tasks: Sequence[Cell], results: Mapping[tuple[str, int], Result], exam: Exam) -> None:
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
        lines += [line for line in differences(before, task.config) if line.split(":")[0] not in MAY_CHANGE]
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


def _gain(name: str, scores: Mapping[str, Float[np.ndarray, "s p"]]) -> list[str]:
    return ["" if name == BASE else compare_seeds(scores[BASE], scores[name]).points(sign=True)]


def _cost(name: str, results: Sequence[Result]) -> list[str]:
    """Means of a run."""
    length = f"{np.mean([result.answer_tokens for result in results]):,.0f}"
    if name == BASE:
        return ["", "", length]
    tokens = np.mean([result.rollout_tokens for result in results])
    seconds = np.mean([result.seconds for result in results])
    return [f"{tokens:,.0f}", str(timedelta(seconds=round(float(seconds)))), length]


def _asked(results: Sequence[Result]) -> str:
    exam, seeds = results[0].exam, sorted({result.seed for result in results})
    trained = f"seed {seeds[0]}" if len(seeds) == 1 else f"seeds {seeds[0]} to {seeds[-1]}"
    return f"{exam['problems']} problems of {exam['benchmark']}, {trained}"
