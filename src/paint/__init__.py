"""PAINT: Partial-solution Adaptive INterpolated Training for self-distilled reasoners."""

__version__ = "0.1.0"


class PaintError(Exception):
    """Something that the user can mend; the message says what is wrong, where, and the way out."""
