"""What a model's layers keep of a text, and a beginning of prompts that is read once for all rows.

The prompts of a teacher with a guide, a schema or rubrics in the system turn begin alike. Keys and
values of that beginning are computed once, and each row attends to them: a pass costs what the rows
have of their own. The states are those of whole rows, up to rounding.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from inspect import signature
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from transformers import Cache, DynamicCache, PreTrainedModel
from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer

from chatforms.conventions import common_length
from paint.core.device import to_device

LEAST = 64
"""Tokens of a beginning below which one more pass is not worth it (assumed)."""

BLOCK = 16
"""Tokens of which a beginning has a multiple: rows of a step that have the next few in common by
chance would give each step a beginning of its own, and none were kept from step to step."""


def shared_length(prompts: Sequence[Sequence[int]]) -> int:
    """Return the tokens with which all prompts begin, if they are worth reading once; else 0.

    They are at least LEAST and half of the prompts' tokens, and no prompt is among them as a whole.
    """
    if len(prompts) < 2:
        return 0
    shortest = min(map(len, prompts))
    ordered = sorted(map(tuple, prompts))  # all others lie between the first and the last
    common = common_length(ordered[0], ordered[-1])
    length = min(common, shortest - 1) // BLOCK * BLOCK  # a last token predicts the row's first
    is_worth = length >= LEAST and 2 * length * len(prompts) >= sum(map(len, prompts))
    return length if is_worth else 0


@dataclass(frozen=True)
class Beginning:
    """Keys and values of the tokens with which rows begin."""

    length: int
    cache: Cache

    def inputs(self, decoder: PreTrainedModel, width: int) -> dict[str, Any]:
        """Return a decoder's arguments for rows with so many tokens after the beginning."""
        positions = torch.arange(self.length, self.length + width, device=decoder.device)
        return {cache_name(decoder): self.cache, "position_ids": positions[None], "use_cache": True}


def read_beginning(decoder: PreTrainedModel, ids: Sequence[int]) -> Beginning | None:
    """Read the tokens with which rows begin; None where layers keep something else than all keys.

    It must run within ``torch.no_grad()``, with the weights that read the rows.
    """
    windows = attention_windows(decoder)
    if windows is None or any(windows.values()):
        return None
    cache = DynamicCache(config=decoder.config)
    decoder(
        input_ids=to_device([list(ids)], decoder.device),
        use_cache=True,
        **{cache_name(decoder): cache},
    )
    layers = [_SharedLayer(layer.keys, layer.values) for layer in cache.layers]
    return Beginning(len(ids), Cache(layers=layers))


class _SharedLayer(DynamicLayer):  # type: ignore[misc]
    """Keys and values of a beginning in one layer, which those of each row follow."""

    def __init__(self, keys: Float[Tensor, "1 heads t d"], values: Float[Tensor, "1 heads t d_v"]):
        super().__init__()
        self.keys, self.values = keys, values
        self.is_initialized = True

    def update(
        self,
        key_states: Float[Tensor, "b heads n d"],
        value_states: Float[Tensor, "b heads n d_v"],
        *_: Any,
        **__: Any,
    ) -> tuple[Tensor, ...]:
        """Return the keys and values of whole rows; those of the rows are not kept."""
        rows = len(key_states)
        return tuple(
            torch.cat([shared.expand(rows, -1, -1, -1), own], dim=2)
            for shared, own in ((self.keys, key_states), (self.values, value_states))
        )


def cache_name(decoder: PreTrainedModel) -> str:
    """Return the name by which a decoder takes its cache."""
    # Since transformers 5.24 it is called cache, and the old name warns.
    return "cache" if "cache" in signature(decoder.forward).parameters else "past_key_values"


def attention_windows(decoder: Any) -> dict[str, int | None] | None:
    """Return the window of each kind of layer; None if layers keep something else than all keys."""
    layers = DynamicCache(config=decoder.config).layers
    kinds = getattr(decoder.config, "layer_types", None) or ["all"] * len(layers)
    keeps_keys = set(map(type, layers)) <= {DynamicLayer, DynamicSlidingWindowLayer}
    takes_positions = "position_ids" in signature(decoder.forward).parameters
    if not (keeps_keys and takes_positions and len(layers) == len(kinds)):
        return None
    # Its cache is that of a window, but a chunk begins at a fixed position.
    if "chunked_attention" in kinds:
        return None
    windows = (getattr(layer, "sliding_window", None) for layer in layers)
    return dict(zip(kinds, windows, strict=True))
