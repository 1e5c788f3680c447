"""SFT on the answers of the teacher that reads the solution."""

import tomllib
from pathlib import Path
from typing import Any

import pytest
import torch

from paint.config.recipe import find_recipe
from paint.config.run_folder import read_metrics
from paint.config.schema import Config, ConfigError
from paint.data.problems import Problem
from paint.inference.engine import row_seed, sampling_from
from paint.inference.local import LocalEngine
from paint.models.policy import load_policy
from paint.models.weights import load_trained
from paint.resolve.check import check_config
from paintvariants.sft_teacher import SftTeacher
from runs import changed, stored, train, variant, write_problems

RECIPE = tomllib.loads(find_recipe("sft-teacher").read_text())
TINY: dict[str, dict[str, Any]] = {
    "data": {"limit": 40},
    "rollout": {"max_new_tokens": 60},
    "train": {"steps": 2, "batch_size": 4, "micro_batch_size": 3, "seed": 3}
    | {"checkpoint_every": 1, "learning_rate": 3e-3},
}


def tiny(*changes: dict[str, dict[str, Any]]) -> Config:
    return changed("demo-sft", RECIPE, TINY, *changes)


def test_train_imitates_what_the_teacher_writes_after_its_own_prompt(
    tmp_path: Path, problems: list[Problem]
) -> None:
    config = tiny()
    train(config, tmp_path)
    by_id = {problem.id: problem for problem in problems}
    policy = load_policy(config.model, seed=0)  # its fresh adapter is the teacher
    for step in (1, 2):
        rows = stored(tmp_path, step)
        prompts = [
            policy.teacher_prompt(by_id[r["problem_id"]], r["context"], complete=True) for r in rows
        ]
        assert [r["context"] for r in rows] == [by_id[r["problem_id"]].solution for r in rows]
        seeds = [row_seed(3, step - 1, number) for number in range(4)]
        engine = LocalEngine(policy, batch_size=4)
        written = engine.generate(prompts, sampling_from(config.rollout), seeds)
        assert [tuple(r["completion_ids"]) for r in rows] == [c.ids for c in written]
    # What was imitated first is likelier now, after the student's prompt.
    first = stored(tmp_path, 1)
    load_trained(policy, tmp_path / "checkpoints/step-000002/adapter")
    states = policy.hidden_states(
        [r["prompt_ids"] for r in first], [r["completion_ids"] for r in first]
    )
    ids = torch.tensor([i for r in first for i in r["completion_ids"]])
    nll = -policy.lm_head(states).log_softmax(-1).gather(1, ids[:, None]).mean()
    before, after = read_metrics(tmp_path)
    assert nll.item() < before["loss"]
    taught = [p for r in first for p in r["engine_log_probs"]]
    assert before["teacher_gap"] == pytest.approx(before["loss"] + sum(taught) / len(taught))
    assert before["teacher_gap"] > 0.05
    assert {"accuracy", "student_entropy", "truncated_frac"} <= after.keys()
    assert not {"kl", "overlap", "mask_ratio", "logprob_mismatch_mean"} & after.keys()


def test_train_on_correct_answers_learns_from_no_other(
    tmp_path: Path, problems: list[Problem]
) -> None:
    rows = [
        {"problem": p.problem, "solution": p.solution, "answer": p.answer if i % 2 else "no"}
        for i, p in enumerate(problems[:8])
    ]
    data = {"data": {"path": write_problems(tmp_path / "rows.jsonl", rows)}}
    keeps = variant(SftTeacher, keep="correct")
    train(tiny(data, keeps, {"train": {"steps": 1, "batch_size": 8}}), tmp_path)
    found, [metrics] = stored(tmp_path), read_metrics(tmp_path)
    assert [row["kept"] for row in found] == [row["answer"] != "no" for row in found]
    kept = [row for row in found if row["kept"]]
    assert metrics["kept_completions"] == len(kept) == 4
    tokens = sum(len(row["completion_ids"]) for row in kept)
    summed = sum(row["loss"] * len(row["completion_ids"]) for row in kept)
    assert metrics["loss"] == pytest.approx(summed / tokens)


def test_train_in_other_micro_batches_has_the_same_gradient(tmp_path: Path) -> None:
    norms = []
    for size in (1, 4):
        train(tiny({"train": {"micro_batch_size": size, "steps": 1}}), tmp_path / str(size))
        norms += [row["gradient_norm"] for row in read_metrics(tmp_path / str(size))]
    assert norms[0] == pytest.approx(norms[1], rel=1e-5)
    assert norms[0] > 0.01


@pytest.mark.parametrize(
    ("changes", "needed"),
    [
        ({"rollout": {"engine": "vllm"}}, "a rollout.engine in this process"),
        ({"rollout": {"off_policy_steps": 1}}, "rollout.off_policy_steps 0"),
        ({"context": {"source": "rollout"}}, "a context.source that is the row's"),
        (
            {"conversation": {"environment": "extensions.check_answer:CheckAnswer"}},
            "no [conversation]",
        ),
    ],
)
def test_check_refuses_what_the_student_would_sample(
    changes: dict[str, dict[str, Any]], needed: str
) -> None:
    with pytest.raises(ConfigError, match="in this process") as error:
        check_config(tiny(changes))
    assert needed in str(error.value)
