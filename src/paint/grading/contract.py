r"""The grader contract: completions and their rows in, grades out.

A custom grader is a function, named in the setting `grading.grader` as "module:name":

    def grade(completion: str, row: Mapping[str, Any]) -> Reward
    def grade(completions: list[str], rows: list[Mapping[str, Any]]) -> list[Reward]

where Reward is a Grade, a number, a bool (the reward 1 or 0) or None (nothing is said). Either may
be `async`. A completion on which a call failed has no reward, and `failed` is set: it counts in no
mean and no update. docs/how-to/own-grader.md says what the arguments hold.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from paint.core.errors import PaintError
from strictgrade.thoughts import ThoughtTags

Gold = str | Sequence[str]  # a gold answer, or several of which each is right


@dataclass(frozen=True, slots=True)
class Grade:
    """The reward of a completion, and the reason for it in a few words.

    None in any field says nothing: no reward, no reason, no feedback, no answer.

    Attributes:
        reward: any finite number; 1 counts as right in accuracy and pass@k. None is not graded.
        reason: a few words, which tables count and list.
        failed: the grader itself failed on the completion, which has no reward then.
        feedback: a longer text on the completion: failed tests, a judge's remarks.
        parts: of several graders, the grade of each by its name. The first that gave a reward
            decides what is right.
        answer: what was read as the answer. Equal answers of a problem are votes for one (maj@k).
        metrics: further numbers of the completion, by the name that their mean has in tables and in
            metrics.jsonl.
    """

    reward: float | None
    reason: str = ""
    failed: bool = False
    feedback: str = ""
    parts: Mapping[str, "Grade"] = field(default_factory=dict, hash=False)
    answer: str | None = None
    metrics: Mapping[str, float] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        if self.failed:
            object.__setattr__(self, "reward", None)

    @classmethod
    def stored(cls, row: Mapping[str, Any], reward: float | None, answer: str | None) -> "Grade":
        """Return the grade with these ``columns`` in a row of a file; of parts, their rewards."""
        return cls(
            reward,
            row["reason"],
            row.get("failed", False),
            row.get("feedback", ""),
            {name: Grade(part) for name, part in row.get("rewards", {}).items()},
            answer,
            row.get("metrics", {}),
        )

    @property
    def correct(self) -> bool:
        """Whether the reward is 1; of several graders, the reward of the first that gave one."""
        if self.failed:
            return False
        for part in self.parts.values():
            if part.reward is not None:
                return part.correct
        return self.reward == 1

    @property
    def columns(self) -> dict[str, Any]:
        """What rollouts and samples are stored with, beside the reward; only what was said."""
        said: dict[str, Any] = {"reason": self.reason}
        if self.metrics:
            said["metrics"] = dict(self.metrics)
        if self.feedback:
            said["feedback"] = self.feedback
        if self.parts:
            said["rewards"] = {name: part.reward for name, part in self.parts.items()}
        return said

    @property
    def comment(self) -> str:
        """The feedback, or why the completion is not right; "" after a failure."""
        if self.failed:
            return ""
        if self.feedback or self.correct or self.reward is None:
            return self.feedback
        return self.reason


@dataclass(frozen=True, slots=True)
class RowCheck:
    """What a grader finds of a row before any completion of it is graded.

    Attributes:
        fault: why it can grade no completion of the row; "" where it can.
        note: how the row is graded unlike the rest, in words that follow a number of rows.
    """

    fault: str = ""
    note: str = ""


class GradingError(PaintError, RuntimeError):
    """The grader failed on every completion, or said nothing of any."""


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

    Attributes:
        gives_answers: True where the reward says whether an answer is right: each reward is 1 or 0,
            and each grade has the answer, or None where the completion has none.
        unanswered: of a grader without answers, the reasons by which a completion has none.
    """

    gives_answers: bool = False
    unanswered: Sequence[str] = ()

    def grade(self, items: Sequence[Item]) -> Sequence[Grade]:
        """Return the grades in the order of the items."""
        ...

    def equal(self, pairs: Sequence[tuple[str, str]]) -> Sequence[bool]:
        """Return whether the two answers of each pair are equal, beyond the same text."""
        return [False] * len(pairs)

    def unreadable(self, gold: str) -> str:
        """Return why a gold answer cannot be read, so that other spellings are wrong; or ""."""
        return ""

    def warning(self) -> str:
        """Return what of it is likely wrong on this machine, in one line; "" for nothing."""
        return ""

    def check_rows(self, rows: Sequence[Mapping[str, Any]]) -> Sequence[RowCheck]:
        """Return what is found of each row by its own solution, where the grader can try that."""
        return [RowCheck()] * len(rows)

    def close(self) -> None:
        """End all processes at once; a later grading starts new ones."""
        return

    def __enter__(self) -> "Grader":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def require_some_grade(
    grades: Sequence[Grade],
    ids: Sequence[str],
    who: str,
    place: str,
    go_on: str = "repeat the command",
) -> None:
    """Raise GradingError if grading failed on every completion, or said nothing of any.

    ``ids`` are those of the completions' problems, ``who`` graded them, ``place`` begins the
    message, and ``go_on`` says how the work continues.
    """
    if not grades or any(grade.reward is not None or grade.comment for grade in grades):
        return
    failed = [i for i, grade in enumerate(grades) if grade.failed]
    if failed:
        said = (
            f"{who} failed on {len(failed)} of {len(grades)} completions, the first time on "
            f'problem {ids[failed[0]]} with "{grades[failed[0]].reason}"'
        )
    else:
        said = (
            f"{who} said nothing of all {len(grades)} completions: it returned None, "
            f"as a function without return does"
        )
    raise GradingError(
        f"{place}: {said}; mend it, or the endpoint that it asks, then {go_on}; with "
        f"grading.stop_on_failure false, completions without a reward are passed over"
    )


def describe_failures(grades: Sequence[Grade], ids: Sequence[str]) -> str:
    """Return on how many completions the grader failed, and why on the first; "" where on none."""
    failed = [i for i, grade in enumerate(grades) if grade.failed]
    if not failed:
        return ""
    return (
        f"the grader failed on {len(failed)} of {len(grades)} completions, which have no reward; "
        f"first on problem {ids[failed[0]]}: {grades[failed[0]].reason}"
    )
