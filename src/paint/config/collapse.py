"""Collapse warnings from the metrics of a run's steps, with what helps (ours).

A warning compares the mean of the last steps, or each of them, with the first step, or judges it by
itself, by a bound of the metric's record (paint.config.metric_records).
"""

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from paint.config.metric_records import METRICS, WINDOW, CollapseWarning, Metrics

COLLAPSE_WARNINGS = {
    warning.name: (metric.name, warning) for metric in METRICS for warning in metric.warnings
}
"""Each warning with its metric, by the names that ``health.stop_on`` takes."""

PAGE = "docs/how-to/my-run-collapses.md"


@dataclass(slots=True)
class _Course:
    """What a warning judges: of the steps that have its metric, the first and the last ones."""

    row: Metrics = field(default_factory=dict)  # of the first
    first: float = 0.0
    last: deque[float] = field(default_factory=deque)
    count: int = 0

    def judge(
        self, row: Metrics, value: float, warning: CollapseWarning, window: int
    ) -> tuple[float, float] | None:
        """Take a step; return the last mean and the first value where the warning applies."""
        if not self.count:
            self.row, self.first = row, value
        self.count += 1
        self.last.append(value)
        if len(self.last) > window:
            self.last.popleft()
        if self.count <= window and not warning.from_first:
            return None
        mean = sum(self.last) / len(self.last)
        judged = self.last if warning.is_lasting else [mean]
        if not all(warning.is_outside(value, self.first) for value in judged):
            return None
        if warning.also is not None and not warning.also(self.row, row):
            return None
        return mean, self.first


class Watch:
    """The warnings of a run, step by step; steps without a metric do not count for it.

    ``window`` is the largest number of last steps whose mean is judged.
    """

    def __init__(self, window: int = WINDOW) -> None:
        self._window = window
        self._courses = {name: _Course() for name in COLLAPSE_WARNINGS}
        self.active: dict[str, tuple[float, float]] = {}
        """The warnings of the last step: of each, its metric's last mean and first value."""

    def add(self, row: Metrics) -> list[str]:
        """Take the metrics of the next step; return the warnings that appear with it."""
        appeared = []
        for name, (metric, warning) in COLLAPSE_WARNINGS.items():
            value = row.get(metric)
            if value is None:
                continue
            window = min(self._window, warning.window)
            found = self._courses[name].judge(row, value, warning, window)
            if found is None:
                self.active.pop(name, None)  # one that went away appears again when it returns
                continue
            if name not in self.active:
                appeared.append(name)
            self.active[name] = found
        return appeared


def collapse_warnings(
    rows: Iterable[Metrics], window: int = WINDOW
) -> dict[str, tuple[float, float]]:
    """Return the warnings of the last step, each with its last mean and first value."""
    watch = Watch(window)
    for row in rows:
        watch.add(row)
    return watch.active


def warning_history(
    rows: Sequence[Metrics], window: int = WINDOW, clip_mode: str = ""
) -> list[dict[str, Any]]:
    """Return each warning at the step at which it appears, for the page of a run."""
    history: list[dict[str, Any]] = []
    watch = Watch(window)
    for row in rows:
        for name in watch.add(row):
            metric, _ = COLLAPSE_WARNINGS[name]
            text = describe(name, *watch.active[name], row, clip_mode)
            history.append({"step": row["step"], "warning": name, "metric": metric, "text": text})
    return history


def describe(name: str, last: float, first: float, row: Metrics, clip_mode: str = "") -> str:
    """Describe a warning: its metric's last mean and first value, its meaning, and what helps.

    Some remedies apply by the metrics of the last step, or by the run's clip mode.
    """
    metric, warning = COLLAPSE_WARNINGS[name]
    values = f"{metric} {last:.3g}"
    if not warning.from_first:
        values += f", at first {first:.3g}"
    remedies = []
    for remedy in warning.remedies:
        is_met = not remedy.where or row.get(remedy.where, 0.0) > 0
        if is_met and (not remedy.clip_modes or clip_mode in remedy.clip_modes):
            remedies.append(remedy.text)
    return f"{values}: {warning.meaning}; {', or '.join(remedies)}"


def describe_end(rows: Iterable[Metrics]) -> str:
    """Return the last line of a run that ended with warnings; "" without any."""
    names = collapse_warnings(rows)
    if not names:
        return ""
    return f"ended with collapse warnings: {', '.join(names)}; {PAGE} says what helps"
