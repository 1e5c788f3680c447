"""A step as a list of operations, which can be repeated in compiled pieces.

A step on static tensors runs once as it is, and its operations are noted. Attention, which is one
kernel already, stays. All else between two attentions is a piece: output projection, norm, MLP, the
next layer's norm and q-k-v, rotary positions, the cache's write. Layers have equal pieces.
"""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from operator import getitem
from typing import Any

import torch
from torch import Tensor, fx
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

Function = Callable[..., Sequence[Tensor]]
Compile = Callable[[fx.GraphModule, Sequence[Tensor]], Function]
"""Makes a function of a graph, for tensors such as these."""


class Unsuitable(Exception):
    """A step that cannot be compiled; the message says why."""


@dataclass(frozen=True)
class Value:
    """Stands for a tensor in an operation's arguments and result."""

    number: int


@dataclass(frozen=True)
class Operation:
    """An operation of a recorded step."""

    function: Any
    arguments: Any
    options: Any
    result: Any

    @property
    def reads(self) -> list[int]:
        return _numbers((self.arguments, self.options))

    @property
    def writes(self) -> list[int]:
        return _numbers(self.result)

    @property
    def is_attention(self) -> bool:
        name: str = self.function.overloadpacket.__name__
        return name.startswith("_scaled_dot_product_")


@dataclass(frozen=True)
class Piece:
    """Operations that follow each other, as a function of tensors."""

    inputs: Sequence[int]
    outputs: Sequence[int]
    function: Function


class Recording(TorchDispatchMode):
    """Records the operations in its block. Tensors that none of them made are static."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.operations: list[Operation] = []
        self.tensors: list[Tensor] = []
        self.static: set[int] = set()
        self._numbers: dict[int, int] = {}
        self._places: dict[Hashable, int] = {}
        self._kept: list[Tensor] = []  # so that no other tensor gets the id of one

    def value(self, x: Any) -> Any:
        """What stands for ``x``: a Value for a tensor, and else itself."""
        if not isinstance(x, Tensor):
            return x
        if id(x) not in self._numbers:
            # Views of the same memory, made where they are used, are one tensor.
            place = (storage_of(x), x.storage_offset(), x.shape, x.stride(), x.dtype)
            self._add(x, self._places.setdefault(place, len(self.tensors)))
        return Value(self._numbers[id(x)])

    def _add(self, x: Tensor, number: int) -> None:
        self._numbers[id(x)] = number
        self._kept.append(x)
        if number == len(self.tensors):
            self.tensors.append(x.detach())
            self.static.add(number)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape} & {*func.tags}:
            raise Unsuitable(f"{func} waits for the device")
        options = kwargs or {}
        arguments, named = tree_map(self.value, (args, options))
        out = func(*args, **options)
        # A view of static tensors is a static tensor itself.
        if not (func.is_view and self.static.issuperset(_numbers((arguments, named)))):
            for x in tree_leaves(out):
                # The result of an operation in place is its operand.
                if isinstance(x, Tensor) and id(x) not in self._numbers:
                    self._add(x, len(self.tensors))
                    self.static.remove(self._numbers[id(x)])
            operation = Operation(func, arguments, named, tree_map(self.value, out))
            if operation.writes:  # others ask for a device or a size
                self.operations.append(operation)
        return out

    def replay(self, result: Tensor, compile: Compile) -> Callable[[], Tensor]:
        """What repeats the step with compiled pieces, and returns ``result``. Raises Unsuitable."""
        number = self.value(result).number
        pieces = self.pieces(result, compile)
        inputs = {n for piece in pieces for n in piece.inputs}
        static = {n: self.tensors[n] for n in inputs & self.static}

        def run() -> Tensor:
            values = dict(static)
            for piece in pieces:
                outputs = piece.function(*(values[n] for n in piece.inputs))
                values.update(zip(piece.outputs, outputs, strict=True))
            return values[number]

        return run

    def pieces(self, result: Tensor, compile: Compile) -> list[Piece]:
        """The step: compiled pieces and attentions by turns. Raises Unsuitable."""
        readers = {self.value(result).number: {len(self.operations)}}
        for place, operation in enumerate(self.operations):
            for number in operation.reads:
                readers.setdefault(number, set()).add(place)
        attentions = {place for place, o in enumerate(self.operations) if o.is_attention}
        if not attentions:
            raise Unsuitable("it has no attention of PyTorch's")
        # Views that attentions alone read go with them: a width would make pieces differ.
        beside = set(attentions)
        for place in reversed(range(len(self.operations))):
            operation = self.operations[place]
            reading = {r for n in operation.writes for r in readers.get(n, ())}
            if operation.function.is_view and reading and reading <= beside:
                beside.add(place)

        groups: list[list[int]] = [[], []]
        for place in range(len(self.operations)):
            groups[-1 if place in beside else -2].append(place)
            if place in attentions:
                groups += [[], []]
        # What is compiled, and attentions, by turns.
        kinds: list[Compile] = [compile, lambda graph, _: graph]
        return [
            self._piece(group, readers, kinds[number % 2])
            for number, group in enumerate(groups)
            if group
        ]

    def _piece(self, group: Sequence[int], readers: dict[int, set[int]], compile: Compile) -> Piece:
        operations = [self.operations[place] for place in group]
        inputs: dict[int, None] = {}  # as sets in the order of their reading
        made: dict[int, None] = {}
        for operation in operations:
            inputs |= dict.fromkeys(n for n in operation.reads if n not in made)
            made |= dict.fromkeys(n for n in operation.writes if n not in inputs)
        outputs = [n for n in made if not readers.get(n, set()) <= {*group}]
        graph = _graph(operations, [*inputs], outputs)
        return Piece([*inputs], outputs, compile(graph, [self.tensors[n] for n in inputs]))


def _numbers(tree: Any) -> list[int]:
    return [leaf.number for leaf in tree_leaves(tree) if isinstance(leaf, Value)]


def storage_of(x: Tensor) -> int:
    """What is the same for tensors in the same memory."""
    number: int = x.untyped_storage()._cdata
    return number


def _graph(
    operations: Sequence[Operation], inputs: Sequence[int], outputs: Sequence[int]
) -> fx.GraphModule:
    graph = fx.Graph()
    nodes = {number: graph.placeholder(f"x{place}") for place, number in enumerate(inputs)}
    for operation in operations:
        arguments, options = tree_map(
            lambda x: nodes[x.number] if isinstance(x, Value) else x,
            (operation.arguments, operation.options),
        )
        node = graph.call_function(operation.function, arguments, options)
        if isinstance(operation.result, Value):
            nodes.setdefault(operation.result.number, node)
        else:
            for place, x in enumerate(operation.result):
                if isinstance(x, Value):
                    nodes.setdefault(x.number, graph.call_function(getitem, (node, place)))
    graph.output(tuple(nodes[number] for number in outputs))
    return fx.GraphModule({}, graph)
