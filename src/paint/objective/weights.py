"""Weights in the distillation loss: of completions by their verdicts, of tokens by what they are.

Weights are factors of the loss of a token. Their mean is 1, over a step by verdict and over each
completion by position, so that the loss is the weighted mean Σ w D / Σ w.

A weight of tokens is a function of one completion that returns n weights of at least 0. It gets
the statistics (paint.objective.loss.Loss), tensors of n values each, and "pieces", the bytes of
each token. One of your own:

    # mine.py
    def surprise(stats):
        return -stats["student_log_prob"]

    paint train RECIPE --objective.position-weights mine:surprise

This module does not import torch, because settings are validated with it.
"""

from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from paint.core.errors import ConfigError, format_short, wrap_errors
from paint.core.plugins import load_object
from paint.objective.options import Objective
from paint.objective.solution import KINDS, kinds_of_tokens

if TYPE_CHECKING:
    from torch import Tensor
else:
    Tensor = Any

PositionWeights = Callable[[Mapping[str, Any]], Tensor]


def entropy_gap(stats: Mapping[str, Any]) -> Tensor:
    """|H_T − H_S|: the tokens of which one view is surer than the other."""
    gap: Tensor = (stats["teacher_entropy"] - stats["student_entropy"]).abs()
    return gap


def answer(stats: Mapping[str, Any]) -> Tensor:
    """1 at the tokens of the last box, and 0 elsewhere. Raises ConfigError without pieces."""
    if "pieces" not in stats:
        raise ConfigError("position_weights answer needs pieces, the bytes of each token")
    is_answer = [KINDS[kind] == "answer" for kind in kinds_of_tokens(stats["pieces"])]
    weights: Tensor = stats["kl"].new_tensor(is_answer)
    return weights


POSITION_WEIGHTS: dict[str, PositionWeights | None] = {
    "uniform": None,
    "entropy_gap": entropy_gap,
    "answer": answer,
}


def find_position_weights(name: str) -> PositionWeights | None:
    """Look up weights of tokens by name or "module:name"; None: equal ones. Raises ConfigError."""
    if name in POSITION_WEIGHTS:
        return POSITION_WEIGHTS[name]
    found: PositionWeights = load_object(name, "objective.position_weights", POSITION_WEIGHTS)
    if not callable(found):
        raise ConfigError(f"objective.position_weights is {name}, which is not a function")
    return found


def position_factors(
    stats: Mapping[str, Tensor],
    lengths: Sequence[int],
    options: Objective,
    factors: Tensor | None = None,
    pieces: Sequence[bytes] | None = None,
) -> Tensor | None:
    """Factor of each token's loss (n): its weight over the mean of its completion's weights.

    Further factors are multiplied in; without weights of tokens, they are returned as they are. The
    first skip_tokens of a completion have factor 0 and do not count in its mean. A completion whose
    weights are all 0 has factors 0.
    """
    weights = find_position_weights(options.position_weights)
    if weights is None:
        return factors
    columns: dict[str, Any] = dict(stats) | ({} if pieces is None else {"pieces": pieces})
    by_position = next(iter(stats.values())).new_zeros(sum(lengths))
    for end, length in zip(accumulate(lengths), lengths, strict=True):
        span = slice(end - length, end)
        with wrap_errors(
            f"objective.position_weights {options.position_weights}",
            ConfigError,
            "correct the function",
        ):
            found = weights({name: values[span] for name, values in columns.items()})
        found = _valid_weights(found, by_position[span], options)[options.skip_tokens :]
        if found.any():
            by_position[span][options.skip_tokens :] = found / found.mean()
    return by_position if factors is None else by_position * factors


def _valid_weights(found: Any, like: Tensor, options: Objective) -> Tensor:
    """Weights as numbers of the loss. Raises ConfigError for others than n finite ones >= 0."""
    shape, problem = tuple(like.shape), ""
    if not isinstance(found, type(like)):
        problem = f"returned {format_short(found)}, not a tensor"
    elif found.shape != shape:
        problem = f"returned a tensor of the shape {tuple(found.shape)}, not {shape}"
    else:
        found = found.to(like)
        if not bool((found >= 0).all()) or not bool(found.sum().isfinite()):
            problem = "returned weights that are negative, not finite or too large to sum"
    if problem:
        raise ConfigError(
            f"objective.position_weights {options.position_weights} {problem}; it must return "
            f"one finite weight of at least 0 for each token of a completion"
        )
    weights: Tensor = found
    return weights


def verdict_weights(
    is_correct: Sequence[bool], lengths: Sequence[int], options: Objective
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
