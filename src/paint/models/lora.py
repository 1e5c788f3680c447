"""Memory-efficient LoRA linear layer with a float32 adapter on 16-bit weights.

On a CPU it computes the same bits as peft's layer and saves less for the backward pass: peft saves
a float32 copy of the input in each layer that reads it. Here the input is saved in its own dtype
and converted to float32 again in the backward pass.

On CUDA with bfloat16 weights, the adapter's products take operands in bfloat16, as vLLM serves it,
and accumulate in float32. The adapter and its gradients stay in float32. Float32 products would
take longer than the layer itself, and the layer's output, rounded to bfloat16, is no more exact.
"""

from typing import Any

import torch
from jaxtyping import Float
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
        function = BFloat16Lora if x.is_cuda and x.dtype == torch.bfloat16 else Float32Lora
        scale = self.scaling[adapters[0]]
        result: Tensor = function.apply(self.base_layer(x), x, a, b, scale)  # type: ignore[no-untyped-call]
        return result


class Float32Lora(torch.autograd.Function):
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


class BFloat16Lora(torch.autograd.Function):
    """y + s B A x, added to y in place, by products in the dtype of y."""

    @staticmethod
    def forward(ctx: Any, y: Tensor, x: Tensor, a: Tensor, b: Tensor, scale: float) -> Tensor:
        low = linear(x, a.to(x.dtype)).flatten(0, -2)
        ctx.save_for_backward(x, low, a, b)
        ctx.scale = scale
        ctx.mark_dirty(y)
        y.view(-1, y.shape[-1]).addmm_(low, b.to(y.dtype).T, alpha=scale)
        return y

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, None]:
        x, low, a, b = ctx.saved_tensors
        of_y = gradient.flatten(0, -2)
        # The scale in the product, before it is rounded; with beta 0 ``low`` is not read.
        of_low = torch.addmm(low, of_y, b.to(of_y.dtype), beta=0, alpha=ctx.scale)
        of_b = _float32_product(of_y.T, low).mul_(ctx.scale)
        of_a = _float32_product(of_low.T, x.flatten(0, -2))
        of_x = (of_low @ a.to(x.dtype)).view(x.shape)
        return gradient, of_x, of_a, of_b, None


def _float32_product(a: Float[Tensor, "n k"], b: Float[Tensor, "k m"]) -> Float[Tensor, "n m"]:
    """a @ b in float32, of operands in 16 bits."""
    if a.is_cuda:
        return torch.mm(a, b, out_dtype=torch.float32)
    return a.float() @ b.float()
