"""PAINT: Partial-solution Adaptive INterpolated Training for self-distilled reasoners.

The method's functions can be imported from here by name. Each comes from its module (paint.context,
paint.objective, paint.fused) when it is first used, so that ``import paint`` does not import torch.
"""

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

if sys.platform == "win32":
    raise ImportError(
        "paint runs on Linux and macOS; on Windows, install it in WSL (`wsl --install`): answers "
        "are graded with what only POSIX systems have"
    )

from paint.errors import ConfigError, Diverged, PaintError, Stopped

if TYPE_CHECKING:
    from paint.context import (
        anchors,
        mask_ratio,
        mask_solution,
        normalize,
        overlap,
        student_messages,
        teacher_messages,
    )
    from paint.divergences import Divergence
    from paint.fused import fused_paint_loss
    from paint.objective import Loss, divergence, entropy, interpolate, paint_loss, select_positions

__version__ = "0.1.0"

__all__ = [
    "ConfigError",
    "Diverged",
    "Divergence",
    "Loss",
    "PaintError",
    "Stopped",
    "anchors",
    "divergence",
    "entropy",
    "fused_paint_loss",
    "interpolate",
    "mask_ratio",
    "mask_solution",
    "normalize",
    "overlap",
    "paint_loss",
    "select_positions",
    "student_messages",
    "teacher_messages",
]

HOMES = ("context", "divergences", "objective", "fused")
"""Where the names are looked for, in this order: the first module needs no torch."""

if not TYPE_CHECKING:  # a type checker would take any name for one that this function knows

    def __getattr__(name: str) -> Any:
        if name in __all__:
            for home in HOMES:
                module = import_module(f"paint.{home}")
                if hasattr(module, name):
                    return getattr(module, name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
