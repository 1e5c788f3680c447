"""Linear layers of 16-bit models on a CPU, computed in float32 where that is faster.

On a CPU without 16-bit instructions, torch multiplies 16-bit weights several times slower than
float32 from a few rows on (docs/dev/log.md). Here, operands are converted to float32 for one
product at a time, and the result is rounded once. Stored tensors, also those saved for the backward
pass, stay in 16 bits.
"""

from functools import reduce
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import linear
from transformers import PreTrainedModel

from paint.core.device import multiplies

ROWS = 8
"""Number of rows from which a float32 product is no slower, including conversions."""

SLICE = 8_192
"""Rows of a weight that are converted to float32 at a time; a head has many times as many."""


def widen(model: PreTrainedModel) -> None:
    """Make plain linear layers compute y = x Wᵀ + b in float32 where the CPU is faster with it."""
    for layer in model.modules():
        if type(layer) is nn.Linear and not multiplies(layer.weight.device, layer.weight.dtype):
            layer.__class__ = WideLinear


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
