"""The same question is asked once of a judge, in memory and in the folder of a run."""

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from paint.config.run_folder import read_metrics
from paint.config.schema import GradingConfig
from paint.core.credentials import read_references
from paint.core.display import Display
from paint.core.extensions import OptionTable, spec_of
from paint.grading.contract import Grade, Item
from paint.grading.cost import Cost
from paint.grading.graders import code_digest, open_grader
from runs import changed, rows_of, stored, train

Row = Mapping[str, Any]
ANSWERS = "grader_answers.0.jsonl"


class Judge:
    """An async grader whose answers differ from call to call, and which counts its questions."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    async def __call__(self, completion: str, row: Row) -> Grade:
        await asyncio.sleep(0)
        self.asked.append(completion)
        number = len(self.asked)
        return Grade(
            number / 100, f"call {number}", feedback="so", answer="a", metrics={"words": 2.0}
        )


@pytest.fixture
def judge() -> Judge:
    return Judge()


def config_of(judge: Any, **settings: Any) -> GradingConfig:
    return GradingConfig(grader=(spec_of(judge, "judge", __name__),), **settings)


def item(text: str, **row: Any) -> Item:
    return Item(text, "", row={"id": "1", **row})


def test_equal_questions_are_asked_once(judge: Judge) -> None:
    asked = [item("a"), item("b"), item("a"), item("a", level=2), item("a")]
    with open_grader(config_of(judge)) as grader:
        first = grader.grade(asked)
        again = grader.grade(asked[:2])
        cost = grader.take_cost()
    assert judge.asked == ["a", "b", "a"]
    assert [grade.reward for grade in first] == [0.01, 0.02, 0.01, 0.03, 0.01]
    assert again == first[:2]
    assert again[0] == Grade(0.01, "call 1", feedback="so", answer="a", metrics={"words": 2.0})
    assert (cost.answers, cost.kept, cost.calls) == (7, 4, 3)
    assert cost.describe().startswith(
        "the grader gave 7 answers, of which 4 to questions that it had answered, by 3 calls; "
    )
    assert Cost.of(cost.metrics()) == cost


def test_equal_questions_are_asked_each_time_without_the_cache(judge: Judge) -> None:
    with open_grader(config_of(judge, cache=False)) as grader:
        grader.grade([item("a"), item("a")])
    assert judge.asked == ["a", "a"]


def test_kept_answers_outlive_the_process_and_a_cut_line(judge: Judge, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with open_grader(config_of(judge), folder) as grader:
        first = grader.grade([item("a"), item("b"), item("c")])
    whole = (folder / ANSWERS).read_bytes()
    assert [json.loads(line)["reward"] for line in whole.splitlines()] == [0.01, 0.02, 0.03]
    (folder / ANSWERS).write_bytes(whole[:-5])
    for _ in range(2):
        with open_grader(config_of(judge), folder) as grader:
            assert grader.grade([item("a"), item("b")]) == first[:2]
            assert grader.grade([item("c")])[0].reward == 0.04
    assert judge.asked == ["a", "b", "c", "c"]


def test_kept_answers_of_all_ranks_are_read(judge: Judge, tmp_path: Path) -> None:
    for rank, text in enumerate("ab"):
        with open_grader(config_of(judge), tmp_path, rank) as grader:
            grader.grade([item(text)])
    with open_grader(config_of(judge), tmp_path, 1) as grader:
        assert [grade.reward for grade in grader.grade([item("a"), item("b")])] == [0.01, 0.02]
    assert len(rows_of(tmp_path / "grader_answers.1.jsonl")) == 1


async def with_model(completion: str, row: Row, *, model: str) -> float:
    return len(model)


@dataclass(frozen=True)
class Scale:
    scale: float = 1.0


async def scaled(completion: str, row: Row, options: Scale) -> float:
    return options.scale


def test_kept_answers_are_of_one_grader_and_its_options(judge: Judge, tmp_path: Path) -> None:
    rewards = []
    for name in ("a", "bb", "a"):
        bound = partial(with_model, model=name)
        with open_grader(config_of(bound), tmp_path) as grader:
            rewards.append(grader.grade([item("a")])[0].reward)
    for scale in (3.0, 4.0, 3.0):
        options = OptionTable({"scale": scale})
        with open_grader(config_of(scaled, options=options), tmp_path) as grader:
            rewards.append(grader.grade([item("a")])[0].reward)
    assert rewards == [1, 2, 1, 3, 4, 3]
    assert len(rows_of(tmp_path / ANSWERS)) == 4

    with open_grader(config_of(judge), tmp_path) as grader:
        grader.grade([item("a")])
    assert len(rows_of(tmp_path / ANSWERS)) == 5


def test_code_digest_is_that_of_the_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    digests = []
    for number in range(2):
        text = f"PROMPT = {number}\nasync def grade(completion, row):\n    return PROMPT\n"
        (tmp_path / f"coded_{number}.py").write_text(text)
        digests.append(code_digest(f"coded_{number}:grade"))
    assert digests[0] != digests[1]


def test_answers_that_failed_or_say_nothing_are_asked_for_again(tmp_path: Path) -> None:
    outcomes = iter(
        [
            Grade(None),
            Grade(None, "no", failed=True),
            "text",
            ValueError("no"),
            Grade(None, "", feedback="so"),
        ]
    )
    calls = []

    async def judge(completion: str, row: Row) -> Any:
        calls.append(completion)
        outcome = next(outcomes)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    with open_grader(config_of(judge), tmp_path) as grader:
        for _ in range(3):
            grader.grade([item("a"), item("a")])
        cost = grader.take_cost()
        assert (cost.calls, cost.failed) == (3, {"without a reward": 2})
        for _ in range(2):
            [grade] = grader.grade([item("a")])
    assert grade.feedback == "so"
    assert len(calls) == 5


def test_answers_are_kept_as_they_come(tmp_path: Path, judge: Judge) -> None:
    """A kill in the middle of a step loses the calls under way alone."""
    kept_before_last: list[int] = []

    async def slow(completion: str, row: Row) -> float:
        if completion == "last":
            await asyncio.sleep(0.2)
            kept_before_last.append(len(rows_of(tmp_path / ANSWERS)))
        return 1.0

    with open_grader(config_of(slow), tmp_path) as grader:
        grader.grade([item("last"), item("a"), item("b")])
    assert kept_before_last == [2]


async def names_key(completion: str, row: Row) -> Grade:
    return Grade(0.5, "refused by http://judge/v1?key=s3cret-value", feedback="of s3cret-value")


def test_kept_answers_hold_no_secret(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JUDGE_KEY", "s3cret-value")
    assert read_references("env:JUDGE_KEY") == "s3cret-value"
    for _ in range(2):
        with open_grader(config_of(names_key), tmp_path) as grader:
            [grade] = grader.grade([item("a")])
        assert grade == Grade(0.5, "refused by http://judge/v1", feedback="of env:JUDGE_KEY")
    assert "s3cret" not in (tmp_path / ANSWERS).read_text()


async def of_many(completions: list[str], rows: list[Row]) -> list[float]:
    BATCHES.append(len(completions))
    return [1.0] * len(completions)


BATCHES: list[int] = []


def test_functions_of_many_completions_get_all(tmp_path: Path) -> None:
    with open_grader(config_of(of_many), tmp_path) as grader:
        grader.grade([item("a"), item("a")])
        grader.grade([item("a")])
    assert BATCHES == [2, 1]
    assert not (tmp_path / ANSWERS).exists()


async def counted(completion: str, row: Row) -> Grade:
    ASKED.append((completion, row["id"]))
    return Grade(len(ASKED) / 1000)


ASKED: list[tuple[str, str]] = []


def test_train_keeps_answers_of_steps_and_validations(tmp_path: Path) -> None:
    ASKED.clear()
    sections: dict[str, dict[str, Any]] = {
        "data": {"limit": 2},
        "model": {"lora_rank": 4, "lora_alpha": 8},
        "rollout": {"max_new_tokens": 2, "batch_size": 8, "samples_per_problem": 4},
        "train": {"steps": 2, "batch_size": 8, "micro_batch_size": 8},
        "validation": {"path": "demo", "limit": 2, "samples": 2, "max_new_tokens": 2},
        "grading": {"grader": spec_of(counted)},
    }
    run = tmp_path / "run"
    train(changed("demo-grpo", sections), run, display=Display(enabled=False))
    kept = rows_of(run / ANSWERS)
    assert len(kept) == len(ASKED) == len(set(ASKED))
    steps = [Cost.of(row) for row in read_metrics(run)]
    assert [cost.answers for cost in steps] == [8, 8]
    assert sum(cost.kept for cost in steps) > 0
    rewards: dict[tuple[str, str], float] = {}
    for step in (1, 2):
        for row in stored(run, step):
            place = row["text"], row["problem_id"]
            assert rewards.setdefault(place, row["reward"]) == row["reward"]
