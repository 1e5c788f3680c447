"""Graders that are functions: sync and async, of one completion and of many."""

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from paint.config.run_folder import read_metrics
from paint.core.display import Display
from paint.core.errors import ConfigError
from paint.core.extensions import spec_of
from paint.evaluation.grade import graded_samples
from paint.evaluation.metrics import compute_metrics
from paint.evaluation.store import reopen_store
from paint.grading import functions
from paint.grading.contract import Grade, Item
from paint.grading.graders import find_grader, open_grader, short_names
from runs import changed, rows_of, small_run, stored, train

Row = Mapping[str, Any]


def items(count: int) -> list[Item]:
    return [Item(str(number), "", row={"number": number}) for number in range(count)]


class Judge:
    """An async grader that counts the calls under way, and fails as it is told."""

    def __init__(self, *, failures: int = 0) -> None:
        self.failures = failures
        self.under_way = self.most = 0

    async def __call__(self, completion: str, row: Row) -> Grade:
        self.under_way += 1
        self.most = max(self.most, self.under_way)
        try:
            await asyncio.sleep(0.01)
            if self.failures:
                self.failures -= 1
                raise ConnectionError("connection refused")
            return Grade(row["number"] / 8, f"read {completion}", feedback=f"remark {completion}")
        finally:
            self.under_way -= 1


def named(function: Any) -> str:
    return spec_of(function, "judge", __name__)


@pytest.mark.parametrize("concurrency", [1, 5, 32])
def test_async_grader_makes_as_many_calls_at_once_as_it_may(concurrency: int) -> None:
    judge = Judge()
    with find_grader(named(judge), concurrency=concurrency) as grader:
        grades = grader.grade(items(32))
    assert judge.most == concurrency
    assert grades[2] == Grade(0.25, "read 2", feedback="remark 2")
    assert [grade.reward for grade in grades] == [number / 8 for number in range(32)]


