"""Learning rates, compared by short trainings before the real one.

    FOLDER/training/        the rows that the short trainings draw from
    FOLDER/before/          rollouts of the held-out rows by the base model
    FOLDER/RATE/run/        a short training
    FOLDER/RATE/rollouts/   rollouts of the held-out rows by its student
    FOLDER/summary.json     the report

A rate is judged by KL(teacher || student) in nats a token, on rollouts that the trained student
samples of the held-out rows. On the demo this lost less than the best validation score did
(docs/dev/log.md), and it needs no grader.
"""

import json
import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import quote

import numpy as np
from jaxtyping import Float

from paint.config.collapse import collapse_warnings
from paint.config.run_folder import (
    latest_checkpoint,
    read_history,
    read_metrics,
    step_of,
)
from paint.config.schema import ConfigError, DataConfig, ValidationConfig
from paint.core import storage
from paint.core.display import Display
from paint.core.distributed import require_one_process
from paint.core.errors import NonFiniteError, format_value, wrap_errors
from paint.core.storage import FolderInUse, lock_folder, write_atomic
from paint.data.problems import Problem, batch_indices, read_problems
from paint.evaluation.frame import (
    Chart,
    Measurement,
    Report,
    Table,
    Unit,
    interval_note,
    select_rows,
    to_measurement,
    to_terminal,
    write_report,
)
from paint.evaluation.generate import with_date
from paint.evaluation.intervals import SHARE, Interval, bootstrap, mean_of_samples, with_value
from paint.evaluation.metrics import GradedSamples
from paint.evaluation.summary import SUMMARY
from paint.grading.cost import Cost
from paint.inference.adapter_sync_check import LogprobMismatchError
from paint.lab.advise import gain_of, mean, reward_bounds
from paint.lab.context_scores import kl_by_problem, load_student
from paint.lab.runner import ExperimentRun, refuse_other_settings, train_run
from paint.lab.sweep import value_text
from paint.resolve.check import Resolved
from paint.training.prompt_filter import filter_problems
from paint.training.step_time import LongWork

LADDER = (
    5e-6,  # the paper's, for Qwen3
    5e-5,  # between: a public run of Qwen3-0.6B collapsed at it, with the paper's clip
    2e-4,  # OPSD's first code, with LoRA
    5e-4,  # SmolLM2-135M by OPSD; published advice for LoRA begins here
    1e-3,  # and ends here
    2e-3,  # above SmolLM2's 1.5e-3
)
"""The rates that are tried by default, beside the recipe's own (docs/how-to/learning-rate.md)."""

NEAR = 1.5
"""A rate of the ladder within this factor of the recipe's own is left out."""

STEPS = 20
"""The most steps of a short training."""

BEFORE = "before training"
HELD_OUT = "held-out problems"

LEFT_TEACHER = {"kl", "negative_loss", "truncated"}
"""Collapse warnings of a student that left its teacher, or repeats itself up to the limit, which
teacher and student predict alike."""


@dataclass(frozen=True)
class RateTrial:
    """What a short training with a rate made of the student, on the held-out problems.

    Attributes:
        name: the rate as text; BEFORE for the base model.
        kl: nats a token, by problem; None where the training has no student.
        graded: the student's rollouts.
        warnings: the run's collapse warnings at its end.
        ended: why there is no student.
    """

    name: str
    rate: float = 0.0
    kl: Float[np.ndarray, " p"] | None = None
    graded: GradedSamples | None = None
    warnings: tuple[str, ...] = ()
    ended: str = ""

    @property
    def collapsed(self) -> bool:
        """True if the rate cannot be taken."""
        return self.kl is None or bool(LEFT_TEACHER & set(self.warnings))

    @property
    def course(self) -> str:
        """How the training went, for the table."""
        if self.ended:
            return self.ended
        left = [name for name in self.warnings if name in LEFT_TEACHER]
        return f"collapsed: {', '.join(left)}" if left else ", ".join(self.warnings)


