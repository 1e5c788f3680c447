"""Checks of what an algorithm's step computes, before it is summed up, stored or learned from.

What would end in an error by itself is not checked: the trainer names the algorithm then.
"""

import math
from collections.abc import Iterable, Mapping, Sequence

from torch import Tensor

from paint.config.metric_records import is_of_run
from paint.config.schema import Config, ConfigError
from paint.core.errors import NonFiniteError
from paint.inference.rollouts import Rollout
from paint.training.token_log import ABOUT


def require_scores(config: Config, values: Mapping[str, Tensor], count: int) -> None:
    """Raise ConfigError unless each named value is one number for each of ``count`` tokens."""
    _require_names(config, values)
    for name, column in values.items():
        if column.shape != (count,):
            raise ConfigError(
                f"train.method {config.train.method}: the values {name} are "
                f"{tuple(column.shape)}, not {count} numbers; correct the class"
            )


def require_finite(config: Config, columns: Iterable[tuple[str, Sequence[float]]]) -> None:
    """Raise NonFiniteError for a column of values, read by the host, that is not finite."""
    for name, column in columns:
        if not math.isfinite(sum(column)):  # of finite float32 values, the sum is finite
            raise NonFiniteError(
                f"{name} of train.method {config.train.method}, objective.divergence "
                f"{config.objective.divergence}, is not finite, and nothing was updated by it; "
                f"start a new run with a lower train.learning_rate or with model.dtype float32, or "
                f"correct what is your own"
            )


def require_step(config: Config, scored: Sequence[Rollout], norm: float) -> None:
    """Raise ConfigError unless a step returned all rows in order, and a finite norm."""
    rows = [s.row for s in scored]
    if rows != list(range(config.train.batch_size)):
        raise ConfigError(
            f"train.method {config.train.method}: step returned the rows {rows}, not each of 0 to "
            f"{config.train.batch_size - 1} once; correct the class"
        )
    if not math.isfinite(norm):  # the weights that follow from it would be saved
        raise ConfigError(
            f"train.method {config.train.method}: step returned the gradient norm {norm:g}, not a "
            f"finite number; correct the class"
        )
    for s in scored:
        _require_names(config, s.metrics)


def _require_names(config: Config, names: Iterable[str]) -> None:
    # In one row of a file, such a value would replace the run's own or be replaced by it.
    taken = [name for name in names if name in ABOUT or is_of_run(name)]
    if taken:
        raise ConfigError(
            f"train.method {config.train.method}: {', '.join(sorted(taken))} is a reserved name; "
            f"give the value another"
        )
