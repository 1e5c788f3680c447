"""Checks of what an algorithm's step computes, before it is summed up, stored or learned from."""

import math
from collections.abc import Iterable, Sequence
from typing import Any

from torch import Tensor

from paint.config.schema import Config, ConfigError
from paint.core.errors import NonFiniteError, format_short
from paint.training.check import Resolved
from paint.training.rollouts import ScoredRollout

RESERVED = frozenset(
    (
        *("step", "row", "problem_id", "position", "token_id", "token"),
        *("completion_tokens", "rollout_tokens", "truncated_frac", "repetitive_frac"),
        *("unboxed_frac", "accuracy", "grader_failures", "grader_calls"),
        *("grader_seconds", "kept_completions"),
        *("logprob_mismatch_mean", "logprob_mismatch_p99"),
        *("off_policy_kl", "off_policy_ess", "off_policy_max"),
        *("gradient_norm", "learning_rate", "drift", "seconds_left"),
    )
)
"""Names of metrics.jsonl and of token files that values of an algorithm may not have."""


def require_scores(run: Resolved, scores: Any, count: int) -> None:
    """Check the loss and the token values of a micro-batch of ``count`` tokens.

    Raises ConfigError, which names the algorithm, for others than a scalar with a gradient and one
    floating-point number a token.
    """
    if not (isinstance(scores, tuple) and len(scores) == 2 and isinstance(scores[1], dict)):
        raise _error(run, f"score returned {format_short(scores)}, not a loss and a dict")
    loss, values = scores
    if not (isinstance(loss, Tensor) and loss.ndim == 0 and loss.requires_grad):
        raise _error(run, f"the loss is {format_short(loss)}, not a scalar with a gradient")
    if not values:
        raise _error(run, "score returned no values of tokens")
    _require_names(run, values)
    for name, column in values.items():
        is_column = isinstance(column, Tensor) and column.is_floating_point()
        if not is_column or column.shape != (count,):
            found = tuple(column.shape) if isinstance(column, Tensor) else format_short(column)
            raise _error(run, f"the values {name} are {found}, not {count} floating numbers")


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


def require_step(run: Resolved, result: Any, rows: int) -> tuple[list[ScoredRollout], float]:
    """Check what a step returned on the first rank: all rows in order, and a finite norm."""
    if not (isinstance(result, tuple) and len(result) == 2 and isinstance(result[0], list)):
        raise _error(run, f"step returned {format_short(result)}, not rollouts and a norm")
    scored, norm = result
    if not all(isinstance(s, ScoredRollout) for s in scored):
        raise _error(run, "step returned rollouts that are no ScoredRollout")
    found = [s.rollout.row for s in scored]
    if found != list(range(rows)):
        raise _error(run, f"step returned the rows {found}, not each of 0 to {rows - 1} once")
    is_number = isinstance(norm, int | float) and not isinstance(norm, bool)
    if not is_number or not math.isfinite(norm):
        raise _error(run, f"step returned the norm {format_short(norm)}, not a finite number")
    for s in scored:
        _require_names(run, [*s.tokens, *s.rollout.metrics])
        for name, column in s.tokens.items():
            if len(column) != len(s.rollout.completion.ids):
                raise _error(run, f"row {s.rollout.row} has {len(column)} values {name}")
    return scored, norm


def _require_names(run: Resolved, names: Iterable[Any]) -> None:
    for name in names:
        if not isinstance(name, str) or name in RESERVED:
            raise _error(run, f"{format_short(name)} is no name for a value, or is reserved")


def _error(run: Resolved, what: str) -> ConfigError:
    kind, method = type(run.algorithm).__name__, run.config.train.method
    return ConfigError(f"train.method {method} ({kind}): {what}; correct the class")
