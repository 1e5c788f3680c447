"""``paint doctor``."""

import json
import platform
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import (
    PackageNotFoundError,
    packages_distributions,
    requires,
    version,
)
from pathlib import Path
from typing import Any

from tyro.conf import Positional

from paint import __version__
from paint.config.recipe import find_recipe, read_recipe
from paint.core.errors import PaintError


@dataclass(frozen=True)
class Doctor:
    """Show what a run would find here: devices, memory, disk, libraries, vLLM.

    The exit status is 1 if a library is missing or of a version that does not fit.

    Example: paint doctor demo-paint
    """

    recipes: Positional[tuple[str, ...]] = ()
    """Recipes: whether each fits in the memory of this machine, by `paint plan`'s estimate."""
    json: bool = False
    """Print JSON."""

    def run(self) -> int:
        """Print what was found; 1 if a library does not fit."""
        from paint.core.display import Terminal

        found = examine(self.recipes)
        text = json.dumps(found, indent=2) if self.json else "\n".join(_lines(found))
        Terminal().print(text)
        return 0 if all(package["fits"] for package in found["packages"].values()) else 1


def examine(recipes: tuple[str, ...] = ()) -> dict[str, Any]:
    """Find devices, memory, disk, libraries and vLLM, and what recipes need; sizes in bytes."""
    import psutil
    import torch
    from huggingface_hub import constants, get_token

    gpus = [torch.cuda.get_device_properties(i) for i in range(torch.cuda.device_count())]
    memory = psutil.virtual_memory()
    capacity = min((gpu.total_memory for gpu in gpus), default=memory.total)
    return {
        "paint": __version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "packages": _packages(),
        "gpus": [{"name": gpu.name, "memory": gpu.total_memory} for gpu in gpus],
        "cores": len(psutil.Process().cpu_affinity())
        if hasattr(psutil.Process, "cpu_affinity")
        else psutil.cpu_count(),
        "memory": {"total": memory.total, "free": memory.available},
        "disk": {
            str(place): shutil.disk_usage(_existing(place)).free
            for place in (Path.cwd(), Path(constants.HF_HUB_CACHE))
        },
        "vllm": _vllm(),
        "hub": "offline" if constants.HF_HUB_OFFLINE else f"{'a' if get_token() else 'no'} token",
        "recipes": {name: _needs(name, len(gpus), capacity) for name in recipes},
    }


def _packages() -> dict[str, dict[str, Any]]:
    """Version, requirement and fit of every library that paint needs."""
    from packaging.requirements import Requirement

    found = {}
    distribution = packages_distributions()["paint"][0]
    for line in requires(distribution) or []:
        need = Requirement(line)
        if need.marker is None or need.marker.evaluate({"extra": ""}):
            try:
                own = version(need.name)
            except PackageNotFoundError:
                own = None
            fits = own is not None and need.specifier.contains(own, prereleases=True)
            found[need.name] = {"version": own, "needs": str(need.specifier), "fits": fits}
    return found


def _vllm() -> str:
    """How a run would start a server."""
    from paint.inference.vllm.environment import VLLM_VERSION
    from paint.inference.vllm.process import DEFAULT_SERVER, server_start

    start = server_start(DEFAULT_SERVER)
    if start[0] == "uvx":
        return f"by uvx, which downloads vLLM {VLLM_VERSION} at the first start"
    place = shutil.which(start[0])
    return place or "not found; `paint setup vllm` installs it (docs/how-to/vllm.md)"


def _needs(name: str, gpus: int, capacity: float) -> str:
    """The memory plan of a recipe on this machine in one line, or why there is none."""
    from paint.estimate import report
    from paint.estimate.plan import make_plan

    try:
        return report.start_line(make_plan(read_recipe(find_recipe(name)), gpus, memory=capacity))
    except PaintError as error:
        return str(error)


def _lines(found: dict[str, Any]) -> Iterator[str]:
    """What was found, as text."""
    yield f"paint    {found['paint']}, Python {found['python']}, {found['platform']}"
    gpus = [f"{gpu['name']} ({gpu['memory'] / 1e9:.0f} GB)" for gpu in found["gpus"]]
    yield f"GPUs     {', '.join(gpus) or 'none that torch sees'}"
    free, total = (found["memory"][key] / 1e9 for key in ("free", "total"))
    yield f"CPU      {found['cores']} cores; {free:.0f} of {total:.0f} GB free"
    for place, free in found["disk"].items():
        yield f"disk     {free / 1e9:.0f} GB free at {place}"
    yield f"vLLM     {found['vllm']}"
    yield f"hub      {found['hub']}"
    packages = found["packages"]
    wrong = [name for name, package in packages.items() if not package["fits"]]
    for name in wrong:
        own = packages[name]["version"] or "not installed"
        yield f"WRONG    {name}: {own}, and paint needs {packages[name]['needs'] or 'it'}"
    names = ("torch", "transformers", "peft")
    shown = ", ".join(f"{name} {packages[name]['version']}" for name in names)
    yield f"packages {shown}; {len(packages) - len(wrong)} of {len(packages)} fit"
    for name, line in found["recipes"].items():
        yield f"{name}: {line}"


def _existing(place: Path) -> Path:
    """The place, or the nearest folder above it that exists."""
    return next(path for path in (place, *place.parents) if path.exists())
