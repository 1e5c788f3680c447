"""Health of a run (ours): says its collapse warnings, and ends it on some of them."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from paint.config.collapse import Watch, describe
from paint.config.metric_records import Metrics
from paint.config.schema import Config
from paint.training.callbacks import Callback


class Health(Callback):
    """Warns when a metric leaves its band, and ends the run on those of ``health.stop_on``."""

    def __init__(
        self, config: Config, rows: Sequence[Metrics], warn: Callable[[str], None]
    ) -> None:
        self.stop_on, self.warn = config.health.stop_on, warn
        self.watch = Watch()
        self.ended_on: list[str] = []  # warnings of health.stop_on, of the step that ends the run
        # Of the steps before, where a run is resumed: their warnings were said.
        for row in rows:
            self.watch.add(row)

    def on_step(
        self, step: int, metrics: Metrics, rollouts: Sequence[Mapping[str, Any]]
    ) -> bool | None:
        appeared = self.watch.add(metrics)
        for name in appeared:
            text = describe(name, *self.watch.active[name])
            self.warn(f"step {step}: collapse warning ({name}): {text}")
        self.ended_on = [name for name in appeared if name in self.stop_on]
        return bool(self.ended_on)