def test_async_grader_keeps_its_event_loop_between_gradings() -> None:
    loops = []

    async def judge(completion: str, row: Row) -> bool:
        loops.append(asyncio.get_running_loop())
        return True

    with find_grader(named(judge)) as grader:
        assert grader.grade(items(1)) == grader.grade(items(1)) == [Grade(1.0, "right")]
    assert loops[0] is loops[1]


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls that fail are repeated at once."""
    monkeypatch.setattr(functions, "FIRST_PAUSE_SECONDS", 0.001)


def test_async_grader_repeats_calls_that_fail(quick: None) -> None:
    with find_grader(named(Judge(failures=functions.ATTEMPTS - 1))) as grader:
        assert [grade.failed for grade in grader.grade(items(1))] == [False]
    judge = Judge(failures=1_000)
    with find_grader(named(judge)) as grader:
        [grade] = grader.grade(items(1))
    assert grade == Grade(None, "ConnectionError: connection refused", failed=True)
    assert judge.failures == 1_000 - functions.ATTEMPTS


def test_async_grader_slow_call_costs_its_completion_alone() -> None:
    async def judge(completion: str, row: Row) -> float:
        await asyncio.sleep(100 if completion == "1" else 0)
        return 1

    began = time.monotonic()
    with find_grader(named(judge), timeout=0.1) as grader:
        grades = grader.grade(items(3))
    assert time.monotonic() - began < 20
    assert [grade.reward for grade in grades] == [1, None, 1]
    assert grades[1] == Grade(None, "TimeoutError: no result within 0.1 s", failed=True)


def test_batch_grader_takes_all_completions_in_one_call() -> None:
    def compute(completions: list[str], rows: list[dict[str, int]]) -> list[float]:
        return [int(text) + row["number"] for text, row in zip(completions, rows, strict=True)]

    async def judge(completions: list[str], rows: list[dict[str, int]]) -> list[float]:
        return compute(completions, rows)

    for function in (compute, judge):
        with find_grader(named(function)) as grader:
            assert [grade.reward for grade in grader.grade(items(5))] == [0, 2, 4, 6, 8]
            assert grader.grade([]) == []


STEP = small_run(8, limit=4, at_once=4, steps=1, batch_size=4, micro_batch_size=4)
STEP |= {"validation": {"path": "demo", "limit": 2, "samples": 1, "max_new_tokens": 8}}
STEP["rollout"] |= {"samples_per_problem": 2}
QUIET = Display(enabled=False)


async def half(completion: str, row: Row) -> Grade:
    return Grade(0.5, "half", feedback=f"of {row['id']}")


def graded_by_two(weights: Sequence[float] = ()) -> Any:
    config = changed("demo-paint", {"grading": {"grader": ["exact", spec_of(half)]}})
    return config.changed("grading", weights=tuple(weights))


def test_several_graders_add_their_weighted_rewards() -> None:
    rows = [Item(text, "5", row={"id": text}) for text in ("5", "6")]
    with open_grader(graded_by_two().grading) as grader:
        right, wrong = grader.grade(rows)
    assert (right.reward, wrong.reward) == (1.5, 0.5)
    # The first grader decides what is right, whatever the sum is.
    assert (right.correct, wrong.correct) == (True, False)
    assert right.parts["half"] == Grade(0.5, "half", feedback="of 5")
    assert (right.reason, right.feedback) == ("exact: right; half: half", "of 5")

    with open_grader(graded_by_two([1, -0.2]).grading) as grader:
        assert [grade.reward for grade in grader.grade(rows)] == pytest.approx([0.9, -0.1])


@dataclass(frozen=True)
class Bonus:
    bonus: float = 0.25
    scale: float = 1.0


@dataclass(frozen=True)
class Doubled:
    scale: float = 2.0


async def with_bonus(completion: str, row: Row, options: Bonus) -> float:
    return options.scale * options.bonus


async def doubled(completion: str, row: Row, options: Doubled) -> float:
    return options.scale


def test_several_graders_read_their_own_options_of_one_table() -> None:
    def rewards(**options: float) -> dict[str, float | None]:
        graders = ["exact", spec_of(with_bonus), spec_of(doubled)]
        config = changed("demo-paint", {"grading": {"grader": graders, "options": options}})
        with open_grader(config.grading) as grader:
            [grade] = grader.grade([Item("5", "5")])
        return {name: part.reward for name, part in grade.parts.items()}

    assert rewards(bonus=0.5, scale=3) == {"exact": 1, "with_bonus": 1.5, "doubled": 3}
    with pytest.raises(ConfigError, match=r"option grading\.options\.bonsu .*it has bonus, scale"):
        rewards(bonsu=0.5, scale=3)
    with pytest.raises(ConfigError, match=r"grading\.options\.scale is .*defaults 1\.0 and 2\.0"):
        rewards(bonus=0.5)


async def spelled(completion: str, row: Row) -> dict[str, Any]:
    """The first character is the answer; characters are counted."""
    return {
        "reward": 0.5,
        "answer": completion[:1] or None,
        "metrics": {"characters": len(completion)},
    }


async def takes_a_name(completion: str, row: Row) -> Grade:
    return Grade(1.0, metrics={"loss": 2.0})


def test_function_grader_gives_answers_and_metrics() -> None:
    with find_grader(spec_of(spelled)) as grader:
        first, second = grader.grade([Item("12", "1"), Item("", "1")])
    assert (first.answer, second.answer) == ("1", None)
    assert (first.metrics, second.metrics) == ({"characters": 2}, {"characters": 0})
    with find_grader(spec_of(takes_a_name)) as grader:
        [grade] = grader.grade([Item("12", "1")])
    assert grade.failed
    assert "loss" in grade.reason


def test_several_graders_have_the_first_answer_and_all_metrics() -> None:
    grading = changed("demo-paint", {"grading": {"grader": [spec_of(spelled), "math"]}}).grading
    with open_grader(grading) as grader:
        [grade] = grader.grade([Item(r"7 is \boxed{0.5}", "1/2")])
        assert list(grader.equal([("0.5", "1/2"), ("1", "2")])) == [True, False]
    assert (grade.answer, grade.reward) == ("7", 1.5)
    assert grade.metrics == {"characters": 16, "lenient_accuracy": 1}


def test_train_and_eval_of_a_grader_with_answers_have_metrics_and_votes(tmp_path: Path) -> None:
    run = tmp_path / "run"
    train(
        changed("demo-paint", STEP, {"grading": {"grader": spec_of(spelled)}}), run, display=QUIET
    )
    [metrics] = read_metrics(run)
    lengths = [len(row["text"]) for row in stored(run)]
    assert metrics["characters"] == pytest.approx(sum(lengths) / len(lengths))
    assert stored(run)[0]["metrics"] == {"characters": lengths[0]}
    places = [path.parent for path in (run / "validation").rglob("grades.jsonl")]
    for place in places:
        with reopen_store(place) as store:
            values = compute_metrics({"demo": graded_samples(store)})["demo"]
        lengths = [len(row["text"]) for row in rows_of(place / "completions.jsonl")]
        assert values["characters"].mean == pytest.approx(sum(lengths) / len(lengths))
        assert values["reward"].mean == 0.5
        assert "maj_at_k" in values


def test_graders_of_one_name_are_named_completely() -> None:
    assert short_names(["math", "a:grade", "b:grade"]) == ["math", "a:grade", "b:grade"]
    assert short_names(["math", "a:grade"]) == ["math", "grade"]


def test_train_and_validate_several_graders_log_each_with_feedback(tmp_path: Path) -> None:
    run = tmp_path / "run"
    table = {"grading": {"grader": ["math", spec_of(half)], "weights": [1, 0.5]}}
    train(changed("demo-paint", STEP, table), run, display=QUIET)
    [metrics] = read_metrics(run)
    assert (metrics["rewards/half/mean"], metrics["rewards/half/std"]) == (0.5, 0)
    assert metrics["rewards/math/mean"] == metrics["accuracy"]
    assert (metrics["reward"], metrics["grader_failures"]) == (metrics["accuracy"] + 0.25, 0)
    assert metrics["seconds_reward"] > 0
    for row in stored(run):
        assert row["rewards"] == {"math": float(row["correct"]), "half": 0.5}
        assert row["feedback"] == f"of {row['problem_id']}"
    for path in (run / "validation").rglob("grades.jsonl"):
        assert all(row["rewards"]["half"] == 0.5 for row in rows_of(path))
