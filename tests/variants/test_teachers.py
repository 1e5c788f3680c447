"""Variants with another teacher, and the shipped recipes of all variants on the demo."""

import re
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from paint.config.recipe import find_recipe, shipped_recipes
from paint.config.run_folder import read_metrics
from paint.config.schema import ConfigError
from paint.data.problems import Problem
from paint.inference.engine import derive_seed, sampling_from
from paint.inference.local import LocalEngine
from paint.models.policy import load_policy
from paint.objective.masking import mask_solution
from paint.training.check import check_config
from paint.training.trainer import train
from paint.variants.anchored import Anchored
from paint.variants.reason_first import ReasonFirst
from runs import changed, stored, variant

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


VARIANT = r"paint-(?!qwen)|oasis|(e2|og|u)-opsd|semi-opd|rlsd|sipo"


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in shipped_recipes() if re.match(VARIANT, name)])
def test_shipped_variant_is_short_and_trains_on_demo(tmp_path: Path, name: str) -> None:
    text = find_recipe(name).read_text()
    assert len([line for line in text.splitlines() if line and line[0] != "#"]) <= 15
    few = {"train": {"steps": 2, "batch_size": 16}}
    stored: dict[str, Any] = {}
    if name == "semi-opd":
        train(changed("demo-paint", few), tmp_path / "first")
        stored = {"rollout": {"stored": str(tmp_path / "first")}}
    train(changed("demo-paint", few, tomllib.loads(text), stored), tmp_path / "run")
    losses = [row["loss"] for row in read_metrics(tmp_path / "run")]
    assert len(losses) == 2
    assert all(0 < abs(loss) < 1 for loss in losses)


@pytest.mark.parametrize(
    ("wording", "hidden"), [("as_shown", None), ("part", 0.0), ("complete", 0.4)]
)
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


def test_reason_first_without_reference_is_refused() -> None:
    sections: dict[str, Any] = {"context": {"source": "none"}}
    config = changed("demo-paint", TINY, variant(ReasonFirst), sections)
    with pytest.raises(ConfigError, match="there is nothing to reason about"):
        check_config(config)


def test_train_base_alone_as_teacher_asks_nothing_of_fresh_student(tmp_path: Path) -> None:
    config = changed("demo-paint", TINY, variant(Anchored, base_weight=1.0), FEW_TOKENS)
    train(config, tmp_path / "run")
    assert all(row["context"] for row in stored(tmp_path / "run"))
    [metrics] = read_metrics(tmp_path / "run")
    assert metrics["kl"] == pytest.approx(0, abs=1e-6)


def test_train_anchored_target_is_between_teacher_and_base(tmp_path: Path) -> None:
    kls = []
    for weight in (0.0, 0.5, 0.9):
        config = changed("demo-paint", TINY, variant(Anchored, base_weight=weight))
        train(config, tmp_path / str(weight))
        kls.append(read_metrics(tmp_path / str(weight))[0]["kl"])
    train(changed("demo-paint", TINY), tmp_path / "paint")
    assert kls[0] == read_metrics(tmp_path / "paint")[0]["kl"]
    assert kls[0] > 2 * kls[1] > 4 * kls[2] > 0


def test_anchored_without_base_model_is_refused() -> None:
    sections: dict[str, Any] = {"teacher": {"weights": "ema"}, "model": {"train_mode": "full"}}
    config = changed("demo-paint", TINY, variant(Anchored), sections)
    with pytest.raises(ConfigError, match=r"weights must be frozen .*got ema.*base .*not kept"):
        check_config(config)
