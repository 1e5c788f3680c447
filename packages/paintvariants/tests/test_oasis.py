"""Several completions of a problem, and which of them are trained on."""

from pathlib import Path
from typing import Any

import pytest

from paint.config.run_folder import read_metrics
from paint.core.display import Display
from paint.data.problems import Problem
from paint.grading.contract import Grade
from paint.inference.rollouts import Rollout
from paint.training.token_log import read_tokens, tokens_path
from paintvariants.oasis import Keep, Oasis, kept_rows
from runs import assert_untrained, changed, completed, stored, train, variant, write_problems

SMALL: dict[str, dict[str, Any]] = {
    "data": {"limit": 100},
    "model": {"lora_rank": 4, "lora_alpha": 8},
    "rollout": {"max_new_tokens": 60, "batch_size": 8, "samples_per_problem": 4},
    "train": {"steps": 1, "batch_size": 8, "micro_batch_size": 3, "checkpoint_every": 1},
    "log": {"token_rows": "all"},
}


def graded(row: int, reward: float, tokens: int) -> Rollout:
    return completed(row, tokens, grade=Grade(reward))


@pytest.mark.parametrize(
    ("keep", "rows"),
    [
        ("correct", {0, 1, 2, 5}),
        ("shortest_correct", {1, 5}),
        ("wrong", {3, 4, 6, 7}),
    ],
)
def test_kept_rows_are_chosen_by_grade_and_length(keep: Keep, rows: set[int]) -> None:
    of_first = [graded(0, 1, 9), graded(1, 1, 5), graded(2, 1, 5)]
    of_second = [graded(3, 0, 2), graded(4, 0.5, 2), graded(5, 1, 8)]
    of_third = [graded(6, 0, 2), graded(7, 0, 2)]  # the grader failed on the third
    assert kept_rows([*of_first, *of_second, *of_third], keep, 3) == rows


@pytest.mark.parametrize("keep", ["shortest_correct", "wrong"])
def test_train_loss_is_mean_over_kept_completions(tmp_path: Path, keep: Keep) -> None:
    # The model has some right and some wrong answers to each of the first problems of this seed.
    mixed: dict[str, Any] = {"train": {"seed": 2}}
    train(changed("demo-paint", SMALL, variant(Oasis, keep=keep), mixed), tmp_path)
    rows = stored(tmp_path)
    ids = [row["problem_id"] for row in rows]
    assert ids == [ids[0]] * 4 + [ids[4]] * 4
    assert len({tuple(row["completion_ids"]) for row in rows}) > 2
    kept = [i for i, row in enumerate(rows) if row["kept"]]
    assert 0 < len(kept) < 8
    assert {rows[i]["correct"] for i in kept} == {keep != "wrong"}
    if keep == "shortest_correct":
        assert len({i // 4 for i in kept}) == len(kept)

    [metrics] = read_metrics(tmp_path)
    assert metrics["kept_completions"] == len(kept)
    assert metrics["loss"] == pytest.approx(sum(rows[i]["loss"] for i in kept) / len(kept))
    assert metrics["overlap"] == pytest.approx(sum(rows[i]["overlap"] for i in kept) / len(kept))
    assert metrics["accuracy"] == sum(row["correct"] for row in rows) / 8
    assert metrics["rollout_tokens"] == sum(len(row["completion_ids"]) for row in rows)
    assert list(read_tokens(tokens_path(tmp_path, 1))) == kept


def test_train_step_without_kept_completion_has_no_loss_and_no_gradient(
    tmp_path: Path, problems: list[Problem]
) -> None:
    rows = [{"problem": p.problem, "solution": p.solution, "answer": "no"} for p in problems[:4]]
    data = {"data": {"path": write_problems(tmp_path / "rows.jsonl", rows)}}
    longer: dict[str, Any] = {"train": {"steps": 2}}
    config = changed("demo-paint", SMALL, data, variant(Oasis, keep="correct"), longer)
    train(config, tmp_path / "run", display=Display(enabled=False))
    for metrics in read_metrics(tmp_path / "run"):
        assert metrics["kept_completions"] == metrics["gradient_norm"] == metrics["accuracy"] == 0
        assert "loss" not in metrics
    assert_untrained(tmp_path / "run", config)
