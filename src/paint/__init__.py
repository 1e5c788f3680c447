"""PAINT: Partial-solution Adaptive INterpolated Training for self-distilled reasoners."""

from paint.errors import Diverged, PaintError, Stopped

__all__ = ["Diverged", "PaintError", "Stopped"]

__version__ = "0.1.0"
