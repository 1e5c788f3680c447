"""Joint layers: linear layers that read one input, such as q, k and v, as one product.

While a few rows are decoded, a GPU spends most of its time on small kernels. Here, layers of one
input share a matrix, of which their own weights become views, and so do their adapters: A of all
layers is stacked below W, and B stands in blocks of one matrix.

    (y, l) = x (W; A)ᵀ + (b, 0)    with W, b and A stacked over the layers
    y + s l Bᵀ                     with B block-diagonal

Adapters are rounded to the weights' dtype once, when they are refreshed, and not in every step.
The operands of each product are those of the layers themselves (paint.models.layers).
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from jaxtyping import Float
from peft.tuners.lora import LoraLayer
from torch import Tensor, nn
from torch.nn.functional import linear
from transformers import PreTrainedModel


@dataclass(frozen=True)
class Part:
    """A linear layer of the model: its frozen weights, and its adapter if it has one."""

    layer: Any  # the module that the model calls
    frozen: nn.Linear
    a: Float[Tensor, "r i"] | None = None
    b: Float[Tensor, "o r"] | None = None
    scale: float = 0.0

    @property
    def rank(self) -> int:
        """Rank of the adapter; 0 for none."""
        return 0 if self.a is None else len(self.a)


class JointLayer:
    """Linear layers that read one input."""

    def __init__(self, parts: Sequence[Part]) -> None:
        self.parts = parts
        self.sizes = [part.frozen.out_features for part in parts]
        self.rank = sum(part.rank for part in parts)
        # One for all: _fit joins only layers of one scale.
        self.scale = parts[0].scale
        self._join_weights()
        self.b = self.weight.new_zeros(sum(self.sizes), self.rank)
        self._input: Tensor | None = None
        self._outputs: tuple[Tensor, ...] = ()

    def _join_weights(self) -> None:
        first = self.parts[0].frozen
        matrices = [part.frozen.weight.data for part in self.parts]
        self.weight = torch.cat([*matrices, first.weight.new_zeros(self.rank, first.in_features)])
        for part, view in zip(self.parts, self._views(), strict=True):
            part.frozen.weight.data = view  # so that the memory is needed once
        self.bias = None
        if first.bias is not None:
            biases = [part.frozen.bias.data for part in self.parts]
            self.bias = torch.cat([*biases, first.bias.new_zeros(self.rank)])

    def _views(self) -> Sequence[Tensor]:
        # The last part is that of the adapters.
        views: Sequence[Tensor] = self.weight.split([*self.sizes, self.rank])
        return views[:-1]

    def refresh(self) -> None:
        """Take the weights and the adapters as they are now."""
        for part, view in zip(self.parts, self._views(), strict=True):
            if part.frozen.weight.data_ptr() != view.data_ptr():  # the model was moved
                self._join_weights()
                break
        a = self.weight[sum(self.sizes) :]
        row = column = 0
        for part in self.parts:
            if part.a is not None and part.b is not None:
                place = slice(column, column + part.rank)
                a[place] = part.a
                self.b[row : row + len(part.b), place] = part.b
            row += part.frozen.out_features
            column += part.rank

    def forward(self, x: Float[Tensor, "*rows i"]) -> tuple[Tensor, ...]:
        joint = linear(x, self.weight, self.bias)
        size = sum(self.sizes)
        y = joint[..., :size]
        if self.rank and not any(part.rank and part.layer.disable_adapters for part in self.parts):
            # Both are views of the joint product, and y is changed in place.
            low = joint[..., size:].flatten(0, -2)
            y.flatten(0, -2).addmm_(low, self.b.T, alpha=self.scale)
        outputs: tuple[Tensor, ...] = y.split(self.sizes, dim=-1)
        return outputs

    def output(self, number: int, x: Tensor) -> Tensor:
        """Return the output of a layer. The first call with an input computes those of all."""
        # By identity, as in _groups: the layers of a group are called with one tensor.
        if x is not self._input:
            self._input = x
            self._outputs = self.forward(x)
        output = self._outputs[number]
        if number == len(self.parts) - 1:  # all have been read; a prefill's would fill the memory
            self.forget()
        return output

    def forget(self) -> None:
        self._input, self._outputs = None, ()


class JointLayers:
    """The joint layers of a model with frozen weights, which must be on one device."""

    def __init__(self, base: PreTrainedModel) -> None:
        self.layers = [JointLayer(parts) for parts in _groups(base)]

    def refresh(self) -> None:
        """Take the weights and the adapters as they are now. Needed after every update."""
        with torch.no_grad():
            for layer in self.layers:
                layer.refresh()

    @contextmanager
    def used(self) -> Iterator[None]:
        """Within the block, the model's linear layers take their outputs from the joint ones."""
        for layer in self.layers:
            for number, part in enumerate(layer.parts):
                part.layer.forward = partial(layer.output, number)
        try:
            yield
        finally:
            for layer in self.layers:
                layer.forget()
                for part in layer.parts:
                    del part.layer.forward


