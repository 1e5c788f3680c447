"""Tests of rollouts as rows of files, and of their seeds."""

import json
from itertools import product

import pytest

from paint.data.problems import Problem
from paint.grading.contract import Grade
from paint.inference.engine import Completion, Conversation, Turn, row_seed
from paint.inference.rollouts import Rollout, read_rollout, rollout_row
from paint.training.run_log import record

PROBLEM = Problem("1 + 1 = ?", "", "2", "a")
TALK = Conversation(
    turns=(Turn([1], 1, 0), Turn([1, 2, 3], 2, 2)),
    messages=({"role": "assistant", "content": "2"}, {"role": "user", "content": "Sure?"}),
    ended="end",
    problem=PROBLEM,
    grade=Grade(0.5, "hesitated"),
)
GRADE = Grade(0.5, "half", feedback="Why?", parts={"g": Grade(0.5)}, answer="2", metrics={"m": 1.0})


@pytest.mark.parametrize("conversation", [None, TALK])
def test_read_rollout_of_an_evaluations_row_is_the_rollout(
    conversation: Conversation | None,
) -> None:
    completion = Completion((2, 4, 5), (), True, "http://a", conversation)
    given = conversation.grade if conversation else None
    rollout = Rollout(3, PROBLEM, [1], completion, "two", grade=given)
    row = json.loads(json.dumps(rollout_row(rollout)))
    assert read_rollout(row, PROBLEM, 3) == rollout


def test_read_rollout_of_a_runs_row_has_its_grade_and_log_probs() -> None:
    completion = Completion((2, 4), (-0.5, -0.25), truncated=False)
    rollout = Rollout(0, PROBLEM, [1], completion, "two", metrics={"overlap": 0.5}, grade=GRADE)
    found = read_rollout(json.loads(json.dumps(record(rollout))), PROBLEM, 0)
    assert (found.completion, found.grade) == (completion, GRADE)
    failed = Rollout(0, PROBLEM, [1], completion, "two", grade=Grade(None, "429", failed=True))
    assert read_rollout(record(failed), PROBLEM, 0).grade == failed.grade


def test_row_seed_is_another_one_for_each_run_step_and_row() -> None:
    places = list(product((0, 1), (0, 1), (0, 1)))
    assert len({row_seed(*place) for place in places}) == len(places)
