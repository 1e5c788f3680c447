"""The embedded demo: its problems, its model's accuracy, and its gain by PAINT."""

import json
from pathlib import Path

import pytest

from paint.cli import main
from paint.config.schema import Config
from paint.data.problems import Problem
from paint.evaluation.intervals import compare_seeds
from paint.inference.engine import Sampling
from paint.inference.local import LocalEngine
from paint.lab.checkpoint_results import shares
from paint.lab.compare import compare
from paint.lab.recipes import read_recipes
from paint.models.policy import Policy
from paint.objective.masking import mask_solution
from paint.training.run_log import new_run
from verdicts import is_correct

EVALUATION = Sampling(temperature=1.0, top_p=1.0, top_k=-1, max_new_tokens=96)


@pytest.mark.slow
def test_demo_model_accuracy_rises_with_reference(policy: Policy, problems: list[Problem]) -> None:
    some = problems[:100]

    def accuracy(prompts: list[list[int]]) -> float:
        engine = LocalEngine(policy, batch_size=100)
        completions = engine.generate(prompts, EVALUATION, range(100))
        texts = [policy.decode(c.ids) for c in completions]
        return sum(is_correct(t, p.answer) for t, p in zip(texts, some, strict=True)) / 100

    def teacher_prompt(problem: Problem) -> list[int]:
        context = mask_solution(problem.solution, 0.4)
        return policy.teacher_prompt(problem.problem, context, complete=False)

    alone = accuracy([policy.student_prompt(p.problem) for p in some])
    partial = accuracy([teacher_prompt(p) for p in some])
    whole = accuracy([policy.teacher_prompt(p.problem, p.solution, complete=True) for p in some])
    assert 0.45 < alone < 0.75
    assert partial > alone + 0.1
    assert whole > partial
    assert whole > 0.8


def test_demo_model_opens_and_closes_thinking(policy: Policy, problems: list[Problem]) -> None:
    prompts = [policy.student_prompt(p.problem, thinking=True) for p in problems[:40]]
    completions = LocalEngine(policy, batch_size=40).generate(prompts, EVALUATION, range(40))
    texts = [policy.decode(c.ids, special=True) for c in completions]
    assert all(text.startswith("<think>\nWe get $") for text in texts)
    assert sum("\n</think>\n\nThe answer is" in text for text in texts) == 40


@pytest.mark.slow
@pytest.mark.usefixtures("unchecked")
def test_demo_paint_gains_fifteen_points(tmp_path: Path) -> None:
    recipes = read_recipes(["demo-paint"])
    base, after = compare(recipes, tmp_path, seeds=[0], problems=60, samples=6)
    gain = compare_seeds(shares([base]), shares([after]))
    assert gain.mean >= 0.15
    assert gain.low > 0.1

    path = tmp_path / "evaluation/seed-0/demo-paint/demo/completions.jsonl"
    stored = path.read_text().splitlines()
    assert len(stored) == 360
    assert not any(json.loads(line)["truncated"] for line in stored)


@pytest.mark.parametrize("place", ["demo-sft/seed-0", "demo-paint/seed-1"])
def test_demo_methods_use_shipped_recipes_and_consecutive_seeds(
    place: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # What the experiment must meet.
    new_run(Config(), tmp_path / place, {"problems": "", "context": "", "model": {}})
    flags = ["--methods", "sft", "grpo", "opsd", "paint", "--seeds", "2"]
    assert main(["demo", *flags, "--output-dir", str(tmp_path)]) == 2
    run_name = place.replace("/seed-", ", seed ")
    assert f"{tmp_path} holds {run_name}, with other settings" in capsys.readouterr().err
