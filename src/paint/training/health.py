"""Health of a run (ours): collapse warnings from the metrics of its steps, with their remedies.

A warning compares the mean of the last steps with the first step, by a stated bound.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from paint.config.schema import HealthConfig
from paint.core.metric_records import METRICS
from paint.training.callbacks import Callback

Metrics = Mapping[str, float]

COLLAPSE_WARNINGS = {
    warning.name: (metric.name, warning) for metric in METRICS for warning in metric.warnings
}
"""Each warning with its metric, by the names that ``health.stop_on`` takes."""


# One step alone is noisy with few completions. Three give warnings a few steps late, and had no
# false alarm on the demo (docs/how-to/watch-a-run.md).
WINDOW = 3
"""Last steps whose mean is compared with the first step."""


def collapse_warnings(
    rows: Sequence[Metrics], window: int = WINDOW
) -> dict[str, tuple[float, float]]:
    """The warnings of the last ``window`` steps: of each, its metric's last mean and first value.

    The first step, in which the student is the base, is the band; there are no warnings before
    ``window`` further steps. Steps without the metric, such as those that learn from no completion,
    do not count.
    """
    values = _columns(rows)
    return _outside(values, window)


def _columns(rows: Sequence[Metrics]) -> dict[str, list[float]]:
    """The values of each warning's metric, of the steps that have it."""
    return {
        name: [row[metric] for row in rows if metric in row]
        for name, (metric, _) in COLLAPSE_WARNINGS.items()
    }


def _outside(values: Mapping[str, Sequence[float]], window: int) -> dict[str, tuple[float, float]]:
    """The warnings whose metric is outside of its band, as ``collapse_warnings`` returns them."""
    found = {}
    for name, column in values.items():
        if len(column) > window:
            last = sum(column[-window:]) / window
            _, warning = COLLAPSE_WARNINGS[name]
            if warning.is_outside(last, column[0]):
                found[name] = last, column[0]
    return found


def warning_history(rows: Sequence[Metrics], window: int = WINDOW) -> list[dict[str, Any]]:
    """Each warning at the step at which it appears, for the page of a run."""
    history: list[dict[str, Any]] = []
    before = set[str]()
    values: dict[str, list[float]] = {name: [] for name in COLLAPSE_WARNINGS}
    for row in rows:
        for name, column in _columns([row]).items():
            values[name] += column
        now = _outside(values, window)
        for name in now.keys() - before:
            text = describe(name, *now[name])
            metric, _ = COLLAPSE_WARNINGS[name]
            history.append({"step": row["step"], "warning": name, "metric": metric, "text": text})
        # A warning that went away is listed again when it returns.
        before = set(now)
    return history


def describe(name: str, last: float, first: float) -> str:
    """A warning in words: its metric's last mean and first value, its meaning and remedy."""
    metric, warning = COLLAPSE_WARNINGS[name]
    values = f"{metric} {last:.3g}, at first {first:.3g}"
    text = f"{values}: {warning.meaning}; lower train.learning_rate"
    if warning.remedy:
        text += f", or {warning.remedy}"
    return text


class Health(Callback):
    """Warns when a metric leaves its band, and ends the run on those of ``health.stop_on``."""

    def __init__(
        self, config: HealthConfig, rows: Sequence[Metrics], warn: Callable[[str], None]
    ) -> None:
        # Of the steps before, where a run is resumed, and of those that follow.
        self.config, self.rows, self.warn = config, list(rows), warn
        self.reported = set(collapse_warnings(self.rows))

    def on_step(
        self, step: int, metrics: Metrics, rollouts: Sequence[Mapping[str, Any]]
    ) -> bool | None:
        self.rows.append(metrics)
        now = collapse_warnings(self.rows)
        new = now.keys() - self.reported
        for name in sorted(new):
            self.warn(f"step {step}: collapse warning ({name}): {describe(name, *now[name])}")
        # Not a union: a warning that went away is printed again when it returns.
        self.reported = set(now)
        return bool(new & set(self.config.stop_on))
