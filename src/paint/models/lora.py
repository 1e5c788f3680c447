"""Memory-efficient LoRA linear layer with a float32 adapter on 16-bit weights.

It computes the same bits as peft's layer and saves less for the backward pass: peft saves a float32
copy of the input in each layer that reads it. Here the input is saved in its own dtype and
converted to float32 again in the backward pass.
"""

from typing import Any

import torch
from peft.tuners.lora import Linear
from torch import Tensor
from torch.nn.functional import linear


class MemoryEfficientLoraLinear(Linear):  # type: ignore[misc]
    """peft's layer with a smaller backward state; falls back to peft if nothing would be cast."""

    def forward(self, x: Tensor, *args: Any, **options: Any) -> Tensor:
        adapters = self.active_adapters
        is_plain = len(adapters) == 1 and not (self.disable_adapters or self.merged or options)
        if not is_plain or x.dtype == self.lora_A[adapters[0]].weight.dtype:
            output: Tensor = super().forward(x, *args, **options)
            return output

        a, b = self.lora_A[adapters[0]].weight, self.lora_B[adapters[0]].weight
        scale = self.scaling[adapters[0]]
        result: Tensor = _LoraFunction.apply(self.base_layer(x), x, a, b, scale)  # type: ignore[no-untyped-call]
        return result


class _LoraFunction(torch.autograd.Function):
    """y + s B A x, with A and B in float32 and the sum in the dtype of y."""

    @staticmethod
    def forward(ctx: Any, y: Tensor, x: Tensor, a: Tensor, b: Tensor, scale: float) -> Tensor:
        low = linear(x.to(a.dtype), a)
        ctx.save_for_backward(x, low, a, b)
        ctx.scale = scale
        return linear(low, b).mul_(scale).add_(y).to(y.dtype)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, None]:
        x, low, a, b = ctx.saved_tensors
        scaled = (gradient.to(b.dtype) * ctx.scale).flatten(0, -2)
        of_low = scaled @ b
        of_b = scaled.T @ low.flatten(0, -2)
        of_a = of_low.T @ x.to(a.dtype).flatten(0, -2)
        of_x = (of_low @ a).view(x.shape).to(x.dtype)
        return gradient, of_x, of_a, of_b, None
