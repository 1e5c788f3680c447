"""Health of a run (ours): signs of a collapse in the metrics of its steps, with their remedies.

A sign compares the mean of the last steps with the first step, by a stated bound.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from paint.config.schema import HealthConfig
from paint.training.callbacks import Callback

Metrics = Mapping[str, float]
Outside = Callable[[float, float], bool]
"""Whether a metric's mean over the last steps is out of its band, given that of the first step."""


@dataclass(frozen=True)
class Sign:
    """A sign of a collapse: a metric that leaves its band."""

    metric: str  # docs/reference/metrics.md has the names
    is_outside: Outside  # of its mean over the last steps, and its value in the first step
    meaning: str  # what it may mean
    remedy: str = ""  # what may help in place of a lower learning rate


def _rose_by(margin: float) -> Outside:
    return lambda last, first: last > first + margin


def _shrank_to(share: float) -> Outside:
    return lambda last, first: last < share * first


def _grew_to(factor: float) -> Outside:
    return lambda last, first: last > factor * first


SIGNS = {
    "truncated": Sign(
        "truncated_frac",
        _rose_by(0.25),
        "completions no longer end before the limit",
        "raise rollout.max_new_tokens",
    ),
    "no_answer": Sign(
        "unboxed_frac",
        _rose_by(0.25),
        "completions no longer give an answer",
        "raise rollout.max_new_tokens",
    ),
    "repetition": Sign(
        "repetitive_frac", _rose_by(0.1), "completions repeat themselves", "train fewer steps"
    ),
    "longer": Sign("completion_tokens", _grew_to(2.0), "completions grow, often without an end"),
    "shorter": Sign(
        "completion_tokens",
        _shrank_to(0.5),
        "completions skip steps: the teacher may need none, since it reads them in its context",
        "raise context.mask_ratio_wrong and context.mask_ratio_correct",
    ),
    "entropy_low": Sign(
        "student_entropy",
        _shrank_to(0.25),
        "the student is sure of nearly every token, and explores no more",
        "raise rollout.temperature",
    ),
    "entropy_high": Sign(
        "student_entropy",
        _grew_to(2.0),
        "the student becomes unsure: it overshoots the teacher, or the updates are too large",
    ),
    "kl": Sign("kl", _grew_to(3.0), "the student moves away from the teacher"),
    "overlap": Sign(
        "overlap_without_answer", _shrank_to(0.5), "completions hold fewer of the solution's steps"
    ),
    "clipped": Sign(
        "clip_frac",
        _rose_by(0.2),
        "the clip takes the gradient of many tokens",
        "raise objective.clip",
    ),
    "drift": Sign(
        "drift",
        _rose_by(0.5),
        "the student leaves its base where nothing should change",
        "take paint-anchored",
    ),
}
"""The signs by the names that ``health.stop_on`` takes."""


def signs(rows: Sequence[Metrics], window: int) -> dict[str, tuple[float, float]]:
    """The signs of the last ``window`` steps: of each, its metric's last mean and first value.

    The first step, in which the student is the base, is the band; there are no signs before
    ``window`` further steps. A metric that the run does not have shows none.
    """
    if len(rows) <= window:
        return {}
    found = {}
    for name, sign in SIGNS.items():
        if all(sign.metric in row for row in rows):
            first = rows[0][sign.metric]
            last = sum(row[sign.metric] for row in rows[-window:]) / window
            if sign.is_outside(last, first):
                found[name] = last, first
    return found


def appearances(rows: Sequence[Metrics], window: int) -> list[dict[str, Any]]:
    """Each sign at the step at which it appears, for the page of a run."""
    listed, before = [], set[str]()
    for count in range(1, len(rows) + 1):
        now = signs(rows[:count], window)
        for name in now.keys() - before:
            listed.append(
                {"step": rows[count - 1]["step"], "sign": name, "text": describe(name, *now[name])}
            )
        before = set(now)
    return listed


def describe(name: str, last: float, first: float) -> str:
    """A sign in words: its metric's last mean and first value, its meaning and remedy."""
    sign = SIGNS[name]
    other = f", or {sign.remedy}" if sign.remedy else ""
    figures = f"{sign.metric} {last:.3g}, at first {first:.3g}"
    return f"{figures}: {sign.meaning}; lower train.learning_rate{other}"


class Health(Callback):
    """Prints a sign when it appears, and ends the run on those of ``health.stop_on``."""

    def __init__(
        self, config: HealthConfig, rows: Sequence[Metrics], warn: Callable[[str], None]
    ) -> None:
        # Of the steps before, where a run is resumed, and of those that follow.
        self.config, self.rows, self.warn = config, list(rows), warn
        self.shown = set(signs(self.rows, config.window))

    def on_step(
        self, step: int, metrics: Metrics, rollouts: Sequence[Mapping[str, Any]]
    ) -> bool | None:
        self.rows.append(metrics)
        now = signs(self.rows, self.config.window)
        new = now.keys() - self.shown
        for name in sorted(new):
            self.warn(f"step {step}: sign of a collapse ({name}): {describe(name, *now[name])}")
        self.shown = set(now)
        return bool(new & set(self.config.stop_on))
