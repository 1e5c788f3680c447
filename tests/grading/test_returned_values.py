"""What a custom grader may return, and what it is told of anything else."""

import decimal
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from paint.data.contexts import Attempt, with_others
from paint.grading.contract import Grade, GradingError, Item, require_some_grade
from paint.grading.functions import read_grade
from paint.grading.graders import WeightedGrader, find_grader

Row = Mapping[str, Any]
HERE = __name__


def items(count: int) -> list[Item]:
    return [Item(str(i), "", row={"id": f"row-{i}"}) for i in range(count)]


async def coroutine() -> float:
    return 1.0


@dataclass
class Score:
    score: int = 8


NOTHING, HALF = Grade(None, "not graded"), Grade(0.5, "partial")
NOT_ASYNC = "type coroutine, which is not a reward; declare the function with async def"

# What a function of one completion returns, and its grade, or the words with which it is refused.
OF_ONE: list[tuple[Any, Grade | str]] = [
    (lambda: None, NOTHING),
    (lambda: {"reward": None, "reason": None, "feedback": None, "parts": None}, NOTHING),
    (lambda: {"reward": 0.5, "reason": None, "feedback": None, "failed": None}, HALF),
    (lambda: {"reward": None, "feedback": "Short."}, Grade(None, "not graded", False, "Short.")),
    (lambda: Grade(1.0, "endpoint is down", failed=True), Grade(None, "endpoint is down", True)),
    (lambda: {"reward": 0, "failed": True}, Grade(None, "the grader says that it failed", True)),
    (lambda: np.float32(0.5), HALF),
    (lambda: np.bool_(True), Grade(1.0, "right")),
    (lambda: np.full(1, 0.5), HALF),
    (lambda: np.full((1, 1), 0.5), HALF),
    (lambda: torch.tensor(0.5, dtype=torch.bfloat16, requires_grad=True), HALF),
    (lambda: np.ones(3), "[1.0, 1.0, 1.0], which is not a reward"),
    (lambda: {"score": 8}, "{'score': 8}, a dict without reward"),
    (dict, "{}, a dict without reward"),
    (lambda: Score(), "{'score': 8}, a dict without reward"),
    (lambda: "0.5", '"0.5", which is not a reward'),
    (lambda: [0.5], "[0.5], which is not a reward"),
    (lambda: float("nan"), "nan, which is not a reward"),
    (lambda: {"reward": float("inf")}, "inf, which is not a reward"),
    (lambda: decimal.Decimal(1), "a value of type Decimal, which is not a reward"),
    (lambda: coroutine(), NOT_ASYNC),
    (lambda: {"reward": coroutine()}, NOT_ASYNC),
    (lambda: (x for x in [1]), "type generator, which is not a reward; return a reward"),
]


# In a process of its own, where no test checks the types of a Grade.
make: Any = Grade
MADE = [
    *OF_ONE,
    (lambda: make(None, None, None, None, None), NOTHING),
    (lambda: make(0.5, None, feedback=None, parts=None), HALF),
    (lambda: make(0.5, "a", feedback=["x", None, "y"]), Grade(0.5, "a", feedback="x\ny")),
    (lambda: make(np.float64(0.5), np.str_("partial")), HALF),
]


def of_one(completion: str, row: Row) -> Any:
    return MADE[int(completion)][0]()


async def of_one_async(completion: str, row: Row) -> Any:
    return OF_ONE[int(completion)][0]()


@pytest.mark.parametrize(("name", "cases"), [("of_one", MADE), ("of_one_async", OF_ONE)])
def test_function_of_one_completion_returns_a_grade_or_is_told_what_it_returned(
    name: str, cases: list[tuple[Any, Grade | str]]
) -> None:
    with find_grader(f"{HERE}:{name}", workers=1) as grader, warnings.catch_warnings():
        warnings.simplefilter("error")  # of coroutines that were never awaited
        grades = grader.grade(items(len(cases)))
    for i, (grade, (_, expected)) in enumerate(zip(grades, cases, strict=True)):
        if isinstance(expected, Grade):
            assert grade == expected
        else:
            assert (grade.reward, grade.failed) == (None, True)
            assert grade.reason.startswith(f"{HERE}:{name}, row row-{i}: returned ")
            assert expected in grade.reason


