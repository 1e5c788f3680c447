r"""The grader contract: completions and their rows in, grades out.

A custom grader is a function, named in the setting `grading.grader` as "module:name":

    def grade(completion: str, row: Mapping[str, Any]) -> Grade | float | bool
    def grade(completions: list[str], rows: list[Mapping[str, Any]]) -> list[Grade | float | bool]

Either may be `async`. A bool is the reward 1 or 0. A call that fails costs its completions: their
reward is 0 and `failed` is set. docs/how-to/own-grader.md says what the arguments hold.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from paint.core.errors import PaintError
from paint.grading.thoughts import ThoughtTags

Gold = str | Sequence[str]  # a gold answer, or several of which each is right


@dataclass(frozen=True, slots=True)
class Grade:
    """The reward of a completion, and the reason for it in a few words.

    Attributes:
        reward: any finite number; 1 counts as right in accuracy and pass@k. None is not graded.
        reason: a few words, which tables count and list.
        failed: the grader itself failed on the completion.
        feedback: a longer text on the completion: failed tests, a judge's remarks.
        parts: of several graders, the grade of each by its name, of which the first decides what
            is right.
    """

    reward: float | None
    reason: str = ""
    failed: bool = False
    feedback: str = ""
    parts: Mapping[str, "Grade"] = field(default_factory=dict, hash=False)

    @property
    def correct(self) -> bool:
        """True if the reward is 1; of several graders, the reward of the first."""
        if self.parts:
            return next(iter(self.parts.values())).correct
        return self.reward == 1

    @property
    def comment(self) -> str:
        """What was said of the completion: the feedback, or why it is not right.

        Empty where the grader failed or did not grade.
        """
        if self.failed or self.reward is None:
            return ""
        if self.feedback or self.correct:
            return self.feedback
        return self.reason


@dataclass(frozen=True, slots=True)
class Cost:
    """What grading by a function took."""

    calls: int = 0  # repeated ones included
    seconds: float = 0.0  # of all calls added up; they may overlap

    def __add__(self, other: "Cost") -> "Cost":
        return Cost(self.calls + other.calls, self.seconds + other.seconds)


class GradingError(PaintError, RuntimeError):
    """The grader failed on every completion."""


@dataclass(frozen=True, slots=True)
class Item:
    """A completion as the model wrote it, think tags included, and its gold answer."""

    text: str
    gold: Gold  # of several accepted answers, each is right
    truncated: bool = False  # cut at its token limit
    row: Mapping[str, Any] = field(default_factory=dict)  # the problem's fields
    tags: Sequence[ThoughtTags] = ()  # the model's own, where their spelling is not a known one


@runtime_checkable
class Grader(Protocol):
    """Grades many completions at once; a context manager that may hold processes."""

    def grade(self, items: Sequence[Item]) -> Sequence[Grade]:
        """The grades in the order of the items."""
        ...

    def take_cost(self) -> Cost:
        """What the calls since the last ``take_cost`` took; zero where no function is called."""
        return Cost()

    def describe(self) -> str:
        """What a user should know of it at the start, in one line; "" for nothing."""
        return ""

    def lacks(self, row: Mapping[str, Any]) -> str:
        """What a problem's row lacks for it, for a message; "" for nothing."""
        return ""

    def close(self) -> None:
        """End all processes at once; a later grading starts new ones."""
        return

    def __enter__(self) -> "Grader":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def require_some_grade(grades: Sequence[Grade], place: str) -> None:
    """Raise GradingError, which begins with a place, if the grader failed on every completion."""
    if grades and all(grade.failed for grade in grades):
        raise GradingError(
            f"{place}: the grader failed on all {len(grades)} completions, the first time with "
            f'"{grades[0].reason}"; mend the grader, or the endpoint that it asks, then repeat the '
            f"command (a run is resumed by `paint resume`); with grading.stop_on_failure false, "
            f"failed completions get the reward 0"
        )
