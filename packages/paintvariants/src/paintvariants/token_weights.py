"""Weights of tokens, which several variants share."""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from paint.config.schema import ObjectiveConfig
from paint.core.errors import ConfigError


def mean_one_by_completion(
    weights: Float[Tensor, " n"], lengths: Sequence[int], options: ObjectiveConfig
) -> Float[Tensor, " n"]:
    """Return each token's factor (n): its weight over the mean of its completion's weights.

    The first skip_tokens of a completion have factor 0 and do not count in its mean. A completion
    whose weights are all 0 has factors 0. Raises ConfigError for weights that are no weights.
    """
    if not bool((weights >= 0).all()) or not bool(weights.sum().isfinite()):
        raise ConfigError(
            "the weights of tokens are negative, not finite or too large to sum; correct the "
            "weights of train.method"
        )
    by_token = torch.zeros_like(weights)
    for out, found in zip(by_token.split(lengths), weights.split(lengths), strict=True):
        counted = found[options.skip_tokens :]
        mean = counted.mean()  # NaN of no token; 0 also where weights are too small for a mean
        if mean > 0:
            out[options.skip_tokens :] = counted / mean  # out is a view of by_token
    return by_token
