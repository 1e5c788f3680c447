"""Device of this process, as accelerate chooses it; ACCELERATE_USE_CPU=true makes it the CPU."""

import time
from collections.abc import Sequence
from functools import lru_cache

import torch
from accelerate import PartialState


def own_device() -> torch.device:
    device: torch.device = PartialState().device
    return device


@lru_cache(maxsize=4)
def product_slowdown(dtype: torch.dtype) -> float:
    """Return how many times as long a product takes in this format as in float32 on this CPU.

    Without instructions for the format it is 2 to 90, with them about 0.5. It takes up to 0.1 s.
    """
    seconds = {}
    for kind in (torch.float32, dtype):
        # As in a backward pass, whose products are the slowest of those that are emulated.
        x, weight = torch.ones(64, 512, dtype=kind), torch.ones(512, 512, dtype=kind)
        x @ weight  # the first one chooses its kernel
        times = []
        for _ in range(4):
            began = time.perf_counter()
            x @ weight
            times.append(time.perf_counter() - began)
        seconds[kind] = min(times)  # other processes only add to it
    return seconds[dtype] / seconds[torch.float32]


def gpu_memory(device: torch.device | None = None) -> float:
    """Return the bytes of a GPU, by default the current one, that this process may use.

    A share is set by ``torch.cuda.set_per_process_memory_fraction``.
    """
    number = None if device is None else device.index
    total: int = torch.cuda.get_device_properties(number).total_memory
    return total * torch.cuda.get_per_process_memory_fraction(number)


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