def share_inputs(base: PreTrainedModel) -> None:
    """Let adapters of layers that read one input share products in training, too.

    They are those of ``paint.models.layers.BFloat16Lora``. Collective if the model is sharded.
    """
    for parts in _groups(base):
        layers = tuple(part.layer for part in parts if part.rank)
        for layer in layers:
            layer.group = layers


def _groups(base: PreTrainedModel) -> list[list[Part]]:
    """Return linear layers of the decoder that are called in turn on the same input."""
    decoder = base.get_decoder()
    parts = _parts(decoder)
    calls: list[tuple[nn.Module, Tensor]] = []

    def record(layer: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        if inputs:
            calls.append((layer, inputs[0]))

    hooks = [layer.register_forward_pre_hook(record) for layer in parts]
    try:
        with torch.no_grad():
            # A pass, since no name tells which layers share an input.
            decoder(input_ids=torch.zeros(1, 2, dtype=torch.long, device=base.device))
    finally:
        for hook in hooks:
            hook.remove()

    counts = Counter(layer for layer, _ in calls)
    groups: list[list[Part]] = []
    previous: Tensor | None = None
    for layer, x in calls:
        part = parts[layer]
        if counts[layer] > 1:  # its inputs differ from call to call
            previous = None
        elif x is previous and _fit(groups[-1][0], part):
            groups[-1].append(part)
        else:
            groups.append([part])
            previous = x
    # A layer alone gains by its adapter's A, which is one product with its weight.
    return [group for group in groups if len(group) > 1 or group[0].rank]


def _parts(decoder: nn.Module) -> dict[nn.Module, Part]:
    """Return frozen linear layers, with their adapters, by the module that the model calls."""
    adapted = [module for module in decoder.modules() if isinstance(module, LoraLayer)]
    inner = {child for module in adapted for child in module.modules() if child is not module}
    parts: dict[nn.Module, Part] = {}
    for module in decoder.modules():
        if module in inner:
            continue
        frozen = module.get_base_layer() if isinstance(module, LoraLayer) else module
        # Not subclasses, such as layers of 4 bits, whose products differ.
        if type(frozen) is not nn.Linear or frozen.weight.requires_grad:
            continue
        if isinstance(module, LoraLayer):
            [name] = module.active_adapters
            a, b = module.lora_A[name].weight, module.lora_B[name].weight
            parts[module] = Part(module, frozen, a, b, module.scaling[name])
        else:
            parts[module] = Part(module, frozen)
    return parts


def _fit(first: Part, other: Part) -> bool:
    has_bias = first.frozen.bias is not None
    is_alike = has_bias == (other.frozen.bias is not None) and first.scale == other.scale
    return is_alike and first.frozen.weight.dtype == other.frozen.weight.dtype
