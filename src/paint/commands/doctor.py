"""``paint doctor``."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any


def doctor(recipes: Sequence[str | Path] = ()) -> dict[str, Any]:
    """Find what a run would find here: devices, memory, disk, libraries, vLLM, Liger.

    The exit status is 1 if a library is missing or of a version that does not fit.

    Example: paint doctor demo-paint

    Args:
        recipes: Recipes: whether each fits in the memory of this machine, by `paint plan`'s
            estimate.

    Returns:
        What was found, by kind. Sizes are in bytes; ``packages`` has version, requirement and fit
        of every library.
    """
    from paint.inference.machine import examine

    return examine([str(recipe) for recipe in recipes])


def status(found: dict[str, Any]) -> int:
    """1 if a library does not fit."""
    if all(package["fits"] for package in found["packages"].values()):
        return 0
    return 1


def report(found: dict[str, Any]) -> str:
    """What was found, as text."""
    return "\n".join(_lines(found))


def _lines(found: dict[str, Any]) -> Iterator[str]:
    """What was found, as text."""
    yield f"paint    {found['paint']}, Python {found['python']}, {found['platform']}"
    gpus = []
    for gpu in found["gpus"]:
        gpus.append(f"{gpu['name']} ({gpu['memory'] / 1e9:.0f} GB)")
    yield f"GPUs     {', '.join(gpus) or 'none that torch sees'}"
    free, total = (found["memory"][key] / 1e9 for key in ("free", "total"))
    yield f"CPU      {found['cores']} cores; {free:.0f} of {total:.0f} GB free"
    for place, free in found["disk"].items():
        yield f"disk     {free / 1e9:.0f} GB free at {place}"
    yield f"vLLM     {found['vllm']}"
    yield f"Liger    {found['liger']}"
    yield f"hub      {found['hub']}"
    packages = found["packages"]
    wrong = [name for name, package in packages.items() if not package["fits"]]
    for name in wrong:
        own = packages[name]["version"] or "not installed"
        yield f"WRONG    {name}: {own}, and paint needs {packages[name]['needs'] or 'it'}"
    names = ("torch", "transformers", "peft")
    versions = ", ".join(f"{name} {packages[name]['version']}" for name in names)
    yield f"packages {versions}; {len(packages) - len(wrong)} of {len(packages)} fit"
    for name, line in found["recipes"].items():
        yield f"{name}: {line}"
