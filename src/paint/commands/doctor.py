"""``paint doctor``."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any


def doctor(recipes: Sequence[str | Path] = ()) -> dict[str, Any]:
    """Find what a run would find here: devices, memory, disk, libraries, vLLM, Liger, sandbox.

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
    memory, packages = found["memory"], found["packages"]
    gpus = [f"{gpu['name']} ({gpu['memory'] / 1e9:.0f} GB)" for gpu in found["gpus"]]
    lines = [
        f"paint    {found['paint']}, Python {found['python']}, {found['platform']}",
        f"GPUs     {', '.join(gpus) or 'none that torch sees'}",
        f"CPU      {found['cores']} cores; {memory['free'] / 1e9:.0f} of "
        f"{memory['total'] / 1e9:.0f} GB free",
    ]
    for place, free in found["disk"].items():
        lines.append(f"disk     {free / 1e9:.0f} GB free at {place}")
    lines += [f"vLLM     {found['vllm']}", f"Liger    {found['liger']}", f"hub      {found['hub']}"]
    lines.append(f"code     {found['code']}")
    fitting = 0
    for name, package in packages.items():
        fitting += package["fits"]
        if not package["fits"]:
            own, needs = package["version"] or "not installed", package["needs"] or "it"
            lines.append(f"WRONG    {name}: {own}, and paint needs {needs}")
    names = ("torch", "transformers", "peft")
    versions = ", ".join(f"{name} {packages[name]['version']}" for name in names)
    lines.append(f"packages {versions}; {fitting} of {len(packages)} fit")
    for name, line in found["recipes"].items():
        lines.append(f"{name}: {line}")
    return "\n".join(lines)
