"""Metrics of a step that say what was not learned from."""

from collections.abc import Sequence

import pytest

from paint.grading.contract import Grade, Item
from paint.grading.graders import find_grader
from paint.inference.rollouts import Rollout
from paint.training.run_log import equal_rewards, grade_metrics
from runs import completed


def graded(grades: Sequence[Grade | None]) -> list[Rollout]:
    return [completed(row, grade=grade) for row, grade in enumerate(grades)]


@pytest.mark.parametrize(
    ("rewards", "share"),
    [
        ([1.0, 1.0, 0.5, 0.5], 1.0),
        ([1.0, 0.0, 0.5, 0.5], 0.5),
        ([1.0, None, 0.5, 0.2], 1 / 3),  # one that is left alone differs from none
        ([None, None, 0.0, 1.0], 0.0),
    ],
)
def test_equal_rewards_counts_completions_of_groups_without_another(
    rewards: list[float | None], share: float
) -> None:
    rollouts = graded([Grade(reward) for reward in rewards])
    assert equal_rewards(rollouts, 2) == {"frac_reward_zero_std": pytest.approx(share)}
    assert equal_rewards(graded([None, Grade(None)]), 2) == {}


@pytest.mark.parametrize(
    ("grader", "none", "some"),
    [("code", "I cannot.", "```python\nx = 1\n```"), ("choice", "Well.", r"\boxed{B}")],
)
def test_unanswered_counts_what_holds_nothing_that_the_grader_reads(
    grader: str, none: str, some: str
) -> None:
    with find_grader(grader) as opened:
        texts = [none, some, none, none]
        row = {"tests": "assert x == 1"}
        grades = opened.grade([Item(text, "B", row=row) for text in texts])
        for reasons, share in ((opened.unanswered, 0.75), ((), None)):
            metrics = grade_metrics(grades, gives_answers=False, unanswered=reasons)
            assert metrics.get("unboxed_frac") == share
