"""Linear layers and attention of 16 bits on a CPU, in float32 where that is faster.

Where a CPU has no instructions for 16 bits, torch multiplies such weights several times as slowly
as float32 from a few rows on, and goes as slowly back through attention. With them, too, it goes
slowly back through attention of a few tokens (docs/dev/log.md). Here they are made float32 for one
product at a time, whose result is rounded once. What is kept, for the backward pass too, stays as
small as it is.
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
"""From so many rows on a product of float32 is no slower, all conversions included."""

SHORT = 128
"""Up to about so many tokens float32 attends as fast as 16 bits that have instructions."""

SLICE = 8_192
"""Rows of a weight that are float32 at a time: a head has many times as many."""

ATTENTION = "wide_sdpa"
"""What transformers calls the attention of this module; its masks are those of sdpa."""


def widen(model: PreTrainedModel) -> None:
    """Let plain linear layers, and sdpa, compute in float32 where the CPU is faster at it.

    y = x Wᵀ + b and softmax(s q kᵀ) v, as before; only the order in which products are added up,
    and where they are rounded, differ.
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
    """torch's layer; from ROWS rows on, its product is float32's."""

    def forward(self, input: Float[Tensor, "*rows i"]) -> Float[Tensor, "*rows o"]:
        """y = x Wᵀ + b, in the format of x."""
        if input.numel() < ROWS * self.in_features:
            return super().forward(input)
        result: Tensor = _Product.apply(input, self.weight, self.bias)  # type: ignore[no-untyped-call]
        return result


class _Product(torch.autograd.Function):
    """x Wᵀ + b in float32, of which no float32 copy is kept."""

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
    """What transformers' function returns, in float32; again for the backward pass, if any.

    Where 16 bits are faster it is that function. The CPU and the shape decide, so that student
    and teacher agree where both read the same.
    """
    is_fast = key.shape[2] > SHORT and multiplies(query.device, query.dtype)
    if is_fast or query.shape[2] == 1:  # one new token: nothing goes back through it
        attend = ALL_ATTENTION_FUNCTIONS["sdpa"]
        return attend(module, query, key, value, attention_mask, **options)[0], None

    def in_float32(*vectors: Tensor) -> Tensor:
        wide = (vector.float() for vector in vectors)
        mask = attention_mask
        if mask is not None and mask.is_floating_point():
            mask = mask.float()
        made: Tensor = sdpa_attention_forward(module, *wide, mask, **options)[0]
        return made.to(query.dtype)

    mixed: Tensor = checkpoint(in_float32, query, key, value, use_reentrant=False)
    return mixed, None
