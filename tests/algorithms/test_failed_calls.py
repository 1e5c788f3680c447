"""Calls of a grader that failed, and what a grader says nothing of: in no baseline, no update."""

import statistics
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from paint.algorithms.grpo import SPREAD_FLOOR, group_values
from paint.config.run_folder import read_metrics
from paint.config.schema import Config
from paint.core.display import Display
from paint.core.extensions import spec_of
from paint.grading.contract import Grade, GradingError
from paintvariants.by_verdict import ByVerdict
from paintvariants.oasis import Oasis
from paintvariants.on_correct import OnCorrect
from paintvariants.rewarded import Rewarded
from paintvariants.rlsd import Rlsd
from paintvariants.sipo import Sipo
from runs import adapter, assert_same, assert_untrained, changed, small_run, stored, train, variant

# Each problem is in each step, and hot completions differ.
SMALL = small_run(
    24, limit=3, at_once=12, steps=1, batch_size=12, micro_batch_size=5, checkpoint_every=1
)
SMALL["rollout"] |= {"samples_per_problem": 4, "temperature": 3.0}
QUIET = Display(enabled=False)
Row = Mapping[str, Any]


def number(completion: str) -> int:
    return sum(map(ord, completion))


def is_out(completion: str, row: Row) -> bool:
    """Whether nothing is known of a completion: of all of a problem, or of a third."""
    return row["id"] == "chain-1" or number(completion) % 3 == 0


async def fails(completion: str, row: Row) -> float:
    if is_out(completion, row):
        raise RuntimeError("429")
    return float(number(completion) % 2)


async def says_nothing(completion: str, row: Row) -> float | None:
    return None if is_out(completion, row) else float(number(completion) % 2)


async def says_zero(completion: str, row: Row) -> float:
    return 0.0 if is_out(completion, row) else float(number(completion) % 2)


async def flaky(completion: str, row: Row) -> Grade:
    if number(completion) % 3 == 0:
        raise RuntimeError("429")
    return Grade(1.0, "ok")


