r"""The grader contract: a completion and its row in, a grade out.

A custom grader is a function, named in the setting `grading.grader` as "module:name":

    def grade(completion: str, row: Mapping[str, Any]) -> Grade | float | bool

`completion` is the text as the model wrote it, think tags included; `split_thought` of
paint.grading.thoughts separates the answer. `row` holds every field of the problem's row, and id,
problem, solution ("" where it has none), answer, answers (a list of every right one) and, where the
data have them, level and subject; it is the same in training, validation and evaluation. A bool is
the reward 1 or 0.

The function runs in a separate process for each completion. If it raises, ends its process,
takes longer than `grading.deadline` or returns anything else, the completion gets reward 0 and
`failed` is set. The names are in paint.grading.registry.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

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
    """

    reward: float | None
    reason: str = ""
    failed: bool = False
    feedback: str = ""

    @property
    def correct(self) -> bool:
        """Whether the reward is 1."""
        return self.reward == 1


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
    """Grades many completions at once; a context manager that may hold processes.

    Majority votes and lenient metrics of an evaluation need the grades of the mathematics grader
    (paint.grading.math.grader.MathGrade). With other graders they are left out.
    """

    def grade(self, items: Sequence[Item]) -> Sequence[Grade]:
        """The grades in the order of the items."""
        ...

    def close(self) -> None:
        """End all processes at once; a later grading starts new ones."""
        return

    def __enter__(self) -> "Grader":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
