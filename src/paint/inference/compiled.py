"""A decode step by fewer, larger kernels: what lies between two attentions is compiled.

The step is recorded (paint.inference.recording), and inductor compiles each piece to its products
and to few kernels between them. Equal pieces are compiled once in a process.

A layer of Qwen3 takes 13 kernels. Eight are products, of (W; A) and of B in four joint layers. Two
are a sum with the norm after it, one is SwiGLU, one rotates queries and keys and writes the cache,
and one is attention. Fewer would need A and B in one product. The bytes of the weights bound the
step from below.

A compiled step is used where it computes what the recorded one does, up to rounding. Otherwise the
step stays as it was, with a note.
"""

import os
import warnings
from collections.abc import Callable, Hashable, Sequence
from typing import Any, cast

import torch
from jaxtyping import Float
from torch import Tensor, fx
from torch._decomp import get_decompositions
from transformers import PreTrainedModel

from paint.core.errors import format_short
from paint.inference.graphs import GraphedStep, Step
from paint.inference.recording import Function, Recording, Unsuitable, storage_of
from paint.models.layers import as_written

aten = torch.ops.aten

OPTIONS = {
    "combo_kernels": True,  # of queries, keys and values, which do not depend on each other
    "deterministic": True,  # a choice by timing could change sums from run to run
    "shape_padding": False,  # is chosen by timing
    "triton.autotune_pointwise": False,  # so are its sizes
    "compile_threads": 1,  # other processes would outlive the compilation
}
"""Options of inductor, of which a version of torch may lack some."""

GAPS = {torch.bfloat16: (0.05, 0.5), torch.float16: (0.05, 0.5)}
EXACT_GAPS = (1e-3, 1e-2)
"""Largest expected difference of a token's log-prob, in nats: on average over rows, and of a row.
0.05 is a run's limit for the engine's log-probs beside the trainer's (docs/results/h100.md)."""

Read = Callable[[], Tensor]
"""First half of a step: logits of the next tokens."""
Write = Callable[[Tensor], None]
"""Second half: tokens drawn from them, and appended."""


_functions: dict[Hashable, Function] = {}  # of this process; they hold no tensors


def compiled(graph: fx.GraphModule, tensors: Sequence[Tensor]) -> Function:
    """The function of a graph for tensors such as these, compiled once in a process."""
    storages = [storage_of(x) for x in tensors]
    kinds = [
        (x.dtype, x.device, x.shape, x.stride(), x.storage_offset() * x.element_size() % 16)
        for x in tensors
    ]
    key = (graph.code, *kinds, *map(storages.index, storages))
    if key not in _functions:
        _functions[key] = compile_by_inductor(graph, tensors)
    return _functions[key]


def compile_by_inductor(graph: fx.GraphModule, tensors: Sequence[Tensor]) -> Function:
    """The function of a graph, by few kernels; from inductor's cache on disk if it is there."""
    _take_sums_apart(graph)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # they advise on how inductor and its parts are written
        # Here, since they take seconds to import.
        from torch._guards import TracingContext, detect_fake_mode, tracing
        from torch._inductor import config
        from torch._inductor.compile_fx import compile_fx
        from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
        from torch.fx.experimental.proxy_tensor import make_fx
        from torch.fx.experimental.symbolic_shapes import ShapeEnv

        options = {name: value for name, value in OPTIONS.items() if hasattr(config, name)}
        # The cache needs a context with an environment of shapes, and inductor's own table of
        # decompositions: so that of the norm is applied before.
        mode = detect_fake_mode(tensors) or FakeTensorMode(
            shape_env=ShapeEnv(),
            allow_non_fake_inputs=True,  # constants of the graph
        )
        fakes = [
            x if isinstance(x, FakeTensor) else mode.from_tensor(x, static_shapes=True)
            for x in tensors
        ]
        table: dict[Any, Any] = get_decompositions([aten._fused_rms_norm.default])
        graph = make_fx(graph, decomposition_table=table)(*fakes)
        with tracing(TracingContext(mode)):
            function: Any = compile_fx(graph, fakes, config_patches=options)
    return cast(Function, function)


