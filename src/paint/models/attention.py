"""Grouped-query attention for decoding one token, without copies of the keys.

If several query heads share keys, transformers copies the keys to each head whenever there is a
mask, and torch's kernel reads every copy. With one new token, the heads of a group can take the
place of the token dimension: the sums are the same, and no key is copied or read twice.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

TAKES_MASKS = ("sdpa", "eager")
"""Implementations that take a mask for each row; flash attention does not."""


@contextmanager
def masked_decode(config: Any) -> Iterator[None]:
    """Within the block, attention takes a mask for each row, and groups heads for one new token.

    Models with ``eager`` attention keep it; all others use ``sdpa``.
    """
    before = ALL_ATTENTION_FUNCTIONS["sdpa"]
    implementation = config._attn_implementation
    # In the table of transformers, in which layers look up their function at each call.
    ALL_ATTENTION_FUNCTIONS["sdpa"] = _attention
    if implementation not in TAKES_MASKS:
        config._attn_implementation = "sdpa"
    try:
        yield
    finally:
        ALL_ATTENTION_FUNCTIONS["sdpa"] = before
        config._attn_implementation = implementation


def _attention(
    module: torch.nn.Module,
    query: Float[Tensor, "b heads n d"],
    key: Float[Tensor, "b groups t d"],
    value: Float[Tensor, "b groups t d_value"],
    attention_mask: Bool[Tensor, "..."] | Float[Tensor, "..."] | None,
    **options: Any,
) -> tuple[Float[Tensor, "b n heads d_value"], None]:
    """Compute the result of transformers' function, up to the rounding of its kernel."""
    batch, heads, tokens, size = query.shape
    groups = key.shape[1]
    is_shared = tokens == 1 and groups < heads and options.get("position_bias") is None
    # Heads of a group become tokens of one head, so they must have one mask.
    is_same_for_all = attention_mask is None or attention_mask.shape[1] == 1
    if not (is_shared and is_same_for_all):
        mixed, _ = sdpa_attention_forward(module, query, key, value, attention_mask, **options)
        return mixed, None

    mixed = scaled_dot_product_attention(
        query.reshape(batch, groups, heads // groups, size),
        key,
        value,
        attn_mask=attention_mask,
        scale=options.get("scaling"),
    )
    return mixed.reshape(batch, 1, heads, -1), None
