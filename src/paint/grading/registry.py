r"""Registry of graders by name.

math           the boxed answer equals the gold answer (paint.grading.math.grader)
exact          the text equals the gold answer character by character
none           no completion is graded
module:name    a custom function (paint.grading.base)
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from paint.core.errors import ConfigError
from paint.core.plugins import load_object, spec_of
from paint.grading.base import Grade, GradeFunction, Grader, Item
from paint.grading.math.compare import boxed
from paint.grading.math.grader import MathGrader
from paint.grading.processes import Pool

GRADERS = ("math", "exact", "none")


def find_grader(
    grader: str | GradeFunction = "math", *, deadline: float = 5.0, workers: int | None = None
) -> Grader:
    """The grader of a name, or of a function that can be imported by its name.

    Args:
        grader: a name of GRADERS, "module:name", or a function.
        deadline: processor seconds that a comparison of two answers, or a call of a function, may
            take, in [0.01, 86400].
        workers: processes that compare answers or call the function; None is the number of cores.

    Raises:
        ConfigError: there is no such grader, or it is not callable.
    """
    match grader:
        case "math":
            return MathGrader(deadline=deadline, workers=workers)
        case "exact":
            return ExactGrader()
        case "none":
            return NoGrader()
    name = grader if isinstance(grader, str) else spec_of(grader)
    if not callable(load_object(name, "grading.grader", GRADERS)):
        raise ConfigError(f"grading.grader is {name}, which is not callable")
    return FunctionGrader(name, deadline=deadline, workers=workers)


class ExactGrader(Grader):
    r"""Reward 1 where the answer's text is a gold answer.

    The answer is the content of the last \boxed{}, or the whole text where there is none, in each
    case after the last closed think block and without white space at its ends.
    """

    def grade(self, items: Sequence[Item]) -> list[Grade]:
        """The grades in the order of the items."""
        return [_exact(item) for item in items]


class NoGrader(Grader):
    """No completion is graded: rewards are None."""

    def grade(self, items: Sequence[Item]) -> list[Grade]:
        """A grade without reward for each item."""
        return [Grade(None, "not graded")] * len(items)


class FunctionGrader(Grader):
    """Grades by a custom function, each call in a process that can be ended.

    Args:
        name: of the function, as "module:name".
    """

    def __init__(self, name: str, *, deadline: float = 5.0, workers: int | None = None) -> None:
        self._pool = Pool(name, deadline=deadline, workers=workers)

    def grade(self, items: Sequence[Item]) -> list[Grade]:
        """The grades in the order of the items."""
        results = self._pool.call([(item.text, dict(item.row)) for item in items])
        return [
            Grade(0.0, result.error, failed=True) if result.error else _grade(result.value)
            for result in results
        ]

    def close(self) -> None:
        """End all processes at once; a later grading starts new ones."""
        self._pool.close()


def _exact(item: Item) -> Grade:
    written = item.text.rpartition("</think>")[2]
    answer = boxed(written)
    answer = (written if answer is None else answer).strip()
    golds = [item.gold] if isinstance(item.gold, str) else item.gold
    return _graded(answer in [gold.strip() for gold in golds])


def _grade(value: Any) -> Grade:
    """The grade of a function's return value, decoded from JSON."""
    reason = ""
    if isinstance(value, Mapping) and "reward" in value:
        value, reason = value["reward"], str(value.get("reason", ""))
    if not isinstance(value, bool | int | float) or not math.isfinite(value):
        return Grade(0.0, f"returned {value!r}, which is not a reward"[:200], failed=True)
    return _graded(value, reason)


def _graded(reward: float, reason: str = "") -> Grade:
    word = "right" if reward == 1 else "wrong" if reward == 0 else "partial"
    return Grade(float(reward), reason or word)
