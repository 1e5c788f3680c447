"""Collapse warnings from the metrics of a run's steps, with what helps (ours).

A warning compares the mean of the last steps, or each of them, with the first step, or judges it by
itself, by a bound.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from paint.config.metric_records import Metrics

# One step alone is noisy with few completions. Three give warnings a few steps late, and had no
# false alarm on the demo (docs/how-to/watch-a-run.md).
WINDOW = 3
"""Last steps whose mean is compared with the first step."""


def _clip_misleads(first: Metrics, last: Metrics) -> bool:
    """Return whether the divergence has risen while its clip takes entries, without rewards."""
    has_risen = "kl" in first and "kl" in last and last["kl"] > first["kl"]
    return has_risen and last.get("clip_frac", 0.0) > 0 and _without_reward(first, last)


def _without_reward(first: Metrics, last: Metrics) -> bool:
    """Return whether the loss has no reward, which may lead away from the teacher rightly."""
    return "advantage" not in last


LOWER_RATE = "lower train.learning_rate"
# These clips take gradient away or turn it around (docs/concepts/clip.md).
OTHER_CLIP = 'set objective.clip_mode "huber" where it is "pointwise" or "token"'
LONGER = "raise rollout.max_new_tokens"


@dataclass(frozen=True, slots=True)
class CollapseWarning:
    """A metric that leaves its band, what that may mean, and what helps, the likeliest first."""

    name: str  # as in health.stop_on
    metric: str
    is_outside: Callable[[float, float], bool]  # of its mean over the last steps, and first value
    meaning: str
    remedies: tuple[str, ...] = (LOWER_RATE,)
    window: int = WINDOW  # last steps whose mean is judged
    from_first: bool = False  # judged from the first step on; others are compared with it later
    is_lasting: bool = False  # each of the last steps is judged, not their mean
    also: Callable[[Metrics, Metrics], bool] | None = None  # besides, of first and last step

    def judge(self, rows: Sequence[Metrics]) -> tuple[float, float] | None:
        """Return the last mean and the first value of steps that have the metric, if it applies."""
        if len(rows) <= self.window and not self.from_first:
            return None
        first = rows[0][self.metric]
        last = [row[self.metric] for row in rows[-self.window :]]
        mean = sum(last) / len(last)
        judged = last if self.is_lasting else [mean]
        if not all(self.is_outside(value, first) for value in judged):
            return None
        if self.also is not None and not self.also(rows[0], rows[-1]):
            return None
        return mean, first


_ALL = (
    CollapseWarning(
        "kl",
        "kl",
        # Equal views, as in a control that reads nothing, begin at 0: the factor alone would tell
        # their noise from a rise.
        lambda last, first: last > 3.0 * first and last > first + 0.05,
        "the student moves away from the teacher",
        (OTHER_CLIP, LOWER_RATE),
        is_lasting=True,
        also=_without_reward,
    ),
    CollapseWarning(
        "equal_rewards",
        "frac_reward_zero_std",
        lambda last, first: last >= 1.0,
        "no reward differs from those of the same problem: nothing is learned from them",
        (
            "take problems of which some completions are right",
            "raise rollout.samples_per_problem or rollout.temperature",
            "take a grader that tells completions apart",
        ),
        from_first=True,
    ),
    CollapseWarning(
        "negative_loss",
        "loss",
        lambda last, first: last < 0.0,
        "the loss is below 0 while kl rises: the clip turns the student away from the teacher",
        (OTHER_CLIP, LOWER_RATE),
        window=1,
        also=_clip_misleads,
    ),
    CollapseWarning(
        "clipped",
        "clip_frac",
        lambda last, first: last > first + 0.2,
        "the clip limits the gradient of many more tokens than at first",
        (OTHER_CLIP, LOWER_RATE, "raise objective.clip"),
    ),
    CollapseWarning(
        "overlap",
        "overlap_without_answer",
        lambda last, first: last < 0.5 * first,
        "completions hold fewer of the solution's steps",
    ),
    CollapseWarning(
        "no_tool_call",
        "tool_calls",
        lambda last, first: last <= 0.0,
        "no completion called a tool: the model cannot use what it is offered, or does not need it",
        (
            "take a model that was trained on tool calls",
            "ask for calls in prompts.student",
            "leave conversation.tools out",
        ),
        from_first=True,
    ),
    CollapseWarning(
        "entropy_low",
        "student_entropy",
        lambda last, first: last < 0.25 * first,
        "the student is sure of nearly every token, and explores no more",
        (LOWER_RATE, "raise rollout.temperature"),
    ),
    CollapseWarning(
        "entropy_high",
        "student_entropy",
        lambda last, first: last > 2.0 * first,
        "the student becomes unsure: it overshoots the teacher, or the updates are too large",
    ),
    CollapseWarning(
        "drift",
        "drift",
        lambda last, first: last > first + 0.5,
        "the student leaves its base where nothing should change",
        (LOWER_RATE, "take paint-anchored"),
    ),
    CollapseWarning(
        "longer",
        "completion_tokens",
        lambda last, first: last > 2.0 * first,
        "completions grow, often without an end",
    ),
    CollapseWarning(
        "shorter",
        "completion_tokens",
        lambda last, first: last < 0.5 * first,
        "completions skip steps: the teacher may need none, since it reads them in its context",
        (LOWER_RATE, "raise context.mask_ratio_wrong and context.mask_ratio_correct"),
    ),
    CollapseWarning(
        "truncated",
        "truncated_frac",
        lambda last, first: last > first + 0.25,
        "completions no longer end before the limit",
        (LOWER_RATE, LONGER),
    ),
    CollapseWarning(
        "all_truncated",
        "truncated_frac",
        lambda last, first: last >= 0.9,
        "nearly all completions are cut off at the limit, before their answer",
        (LONGER, "ask for shorter answers in prompts.student"),
        from_first=True,
    ),
    CollapseWarning(
        "no_answer",
        "unboxed_frac",
        lambda last, first: last > first + 0.25,
        "completions no longer give an answer",
        (LOWER_RATE, LONGER),
    ),
    CollapseWarning(
        "all_unanswered",
        "unboxed_frac",
        lambda last, first: last >= 0.9,
        "nearly no completion gives an answer that the grader reads",
        (LONGER, "ask for the answer in prompts.student", "take another grading.grader"),
        from_first=True,
    ),
    CollapseWarning(
        "repetition",
        "repetitive_frac",
        lambda last, first: last > first + 0.1,
        "completions repeat themselves",
        (LOWER_RATE, "train fewer steps"),
    ),
)
COLLAPSE_WARNINGS = {warning.name: warning for warning in _ALL}
"""The warnings by the names that ``health.stop_on`` takes."""

PAGE = "docs/how-to/my-run-collapses.md"


class Watch:
    """The warnings of a run, step by step; steps without a metric do not count for it."""

    def __init__(self) -> None:
        self._rows = {name: list[Metrics]() for name in COLLAPSE_WARNINGS}
        self.active: dict[str, tuple[float, float]] = {}
        """The warnings of the last step: of each, its metric's last mean and first value."""

    def add(self, row: Metrics) -> list[str]:
        """Take the metrics of the next step; return the warnings that appear with it."""
        appeared = []
        for name, warning in COLLAPSE_WARNINGS.items():
            if warning.metric not in row:
                continue
            self._rows[name].append(row)
            found = warning.judge(self._rows[name])
            if found is None:
                self.active.pop(name, None)  # one that went away appears again when it returns
                continue
            if name not in self.active:
                appeared.append(name)
            self.active[name] = found
        return appeared


