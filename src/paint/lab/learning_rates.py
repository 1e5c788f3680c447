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

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import quote

import numpy as np
from jaxtyping import Float

from paint.config.collapse import collapse_warnings
from paint.config.run_folder import latest_checkpoint, read_history, read_metrics, step_of
from paint.config.schema import ConfigError, DataConfig, ValidationConfig
from paint.core.display import Display
from paint.core.distributed import require_one_process
from paint.core.errors import NonFiniteError
from paint.data.problems import Problem, read_problems
from paint.evaluation.frame import (
    Chart,
    Measurement,
    Report,
    Unit,
    interval_note,
    table_of,
    to_measurement,
)
from paint.evaluation.generate import with_date
from paint.evaluation.intervals import Interval, bootstrap
from paint.evaluation.metrics import GradedSamples
from paint.inference.adapter_sync_check import LogprobMismatchError
from paint.lab.answers import (
    hold_out,
    mean,
    mean_reward,
    publish_report,
    reward_gain,
    rows_text,
    truncated_share,
    write_input,
)
from paint.lab.context_scores import kl_by_problem, load_student, sample_student
from paint.lab.runner import ExperimentRun, refuse_other_settings, train_run
from paint.lab.sweep import value_text
from paint.resolve.check import Resolved
from paint.training.prompt_filter import filter_problems

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
    """A student after a short training with a rate, measured on the held-out problems."""

    name: str  # the rate as text; BEFORE for the base model
    rate: float = 0.0
    kl: Float[np.ndarray, " p"] | None = None  # nats a token; None: there is no student
    graded: GradedSamples | None = None  # the student's rollouts
    warnings: tuple[str, ...] = ()  # the run's collapse warnings at its end
    ended: str = ""  # why there is no student

    @property
    def collapsed(self) -> bool:
        """Whether the rate cannot be taken."""
        return self.kl is None or bool(LEFT_TEACHER & set(self.warnings))

    @property
    def mean_kl(self) -> float:
        """Nats a token; infinite without a student."""
        return math.inf if self.kl is None else float(self.kl.mean())

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
    given: bool | Sequence[float],
    problems: int,
    samples: int,
) -> Report:
    """Train with each rate for a few steps, and print and write what became of the students.

    The arguments are those of ``paint.advise``; ``recipe`` is how `paint train` names it.
    """
    require_one_process("paint advise --rates")
    rates = rates_of(given, run.config.train.learning_rate)
    display, config = Display(), run.config
    config = replace(config, model=with_date(config.model, folder), validation=ValidationConfig())
    for rate in rates:  # refused here, before anything is sampled
        config.changed("train", learning_rate=rate)
    run = replace(run, config=config)
    data, held_out = _hold_out(run, folder, problems, display)
    steps = min(STEPS, config.train.steps) if config.train.epochs is None else STEPS
    config = replace(config, data=data).changed("health", stop_on=())
    # Half of the steps at least have the rate itself.
    warmup = min(config.train.warmup_steps, steps // 2)
    short = {"steps": steps, "epochs": None, "checkpoint_every": steps, "warmup_steps": warmup}
    runs = {}
    for rate in rates:
        rated = config.changed("train", **short, learning_rate=rate)
        runs[rate] = ExperimentRun(value_text(rate), rated)
    missing = []
    for one in runs.values():
        place = folder / one.name / "run"
        refuse_other_settings(place, one.config)
        if not one.is_trained(place):
            missing.append(one)
    if missing:
        completions = len(missing) * steps * config.train.batch_size
        answers = (len(runs) + 1) * len(held_out) * samples
        display.note(
            f"rates: {', '.join(run.name for run in missing)}; {completions:,} completions to "
            f"train on, and {answers:,} answers to {len(held_out)} held-out problems, all graded"
        )
        display.trainings = len(missing)
    student = sample_student(run, held_out, samples, folder / "before", display)
    trials = [RateTrial(BEFORE, kl=kl_by_problem(student, display), graded=student.graded)]
    for rate, one in runs.items():
        trials.append(try_rate(one, rate, held_out, samples, folder / one.name, display))
    report = rates_report(trials, steps, recipe)
    publish_report(report, folder, display)
    return report


def rates_of(rates: bool | Sequence[float], recipe_rate: float) -> list[float]:
    """Return the rates to try, ascending: by default the ladder's and the recipe's own."""
    if rates is True or not rates:
        low, high = recipe_rate / NEAR, recipe_rate * NEAR
        return sorted([recipe_rate, *(rate for rate in LADDER if not low < rate < high)])
    return sorted({float(rate) for rate in rates})


def _hold_out(
    run: Resolved, folder: Path, count: int, display: Display
) -> tuple[DataConfig, list[Problem]]:
    """Write the rows to train on, and return their settings and the problems that are held out."""
    data, seed = run.config.data, run.config.train.seed
    policy, run = load_student(run, folder / "before", display)
    candidates = read_problems(data, needs=run.needed_fields)
    problems = filter_problems(policy, run, candidates, display)
    paths: list[str] = []
    held_out: list[Problem] = []
    for source in data.sources:
        of_source = [problem for problem in problems if problem.source == source.name]
        share = math.ceil(count * len(of_source) / len(problems))
        chosen, kept = hold_out(of_source, share, seed)
        held_out += chosen
        path = folder / "training" / f"{quote(source.name or 'problems', safe=' ')}.jsonl"
        write_input(path, rows_text(kept))
        paths.append(str(path))
    if not held_out:
        raise ConfigError(f"{data.place} has too few rows to hold some out; add some")
    return replace(data, path=paths[0] if len(paths) == 1 else tuple(paths), limit=None), held_out


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
        student = sample_student(resolved, problems, samples, rollouts, display, checkpoint)
        kl = kl_by_problem(student, display)
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
    return RateTrial(run.name, rate, kl, student.graded, tuple(warnings))


def nearest(trials: Sequence[RateTrial]) -> RateTrial | None:
    """Return the trial whose student is nearest to its teacher, the smaller rate of equals."""
    usable = [trial for trial in trials if trial.rate and not trial.collapsed]
    return min(usable, key=lambda trial: (trial.mean_kl, trial.rate), default=None)


def rates_report(trials: Sequence[RateTrial], steps: int, recipe: str) -> Report:
    """Return the table of the trials, the base model first, and the rate to take."""
    before = trials[0]
    rows: list[Measurement] = []
    for trial in trials:
        rows += _trial_rows(trial, before)
    columns: dict[str, tuple[str, Unit]] = {
        "kl": ("KL a token to the teacher", ""),
        f"kl less {BEFORE}": ("less before", "signed"),
        "accuracy": ("right, %", "%"),
        f"accuracy less {BEFORE}": ("less before", "points"),
        "rollout_reward": ("mean reward, hundredths", "hundredths"),
        f"rollout_reward less {BEFORE}": ("less before", "points"),
        "truncated": ("truncated, %", "%"),
    }
    title = f"Learning rates, {steps} steps each, on held-out problems{interval_note(rows)}"
    table = table_of(rows, title, columns)
    if any(trial.course for trial in trials):
        cells = {line[0]: line[1:] for line in table.rows}
        without = [""] * (len(table.columns) - 1)
        body = [[one.name, *cells.get(one.name, without), one.course] for one in trials]
        table = replace(table, columns=[*table.columns, "collapse warnings"], rows=body)
    chart = Chart("KL a token to the teacher", "kl", benchmark=HELD_OUT)
    return Report(rows, [table], [chart], rate_lines(trials, recipe))


def _trial_rows(trial: RateTrial, before: RateTrial) -> list[Measurement]:
    graded = trial.graded
    if trial.kl is None or before.kl is None or graded is None:
        return []
    name, n = trial.name, len(trial.kl)
    metric = "accuracy" if graded.has_verdicts else "rollout_reward"
    # A KL has no upper bound.
    kl = bootstrap([trial.kl], bounds=(0, math.inf))
    rows = to_measurement(name, HELD_OUT, "kl", kl, n)
    rows += to_measurement(name, HELD_OUT, metric, mean_reward(graded.scores), n)
    if trial is not before:
        less = mean(trial.kl - before.kl)  # problem by problem
        rows += to_measurement(name, HELD_OUT, "kl", less, n, against=BEFORE)
        rows += to_measurement(name, HELD_OUT, metric, _gain(trial, before), n, against=BEFORE)
    return rows + to_measurement(name, HELD_OUT, "truncated", truncated_share(graded), n)


def _gain(trial: RateTrial, before: RateTrial) -> Interval | None:
    if trial.graded is None or before.graded is None:
        return None
    return reward_gain(trial.graded, before.graded)


def rate_lines(trials: Sequence[RateTrial], recipe: str) -> list[str]:
    """Return the rate to take and the command, or that there is none."""
    before, chosen = trials[0], nearest(trials)
    if chosen is None:
        return ["none: the student of every rate collapsed; try smaller ones (--rates)"]
    assert chosen.kl is not None
    assert before.kl is not None
    less = mean(chosen.kl - before.kl)
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
    alike = []
    for trial in trials[1:]:
        if trial is chosen or trial.collapsed or trial.kl is None:
            continue
        if not mean(trial.kl - chosen.kl).low > 0:
            alike.append(trial.name)
    if alike:
        lines.append(f"not told apart from it by so many problems: {', '.join(alike)}")
    gain = _gain(chosen, before)
    if gain is not None and gain.high < 0:
        lines.append(
            f"but its answers are rewarded less, by {gain.points(sign=True)} points: look at what "
            f"the teacher reads (`paint advise {recipe}`)"
        )
    if chosen is trials[-1]:
        lines.append("it is the largest rate that was tried: try larger ones, too (--rates)")
    return lines