def _take_sums_apart(graph: fx.GraphModule) -> None:
    """Replace addmm, which copies y first, by a product and a sum in the kernel that reads it."""
    for node in graph.graph.nodes:
        is_sum = node.target in (aten.addmm.default, aten.addmm_.default)
        if not is_sum or node.kwargs.get("beta", 1) != 1:
            continue
        y, a, b = node.args
        call = graph.graph.call_function
        with graph.graph.inserting_before(node):
            product = call(aten.mm.default, (a, b))
            scaled = call(aten.mul.Tensor, (product, node.kwargs.get("alpha", 1)))
            total = call(aten.add.Tensor, (scaled, y))
            if node.target == aten.addmm_.default:
                total = call(aten.copy_.default, (y, total))
        node.replace_all_uses_with(total)
        graph.graph.erase_node(node)
    graph.recompile()


class CompiledStep:
    """The compiled steps of a GraphedStep, one for each shape."""

    def __init__(self, graphed: GraphedStep, base: PreTrainedModel, *, enabled: bool) -> None:
        self.graphed = graphed
        self.base = base
        # PyTorch's own switch is heeded.
        self.enabled = enabled and os.environ.get("TORCH_COMPILE_DISABLE") != "1"
        self.failed = False
        self.uses = 0
        self.replays: dict[Hashable, Step] = {}

    def use_again(self) -> None:
        """Check steps in the second use, too: adapters begin at 0, which would hide an error."""
        self.uses += 1
        if self.enabled and self.uses == 2:
            self.clear()
            self.graphed.clear()

    def clear(self) -> None:
        """Drop all steps, since tensors that they work on have moved."""
        self.replays.clear()

    # Both halves are arguments, as the step of GraphedStep.run.
    def step(self, read: Read, write: Write, shape: Hashable) -> Step:
        """The step of this shape: compiled, or as it is."""
        if self.enabled and shape not in self.replays:
            self._prepare(read, write, shape)
        return self.replays.get(shape, lambda: write(read()))

    def _prepare(self, read: Read, write: Write, shape: Hashable) -> None:
        if not _functions:
            self.graphed.note("engine: compiling decode steps, which takes longest in a first run")
        before = self.graphed.copy()
        try:
            replay = self._checked(read, write, before)
            self.graphed.capture(replay)
            self.replays[shape] = replay
        except Exception as error:  # compilers and drivers raise errors of any type
            self.enabled, self.failed = False, True
            self.clear()
            self.graphed.clear()
            self.graphed.warn(f"engine: steps are not compiled, since {format_short(str(error))}")
        finally:
            self.graphed.restore(before)

    def _checked(self, read: Read, write: Write, before: Sequence[Tensor]) -> Step:
        """A compiled step that computes what the step does. Raises Unsuitable."""
        with as_written(self.base), Recording() as recording:
            logits = read()
            write(logits)
        replay: Callable[[], Tensor] = recording.replay(logits, compiled)
        del recording  # and with it all values of the step
        self.graphed.restore(before)
        found = replay()
        after = self.graphed.copy()
        _require_close(found, logits)
        self.graphed.restore(before)
        write(found)
        if not self.graphed.agrees(after):
            raise Unsuitable("it draws other tokens from the same logits")
        return replay


def _require_close(found: Float[Tensor, "b v"], expected: Float[Tensor, "b v"]) -> None:
    """Raises Unsuitable if log-probs differ by more than rounding."""
    average, most = GAPS.get(expected.dtype, EXACT_GAPS)
    ours, own = (x.float().log_softmax(-1) for x in (found, expected))
    gaps = (own.exp() * (ours - own).abs()).sum(-1)
    mean, highest = float(gaps.mean()), float(gaps.max())
    # NaN is not close.
    if not (mean <= average and highest <= most):
        raise Unsuitable(
            f"its log-probs differ by {mean:.3g} nats on average, {highest:.3g} in a row; "
            f"{average:g} and {most:g} are allowed"
        )
