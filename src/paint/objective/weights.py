"""Weights in the distillation loss: of completions by their verdicts, of tokens by their figures.

Weights are factors of the loss of a token. Their mean is 1, over a step by verdict and over each
completion by position, so that the loss is the weighted mean Σ w D / Σ w.

A weight of tokens is a function of the statistics of one completion (paint.objective.loss.Loss),
tensors of n values each, that returns n weights of at least 0. One of your own:

    # mine.py
    def surprise(stats):
        return -stats["student_log_prob"]

    paint train RECIPE --objective.position-weights mine:surprise

This module does not import torch, because settings are validated with it.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from paint.core.errors import ConfigError
from paint.core.plugins import load_object

if TYPE_CHECKING:
    from torch import Tensor

    from paint.objective.options import ObjectiveConfig
else:
    Tensor = ObjectiveConfig = Any

PositionWeights = Callable[[Mapping[str, Tensor]], Tensor]


def entropy_gap(stats: Mapping[str, Tensor]) -> Tensor:
    """|H_T − H_S|: the tokens of which one view is surer than the other."""
    return (stats["teacher_entropy"] - stats["student_entropy"]).abs()


POSITION_WEIGHTS: dict[str, PositionWeights | None] = {"uniform": None, "entropy_gap": entropy_gap}


def find_position_weights(name: str) -> PositionWeights | None:
    """Look up weights of tokens by name, None for equal ones; "module:name" imports a function.

    Raises:
        ConfigError: there are none of this name.
    """
    if name in POSITION_WEIGHTS:
        return POSITION_WEIGHTS[name]
    found: PositionWeights = load_object(name, "objective.position_weights", POSITION_WEIGHTS)
    if not callable(found):
        raise ConfigError(f"objective.position_weights is {name}, which is not a function")
    return found


def position_factors(
    stats: Mapping[str, Tensor],
    lengths: Sequence[int],
    options: ObjectiveConfig,
    factors: Tensor | None = None,
) -> Tensor | None:
    """Factor of each token's loss (n): its weight over the mean of its completion's weights.

    Further factors are multiplied in; without weights of tokens, they are returned as they are. The
    first skip_tokens of a completion have factor 0 and do not count in its mean. A completion whose
    weights are all 0 has factors 0.
    """
    weights = find_position_weights(options.position_weights)
    if weights is None:
        return factors
    by_position = next(iter(stats.values())).new_zeros(sum(lengths))
    columns = [values.split(list(lengths)) for values in stats.values()]
    for part, *of_completion in zip(by_position.split(list(lengths)), *columns, strict=True):
        found = weights(dict(zip(stats, of_completion, strict=True)))[options.skip_tokens :]
        if found.any():
            part[options.skip_tokens :] = found / found.mean()
    return by_position if factors is None else by_position * factors


def verdict_weights(
    is_correct: Sequence[bool], lengths: Sequence[int], options: ObjectiveConfig
) -> list[float]:
    """Weight of each completion of a step by its verdict.

        w_i = v_i Σ_j c_j / Σ_j v_j c_j,     v = correct_weight or wrong_weight,
                                             c = 1, or with reduction token the tokens that count

    All are 0 where no completion has a weight. lengths are the numbers of tokens.
    """
    counts = [1] * len(lengths)
    if options.reduction == "token":
        counts = [max(length - options.skip_tokens, 0) for length in lengths]
    values = [options.correct_weight if right else options.wrong_weight for right in is_correct]
    total = sum(value * count for value, count in zip(values, counts, strict=True))
    return [value * sum(counts) / total if total else 0.0 for value in values]
