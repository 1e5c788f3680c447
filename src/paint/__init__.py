"""PAINT: Partial-solution Adaptive INterpolated Training for self-distilled reasoners.

    run = paint.train("demo-paint", output_dir="runs/x", train={"steps": 4})
    run.metrics

The commands (paint.commands), their results and the functions of the method can be imported from
here by name. Each comes from its module when it is first used, so that ``import paint`` does not
import torch.
"""

import ast
import sys
import warnings
from importlib import import_module
from pathlib import Path
from typing import Any

if sys.platform == "win32":
    raise ImportError(
        "paint runs on Linux and macOS; on Windows, install it in WSL (`wsl --install`): answers "
        "are graded with features of POSIX systems"
    )

from paint.commands import function_names, load_function

# tqdm's, which libraries bring, in notebooks without ipywidgets. Progress here is lines of text.
warnings.filterwarnings("ignore", "IProgress not found")


def _read_homes() -> dict[str, str]:
    """The names of __init__.pyi, which type checkers read, each with its module."""
    homes = {}
    # Parsed, so that each name stands in one file, and nothing is imported.
    for node in ast.parse(Path(__file__).with_suffix(".pyi").read_text("utf-8")).body:
        if isinstance(node, ast.ImportFrom) and node.module:
            homes[node.names[0].name] = node.module
    return homes


_HOMES = _read_homes()

__all__ = sorted({*_HOMES, *function_names()} - {"__version__"})


def __getattr__(name: str) -> Any:
    if name in function_names():
        return load_function(name)
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    # The names that Python gives a module, and the public ones: no module that is imported here.
    return sorted({*(name for name in globals() if name.startswith("__")), *__all__})
