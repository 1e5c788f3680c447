"""The package's version, and those of the libraries that results depend on."""

from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as installed

__version__ = "0.1.0"  # pyproject.toml reads it here


def versions(*libraries: str) -> dict[str, str]:
    """The versions of paint and of the distributions named, "missing" for one not installed."""
    return {"paint": __version__} | {name: _version(name) for name in libraries}


def _version(name: str) -> str:
    try:
        return installed(name)
    except PackageNotFoundError:
        return "missing"
