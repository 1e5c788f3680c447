"""A grader outside of the package: 1 for a short completion, else less the longer it is."""

from collections.abc import Mapping
from typing import Any

from paint.grading.contract import Grade

SHORT = 40  # characters


def grade(completion: str, row: Mapping[str, Any]) -> Grade:
    if row["id"].endswith("-0"):
        raise ValueError(f"no reward for {row['answer']}")
    while row["id"].endswith("-1"):
        pass
    length = len(completion)
    feedback = f"{length} characters, and {SHORT} are short"
    return Grade(
        min(SHORT / length, 1.0), "short" if length <= SHORT else "long", feedback=feedback
    )
