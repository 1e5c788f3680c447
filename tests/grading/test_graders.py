"""Graders by name, and one that lives outside of the package."""

import importlib
import json
import os
import time
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from paint.cli.main import main
from paint.config.run_folder import read_metrics
from paint.config.schema import GradingConfig
from paint.core.display import Display
from paint.core.errors import ConfigError
from paint.core.extensions import spec_of
from paint.evaluation.grade import summarise
from paint.grading.contract import Grade, Item
from paint.grading.graders import find_grader, open_grader
from reports import report_in, row_of
from runs import changed, rows_of, stored, train

SHORT = "extensions.short_grader:grade"
short_grader = importlib.import_module("extensions.short_grader")
SMALL: dict[str, dict[str, Any]] = {
    "data": {"limit": 3},  # each problem is in each step
    "model": {"lora_rank": 4, "lora_alpha": 8},
    "rollout": {"max_new_tokens": 60, "batch_size": 12, "samples_per_problem": 4},
    "train": {"steps": 1, "batch_size": 12, "micro_batch_size": 12, "checkpoint_every": 1},
    "grading": {"grader": SHORT, "deadline": 0.2},
}


def expected(text: str) -> float:
    return min(int(short_grader.SHORT) / len(text), 1.0)


def test_exact_grader_compares_last_box_or_complete_text() -> None:
    texts = [r"\boxed{1} then \boxed{ 0.5 }", "0.5\n", r"\boxed{1/2}", "It is 0.5"]
    texts += ["<think>1</think> 0.5", "half"]
    with find_grader("exact") as grader:
        grades = grader.grade([Item(text, ("0.5", "half")) for text in texts])
    assert [grade.reward for grade in grades] == [1, 1, 0, 0, 1, 1]


@pytest.mark.parametrize(
    ("name", "text"), [("exact", "5"), ("choice", "B"), ("math", r"\boxed{5}")]
)
def test_grader_answer_in_an_open_thought_is_wrong(name: str, text: str) -> None:
    gold = "B" if name == "choice" else "5"
    texts = [f"<think>{text}", f"<think>{text}</think>", f"<think>x</think>{text}"]
    with find_grader(name) as grader:
        grades = grader.grade([Item(text, gold) for text in texts])
    assert [grade.reward for grade in grades] == [0, 0, 1]


def test_grader_of_notebook_that_uses_the_package_grades() -> None:
    cell: dict[str, Any] = {"__name__": "__main__"}
    exec("import paint\ndef half(text, row): return paint.Grade(0.5, 'half')", cell)
    with find_grader(spec_of(cell["half"])) as grader:
        assert grader.grade([Item("1", ("2",))]) == [Grade(0.5, "half")]


def test_choice_grader_compares_letters_and_fails_on_other_gold_answers() -> None:
    golds = ["B", "(b)", "B. Paris", ("A", "B"), "C", "Paris", "B, C"]
    with find_grader("choice") as grader:
        grades = grader.grade([Item(r"\boxed{B}", gold) for gold in golds])
        [unanswered] = grader.grade([Item("I do not know", "B")])
    assert [grade.reward for grade in grades] == [1, 1, 1, 1, 0, None, None]
    assert [grade.failed for grade in grades] == [False] * 5 + [True] * 2
    assert grades[5].reason == "the gold answer 'Paris' is no letter"
    assert unanswered == Grade(0.0, "no letter")


def test_open_grader_of_one_name_with_a_weight_weighs_its_reward() -> None:
    with open_grader(GradingConfig(grader=("exact",), weights=(0.5,))) as grader:
        [grade] = grader.grade([Item("5", "5")])
    assert grade.reward == 0.5


def test_function_grader_failure_costs_only_its_completion() -> None:
    # Defined here, so that a process gets it alone and imports nothing of this module.
    def returned(completion: str, row: Any) -> Any:
        match completion:
            case "end":
                os._exit(3)
            case "sleep":
                time.sleep(100)
            case "huge":
                return 10**400
            case "day":
                return row["day"] == "2026-01-02"
        return json.loads(completion)

    day = {"day": date(2026, 1, 2)}  # a Parquet file has such
    grade = '{"reward": 0.5, "reason": "1 of 2", "feedback": "add(1, 2) gave 2"}'
    texts = ["true", "day", "0.25", "-3", grade, "end", "sleep", "[]", "NaN", "huge", "{"]
    with find_grader(spec_of(returned), deadline=0.05, workers=2) as grader:
        grades = grader.grade([Item(text, "", row=day) for text in texts])
    assert [grade.reward for grade in grades] == [1, 1, 0.25, -3, 0.5] + [None] * 6
    assert [grade.failed for grade in grades] == [False] * 5 + [True] * 6
    assert grades[0] == Grade(1.0, "right")
    assert grades[4] == Grade(0.5, "1 of 2", feedback="add(1, 2) gave 2")
    assert [grade.reason for grade in grades[5:7]] == ["ended with status 3", "timed out"]
    assert grades[10].reason.startswith("JSONDecodeError: ")


