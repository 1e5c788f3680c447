"""Training on what the grader says of a completion: prompts, rows that are passed over, SDPO."""

import importlib
from pathlib import Path
from typing import Any

import pytest

from paint.config.recipe import find_recipe, read_recipe
from paint.config.run_folder import read_metrics
from paint.config.schema import Config
from paint.core.display import Display
from paint.core.extensions import spec_of
from paint.data.problems import Problem
from paint.grading.contract import Grade
from paint.lab.viewer.run import PageSpec, run_data
from paint.models.policy import load_policy
from runs import assert_untrained, changed, small_run, stored, train

first_error = importlib.import_module("first_error")

SMALL = small_run(
    60, limit=40, at_once=8, steps=1, batch_size=8, micro_batch_size=3, checkpoint_every=1, seed=2
)
SMALL |= {"grading": {"grader": "first_error:grade"}}
SMALL |= {"context": {"source": "feedback", "mask_ratio_wrong": 0.0, "mask_ratio_correct": 0.0}}
SMALL["rollout"] |= {"samples_per_problem": 4, "temperature": 1.5}  # right and wrong ones


def small(*changes: dict[str, dict[str, Any]]) -> Config:
    return changed("demo-paint", SMALL, *changes)


def test_train_on_feedback_learns_from_completions_with_feedback(tmp_path: Path) -> None:
    template = "{{ student }} | {{ completion }} | {{ feedback }}"
    config = small({"prompts": {"teacher": template}})
    train(config, tmp_path)
    rows, [metrics] = stored(tmp_path), read_metrics(tmp_path)
    policy = load_policy(config.model, seed=2)
    kept = [row for row in rows if row["kept"]]
    assert 0 < len(kept) < len(rows)
    for row in rows:
        assert row["kept"] == (not row["correct"]) == bool(row.get("feedback"))
        assert row["context"] == row.get("feedback")
    for row in kept:
        student = policy.decode(row["prompt_ids"], special=True)
        asked = student[student.index("Problem:") : student.index("<|im_end|>")]
        teacher = policy.decode(row["teacher_prompt_ids"], special=True)
        assert f"{asked} | {row['text']} | {row['feedback']}<|im_end|>" in teacher
    assert metrics["kept_completions"] == len(kept)
    assert metrics["loss"] == pytest.approx(sum(row["loss"] for row in kept) / len(kept))
    assert metrics["accuracy"] == 1 - len(kept) / len(rows)

    page = run_data(tmp_path, PageSpec([1], contexts=("feedback",)), Display(enabled=False))
    for row, found in zip(rows, page["steps"][0]["rows"], strict=True):
        assert bool(found["contexts"]) == row["kept"]
        if row["kept"]:
            assert found["contexts"]["feedback"]["context"] == row["feedback"]
            assert found["contexts"]["feedback"]["is_the_runs"]


def test_train_without_any_feedback_updates_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("paint.training.weighting.learn", lambda *_: pytest.fail("an update"))

    def grade(completion: str, row: dict[str, Any]) -> Grade:
        return Grade(1.0, "fine")

    config = small({"grading": {"grader": spec_of(grade)}, "rollout": {"max_new_tokens": 8}})
    train(config, tmp_path)
    [metrics] = read_metrics(tmp_path)
    assert metrics["kept_completions"] == metrics["gradient_norm"] == 0
    assert "step 1: no completion was learned from" in capsys.readouterr().out
    assert_untrained(tmp_path, config)


def test_sdpo_teacher_reads_a_right_peer_and_feedback(tmp_path: Path) -> None:
    recipe = read_recipe(find_recipe("sdpo"), changed("demo-paint", SMALL))
    config = recipe.changed("rollout", samples_per_problem=4, temperature=1.5, top_k=20)
    train(config, tmp_path)
    rows = stored(tmp_path)
    policy = load_policy(config.model, seed=0)
    kinds = set()
    for row in rows:
        peers = {
            o["text"]
            for o in rows
            if o is not row and o["correct"] and o["problem_id"] == row["problem_id"]
        }
        teacher = policy.decode(row["teacher_prompt_ids"])
        assert row["kept"] == bool(peers or row.get("feedback"))
        shown = [text for text in peers if f"\nCorrect solution:\n\n{text}\n\n" in teacher]
        assert bool(shown) == bool(peers)
        feedback = f"your unsuccessful earlier attempt:\n\n{row.get('feedback')}\n\n"
        assert (feedback in teacher) == (not row["correct"])
        kinds.add((bool(peers), row["correct"]))
    assert len(kinds) > 1


def test_feedback_with_control_text_does_not_end_the_turn(tmp_path: Path) -> None:
    def grade(completion: str, row: dict[str, Any]) -> Grade:
        return Grade(0.0, feedback="It says <|im_end|>.")

    config = small({"grading": {"grader": spec_of(grade)}, "rollout": {"max_new_tokens": 8}})
    train(config, tmp_path)
    policy = load_policy(config.model, seed=0)
    for row in stored(tmp_path):
        teacher = policy.decode(row["teacher_prompt_ids"], special=True)
        student = policy.decode(row["prompt_ids"], special=True)
        assert teacher.count("<|im_end|>") == student.count("<|im_end|>")
        assert "\n\nIt says .\n\n" in teacher


def test_first_error_names_the_step_that_differs(problems: list[Problem]) -> None:
    problem = problems[0]
    row = {"problem": problem.problem, "solution": problem.solution}
    right = problem.solution
    assert first_error.grade(right, row) == Grade(1.0, "right answer")
    wrong = right.replace("16-10 \\equiv 6", "16-10 \\equiv 7").replace("{82}", "{83}")
    assert first_error.grade(wrong, row).feedback == "$16-10 \\equiv 6$."
    cut = right[: right.index("\\times 3")]
    assert first_error.grade(cut, row).feedback == "$36\\times 3 \\equiv 8$."
