"""Packages that bring recipes, and the methods that these name (docs/how-to/extend.md).

An installed distribution names a package of its own, in whose folder the recipes are, by an entry
point of the group ``paint.recipes``. Installing it was the user's choice, so a record may name its
methods as it may name paint's own (SECURITY.md).
"""

import sys
from functools import cache
from importlib.metadata import distributions
from importlib.util import find_spec
from pathlib import Path

GROUP = "paint.recipes"


def recipe_folders() -> dict[str, Path]:
    """Return the folders of recipes of all packages but paint, by the packages' names."""
    # What lies in the working directory, which `python -m` and notebooks search, was not installed.
    here = Path().absolute()
    return _folders_on(tuple(place for place in sys.path if Path(place).absolute() != here))


@cache  # a command asks many times, and each reads the entry points of all distributions
def _folders_on(search_path: tuple[str, ...]) -> dict[str, Path]:
    packages: set[str] = set()
    for distribution in distributions(path=list(search_path)):
        points = distribution.entry_points.select(group=GROUP)
        packages.update(point.module for point in points)
    folders = {}
    for package in sorted(packages):
        top, *inner = package.split(".")
        # Found without an import: help and lists of recipes must not wait for it.
        spec = find_spec(top)
        # None: of the distribution only the metadata is left.
        if spec is not None and spec.submodule_search_locations:
            folders[package] = Path(spec.submodule_search_locations[0], *inner)
    return folders


def is_shipped(name: str) -> bool:
    """Return whether a module, or an object "module:name", is of paint or of such a package."""
    top = name.partition(":")[0].partition(".")[0]
    return top == "paint" or any(package.split(".")[0] == top for package in recipe_folders())
