"""Device of this process, as accelerate chooses it, and the number formats that it supports.

ACCELERATE_USE_CPU=true makes it the CPU.
"""

# Capabilities are tested on the device, not looked up by its name: new kinds need no code here.

from collections.abc import Sequence
from functools import cache

import torch
from accelerate import PartialState

from paint.core.errors import ConfigError


def own_device() -> torch.device:
    """Return the device of this process (one rank)."""
    device: torch.device = PartialState().device
    return device


def to_device(ids: Sequence[int] | Sequence[list[int]], device: torch.device) -> torch.Tensor:
    """Copy integers to a device, without waiting for its work before."""
    # Apple's devices would read them after they are freed.
    return torch.tensor(ids, dtype=torch.long).to(device, non_blocking=device.type != "mps")


def require_dtype(device: torch.device | str, dtype: torch.dtype) -> None:
    """Raise ConfigError, with alternatives, if the device does not support a number format."""
    if not _has(str(device), dtype):
        name = str(dtype).removeprefix("torch.")
        raise ConfigError(
            f"the device {device} has no {name}; use --model.dtype float32, or run on the CPU "
            f"with ACCELERATE_USE_CPU=true"
        )


def float64_device(device: torch.device) -> torch.device:
    """Return the device itself if it supports float64, else the CPU (Apple's GPUs lack it)."""
    if _has(str(device), torch.float64):
        return device
    return torch.device("cpu")


def wait_for_device() -> None:
    """Wait until the accelerator has finished all queued work, for timings."""
    if torch.accelerator.is_available():
        torch.accelerator.synchronize()


@cache
def _has(device: str, dtype: torch.dtype) -> bool:
    try:
        torch.ones(1, device=device).to(dtype)
    except (TypeError, RuntimeError, NotImplementedError):
        return False
    return True
