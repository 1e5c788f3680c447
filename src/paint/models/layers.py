"""Layers that compute their values in less memory or time: adapters, norms, checkpoints.

Adapters are float32 next to smaller weights. On a CPU they compute the same bits as peft's layer
and save less for the backward pass: peft saves a float32 copy of the input in each layer that reads
it. Here the input is saved in its own dtype and converted to float32 again in the backward pass.
On CUDA with bfloat16 weights, the adapter's products take operands in bfloat16, as vLLM serves it,
and accumulate in float32. The adapter and its gradients stay in float32. Float32 products would
take longer than the layer itself, and the layer's output, rounded to bfloat16, is no more exact.
There, layers that read one input, such as q, k and v, share products (paint.models.joint_layers).

RMS norms take one kernel on CUDA in place of transformers' eight, and round once in place of twice:
a product with the weight by itself would be a second kernel, which PyTorch does not vectorise.

A checkpointed layer stores its input alone and computes its values again in the backward pass.
transformers does so in training mode only, which would also turn on a family's dropout, layerdrop
and router jitter. Here the layers checkpoint in evaluation mode, in which all of these are off.
"""

import inspect
from collections.abc import Sequence
from copy import deepcopy
from functools import cache
from types import MethodType
from typing import Any

import torch
from jaxtyping import Float
from peft.tuners.lora import Linear
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.functional import linear, rms_norm
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer


class MemoryEfficientLoraLinear(Linear):  # type: ignore[misc]
    """peft's layer with a smaller backward state; falls back to peft if nothing would be cast."""

    group: "tuple[MemoryEfficientLoraLinear, ...]" = ()
    """Layers that read this layer's input, in the order of their calls; () for this one alone."""
    _pending: tuple[Tensor, tuple[Tensor, ...]] | None = None  # of a group's first layer

    def forward(self, x: Tensor, *args: Any, **options: Any) -> Tensor:
        adapters = self.active_adapters
        is_plain = len(adapters) == 1 and not (self.disable_adapters or self.merged or options)
        if not is_plain or x.dtype == self.lora_A[adapters[0]].weight.dtype:
            output: Tensor = super().forward(x, *args, **options)
            return output

        if _multiplies_bfloat16(x):
            return self._output_of_group(x, adapters[0])
        a, b = self.lora_A[adapters[0]].weight, self.lora_B[adapters[0]].weight
        scale = self.scaling[adapters[0]]
        result: Tensor = Float32Lora.apply(self.base_layer(x), x, a, b, scale)  # type: ignore[no-untyped-call]
        return result

    def _output_of_group(self, x: Tensor, name: str) -> Tensor:
        """This layer's output. The first layer that is called computes those of its group."""
        group = self.group or (self,)
        first = group[0]
        # By identity: the layers of a group are called with one tensor.
        if first._pending is None or first._pending[0] is not x:
            adapters = [side[name].weight for one in group for side in (one.lora_A, one.lora_B)]
            frozen = [one.base_layer for one in group]
            outputs = BFloat16Lora.apply(x, frozen, self.scaling[name], *adapters)  # type: ignore[no-untyped-call]
            first._pending = x, outputs
        output = first._pending[1][group.index(self)]
        if self is group[-1]:  # all have been read
            first._pending = None
        return output


def _multiplies_bfloat16(x: Tensor) -> bool:
    return x.is_cuda and x.dtype == torch.bfloat16


