"""Inductor's code for an H100, generated on a machine without one, and the kernels in it.

Inductor asks CUDA for the card's properties and its driver for the compiler. Both are answered
here, and generation stops before Triton compiles.
"""

import ctypes
import re
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import patch

import torch
from torch import Tensor, fx
from torch._dynamo.device_interface import CudaInterface
from torch._inductor import compile_fx, config, graph, scheduler
from torch._inductor.runtime.hints import DeviceProperties
from torch._inductor.virtualized import V
from torch._subclasses.fake_tensor import FakeTensorMode, unset_fake_temporarily

from paint.inference.compiled import compile_by_inductor

CUDA = torch.device("cuda:0")
CARD = {
    "multi_processor_count": 132,
    "major": 9,
    "regs_per_multiprocessor": 65_536,
    "max_threads_per_multi_processor": 2_048,
    "max_threads_per_block": 1_024,
    "warp_size": 32,
}


class Generated(BaseException):
    """Code of a module, and the bytes that its kernels read and write.

    No Exception, which inductor would catch.
    """

    def __init__(self, code: str, nbytes: int) -> None:
        super().__init__()
        self.code, self.nbytes = code, nbytes


@contextmanager
def on_h100() -> Iterator[None]:
    """Within the block, inductor generates code for an H100, and raises it as Generated."""
    properties = SimpleNamespace(**CARD, name="NVIDIA H100", gcnArchName="", total_memory=80 << 30)

    def stop(code: str) -> None:
        nodes = V.graph.scheduler.nodes
        raise Generated(code, sum(node.get_read_write_buffers_sizes() for node in nodes))

    device = DeviceProperties(type="cuda", index=0, cc=90, **CARD)
    with ExitStack() as stack:
        for owner, name, value in (
            (torch.cuda, "_lazy_init", lambda: None),
            (torch.cuda, "current_device", lambda: 0),
            (torch.cuda, "get_device_properties", lambda *_: properties),
            (torch.cuda, "get_device_capability", lambda *_: (9, 0)),
            (torch.cuda, "get_rng_state", lambda *_: torch.zeros(16, dtype=torch.uint8)),
            (torch.cuda, "set_rng_state", lambda *_: None),
            (CudaInterface, "get_device_properties", lambda *_: properties),
            (DeviceProperties, "create", lambda _: device),
            (scheduler, "has_triton", lambda: True),
            (compile_fx, "_check_triton_bf16_support", lambda _: None),
            (torch.utils._triton, "triton_hash_with_backend", lambda: ""),
            (graph.GraphLowering, "save_output_code", staticmethod(stop)),
        ):
            stack.enter_context(patch.object(owner, name, value))
        stack.enter_context(config.patch(fx_graph_cache=False, joint_graph_constant_folding=False))
        stack.enter_context(_device_guard())
        yield


@contextmanager
def _device_guard() -> Iterator[None]:
    """A guard for CUDA, which torch without CUDA lacks and without which no tensor is sliced.

    That of the CPU does nothing.
    """
    library = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libc10.so"))
    name = "_ZN3c104impl26device_guard_impl_registryE"
    guards = (ctypes.c_void_p * 2).in_dll(library, name)  # by DeviceType: CPU, CUDA
    before = guards[1]
    guards[1] = before or guards[0]
    try:
        yield
    finally:
        guards[1] = before


@dataclass(frozen=True)
class Launches:
    """Kernels that a function launches on an H100; it cannot be called here."""

    fused: int
    others: Sequence[str]  # names of products and other kernels that inductor does not write
    nbytes: int

    @property
    def number(self) -> int:
        return self.fused + len(self.others)

    def __call__(self, *_: Tensor) -> Sequence[Tensor]:
        raise NotImplementedError


def launches(graph: fx.GraphModule, tensors: Sequence[Tensor]) -> Launches:
    """Kernels of a graph of CPU tensors, generated as if they were on an H100."""
    for node in graph.graph.nodes:
        if "device" in node.kwargs:
            node.kwargs = {**node.kwargs, "device": CUDA}
    graph.recompile()
    with unset_fake_temporarily(), FakeTensorMode(), on_h100():
        there = [
            torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device=CUDA) for x in tensors
        ]
        try:
            compile_by_inductor(graph, there)
        except Generated as found:
            return count(found.code, found.nbytes)
    raise AssertionError("inductor generated no code")


def count(code: str, nbytes: int) -> Launches:
    """The kernels that a generated module launches when it is called."""
    _, body = code.split("def call(", 1)
    others = re.findall(r"\b(?:extern_kernels|aten)\.(\w+)(?:\.\w+)*\(", body)
    return Launches(len(re.findall(r"\.run\(", body)), others, nbytes)
