"""Linear layers and attention of 16-bit models on a CPU, computed in float32 where that is faster.

On a CPU without 16-bit instructions, torch multiplies 16-bit weights several times slower than
float32 from a few rows on, and so is the backward pass of attention. On a CPU with them, the
backward pass of attention over a few tokens is slow as well (docs/dev/log.md). Here, operands are
converted to float32 for one product at a time, and the result is rounded once. Stored tensors,
also those saved for the backward pass, stay in 16 bits.
"""

from functools import reduce
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn.functional import linear
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from paint.core.device import multiplies

ROWS = 8
"""Number of rows from which a float32 product is no slower, including conversions."""

SHORT = 128
"""Number of tokens up to which float32 attention is as fast as 16-bit instructions."""

SLICE = 8_192
"""Rows of a weight that are converted to float32 at a time; a head has many times as many."""

ATTENTION = "wide_sdpa"
"""Name of this module's attention in transformers; its masks are those of sdpa."""


def widen(model: PreTrainedModel) -> None:
    """Make plain linear layers and sdpa compute in float32 where the CPU is faster with it.

    y = x Wᵀ + b and softmax(s q kᵀ) v are unchanged except for the order of summation and for
    rounding.
    """
    for layer in model.modules():
        if type(layer) is nn.Linear and not multiplies(layer.weight.device, layer.weight.dtype):
            layer.__class__ = WideLinear
    is_narrow = model.device.type == "cpu" and model.dtype.itemsize == 2
    if is_narrow and model.config._attn_implementation == "sdpa":
        ALL_ATTENTION_FUNCTIONS.register(ATTENTION, _attention)
        ALL_MASK_ATTENTION_FUNCTIONS.register(ATTENTION, ALL_MASK_ATTENTION_FUNCTIONS["sdpa"])
        model.set_attn_implementation(ATTENTION)


class WideLinear(nn.Linear):
    """Linear layer that computes in float32 for inputs of at least ROWS rows."""

    def forward(self, input: Float[Tensor, "*rows i"]) -> Float[Tensor, "*rows o"]:
        """Compute y = x Wᵀ + b in the dtype of x."""
        if input.numel() < ROWS * self.in_features:
            return super().forward(input)
        result: Tensor = _Product.apply(input, self.weight, self.bias)  # type: ignore[no-untyped-call]
        return result


class _Product(torch.autograd.Function):
    """x Wᵀ + b in float32, without keeping a float32 copy."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x if ctx.needs_input_grad[1] else None, weight)
        wide, output = x.float(), x.new_empty(*x.shape[:-1], len(weight))
        for part in _slices(weight):
            offset = None if bias is None else bias[part].float()
            output[..., part] = linear(wide, weight[part].float(), offset)
        return output

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        x, weight = ctx.saved_tensors
        wide = gradient.float()
        of_x = of_weight = of_bias = None
        if ctx.needs_input_grad[0]:
            products = (wide[..., part] @ weight[part].float() for part in _slices(weight))
            of_x = reduce(torch.add, products).to(gradient.dtype)
        if ctx.needs_input_grad[1]:
            of_weight = wide.flatten(0, -2).T @ x.float().flatten(0, -2)
            of_weight = of_weight.to(weight.dtype)
        if ctx.needs_input_grad[2]:
            of_bias = wide.flatten(0, -2).sum(0).to(weight.dtype)
        return of_x, of_weight, of_bias


def _slices(weight: Tensor) -> list[slice]:
    return [slice(first, first + SLICE) for first in range(0, len(weight), SLICE)]


def _attention(
    module: nn.Module,
    query: Float[Tensor, "b heads n d"],
    key: Float[Tensor, "b groups t d"],
    value: Float[Tensor, "b groups t d_value"],
    attention_mask: Bool[Tensor, "..."] | Float[Tensor, "..."] | None,
    **options: Any,
) -> tuple[Float[Tensor, "b n heads d_value"], None]:
    """Compute transformers' attention in float32, and recompute it in the backward pass.

    Where 16 bits are faster, call transformers' function. The choice depends on CPU and shape
    alone, so that student and teacher agree on equal inputs.
    """
    is_fast = key.shape[2] > SHORT and multiplies(query.device, query.dtype)
    if is_fast or query.shape[2] == 1:  # decoding one token has no backward pass
        attend = ALL_ATTENTION_FUNCTIONS["sdpa"]
        return attend(module, query, key, value, attention_mask, **options)[0], None

    def in_float32(*vectors: Tensor) -> Tensor:
        wide = (vector.float() for vector in vectors)
        mask = attention_mask
        if mask is not None and mask.is_floating_point():
            mask = mask.float()
        output: Tensor = sdpa_attention_forward(module, *wide, mask, **options)[0]
        return output.to(query.dtype)

    mixed: Tensor = checkpoint(in_float32, query, key, value, use_reentrant=False)
    return mixed, None
