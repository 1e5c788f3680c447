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


def status(machine: dict[str, Any]) -> int:
    all_fit = all(package["fits"] for package in machine["packages"].values())
    return 0 if all_fit else 1


def report(machine: dict[str, Any]) -> str:
    memory, packages = machine["memory"], machine["packages"]
    gpus = [f"{gpu['name']} ({gpu['memory'] / 1e9:.0f} GB)" for gpu in machine["gpus"]]
    lines = [
        f"paint    {machine['paint']}, Python {machine['python']}, {machine['platform']}",
        f"GPUs     {', '.join(gpus) or 'none that torch sees'}",
        f"CPU      {machine['cores']} cores; {memory['free'] / 1e9:.0f} of "
        f"{memory['total'] / 1e9:.0f} GB free",
    ]
    for path, free in machine["disk"].items():
        lines.append(f"disk     {free / 1e9:.0f} GB free at {path}")
    titles = ("vLLM", "Liger", "hub", "code")
    lines += [f"{title:8} {machine[title.lower()]}" for title in titles]
    fitting = 0
    for name, package in packages.items():
        fitting += package["fits"]
        if not package["fits"]:
            version, needs = package["version"] or "not installed", package["needs"] or "it"
            lines.append(f"WRONG    {name}: {version}, and paint needs {needs}")
    names = ("torch", "transformers", "peft")
    versions = ", ".join(f"{name} {packages[name]['version']}" for name in names)
    lines.append(f"packages {versions}; {fitting} of {len(packages)} fit")
    for name, line in machine["recipes"].items():
        lines.append(f"{name}: {line}")
    return "\n".join(lines)
