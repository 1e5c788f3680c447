"""A prompt baked into an adapter: trained as a run, measured before and after.

The base model with the prompt is the teacher, and the model without it the student. Two things are
measured on answers to questions that are not trained on:

    follows  share of the answers that the grader accepts; of a grader with other rewards than 0 and
             1 their mean, and its difference to the plain base's on the same questions
    KL       KL(view ‖ prompted base) a token, on answers of the view, exact over the vocabulary, at
             temperature 1
"""

import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from paint.config.metric_records import Metrics
from paint.config.run_folder import latest_checkpoint, read_history, step_of
from paint.config.schema import Config, ConfigError
from paint.core.display import Display
from paint.core.distributed import require_one_process
from paint.data.contexts import Contexts
from paint.data.problems import Problem, read_problems
from paint.evaluation import frame
from paint.evaluation.frame import Chart, Measurement, Report, Unit
from paint.evaluation.generate import with_date
from paint.evaluation.intervals import Interval, bootstrap, mean_of_samples, with_value
from paint.evaluation.metrics import GradedSamples, avg_at_k
from paint.lab.answers import (
    hold_out,
    mean_reward,
    publish_report,
    reward_gain,
    rows_text,
    write_input,
)
from paint.lab.context_scores import divergence_sums, sample_student, teacher_answers
from paint.lab.runner import ExperimentRun, refuse_other_settings, require_steps, train_run
from paint.objective.divergences import REVERSE_KL
from paint.resolve.check import Resolved
from paint.training.callbacks import Callback

PROMPTED, PLAIN, BAKED = "prompted base", "plain base", "baked"  # the views that are compared
HELD_OUT = "held_out"

# KL of an answer in nats. By Pinsker's inequality no test tells a plain from a prompted answer with
# a probability above 1/2 + sqrt(KL / 8): here 0.535.
LEAST_KL = 0.01

COLUMNS: dict[str, tuple[str, Unit]] = {
    "follows": ("follows, %", "%"),
    "reward": ("mean reward, hundredths", "hundredths"),
    f"reward less {PLAIN}": (f"less that of the {PLAIN}", "points"),
    "kl": ("KL a token to the prompted base", ""),
    "completion_tokens": ("tokens an answer", ""),
}
CHARTS = [
    Chart("KL to the prompted base", "kl", "", "nats a token"),
    Chart("Follows", "follows", "%", "answers that the grader accepts"),
    Chart("Mean reward", "reward", "hundredths", "of the answers, in hundredths"),
]


def bake(
    run: Resolved,
    folder: Path,
    held_out: int,
    samples: int,
    temperature: float | None = None,
    patience: int | None = None,
    *,
    force: bool = False,
) -> Report:
    """Train the plain model to answer as the prompted one; print and write the report.

    The run has the rules as context.file; the other arguments are those of ``paint.bake``.
    """
    require_one_process("paint bake")
    config = run.config
    require_steps("bake", config)
    if config.model.train_mode != "lora" or config.context.source != ("file",):
        raise ConfigError('`paint bake` needs model.train_mode "lora" and context.source "file"')
    rules, display = config.context.file, Display()
    config, problems = _prepare(run, folder, held_out)
    run, place = replace(run, config=config), folder / "run"
    if temperature is not None:  # of the measured answers; the training has its own config
        run = run.changed("rollout", temperature=temperature)
    refuse_other_settings(place, config)
    answers, kls, kl = _measure_base(run, problems, samples, folder, display)
    if not force and kl < LEAST_KL:
        raise ConfigError(
            f"{rules} changes nothing that is measured: the KL of an answer to the prompted one's "
            f"is {kl:.2g} nats; take another text, or train all the same with --force"
        )

    flat = FlatKl(patience, place)
    if not flat.has_ended:
        train_run(ExperimentRun("bake", config), place, display, [flat])
    if flat.has_ended:
        display.note(f"ended after {len(flat.kls)} steps: the KL no longer fell (--patience)")
    trained = latest_checkpoint(place)
    baked = sample_student(run, problems, samples, folder / "baked", display, trained)
    answers[BAKED] = baked.graded
    sums, tokens = divergence_sums(baked, REVERSE_KL, display)
    kls[BAKED] = _mean(sums.sum(axis=1) / tokens.sum(axis=1))
    report = bake_report(answers, kls, config.rollout.max_new_tokens, run.rollout.temperature)
    publish_report(report, folder, display)
    display.note(f"`paint export {place} FOLDER` writes the adapter")
    return report


