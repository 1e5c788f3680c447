"""What a run finds on this machine: devices, memory, disk, libraries, vLLM and Liger."""

import os
import platform
import shlex
import shutil
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, packages_distributions, requires, version
from pathlib import Path
from typing import Any

from codetrial.sandbox import SandboxError, describe_confinement
from paint.config.recipe import find_recipe, read_recipe
from paint.config.schema import RolloutConfig
from paint.core.errors import PaintError
from paint.core.versions import __version__
from paint.resolve.check import INSTALL, check_config
from paint.resolve.plan import Machine, make_plan
from strictgrade.processes import cores

LIBRARIES = ("torch", "transformers", "peft", "accelerate", "tokenizers", "numpy")
"""The libraries whose versions run.json has, and that are shown where paint is not installed."""

SHORT_DTYPES = ("bfloat16", "float16")


def examine(recipes: Sequence[str] = ()) -> dict[str, Any]:
    """Find devices, memory, disk, libraries, vLLM, Liger, and what recipes need; sizes in bytes."""
    import psutil
    import torch
    from huggingface_hub import constants, get_token

    from paint.models import liger

    seen = map(torch.cuda.get_device_properties, range(torch.cuda.device_count()))
    gpus: list[dict[str, Any]] = [{"name": gpu.name, "memory": gpu.total_memory} for gpu in seen]
    memory = psutil.virtual_memory()
    # Every GPU gets the same work, so the smallest decides.
    capacity = min((gpu["memory"] for gpu in gpus), default=memory.total)
    disk = {}
    for place in (Path.cwd(), Path(constants.HF_HUB_CACHE)):
        # The cache may not exist yet: its disk is that of the nearest folder above it.
        existing = next(path for path in (place, *place.parents) if path.exists())
        disk[str(place)] = shutil.disk_usage(existing).free
    no_liger = f"not installed ({liger.INSTALL}); used on CUDA alone"
    server, *_ = shlex.split(RolloutConfig().server)  # by which a run would start one
    return {
        "paint": __version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "packages": _packages(),
        "gpus": gpus,
        "cores": cores(),
        "memory": {"total": memory.total, "free": memory.available},
        "disk": disk,
        "vllm": shutil.which(server) or f"not found; {INSTALL}",
        "liger": "installed" if liger.is_installed() else no_liger,
        "code": _code(),
        "hub": "offline" if constants.HF_HUB_OFFLINE else f"{'a' if get_token() else 'no'} token",
        "recipes": {name: _needs(name, len(gpus), capacity) for name in recipes},
    }


def find_machine(device: Any = None, ranks: int = 1) -> Machine:
    """Find what a run depends on; torch is imported here.

    Without the torch device of this process it is the first GPU, if there is one. ``ranks`` are the
    processes that train, over all computers.
    """
    import psutil
    import torch

    from paint.core.device import gpu_memory, product_slowdown
    from paint.models.liger import is_installed

    local = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    # The ranks of a computer share its memory.
    gpus, memory = 0, psutil.virtual_memory().total / local
    if device is None:
        # With accelerate's --cpu, torch may see a GPU that the ranks do not use.
        is_forced = os.environ.get("ACCELERATE_USE_CPU", "") == "true"
        on_gpu = torch.cuda.is_available() and not is_forced
        on_cpu = is_forced or not (on_gpu or torch.accelerator.is_available())
    else:
        on_cpu, on_gpu = device.type == "cpu", device.type == "cuda"
    slowdown = dict.fromkeys(SHORT_DTYPES, 0.0)
    if on_cpu:
        slowdown = {name: product_slowdown(getattr(torch, name)) for name in SHORT_DTYPES}
    if on_gpu:
        gpus, memory = local, gpu_memory(device)
    has_liger = is_installed()
    return Machine(gpus=gpus, memory=memory, ranks=ranks, has_liger=has_liger, slowdown=slowdown)


def _packages() -> dict[str, dict[str, Any]]:
    from packaging.requirements import Requirement

    found: dict[str, dict[str, Any]] = {}
    distributions = packages_distributions().get("paint")
    # Where paint is not installed but on PYTHONPATH, nothing says which versions fit.
    needs = requires(distributions[0]) if distributions else LIBRARIES
    for line in needs or ():
        need = Requirement(line)
        if need.marker is None or need.marker.evaluate({"extra": ""}):
            try:
                own = version(need.name)
            except PackageNotFoundError:
                own = None
            fits = own is not None and need.specifier.contains(own, prereleases=True)
            found[need.name] = {"version": own, "needs": str(need.specifier), "fits": fits}
    return found


def _code() -> str:
    try:
        return describe_confinement()
    except SandboxError as error:
        return str(error)


def _needs(name: str, gpus: int, capacity: float) -> str:
    from paint.resolve import plan_report as report

    try:
        run = check_config(read_recipe(find_recipe(name)))
        return report.start_line(make_plan(run, Machine(gpus, capacity)))
    except PaintError as error:
        return str(error)
