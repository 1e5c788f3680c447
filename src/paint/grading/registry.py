r"""Registry of graders by name.

math           the boxed answer equals the gold answer (paint.grading.math.grader)
exact          the text equals the gold answer character by character
choice         the letter that is chosen is the gold one
none           no completion is graded
module:name    a custom function (paint.grading.base)
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from paint.core.errors import ConfigError
from paint.core.plugins import load_object
from paint.grading.base import Grade, Grader, Item
from paint.grading.choice import chosen_letter, named_letters
from paint.grading.math.compare import boxed
from paint.grading.math.grader import MathGrader
from paint.grading.processes import Pool
from paint.grading.thoughts import split_thought

GRADERS = ("math", "exact", "choice", "none")


def find_grader(
    grader: str = "math", *, deadline: float = 5.0, workers: int | None = None
) -> Grader:
    """The grader of a name.

    Args:
        grader: a name of GRADERS, or "module:name" of a function.
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
            return EachGrader(exact)
        case "choice":
            return EachGrader(choice)
        case "none":
            return NoGrader()
    if not callable(load_object(grader, "grading.grader", GRADERS)):
        raise ConfigError(f"grading.grader is {grader}, which is not callable")
    return FunctionGrader(grader, deadline=deadline, workers=workers)


class EachGrader(Grader):
    """Grades by a function of one completion that is fast and cannot fail, in this process."""

    def __init__(self, function: Callable[[Item], Grade]) -> None:
        self.function = function

    def grade(self, items: Sequence[Item]) -> list[Grade]:
        return list(map(self.function, items))


class NoGrader(Grader):
    """No completion is graded: rewards are None."""

    def grade(self, items: Sequence[Item]) -> list[Grade]:
        return [Grade(None, "not graded")] * len(items)


class FunctionGrader(Grader):
    """Grades by a custom function, each call in a process that can be ended.

    Args:
        name: of the function, as "module:name".
    """

    def __init__(self, name: str, *, deadline: float = 5.0, workers: int | None = None) -> None:
        self._pool = Pool(name, deadline=deadline, workers=workers)

    def grade(self, items: Sequence[Item]) -> list[Grade]:
        results = self._pool.call([(item.text, dict(item.row)) for item in items])
        return [
            Grade(0.0, result.error, failed=True) if result.error else _grade(result.value)
            for result in results
        ]

    def close(self) -> None:
        self._pool.close()


def exact(item: Item) -> Grade:
    r"""Reward 1 where the answer's text is a gold answer.

    The answer is the content of the last \boxed{}, or the whole text where there is none, in each
    case after the last closed thought and without white space at its ends.
    """
    written = split_thought(item.text, item.tags).answer
    if written is None:
        return Grade(0.0, "unclosed thought")
    answer = boxed(written)
    answer = (written if answer is None else answer).strip()
    return _graded(answer in [gold.strip() for gold in _golds(item)])


def choice(item: Item) -> Grade:
    """Reward 1 where the chosen letter is a gold one (paint.grading.choice).

    A completion that names several letters chooses none. A gold answer that does not name exactly
    one letter is a failure of the grader.
    """
    letters = []
    for gold in _golds(item):
        named = named_letters(gold)
        if len(named) != 1:
            return Grade(0.0, f"the gold answer {gold!r} is no letter"[:200], failed=True)
        letters.append(named)

    chosen = chosen_letter(item.text, item.tags)
    if chosen is None:
        return Grade(0.0, "no letter")
    return _graded(chosen in letters)


def _golds(item: Item) -> Sequence[str]:
    return [item.gold] if isinstance(item.gold, str) else item.gold


def _grade(value: Any) -> Grade:
    """The grade of a function's return value, decoded from JSON."""
    reason = feedback = ""
    if isinstance(value, Mapping) and "reward" in value:
        reason, feedback = str(value.get("reason", "")), str(value.get("feedback", ""))
        value = value["reward"]
    if not isinstance(value, bool | int | float) or not _is_finite(value):
        return Grade(0.0, f"returned {value!r}, which is not a reward"[:200], failed=True)
    return _graded(value, reason, feedback)


def _is_finite(value: float) -> bool:
    try:
        return math.isfinite(value)
    except OverflowError:  # an integer beyond the floats
        return False


def _graded(reward: float, reason: str = "", feedback: str = "") -> Grade:
    word = "right" if reward == 1 else "wrong" if reward == 0 else "partial"
    return Grade(float(reward), reason or word, feedback=feedback)