def advise_rates(
    run: Resolved,
    folder: Path,
    recipe: str,
    *,
    rates: Sequence[float],
    problems: int,
    samples: int,
    confirm: bool,
) -> Report:
    """Train with each rate for a few steps, and print and write what became of the students.

    The arguments are those of ``paint.advise``; ``recipe`` is how `paint train` names it.
    """
    require_one_process("paint advise --rates")
    display, config = Display(), run.config
    config = replace(config, model=with_date(config.model, folder), validation=ValidationConfig())
    run = replace(run, config=config)
    data, held_out = _hold_out(run, folder, problems, display)
    steps = min(STEPS, config.train.steps) if config.train.epochs is None else STEPS
    config = replace(config, data=data).changed("health", stop_on=())
    # Half of the steps at least have the rate itself.
    warmup = min(config.train.warmup_steps, steps // 2)
    config = config.changed("train", steps=steps, epochs=None, warmup_steps=warmup)
    config = config.changed("train", checkpoint_every=steps)
    runs = {rate: _with_rate(ExperimentRun(value_text(rate), config), rate) for rate in rates}
    missing = [run for run in runs.values() if not _is_trained(run, folder)]
    if missing:
        completions = len(missing) * steps * config.train.batch_size
        answers = (len(runs) + 1) * len(held_out) * samples
        display.note(
            f"rates: {', '.join(run.name for run in missing)}; {completions:,} completions to "
            f"train on, and {answers:,} answers to {len(held_out)} held-out problems, all graded"
        )
        count = len(missing)
        display.on_estimate = LongWork(display, "with the first rate", count, confirm=confirm)
    kl, graded = kl_by_problem(run, held_out, samples, folder / "before", display)
    trials = [RateTrial(BEFORE, kl=kl, graded=graded)]
    for rate, short in runs.items():
        trials.append(try_rate(short, rate, held_out, samples, folder / short.name, display))
    cost = sum((trial.graded.cost for trial in trials if trial.graded), Cost())
    if cost != Cost():
        display.note(f"all answers: {cost.describe()}")
    report = rates_report(trials, steps, recipe)
    write_report(folder, SUMMARY, report, ConfigError)
    to_terminal(report.tables, display.console)
    text = "\n".join(f"- {line}" for line in report.lines)
    display.note(
        f"{text}\nwritten to {folder}: {SUMMARY}.json, {SUMMARY}.md; page: `paint show {folder}`"
    )
    return report


def rates_of(rates: bool | Sequence[float], own: float) -> list[float]:
    """The rates that are tried, ascending: by default the ladder's and the recipe's own.

    Raises ConfigError unless they are distinct numbers above 0.
    """
    given = [] if isinstance(rates, bool) else list(rates)
    if not given:
        return sorted([own, *(rate for rate in LADDER if not own / NEAR < rate < own * NEAR)])
    is_right = all(isinstance(r, int | float) and 0 < r < math.inf for r in given)
    if not is_right or len(set(given)) < len(given):
        raise ConfigError(f"rates must be distinct numbers above 0, got {format_value(given)}")
    return sorted(map(float, given))


def _hold_out(
    run: Resolved, folder: Path, count: int, display: Display
) -> tuple[DataConfig, list[Problem]]:
    """Write the rows to train on, and return their settings and the problems that are held out.

    At most half of each source is held out.
    """
    data, seed = run.config.data, run.config.train.seed
    policy, run, _ = load_student(run, folder / "before", display)
    candidates = read_problems(data, needs=run.needed_fields)
    problems = filter_problems(policy, run, candidates, display)
    paths: list[str] = []
    held_out: list[Problem] = []
    for source in data.sources:
        own = [problem for problem in problems if problem.source == source.name]
        wanted = math.ceil(count * len(own) / len(problems))
        # As a batch is drawn, so that the same seed holds out the same rows.
        chosen = set(batch_indices(len(own), min(wanted, len(own) // 2), 0, seed))
        held_out += [problem for i, problem in enumerate(own) if i in chosen]
        text = "".join(
            f"{json.dumps(problem.fields)}\n" for i, problem in enumerate(own) if i not in chosen
        )
        path = folder / "training" / f"{quote(source.name or 'problems', safe=' ')}.jsonl"
        with wrap_errors(folder, ConfigError, "choose another place (--output-dir)"):
            path.parent.mkdir(parents=True, exist_ok=True)
            if path.exists() and path.read_text("utf-8") != text:
                raise ValueError(f"{path.name} has other rows, or another number is held out")
            write_atomic(path, text)
        paths.append(str(path))
    if not held_out:
        raise ConfigError(f"{data.place} has too few rows to hold some out; add some")
    return replace(data, path=paths[0] if len(paths) == 1 else tuple(paths), limit=None), held_out


def _is_trained(run: ExperimentRun, folder: Path) -> bool:
    """True if a run's last checkpoint is there. Raises ConfigError for one of other settings."""
    place = folder / run.name / "run"
    refuse_other_settings(place, run.config)
    checkpoint = latest_checkpoint(place)
    return checkpoint is not None and step_of(checkpoint) == run.config.train.steps


def try_rate(
    run: ExperimentRun,
    rate: float,
    problems: Sequence[Problem],
    samples: int,
    folder: Path,
    display: Display,
) -> RateTrial:
    """Train, and measure the student on rollouts that it samples of the problems.

    A training that its rate ends early is a trial without a student.
    """
    resolved, place, rollouts = run.checked, folder / "run", folder / "rollouts"
    try:
        train_run(replace(run, config=resolved.config), place, display)
        checkpoint = latest_checkpoint(place)
        if checkpoint is None:  # health.stop_on may end a run before its first one
            return RateTrial(run.name, rate, ended="ended before a checkpoint")
        kl, graded = kl_by_problem(resolved, problems, samples, rollouts, display, checkpoint)
        if not np.isfinite(kl).all():
            raise NonFiniteError("the KL of the trained student is not finite")
    except NonFiniteError as error:
        display.warn(f"{run.label}: {error}")
        return RateTrial(run.name, rate, ended="ended: numbers that are not finite")
    except LogprobMismatchError as error:
        if not read_metrics(place):  # an untrained student: it is the engine, not the rate
            raise
        display.warn(f"{run.label}: {error}")
        return RateTrial(run.name, rate, ended="ended: engine and trainer differ")
    warnings = collapse_warnings(read_history(place, step_of(checkpoint)))
    return RateTrial(run.name, rate, kl, graded, tuple(warnings))


def nearest(trials: Sequence[RateTrial]) -> RateTrial | None:
    """The trial whose student is nearest to its teacher, the smaller rate of equals."""
    usable = [trial for trial in trials if trial.rate and not trial.collapsed]
    return min(usable, key=lambda trial: (_mean_kl(trial), trial.rate), default=None)


def rates_report(trials: Sequence[RateTrial], steps: int, recipe: str) -> Report:
    """The table of the trials, of which the first is the base model, and the rate to take."""
    before = trials[0]
    rows: list[Measurement] = []
    for trial in trials:
        rows += _trial_rows(trial, before)
    metric = "accuracy" if before.graded and before.graded.has_verdicts else "rollout_reward"
    reward = "right, %" if metric == "accuracy" else "mean reward, hundredths"
    unit: Unit = "%" if metric == "accuracy" else "hundredths"
    columns: list[tuple[str, str, str, Unit]] = [
        ("kl", "", "KL a token to the teacher", ""),
        ("kl", BEFORE, "less before", "signed"),
        (metric, "", reward, unit),
        (metric, BEFORE, "less before", "points"),
        ("truncated", "", "truncated, %", "%"),
    ]
    body = []
    for trial in trials:
        line = [trial.name]
        for name, against, _, form in columns:
            cells = select_rows(rows, policy=trial.name, metric=name, against=against)
            line.append(cells[0].text(form) if cells else "")
        body.append([*line, trial.course])
    heads = ["", *(head for _, _, head, _ in columns), "collapse warnings"]
    if not any(trial.course for trial in trials):
        heads, body = heads[:-1], [line[:-1] for line in body]
    title = f"Learning rates, {steps} steps each, on held-out problems{interval_note(rows)}"
    table = Table(title, heads, body)
    chart = Chart("KL a token to the teacher", "kl", benchmark=HELD_OUT)
    return Report(rows, [table], [chart], rate_lines(trials, recipe))


def _trial_rows(trial: RateTrial, before: RateTrial) -> list[Measurement]:
    if trial.kl is None or trial.graded is None:
        return []
    n, less = len(trial.kl), less_before(trial, before)
    rows = to_measurement(trial.name, HELD_OUT, "kl", _kl_interval(trial), n)
    if trial is not before:
        rows += to_measurement(trial.name, HELD_OUT, "kl", less, n, against=BEFORE)
    graded = trial.graded
    values = with_value(mean_of_samples(graded.scores))
    metric = "accuracy" if graded.has_verdicts else "rollout_reward"
    if len(values):
        level = mean(values, reward_bounds(graded.scores))
        rows += to_measurement(trial.name, HELD_OUT, metric, level, n)
    if trial is not before and before.graded is not None:
        gain = gain_of(graded, before.graded)
        rows += to_measurement(trial.name, HELD_OUT, metric, gain, n, against=BEFORE)
    truncated = mean(graded.truncated.mean(axis=1), SHARE)
    return rows + to_measurement(trial.name, HELD_OUT, "truncated", truncated, n)


def less_before(trial: RateTrial, before: RateTrial) -> Interval:
    """The KL of a trial less that of the base model, problem by problem."""
    assert trial.kl is not None
    assert before.kl is not None
    return mean(trial.kl - before.kl)


def _kl_interval(trial: RateTrial) -> Interval:
    # A KL has no upper bound.
    assert trial.kl is not None
    return bootstrap([trial.kl], bounds=(0, math.inf))


def _mean_kl(trial: RateTrial) -> float:
    return math.inf if trial.kl is None else float(trial.kl.mean())


def rate_lines(trials: Sequence[RateTrial], recipe: str) -> list[str]:
    """The rate to take and the command, or that there is none."""
    before, chosen = trials[0], nearest(trials)
    if chosen is None:
        return ["none: the student of every rate collapsed; try smaller ones (--rates)"]
    less = less_before(chosen, before)
    form = "+.3g"
    if not less.high < 0:
        line = (
            f"none: no rate brings the student nearer to its teacher; that of {chosen.name} comes "
            f"nearest, by {less.text(form)} nats a token"
        )
        if not math.isfinite(less.high):  # as of all values without a bound
            line += ", and so few problems have no interval: take more --problems"
        return [line]
    lines = [
        f"take {chosen.name}: its student is nearer to the teacher than before training, by "
        f"{less.text(form)} nats a token",
        f"with the settings of this call: `paint train {recipe} --train.learning-rate "
        f"{chosen.name}`",
    ]
    assert chosen.kl is not None
    alike = []
    for trial in trials[1:]:
        if trial is chosen or trial.collapsed or trial.kl is None:
            continue
        if not mean(trial.kl - chosen.kl).low > 0:
            alike.append(trial.name)
    if alike:
        lines.append(f"not told apart from it by so many problems: {', '.join(alike)}")
    gain = None
    if chosen.graded is not None and before.graded is not None:
        gain = gain_of(chosen.graded, before.graded)
    if gain is not None and gain.high < 0:
        lines.append(
            f"but its answers are rewarded less, by {gain.points(sign=True)} points: look at what "
            f"the teacher reads (`paint advise {recipe}`)"
        )
    if chosen is trials[-1]:
        lines.append("it is the largest rate that was tried: try larger ones, too (--rates)")
    return lines


@dataclass(frozen=True)
class RateSearch:
    """What learning rates are tried, and what judges them.

    Attributes:
        data: the validation problems; the teacher reads their references.
        folder: of the runs and their KL.
        factors: rates as multiples of a recipe's own, each above 0.
        steps: the most steps of a run, at least 1.
        samples: rollouts of each validation problem, at least 1.
        seed: of the runs; results have other ones.
    """

    data: DataConfig
    folder: Path
    factors: tuple[float, ...] = (1 / 3, 1, 3)
    steps: int = STEPS
    samples: int = 2
    seed: int = 100


def with_chosen_rates(
    cells: Sequence[ExperimentRun], search: RateSearch, display: Display
) -> list[ExperimentRun]:
    """The cells with the learning rates whose students come closest to their teacher.

    Controls reuse the rate of their method, which is tried even if the method is not among the
    cells. Methods without a teacher, and teachers that read feedback, keep their recipe's. Several
    processes share the work; what one of them has done is not done again.

    If the students of all rates collapsed, the smallest is taken, with a warning.
    """
    tried: dict[str, dict[float, ExperimentRun]] = {}
    for cell in cells:
        if _is_searched(cell):
            tried[_method(cell)] = _candidates(cell, search)

    kl: dict[str, float | None] = {}  # None of a student that collapsed
    for waiting in (None, display.note):  # first the rates that no other process tries
        for by_rate in tried.values():
            for rate, run in by_rate.items():
                place = search.folder / run.name
                place.mkdir(parents=True, exist_ok=True)
                with suppress(FolderInUse), lock_folder(place, waiting=waiting):
                    if not (place / "kl.json").exists():
                        trial = _try_on(run, rate, search, place, display)
                        found = None if trial.collapsed else _mean_kl(trial)
                        storage.write_json(place / "kl.json", {"kl": found})
                    kl[run.name] = storage.read_json(place / "kl.json", "delete it")["kl"]
    chosen = {}
    for method, by_rate in tried.items():
        found_kl = {rate: kl[run.name] for rate, run in by_rate.items()}
        chosen[method] = _smallest(found_kl, method, display)
    display.note("\n".join(f"{name}: KL {_kl_text(value)}" for name, value in kl.items()))
    return [
        _with_rate(cell, chosen.get(_method(cell), cell.config.train.learning_rate))
        for cell in cells
    ]


def _try_on(
    run: ExperimentRun, rate: float, search: RateSearch, folder: Path, display: Display
) -> RateTrial:
    problems = read_problems(search.data, needs=run.checked.needed_fields).problems
    return try_rate(run, rate, problems, search.samples, folder, display)


def _smallest(kl: Mapping[float, float | None], method: str, display: Display) -> float:
    usable = [(value, rate) for rate, value in kl.items() if value is not None]
    if not usable:
        display.warn(f"{method}: the students of all learning rates collapsed; try smaller ones")
        return min(kl)
    return min(usable)[1]


def _kl_text(value: float | None) -> str:
    return "of a student that collapsed" if value is None else f"{value:.4f} nats a token"


def _is_searched(cell: ExperimentRun) -> bool:
    """Whether a rate is chosen: there is a teacher, and what it reads is known beforehand."""
    return cell.checked.algorithm.needs_context and not cell.checked.feedback


def _candidates(cell: ExperimentRun, search: RateSearch) -> dict[float, ExperimentRun]:
    """Short runs of the cell's method, which shows solutions, by learning rate."""
    config = cell.config
    steps = min(search.steps, config.train.steps)
    method = replace(
        config,
        context=replace(config.context, source=("solution",)),
        train=replace(config.train, steps=steps, seed=search.seed),
        health=replace(config.health, stop_on=()),  # rates are judged after equal steps
    )
    candidates = {}
    for factor in search.factors:
        rate = config.train.learning_rate * factor
        run = ExperimentRun(f"{_method(cell)}-{rate:.1e}", method)
        candidates[rate] = _with_rate(run, rate)
    return candidates


def _method(cell: ExperimentRun) -> str:
    return cell.name.removesuffix(f"-{cell.config.context.source[0]}")


def _with_rate(cell: ExperimentRun, rate: float) -> ExperimentRun:
    return replace(cell, config=cell.config.changed("train", learning_rate=rate))