def collapse_warnings(rows: Iterable[Metrics]) -> dict[str, tuple[float, float]]:
    """Return the warnings of the last step, each with its last mean and first value."""
    watch = Watch()
    for row in rows:
        watch.add(row)
    return watch.active


def warning_history(rows: Sequence[Metrics]) -> list[dict[str, Any]]:
    """Return each warning at the step at which it appears, for the page of a run."""
    history: list[dict[str, Any]] = []
    watch = Watch()
    for row in rows:
        for name in watch.add(row):
            metric = COLLAPSE_WARNINGS[name].metric
            text = describe(name, *watch.active[name])
            history.append({"step": row["step"], "warning": name, "metric": metric, "text": text})
    return history


def describe(name: str, last: float, first: float) -> str:
    """Describe a warning: its metric's last mean and first value, its meaning, and what helps."""
    warning = COLLAPSE_WARNINGS[name]
    values = f"{warning.metric} {last:.3g}"
    if not warning.from_first:
        values += f", at first {first:.3g}"
    return f"{values}: {warning.meaning}; {', or '.join(warning.remedies)}"


def describe_end(rows: Iterable[Metrics]) -> str:
    """Return the last line of a run that ended with warnings; "" without any."""
    names = collapse_warnings(rows)
    if not names:
        return ""
    return f"ended with collapse warnings: {', '.join(names)}; {PAGE} says what helps"
