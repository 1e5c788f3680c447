"""How long a training takes, by its first step; a terminal is asked before hours of work."""

from dataclasses import dataclass

from paint.core.display import Display, agrees, format_duration
from paint.core.errors import PaintError

LONG = 3600.0
"""Seconds of work from which the command line asks before it goes on."""


@dataclass
class LongWork:
    """Told the seconds of a training by its first step (``Display.on_estimate``), once.

    With a ``label`` it is one of several ``trainings``. ``confirm`` goes on without a question;
    ``then`` says what the user may do after a "no".
    """

    display: Display
    label: str = ""
    trainings: int = 1
    confirm: bool = False
    then: str = "the same command goes on with it"
    is_told: bool = False

    def __call__(self, seconds: float) -> None:
        """Raise PaintError where the work is long and the answer is no."""
        if self.is_told:
            return
        self.is_told = True
        if self.label:
            text = f"time, an estimate: about {format_duration(seconds)} for training {self.label}"
            if self.trainings > 1:
                total = format_duration(seconds * self.trainings)
                text += f", {total} for all {self.trainings} if they take as long"
            self.display.note(text)
        if seconds * self.trainings < LONG or self.confirm:
            return
        with self.display.undrawn():
            is_agreed = agrees()
        if not is_agreed:
            raise PaintError(
                f"stopped in the first step, before anything was saved; fewer steps, trainings or "
                f"rows, or shorter completions, take less time; {self.then}"
            )
