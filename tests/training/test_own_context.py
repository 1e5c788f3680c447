"""Data that is no mathematics: chats, rows without answers, prompts and contexts of one's own."""

from pathlib import Path
from typing import Any

import pytest

from paint.config.run_folder import RunError, read_metrics, read_run_json
from paint.config.schema import EvaluationConfig
from paint.evaluation.evaluate import resolve_targets
from paint.models.policy import load_policy
from runs import changed, stored, train, write_problems

RULES = {"role": "system", "content": "Answer in one line."}
SMALL: dict[str, dict[str, Any]] = {
    "data": {"limit": 20},
    "model": {"lora_rank": 4},
    "rollout": {"max_new_tokens": 8},
    "train": {"steps": 1, "batch_size": 4, "micro_batch_size": 4},
    "log": {"token_rows": 0},
}


def chat(number: int) -> dict[str, Any]:
    asked = {"role": "user", "content": f"Where is parcel {number}?"}
    return {"messages": [RULES, asked, {"role": "assistant", "content": f"At depot {number}."}]}


def test_train_on_chats_without_answers_by_own_prompts(tmp_path: Path) -> None:
    path = write_problems(tmp_path / "chats.jsonl", map(chat, range(4)))
    prompts = {"student": "{{ problem }} Please.", "teacher": "{{ context }} | {{ student }}"}
    config = changed("demo-paint", SMALL, {"data": {"path": path}, "prompts": prompts})
    train(config, tmp_path / "run")

    assert "accuracy" not in read_metrics(tmp_path / "run")[0]
    policy = load_policy(config.model, seed=0)
    for row in stored(tmp_path / "run"):
        assert "correct" not in row
        student, teacher = (
            policy.decode(row[name], special=True) for name in ("prompt_ids", "teacher_prompt_ids")
        )
        assert student.count("system\nAnswer in one line.<|im_end|>") == 1
        assert f"user\n{row['problem']} Please.<|im_end|>" in student
        assert f"user\n{row['context']} | {row['problem']} Please.<|im_end|>" in teacher

    policies = resolve_targets(EvaluationConfig(), [str(tmp_path / "run")])[1]
    assert [policy.prompts for policy in policies] == [config.prompts] * 2


def test_run_shared_text_is_told_from_the_problems(tmp_path: Path) -> None:
    rules = tmp_path / "rules.md"
    rules.write_text("Be brief.")
    own = changed("demo-paint", SMALL)
    shared = changed("demo-paint", SMALL, {"context": {"source": "file", "file": str(rules)}})
    for name, config in (("own", own), ("shared", shared)):
        train(config, tmp_path / name)
    of_own, of_shared = (read_run_json(tmp_path / name) for name in ("own", "shared"))
    assert of_own["problems"] == of_shared["problems"]  # so the two can be compared
    assert of_own["context"] != of_shared["context"]

    rules.write_text("Be long.")
    with pytest.raises(RunError, match=r"other context than .*rules\.md holds now"):
        train(shared, tmp_path / "shared", resume=True)


def test_train_on_function_of_ones_own_and_verified_peers(tmp_path: Path) -> None:
    rows = [
        {"problem": f"What is {i}+{i}?", "solution": f"It is {i}.", "answer": 2 * i, "hint": "h"}
        for i in range(1, 4)
    ]
    data = {"path": write_problems(tmp_path / "rows.jsonl", rows)}
    context = {"source": ["extensions.earlier_context:earlier", "rollout"]}
    train(changed("demo-paint", SMALL, {"data": data, "context": context}), tmp_path / "run")
    metrics = read_metrics(tmp_path / "run")[0]
    # Four rows of three problems; none of eight tokens is right.
    assert metrics["verified_peers"] == 0
    for row in stored(tmp_path / "run"):
        i = int(row["problem_id"])
        earlier = "\n".join(f"It is {j}." for j in range(1, i)) or "h"
        assert row["context"] == f"{earlier}\n\nIt is {i}."