@pytest.fixture(autouse=True)
def one_attempt(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("paint.grading.functions.FIRST_PAUSE_SECONDS", 0.001)


def small(grader: Any, *changes: Mapping[str, Any], recipe: str = "demo-grpo") -> Config:
    return changed(recipe, SMALL, {"grading": {"grader": spec_of(grader)}}, *changes)


def test_group_values_are_of_the_rewards_that_are_there() -> None:
    # Of three groups of four: complete, two left, one left; all of a fourth failed.
    rewards = {0: 1.0, 1: 0.0, 2: 0.0, 3: 0.5, 4: 1.0, 7: 0.0, 10: 1.0}
    found = group_values(rewards, 4)
    assert {row: values["reward"] for row, values in found.items()} == rewards
    spread = statistics.stdev([1, 0, 0, 0.5])
    expected = {0: (1 - 0.375) / (spread + SPREAD_FLOOR), 10: 0.0}
    expected |= {4: 0.5 / (statistics.stdev([1, 0]) + SPREAD_FLOOR)}
    expected |= {7: -expected[4], 3: (0.5 - 0.375) / (spread + SPREAD_FLOOR)}
    for row, value in expected.items():
        assert found[row]["advantage"] == pytest.approx(value)
    flat = {row: values["frac_reward_zero_std"] for row, values in found.items()}
    assert flat == dict.fromkeys(rewards, 0.0) | {10: 1.0}


def test_grpo_does_not_learn_from_a_rate_limit(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train(small(flaky), tmp_path)
    [metrics], rows = read_metrics(tmp_path), stored(tmp_path)
    failed = [row for row in rows if number(row["text"]) % 3 == 0]
    assert 0 < len(failed) < len(rows)
    # Every reward is 1, so every advantage is 0, and nothing is learned.
    assert (metrics["gradient_norm"], metrics["reward"], metrics["accuracy"]) == (0, 1, 1)
    assert metrics["frac_reward_zero_std"] == 1
    assert metrics["grader_failures"] == len(failed)
    assert metrics["kept_completions"] == len(rows) - len(failed)
    for row in rows:
        is_failed = row in failed
        assert (row["failed"], row["kept"]) == (is_failed, not is_failed)
        assert row["reward"] == (None if is_failed else 1)
        assert ("advantage" in row) == ("correct" in row) == (not is_failed)
    said = f"step 1: the grader failed on {len(failed)} of 12 completions, which have no reward"
    assert f"{said}; first on problem {failed[0]['problem_id']}: RuntimeError: 429" in (
        capsys.readouterr().out.replace("\n", " ")
    )


def test_grpo_step_without_any_reward_updates_nothing(tmp_path: Path) -> None:
    config = small(nothing_after_first)
    train(config.changed("grading", stop_on_failure=False), tmp_path, display=QUIET)
    [metrics] = read_metrics(tmp_path)
    assert (metrics["kept_completions"], metrics["gradient_norm"]) == (0, 0)
    assert "reward" not in metrics
    assert_untrained(tmp_path, config)


async def nothing_after_first(completion: str, row: Row) -> None:
    return


def test_grader_without_return_stops_the_first_step(tmp_path: Path) -> None:
    message = r"^step 1: the grader .*:nothing_after_first said nothing of all 12 .* returned None"
    with pytest.raises(GradingError, match=message):
        train(small(nothing_after_first), tmp_path, display=QUIET)
    assert not (tmp_path / "metrics.jsonl").exists()


def test_distillation_learns_from_completions_without_a_grade(tmp_path: Path) -> None:
    for grader in (fails, says_zero):
        config = small(grader, recipe="demo-paint")
        train(config, tmp_path / grader.__name__, display=QUIET)
    # Verdicts do not drive the method: both learn the same.
    assert_same(adapter(tmp_path / "fails"), adapter(tmp_path / "says_zero"))
    [failed], [zero] = read_metrics(tmp_path / "fails"), read_metrics(tmp_path / "says_zero")
    assert failed["loss"] == zero["loss"]
    assert failed["reward"] > zero["reward"]
    assert failed["grader_failures"] > zero["grader_failures"] == 0


OF_GRADES: dict[str, Any] = {
    "grpo": {},
    "rewarded": variant(Rewarded),
    "rlsd": variant(Rlsd),
    "sipo": variant(Sipo) | {"context": {"source": "answer"}},
    "on_correct": variant(OnCorrect, correct_weight=1.0, wrong_weight=0.5),
    "by_verdict": variant(ByVerdict),
    "oasis": variant(Oasis, keep="wrong"),
}


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", OF_GRADES)
def test_train_failed_calls_count_as_if_nothing_was_said(tmp_path: Path, algorithm: str) -> None:
    recipe = "demo-grpo" if algorithm == "grpo" else "demo-paint"
    for grader in (fails, says_nothing, says_zero):
        config = small(grader, OF_GRADES[algorithm], recipe=recipe)
        train(config, tmp_path / grader.__name__, display=QUIET)
    assert_same(adapter(tmp_path / "fails"), adapter(tmp_path / "says_nothing"))
    [failed], [silent] = read_metrics(tmp_path / "fails"), read_metrics(tmp_path / "says_nothing")
    assert (failed.pop("grader_failures"), silent.pop("grader_failures")) == (
        sum(row["failed"] for row in stored(tmp_path / "fails")),
        0,
    )
    for name, value in failed.items():
        of_cost = name.startswith("grader_")
        assert "second" in name or of_cost or value == silent[name], name
    # A reward of 0 is something else.
    zero = adapter(tmp_path / "says_zero")
    assert any(not value.equal(zero[name]) for name, value in adapter(tmp_path / "fails").items())
    rows = stored(tmp_path / "fails")
    assert {row["problem_id"] for row in rows if row["kept"]} <= {"chain-0", "chain-2"}
    assert not any(row["kept"] and row["failed"] for row in rows)
