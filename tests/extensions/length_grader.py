"""A grader with an option outside of the package: 1 for a short completion with the answer."""

from dataclasses import dataclass

from paint.core.settings import POSITIVE, setting
from paint.grading.contract import Grade


@dataclass(frozen=True)
class LengthOptions:
    longest: int = setting(2000, POSITIVE, "characters; default: 2000")
    """Most characters of a completion with a reward."""


def grade(completion, row, options: LengthOptions):  # type: ignore[no-untyped-def]
    is_right = row["answer"] in completion
    is_short = len(completion) <= options.longest
    return Grade(float(is_right and is_short), "short and right")