class Float32Lora(torch.autograd.Function):
    """y + s B A x, with A and B in float32 and the sum in the dtype of y."""

    @staticmethod
    def forward(ctx: Any, y: Tensor, x: Tensor, a: Tensor, b: Tensor, scale: float) -> Tensor:
        low = linear(x.to(a.dtype), a)
        # x as it is: peft's layer would keep a float32 copy of it.
        ctx.save_for_backward(x, low, a, b)
        ctx.scale = scale
        # The sum is in float32 and rounded once, as in peft's layer.
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
    """W x + s B A x of linear layers that read one x, by products in its dtype.

    The products with A, and what they give to the gradient of x, are one for all layers. That
    gradient is a sum in one tensor: autograd would write each summand, and read it again.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, frozen: Sequence[nn.Linear], scale: float, *adapters: Tensor
    ) -> tuple[Tensor, ...]:
        rows = x.flatten(0, -2)
        a, short = _rounded(adapters, x.dtype)
        # The scale in the product, before it is rounded; with beta 0 nothing is read.
        low = rows.new_empty(len(rows), len(a))
        torch.addmm(low, rows, a.T, beta=0, alpha=scale, out=low)
        # Not the rounded adapters, which would take memory until the backward pass.
        ctx.save_for_backward(x, low, *adapters)
        ctx.frozen, ctx.scale = frozen, scale
        ctx.ranks = [b.shape[1] for b in short]
        outputs = [
            linear(rows, layer.weight, layer.bias).addmm_(part, b.T)
            for layer, part, b in zip(frozen, low.split(ctx.ranks, 1), short, strict=True)
        ]
        return tuple(y.view(*x.shape[:-1], -1) for y in outputs)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Any, ...]:
        x, low, *adapters = ctx.saved_tensors
        a, short = _rounded(adapters, x.dtype)
        of_y = [gradient.flatten(0, -2) for gradient in gradients]
        of_low, of_adapters = low.new_empty(low.shape), []
        parts = zip(of_low.split(ctx.ranks, 1), low.split(ctx.ranks, 1), of_y, short, strict=True)
        for of_part, part, of_one, b in parts:
            torch.addmm(of_part, of_one, b, beta=0, alpha=ctx.scale, out=of_part)
            of_adapters.append(_float32_product(of_one.T, part))  # low has the scale
        of_a = _float32_product(of_low.T, x.flatten(0, -2)).split(ctx.ranks)
        of_x = None
        if ctx.needs_input_grad[0]:
            of_x = of_low @ a
            for of_one, layer in zip(of_y, ctx.frozen, strict=True):
                of_x.addmm_(of_one, layer.weight)
            of_x = of_x.view(x.shape)
        pairs = zip(of_a, of_adapters, strict=True)
        return of_x, None, None, *(gradient for pair in pairs for gradient in pair)


def _rounded(adapters: Sequence[Tensor], dtype: torch.dtype) -> tuple[Tensor, list[Tensor]]:
    """Return A of all layers as one matrix, and each B, in the dtype of their products."""
    a, b = adapters[::2], adapters[1::2]
    ranks = [len(one) for one in a]
    joint = a[0].new_empty(sum(ranks), a[0].shape[1], dtype=dtype)
    short = [torch.empty_like(one, dtype=dtype) for one in b]
    torch._foreach_copy_([*joint.split(ranks), *short], [*a, *b])
    return joint, short


def _float32_product(a: Float[Tensor, "n k"], b: Float[Tensor, "k m"]) -> Float[Tensor, "n m"]:
    """a @ b in float32, of operands in 16 bits."""
    # torch has out_dtype for CUDA alone.
    if a.is_cuda:
        return torch.mm(a, b, out_dtype=torch.float32)
    return a.float() @ b.float()


def fuse_norms(model: nn.Module, device: torch.device | str) -> None:
    """Compute the model's RMS norms by torch's kernel, where its values are the model's own.

    ``device`` is where the model will compute; its norms may not compute elsewhere.
    """
    for module in model.modules():
        norm: Any = module
        # A norm with a forward of its own is Liger's.
        is_plain = hasattr(norm, "variance_epsilon") and "forward" not in vars(norm)
        if is_plain and _is_weight_times_rms_norm(norm, device):
            norm.forward = MethodType(_fused_norm, norm)


def _is_weight_times_rms_norm(norm: Any, device: torch.device | str) -> bool:
    # Others take a gate, too, or add 1 to the weight.
    if [*inspect.signature(norm.forward).parameters] != ["hidden_states"]:
        return False
    there = deepcopy(norm).to(device)
    # The bound is above bfloat16's rounding, twice up to 0.2 %, and below a weight plus 1.
    x = torch.linspace(-2, 2, norm.weight.numel()).to(there.weight)
    with torch.no_grad():
        return torch.allclose(there(x), _fused_norm(there, x), rtol=0.01)


def _fused_norm(norm: Any, hidden_states: Float[Tensor, "*rows h"]) -> Float[Tensor, "*rows h"]:
    shape = hidden_states.shape[-1:]
    return rms_norm(hidden_states, shape, norm.weight, norm.variance_epsilon)


def checkpoint_layers(model: PreTrainedModel) -> int:
    """Make the decoder's layers store only their inputs; return their number."""
    layers = [
        module
        for module in model.get_decoder().modules()
        if isinstance(module, GradientCheckpointingLayer)
    ]
    for layer in layers:
        kind: Any = type(layer)
        # By the class: Python does not look for __call__ in an instance.
        layer.__class__ = _checkpointed(kind)
    return len(layers)


class CheckpointedLayer(nn.Module):
    """First base of a layer that is computed again in the backward pass, with its hooks."""

    def __call__(self, *args: Any, **options: Any) -> Any:
        """Compute the layer; where gradients are needed, store its inputs alone."""
        run = super().__call__
        if not torch.is_grad_enabled():
            return run(*args, **options)
        # No layer draws random numbers, as dropout and its like are off (C28).
        return checkpoint(run, *args, use_reentrant=False, preserve_rng_state=False, **options)


@cache
def _checkpointed(kind: Any) -> Any:
    return type(kind.__name__, (CheckpointedLayer, kind), {})
