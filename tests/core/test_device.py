"""A GPU's memory, and the folders of what is compiled for it."""

import os
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import patch

import pytest
import torch
import triton
from torch._inductor.runtime.cache_dir_utils import cache_dir

from paint.core.device import INDUCTOR, TRITON, gpu_memory, keep_compiled

GPU = torch.device("cuda")


@pytest.fixture(autouse=True)
def variables(tmp_path: Path) -> Iterator[None]:
    """No variable is set but the folder of caches, and none stays set."""
    with patch.dict(os.environ, XDG_CACHE_HOME=str(tmp_path)):
        for name in (INDUCTOR, TRITON, "TRITON_HOME"):
            os.environ.pop(name, None)
        yield


def test_gpu_memory_is_the_part_that_the_process_may_use(monkeypatch: pytest.MonkeyPatch) -> None:
    # By the number of the GPU; None is the current one.
    shares = {None: 0.25, 1: 1.0}
    monkeypatch.setattr(
        torch.cuda, "get_device_properties", lambda _: SimpleNamespace(total_memory=80)
    )
    monkeypatch.setattr(torch.cuda, "get_per_process_memory_fraction", shares.__getitem__)
    assert gpu_memory() == gpu_memory(GPU) == 20
    assert gpu_memory(torch.device("cuda", 1)) == 80


def test_keep_compiled_on_gpu_is_one_lasting_folder_for_both_libraries(tmp_path: Path) -> None:
    line = keep_compiled(GPU)
    folder = Path(cache_dir())  # as torch has it
    assert folder.parent == tmp_path / "paint" / "kernels"
    assert folder.stat().st_mode & 0o777 == 0o700  # what others write there would be run
    assert Path(triton.knobs.cache.dir) == folder / "triton"
    assert line == f"compiled kernels are kept in {folder}"
    before = dict(os.environ)
    assert keep_compiled(GPU) == line
    assert dict(os.environ) == before