# Of three completions: the rewards, of which None may be one, or the words of the refusal.
OF_MANY: list[tuple[Any, list[float | None] | str]] = [
    (lambda: None, [None] * 3),
    (lambda: [None, 0.5, Grade(None)], [None, 0.5, None]),
    (lambda: (None, True, {"reward": None, "reason": "no"}), [None, 1, None]),
    (lambda: np.arange(3), [0, 1, 2]),
    (lambda: np.array([True, False, True]), [1, 0, 1]),
    (lambda: np.array([None, 0.5, 1], dtype=object), [None, 0.5, 1]),
    (lambda: torch.arange(3), [0, 1, 2]),
    (lambda: torch.ones(3, dtype=torch.float16, requires_grad=True), [1, 1, 1]),
    (lambda: pd.Series([1.0, 0.5, 2], index=[7, 8, 9]), [1, 0.5, 2]),
    (lambda: [torch.tensor(1.0), np.float32(2), np.ones(1)], [1, 2, 1]),
    (lambda: np.ones((1, 3)), [1, 1, 1]),
    (lambda: np.ones(2), "[1.0, 1.0], not a list of 3 rewards"),
    (lambda: [1.0, 2.0], "[1.0, 2.0], not a list of 3 rewards"),
    (lambda: (1.0 for _ in range(3)), "type generator, not a list of 3 rewards; return a reward"),
    (lambda: map(float, [1, 2, 3]), "type map, not a list of 3 rewards; return a reward, or a"),
    (lambda: {"reward": [1, 1, 1]}, "{'reward': [1, 1, 1]}, not a list of 3 rewards"),
    (lambda: 1.0, "1.0, not a list of 3 rewards"),
    (lambda: {1.0, 2.0, 3.0}, "a value of type set, not a list of 3 rewards"),
    (lambda: coroutine(), "type coroutine, not a list of 3 rewards; declare the function with"),
]


def of_many(completions: Sequence[str], rows: Sequence[Row]) -> Any:
    return OF_MANY[rows[0]["case"]][0]()


async def of_many_async(completions: Sequence[str], rows: Sequence[Row]) -> Any:
    return OF_MANY[rows[0]["case"]][0]()


@pytest.mark.parametrize("name", ["of_many", "of_many_async"])
def test_function_of_many_completions_returns_rewards_or_is_told_what_it_returned(
    name: str,
) -> None:
    with find_grader(f"{HERE}:{name}", workers=1) as grader:
        for case, (_, expected) in enumerate(OF_MANY):
            rows = [Item("x", "", row={"id": str(i), "case": case}) for i in range(3)]
            grades = grader.grade(rows)
            if isinstance(expected, list):
                assert [grade.reward for grade in grades] == expected, case
                assert not any(grade.failed for grade in grades)
            else:
                assert [(grade.reward, grade.failed) for grade in grades] == [(None, True)] * 3
                assert grades[0].reason.startswith(f"{HERE}:{name}: returned ")
                assert expected in grades[0].reason


def test_none_is_never_read_as_a_text() -> None:
    silent = read_grade({"reward": 0.0, "reason": None, "feedback": None})
    assert (silent.reason, silent.feedback, silent.comment) == ("wrong", "", "wrong")
    assert Grade(None, "not graded").comment == ""
    assert Grade(None, "not graded", feedback="Shorter.").comment == "Shorter."
    assert Grade(0.0, "429", failed=True, feedback="x").comment == ""
    graded = [Attempt("text", silent, row, "p") for row in range(2)]
    assert [attempt.comment for attempt in with_others(graded).values()] == ["wrong"] * 2


def fixed(grade: Grade) -> Any:
    class Fixed(WeightedGrader):
        def grade(self, items: Sequence[Item]) -> list[Grade]:
            return [grade] * len(items)

    return Fixed({}, [])


def test_several_graders_leave_out_those_that_say_nothing() -> None:
    def graded(*grades: Grade) -> Grade:
        graders = {f"g{i}": fixed(grade) for i, grade in enumerate(grades)}
        [found] = WeightedGrader(graders, [1.0] * len(graders)).grade(items(1))
        return found

    silent, right, failed = Grade(None), Grade(1.0), Grade(1.0, "429", failed=True)
    assert (graded(silent, right).reward, graded(silent, right).correct) == (1, True)
    assert (graded(Grade(0.0), right).reward, graded(Grade(0.0), right).correct) == (1, False)
    assert (graded(silent, silent).reward, graded(silent, silent).failed) == (None, False)
    # A sum of which a part is missing would be another reward.
    assert (graded(right, failed).reward, graded(right, failed).failed) == (None, True)
    assert graded(right, failed).reason == "g1: 429"


def test_require_some_grade_raises_where_all_failed_or_said_nothing() -> None:
    failed, silent = Grade(0.0, "429", failed=True), Grade(None)
    for pair in ([failed, failed], [silent, failed], [silent, silent]):
        with pytest.raises(GradingError, match=r"^step 1: the grader mine:grade (failed|said)"):
            require_some_grade(pair, ["a", "b"], "the grader mine:grade", "step 1")
    for grade in (Grade(0.0), Grade(None, feedback="Shorter.")):
        require_some_grade([failed, grade], ["a", "b"], "the grader mine:grade", "step 1")
    require_some_grade([], [], "the grader mine:grade", "step 1")


def array_of_one(completions: Sequence[str], rows: Sequence[Row]) -> Any:
    return np.full((1, 1), 0.5)


def test_array_of_one_reward_is_that_of_one_completion() -> None:
    with find_grader(f"{HERE}:array_of_one", workers=1) as grader:
        assert [grade.reward for grade in grader.grade(items(1))] == [0.5]
        assert [grade.failed for grade in grader.grade(items(2))] == [True] * 2
