"""Linear layers of 16 bits on a CPU that has instructions for wider numbers only.

From a few rows on, torch multiplies such weights several times as slowly there as float32
(docs/log.md). Here they are made float32 for one product at a time, whose result is rounded once.
What is kept, for the backward pass too, stays as small as it is.
"""

from functools import reduce
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import linear

from paint.device import multiplies

ROWS = 8
"""From so many rows on a product of float32 is no slower, all conversions included."""

SLICE = 8_192
"""Rows of a weight that are float32 at a time: a head has many times as many."""


def widen(model: nn.Module) -> None:
    """Let the plain linear layers of a model multiply in float32 where the CPU is faster at it.

    y = x Wᵀ + b, as before; only the order in which products are added up differs.
    """
    for layer in model.modules():
        if type(layer) is nn.Linear and not multiplies(layer.weight.device, layer.weight.dtype):
            layer.__class__ = WideLinear


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