def _measure_base(
    run: Resolved, problems: list[Problem], samples: int, folder: Path, display: Display
) -> tuple[dict[str, GradedSamples], dict[str, Interval], float]:
    """Return both base views' answers, and the plain one's KL in nats a token and an answer."""
    # The model is freed when this returns: the training loads its own.
    plain = sample_student(run, problems, samples, folder / "plain", display)
    contexts = {PROMPTED: Contexts(run.config.context, problems)}
    prompted = teacher_answers(plain, contexts, folder / "prompted", display)
    kls, tokens = divergence_sums(plain, REVERSE_KL, display)
    by_view = {PLAIN: _mean(kls.sum(axis=1) / tokens.sum(axis=1))}
    # The KL of whole answers, not of tokens: LEAST_KL is about telling answers apart.
    return {**prompted, PLAIN: plain.graded}, by_view, float(kls.mean())


class FlatKl(Callback):
    """Ends the training when the KL of the last steps is not below that of as many before them."""

    def __init__(self, patience: int | None, run: Path) -> None:
        """Begin with the steps up to the run's last checkpoint, after which it goes on."""
        self.patience = patience
        latest = latest_checkpoint(run)
        history = read_history(run, step_of(latest)) if latest else []
        self.kls = [row["kl"] for row in history]

    @property
    def has_ended(self) -> bool:
        steps = self.patience
        if steps is None or len(self.kls) < 2 * steps:
            return False
        return fmean(self.kls[-steps:]) >= fmean(self.kls[-2 * steps : -steps])

    def on_step(self, step: int, metrics: Metrics, rollouts: Any) -> bool | None:
        self.kls.append(metrics["kl"])
        return self.has_ended


def bake_report(
    answers: Mapping[str, GradedSamples],
    kls: Mapping[str, Interval],
    longest: int,
    temperature: float,
) -> Report:
    """Return the report of answers by view.

    ``kls`` are nats a token to the prompted base, and ``longest`` the most tokens of an answer.
    """
    has_verdicts = all(view.has_verdicts for view in answers.values())
    rows: list[Measurement] = []
    for name, view in answers.items():
        rows += frame.to_measurement(name, HELD_OUT, "kl", kls.get(name), len(view.correct))
        if view.graded.any():
            rows += _score_rows(name, view, answers[PLAIN], has_verdicts=has_verdicts)
        lengths = view.tokens.mean(axis=1)
        length = bootstrap([lengths], bounds=(0, longest))
        rows += frame.to_measurement(name, HELD_OUT, "completion_tokens", length, len(lengths))
    columns = dict(COLUMNS)
    for metric in dict.fromkeys(row.metric for row in rows):
        if metric.startswith("rewards/"):  # the reward by one of several graders
            columns[metric] = (metric.removeprefix("rewards/"), "hundredths")
    table = frame.table_of(
        rows,
        f"held-out questions, answers at temperature {temperature:g}, with 95 % intervals",
        columns,
    )
    return Report(rows, [table], CHARTS)


def _score_rows(
    name: str, view: GradedSamples, plain: GradedSamples, *, has_verdicts: bool
) -> list[Measurement]:
    """Return the share of a view's answers that the grader accepts, or their mean reward."""
    if has_verdicts:
        return frame.to_measurement(
            name, HELD_OUT, "follows", avg_at_k(view.verdicts), len(view.correct)
        )
    rows: list[Measurement] = []
    tables = {"reward": view.scores}
    tables |= {f"rewards/{part}": rewards for part, rewards in view.parts.items()}
    for metric, rewards in tables.items():
        n = len(with_value(mean_of_samples(rewards)))
        rows += frame.to_measurement(name, HELD_OUT, metric, mean_reward(rewards), n)
    if view is not plain:
        less = reward_gain(view, plain)
        rows += frame.to_measurement(name, HELD_OUT, "reward", less, against=PLAIN)
    return rows


def _mean(kl: np.ndarray) -> Interval:
    # A KL has no upper bound.
    return bootstrap([kl], bounds=(0, math.inf))


def _prepare(run: Resolved, folder: Path, count: int) -> tuple[Config, list[Problem]]:
    """Copy rules and training questions to the folder; the rest of the questions is held out."""
    config = run.config
    questions = read_problems(config.data, needs=run.needed_fields).problems
    held_out, kept = hold_out(questions, count, config.train.seed)
    if not held_out:
        raise ConfigError(f"{config.data.place} has one question; some are held out, so add some")
    rules_file, questions_file = folder / "rules.md", folder / "questions.jsonl"
    write_input(rules_file, Contexts(config.context, questions).shared)
    write_input(questions_file, rows_text(kept))
    # The limit has chosen the questions already.
    config = config.changed("data", path=str(questions_file), weights=(), limit=None)
    config = config.changed("context", file=str(rules_file))
    return replace(config, model=with_date(config.model, folder)), held_out
