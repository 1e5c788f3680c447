"""Inductor's code for an H100, generated on a machine without one, and the kernels in it.

Inductor asks CUDA for the card's properties and its driver for the compiler. Both are answered
here, and generation stops before Triton compiles. The kernels can be counted, and interpreted.
"""

import ctypes
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from tempfile import NamedTemporaryFile
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch
import triton.language as tl
from torch import Tensor, fx
from torch._dynamo.device_interface import CudaInterface
from torch._inductor import compile_fx, config, graph, scheduler
from torch._inductor.async_compile import AsyncCompile
from torch._inductor.runtime.hints import DeviceProperties
from torch._inductor.runtime.triton_heuristics import GridExpr
from torch._inductor.virtualized import V
from torch._subclasses.fake_tensor import FakeTensorMode, unset_fake_temporarily

from paint.inference.compiled import compile_by_inductor
from paint.inference.recording import Function

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
    found = generate(graph, tensors)
    return count(found.code, found.nbytes)


def generate(graph: fx.GraphModule, tensors: Sequence[Tensor]) -> Generated:
    """The code of a graph of CPU tensors as if they were on an H100."""
    graph = deepcopy(graph)
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
            return found
    raise AssertionError("inductor generated no code")


def count(code: str, nbytes: int) -> Launches:
    """The kernels that a generated module launches when it is called."""
    _, body = code.split("def call(", 1)
    others = re.findall(r"\b(?:extern_kernels|aten)\.(\w+)(?:\.\w+)*\(", body)
    others += ["copy" for name in others if name == "addmm"]  # of what the product is added to
    return Launches(len(re.findall(r"\.run\(", body)), others, nbytes)


ON_CPU = {
    "from torch._C import _cuda_getCurrentRawStream as get_raw_stream": "",
    "torch._C._dynamo.guards._empty_strided_cuda": "empty_on_cpu",
    "torch.cuda._DeviceGuard(0)": "nullcontext()",
    "torch.cuda.set_device(0)": "pass",
    "async_compile.wait(globals())": "",
    "cuda:0": "cpu",
}
"""What the code of a module says of CUDA, and what it is to say in its place."""

IN_INTERPRETER = {
    "import triton_helpers, triton_heuristics": "import triton_helpers",
    "triton_helpers.set_driver_to_gpu()": "",
    "import libdevice, math as tl_math": "import math as tl_math",
}
"""The same for a kernel, whose decorator and device functions are given to it."""


def interpreted(graph: fx.GraphModule, tensors: Sequence[Tensor]) -> Function:
    """The function of a graph by kernels for an H100, which Triton's interpreter runs on a CPU."""
    names = {
        "nullcontext": nullcontext,
        "get_raw_stream": lambda _: 0,
        "empty_on_cpu": lambda size, stride, dtype: torch.empty_strided(size, stride, dtype=dtype),
        "__name__": "generated",
        "__file__": "generated.py",
    }
    code = _replaced(generate(graph, tensors).code, ON_CPU)
    with patch.object(AsyncCompile, "triton", Kernel):
        exec(compile(code, "generated.py", "exec"), names)
    call: Any = names["call"]
    return lambda *given: call([*given])


class DeviceFunctions:
    """CUDA's functions by their namesakes in Triton, which the interpreter replaces as it runs."""

    def __getattr__(self, name: str) -> Any:
        return getattr(tl, name)

    def isnan(self, x: Any) -> Any:
        return x != x


class Kernel:
    """A kernel of a generated module, in the interpreter, by blocks of 4 and 16."""

    def __init__(self, name: str, code: str, **_: Any) -> None:
        self.options: dict[str, Any] = {}
        kinds = ("pointwise", "reduction", "persistent_reduction")
        with NamedTemporaryFile("w", suffix=".py", delete=False) as file:  # Triton reads the source
            file.write(_replaced(code, IN_INTERPRETER))
        names = {
            "triton_heuristics": SimpleNamespace(**dict.fromkeys(kinds, self._kept)),
            "libdevice": DeviceFunctions(),
            "__name__": "generated",
            "__file__": file.name,
        }
        exec(compile(Path(file.name).read_text(), file.name, "exec"), names)
        self.function: Any = names[name]
        Path(file.name).unlink()

    def _kept(self, **options: Any) -> Any:
        self.options = options
        return lambda function: function

    def run(self, *given: Any, stream: int) -> None:
        """Launch it as inductor does."""
        kinds, constants = (self.options["triton_meta"][key] for key in ("signature", "constants"))
        names = [name for name in kinds if not name.endswith("BLOCK")]
        arguments = dict(zip(names, given, strict=False))
        blocks = {"XBLOCK": 4, "R0_BLOCK": 16}
        chosen = {
            name: blocks.get(name, constants.get(name))
            for name, kind in kinds.items()
            if kind == "constexpr" and name not in arguments
        }
        grid = GridExpr.from_meta(self.options["inductor_meta"], chosen, mode="python")
        size = grid.eval_slow({**constants, **arguments, **chosen})
        self.function[size](*given, **chosen)


def _replaced(code: str, changes: Mapping[str, str]) -> str:
    for old, new in changes.items():
        code = code.replace(old, new)
    return code
