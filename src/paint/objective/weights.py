"""Weights of the distillation loss beside the paper's mean: by the verdict on a completion.

A weight is a factor of the loss of a completion's tokens. Weights have mean 1 over a step, so that
the loss is the weighted mean Σ w D / Σ w, and its scale stays that of the plain mean.
"""

from collections.abc import Sequence

from paint.objective.options import ObjectiveConfig


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
