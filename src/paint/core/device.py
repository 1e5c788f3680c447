"""The device that this process computes on, and what that device cannot do.

accelerate chooses it: a GPU of CUDA or ROCm, another accelerator such as Apple's (MPS), else the
CPU; ACCELERATE_USE_CPU=true overrules it. Everything here asks the device, not its name, so that
the next kind needs no line of its own.
"""

from functools import cache

import torch
from accelerate import PartialState

from paint.core.errors import ConfigError

_INSTRUCTIONS = {
    torch.bfloat16: ("avx512_bf16", "amx_bf16", "bf16"),
    torch.float16: ("avx512_fp16", "amx_fp16", "fp16_arith"),
}
"""What torch calls a CPU's instructions for a format: x86's, and then ARM's."""


def own_device() -> torch.device:
    """The device of this process, which is this rank's."""
    device: torch.device = PartialState().device
    return device


def require_dtype(device: torch.device | str, dtype: torch.dtype) -> None:
    """Refuse a number format that the device lacks.

    Raises:
        ConfigError: with the ways out.
    """
    if not _has(str(device), dtype):
        name = str(dtype).removeprefix("torch.")
        raise ConfigError(
            f"the device {device} has no {name}; take --model.dtype float32, or compute on the CPU "
            f"with ACCELERATE_USE_CPU=true"
        )


def float64_device(device: torch.device) -> torch.device:
    """Where float64 is exact for tensors of a device: there, or on the CPU (Apple's have none)."""
    return device if _has(str(device), torch.float64) else torch.device("cpu")


def multiplies(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether a device has instructions that multiply numbers of a format.

    A GPU is taken to; a CPU is asked, for formats of 16 bits.
    """
    if device.type != "cpu" or dtype not in _INSTRUCTIONS:
        return True
    has = torch.cpu.get_capabilities()
    return any(has.get(name, False) for name in _INSTRUCTIONS[dtype])


def wait_for_device() -> None:
    """Return once the accelerator has done what it was given, so that seconds are its own."""
    if torch.accelerator.is_available():
        torch.accelerator.synchronize()


@cache
def _has(device: str, dtype: torch.dtype) -> bool:
    try:
        torch.ones(1, device=device).to(dtype)
    except (TypeError, RuntimeError, NotImplementedError):
        return False
    return True
