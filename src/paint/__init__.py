"""PAINT: Partial-solution Adaptive INterpolated Training for self-distilled reasoners."""

__version__ = "0.1.0"


class PaintError(Exception):
    """Something that the user can mend; the message says what is wrong, where, and the way out."""


class Diverged(PaintError):
    """The policy's numbers are no longer finite."""


class Stopped(Exception):
    """The run was asked to stop by a signal and has saved what it had; the message says how to go on."""

    def __init__(self, message: str, signal_number: int) -> None:
        super().__init__(message)
        self.signal_number = signal_number
