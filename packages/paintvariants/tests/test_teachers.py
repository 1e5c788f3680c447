"""Variants with another teacher, and the shipped recipes of all variants on the demo."""

import re
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from paint.config.recipe import find_recipe, shipped_recipes
from paint.config.run_folder import read_metrics
from paint.data.problems import Problem
from paint.inference.engine import derive_seed, sampling_from
from paint.inference.local import LocalEngine
from paint.models.policy import load_policy
from paint.models.weights import load_trained
from paint.objective.masking import mask_solution
from paintvariants.anchored import Anchored
from paintvariants.reason_first import ReasonFirst
from runs import changed, stored, train, variant

PROBLEMS = 40
TINY: dict[str, dict[str, Any]] = {
    "data": {"limit": PROBLEMS},
    "rollout": {"max_new_tokens": 60},
    "train": {"steps": 1, "batch_size": 4, "micro_batch_size": 4, "seed": 3},
}
FEW_TOKENS = {"rollout": {"max_new_tokens": 24}}


@pytest.fixture(scope="module")
def by_id(problems: list[Problem]) -> dict[str, Problem]:
    return {p.id: p for p in problems[:PROBLEMS]}


VARIANT = r"paint-(?!qwen)|oasis|(e2|og|u|beta)-opsd|semi-opd|rlsd|sipo|sdar|sft-teacher"


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in shipped_recipes() if re.match(VARIANT, name)])
def test_shipped_variant_is_short_and_trains_on_demo(tmp_path: Path, name: str) -> None:
    text = find_recipe(name).read_text()
    assert len([line for line in text.splitlines() if line and line[0] not in "#["]) <= 15
    # Of this seed, both steps have a problem whose answers have a majority and others.
    few = {"train": {"steps": 2, "batch_size": 16, "seed": 10}}
    stored: dict[str, Any] = {}
    if name == "semi-opd":
        train(changed("demo-paint", few), tmp_path / "first")
        stored = {"rollout": {"stored": str(tmp_path / "first")}}
    train(changed("demo-paint", few, tomllib.loads(text), stored), tmp_path / "run")
    losses = [row["loss"] for row in read_metrics(tmp_path / "run")]
    assert len(losses) == 2
    assert all(0 < abs(loss) < 1 for loss in losses)


@pytest.mark.parametrize(("wording", "hidden"), [("as_shown", None), ("complete", 0.4)])
def test_reason_first_teacher_scores_with_its_rationale(
    tmp_path: Path, by_id: dict[str, Problem], wording: str, hidden: float | None
) -> None:
    options: dict[str, Any] = {"wording": wording}
    if hidden is not None:
        options |= {"mask_ratio_wrong": hidden, "mask_ratio_correct": hidden}
    reason_first = variant(ReasonFirst, rationale_tokens=12)
    steps = {"steps": 2, "learning_rate": 3e-3}
    config = changed("demo-paint", TINY, reason_first, {"context": options, "train": steps})
    train(config, tmp_path / "run")

    # With a fresh adapter it is the teacher, whatever the student became.
    policy = load_policy(config.model, seed=0)
    sampling = replace(sampling_from(config.rollout), max_new_tokens=12)
    engine, is_complete = LocalEngine(policy, batch_size=1), wording == "complete"
    for step in (1, 2):
        for number, row in enumerate(stored(tmp_path / "run", step)):
            problem, context = by_id[row["problem_id"]], row["context"]
            if hidden is not None:
                assert context == mask_solution(problem.solution, hidden)
            asked = policy.rationale_prompt(problem.problem, context, complete=is_complete)
            seed = derive_seed(3, "rationale", step - 1, number)
            [reply] = engine.generate([asked], sampling, [seed])
            assert row["rationale"] == policy.decode(reply.ids).strip() != ""
            assert row["rationale_tokens"] == len(reply.ids)
            prompt = policy.teacher_prompt(
                problem.problem, context, complete=is_complete, rationale=row["rationale"]
            )
            assert row["teacher_prompt_ids"] == prompt

            read = policy.decode(prompt, special=True)
            # It is asked, replies, is asked to solve, and reads the student's text.
            assert read.count("<|im_start|>") == 4
            assert context in read
            assert f"assistant\n{row['rationale']}<|im_end|>" in read
            assert row["rationale"] not in policy.decode(row["prompt_ids"], special=True)


def test_train_base_alone_as_teacher_asks_nothing_of_fresh_student(tmp_path: Path) -> None:
    config = changed("demo-paint", TINY, variant(Anchored, base_weight=1.0), FEW_TOKENS)
    train(config, tmp_path / "run")
    assert all(row["context"] for row in stored(tmp_path / "run"))
    [metrics] = read_metrics(tmp_path / "run")
    assert metrics["kl"] == pytest.approx(0, abs=1e-6)


def test_train_anchored_target_interpolates_logits_of_teacher_and_base(tmp_path: Path) -> None:
    anchored, steps = variant(Anchored, base_weight=0.3), {"steps": 2, "checkpoint_every": 1}
    plain = {"objective": {"interpolation_weight": 0.0}, "train": {"learning_rate": 3e-3} | steps}
    config = changed("demo-paint", TINY, anchored, plain)
    train(config, tmp_path)

    temperature = config.rollout.temperature
    policy = load_policy(config.model, seed=0)  # with its fresh adapter it is the base
    rows = stored(tmp_path, 2)

    def logits_after(prompt: str) -> list[Tensor]:
        with torch.no_grad():
            found = []
            for row in rows:
                hidden = policy.hidden_states([row[prompt]], [row["completion_ids"]])
                found.append(policy.lm_head(hidden) / temperature)
            return found

    teacher, base = logits_after("teacher_prompt_ids"), logits_after("prompt_ids")
    load_trained(policy, tmp_path / "checkpoints/step-000001/adapter")
    student = logits_after("prompt_ids")
    expected = []
    for shown, hidden, moved in zip(teacher, base, student, strict=True):
        log_p = (0.7 * shown + 0.3 * hidden).log_softmax(-1)
        log_q = moved.log_softmax(-1)
        expected.append(float((log_p.exp() * (log_p - log_q)).sum(-1).mean()))
        assert not torch.allclose(hidden, moved, atol=0.01)  # the first step moved the student
    found = read_metrics(tmp_path)[1]["kl"]
    assert found == pytest.approx(sum(expected) / len(expected), rel=1e-3)
