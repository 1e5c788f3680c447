"""A fake device without float64 and some ops, like Apple's GPUs.

Tensors "on" it are kept on the CPU under the name of the device ``mps``. So code that makes its
tensors where the model's are, converts them there or mixes them with others fails here as it would
there. Speed and rounding are the CPU's.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten
from torch.utils.backend_registration import (
    _DummyBackendModule,
    _setup_privateuseone_for_python_backend,
)


class _Unseen(_DummyBackendModule):
    """Nobody finds the fake server by looking what devices there are: other tests run beside it."""

    def is_available(self) -> bool:
        return False


_setup_privateuseone_for_python_backend("standin", backend_module=_Unseen())
NARROW = torch.device("standin", 0)

LACKING = {"aten::segment_reduce", "aten::_linalg_eigh", "aten::histc", "aten::kthvalue"}
"""A few ops that torch does not have for Apple's GPUs."""

CROSSING = {"aten::_to_copy", "aten::copy_"}
"""Ops whose tensors may be on two devices."""


class NarrowTensor(Tensor):
    """A CPU tensor under another device's name."""

    held: Tensor

    @staticmethod
    def __new__(cls, held: Tensor) -> "NarrowTensor":
        if held.dtype in (torch.float64, torch.complex128):
            raise TypeError("Cannot convert a MPS Tensor to float64 dtype")
        made: NarrowTensor = Tensor._make_wrapper_subclass(
            cls,
            held.size(),
            strides=held.stride(),
            storage_offset=held.storage_offset(),
            dtype=held.dtype,
            device=NARROW,
            requires_grad=held.requires_grad,
        )
        made.held = held.detach()
        return made

    def __init__(self, held: Tensor) -> None: ...

    def __repr__(self) -> str:  # type: ignore[override]
        return f"NarrowTensor({self.held!r})"

    def tolist(self) -> Any:
        return self.held.tolist()

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, op: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        return _call(op, args, kwargs or {})


class NarrowDevice(TorchDispatchMode):
    """Within it, tensors that are made on ``mps`` are narrow ones."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    def __enter__(self) -> "NarrowDevice":
        # torch.tensor(..., device=...) would go past the mode.
        torch._C._set_only_lift_cpu_tensors(True)
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)  # type: ignore[no-untyped-call]
        torch._C._set_only_lift_cpu_tensors(False)

    def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _call(op, args, kwargs or {})


def on_narrow_device(module: nn.Module) -> nn.Module:
    """The module, with its parameters and buffers on the fake server."""
    moved: dict[int, nn.Parameter] = {}
    for part in module.modules():
        for name, value in part._parameters.items():
            if value is not None:
                new = nn.Parameter(NarrowTensor(value.detach()), requires_grad=value.requires_grad)
                part._parameters[name] = moved.setdefault(id(value), new)
        for name, buffer in part._buffers.items():
            if buffer is not None:
                part._buffers[name] = NarrowTensor(buffer)
    return module


def _call(op: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    flat, spec = tree_flatten((list(args), dict(kwargs)))
    tensors = [value for value in flat if isinstance(value, Tensor)]
    narrow = [value for value in tensors if isinstance(value, NarrowTensor)]
    asked = kwargs.get("device")
    to_narrow = asked is not None and torch.device(asked).type == NARROW.type
    name = op._schema.name

    if narrow and name not in CROSSING:
        for value in tensors:
            if not isinstance(value, NarrowTensor) and value.dim():
                raise RuntimeError(f"{name}: tensors on mps and on cpu")
    if (narrow or to_narrow) and name in LACKING:
        raise NotImplementedError(f"{name} is not implemented for mps")
    if name == "aten::_to_copy" and to_narrow and tensors[0].dtype == torch.float64:
        raise TypeError("Cannot convert a MPS Tensor to float64 dtype")

    held = [value.held if isinstance(value, NarrowTensor) else value for value in flat]
    real_args, real_kwargs = tree_unflatten(held, spec)
    if to_narrow:
        real_kwargs["device"] = "cpu"
    result = op(*real_args, **real_kwargs)

    if name == "aten::_local_scalar_dense":
        return result
    in_place = {id(a): b for a, b in zip(held, flat, strict=True) if isinstance(b, NarrowTensor)}
    stays = bool(narrow) if asked is None else to_narrow
    if name == "aten::copy_":
        stays = isinstance(args[0], NarrowTensor)

    def wrap(value: Any) -> Any:
        if not isinstance(value, Tensor) or isinstance(value, NarrowTensor):
            return value
        if id(value) in in_place:
            return in_place[id(value)]
        return NarrowTensor(value) if stays else value

    return tree_map(wrap, result)