def test_train_custom_grader_gives_rewards_and_accuracy(tmp_path: Path) -> None:
    assert spec_of(short_grader.grade) == SHORT
    run = tmp_path / "run"
    train(changed("demo-paint", SMALL), run, display=Display(enabled=False))
    rows = stored(run)
    failed = {"chain-0": "ValueError: no reward for ", "chain-1": "timed out"}
    for row in rows:
        if row["problem_id"] in failed:
            assert (row["reward"], row["failed"], row["kept"]) == (None, True, True)
            assert "correct" not in row
            assert row["reason"].startswith(failed[row["problem_id"]])
        else:
            assert 0 < row["reward"] == expected(row["text"])
            assert row["feedback"] == f"{len(row['text'])} characters, and 40 are short"
    assert {row["problem_id"] for row in rows} == {*failed, "chain-2"}

    [metrics] = read_metrics(run)
    rewards = [row["reward"] for row in rows if row["reward"] is not None]
    assert len(rewards) == 4
    assert metrics["reward"] == pytest.approx(sum(rewards) / 4)
    assert metrics["accuracy"] == rewards.count(1) / 4
    assert metrics["grader_failures"] == 8
    assert "kept_completions" not in metrics


def test_train_without_grader_has_no_accuracy(tmp_path: Path) -> None:
    run = tmp_path / "run"
    config = changed("demo-paint", SMALL, {"grading": {"grader": "none"}})
    train(config, run, display=Display(enabled=False))
    [metrics] = read_metrics(run)
    assert not {"accuracy", "reward"} & metrics.keys()
    assert "correct" not in stored(run)[0]


def test_eval_custom_grader_reports_mean_reward(tmp_path: Path) -> None:
    flags = ["--benchmarks", "demo", "--limit", "3", "--samples", "2", "--no-thinking"]
    flags += ["--rollout.max-new-tokens", "96", "--output-dir", str(tmp_path)]
    flags += ["--grading.grader", SHORT, "--grading.deadline", "0.2"]
    assert main(["eval", "demo", *flags]) == 0
    [path] = tmp_path.rglob("grades.jsonl")
    grades, samples = rows_of(path), rows_of(path.parent / "completions.jsonl")
    texts = {(row["problem_id"], row["sample"]): row["text"] for row in samples}
    rewards = [
        None
        if g["problem_id"].endswith(("-0", "-1"))
        else expected(texts[g["problem_id"], g["sample"]])
        for g in grades
    ]
    assert [g["reward"] for g in grades] == rewards
    assert [g["correct"] for g in grades[:4]] == rewards[:4] == [None] * 4
    assert grades[4]["feedback"].endswith(" characters, and 40 are short")
    known = [reward for reward in rewards if reward is not None]
    assert len(known) == 2
    assert sum(known) > 0

    [summary] = tmp_path.rglob("summary.json")
    report = report_in(summary.parent)
    assert row_of(report, metric="reward").mean == pytest.approx(sum(known) / 2)
    assert row_of(report, metric="reward").n == 1
    assert row_of(report, metric="truncated_frac").n == 3
    assert {row.group for row in report.rows if row.metric == "reason"} == {grades[4]["reason"]}
    metrics = {row.metric for row in report.rows}
    # No reward is 1, so shares of right completions say nothing.
    assert not {"avg_at_k", "maj_at_k", "lenient_accuracy", "unboxed_frac"} & metrics
    tables = summary.with_suffix(".md").read_text()
    assert "Mean reward" in tables
    assert "grader failures" in tables
    assert row_of(report, metric="grader_failures").mean == 4

    # The mathematics grader reads the same samples, and has votes and lenient figures.
    summarise([summary.parent], summary.parent, Display(enabled=False), GradingConfig())
    metrics = {row.metric for row in report_in(summary.parent).rows}
    assert "reward" not in metrics
    assert {"maj_at_k", "lenient_accuracy", "unboxed_frac"} <= metrics

    with pytest.raises(ConfigError, match="an evaluation needs grades"):
        summarise([summary.parent], tmp_path, Display(enabled=False), GradingConfig(("none",)))
