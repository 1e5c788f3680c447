"""Device of this process, as accelerate chooses it; ACCELERATE_USE_CPU=true makes it the CPU."""

from collections.abc import Sequence

import torch
from accelerate import PartialState


def own_device() -> torch.device:
    """Return the device of this process (one rank)."""
    device: torch.device = PartialState().device
    return device


def to_device(ids: Sequence[int] | Sequence[list[int]], device: torch.device) -> torch.Tensor:
    """Copy integers to a device, without waiting for its work before."""
    # Apple's devices would read them after they are freed.
    return torch.tensor(ids, dtype=torch.long).to(device, non_blocking=device.type != "mps")


def float64_device(device: torch.device) -> torch.device:
    """Return the device itself if it supports float64, else the CPU (Apple's GPUs lack it)."""
    if device.type == "mps":
        return torch.device("cpu")
    return device


def wait_for_device() -> None:
    """Wait until the accelerator has finished all queued work, for timings."""
    if torch.accelerator.is_available():
        torch.accelerator.synchronize()
