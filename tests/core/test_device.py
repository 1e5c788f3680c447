"""A GPU's memory."""

from types import SimpleNamespace

import pytest
import torch

from paint.core.device import gpu_memory

GPU = torch.device("cuda")


def test_gpu_memory_is_the_part_that_the_process_may_use(monkeypatch: pytest.MonkeyPatch) -> None:
    # By the number of the GPU; None is the current one.
    shares = {None: 0.25, 1: 1.0}
    monkeypatch.setattr(
        torch.cuda, "get_device_properties", lambda _: SimpleNamespace(total_memory=80)
    )
    monkeypatch.setattr(torch.cuda, "get_per_process_memory_fraction", shares.__getitem__)
    assert gpu_memory() == gpu_memory(GPU) == 20
    assert gpu_memory(torch.device("cuda", 1)) == 80
