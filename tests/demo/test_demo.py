"""The embedded demo: its problems, its model's accuracy, and its gain by PAINT."""

import json
import random
from pathlib import Path
from typing import get_args

import pytest

from demo_problems import Chain, apply, boxed, random_chain, random_chains, visible_steps
from paint.cli import main
from paint.config.recipe import to_table
from paint.config.schema import Config
from paint.data.problems import Problem
from paint.evaluation.intervals import compare_seeds
from paint.experiments.checkpoint_results import shares
from paint.experiments.compare import compare
from paint.experiments.recipes import read_recipes
from paint.inference.engine import Sampling
from paint.inference.local import LocalEngine
from paint.models.policy import Policy
from paint.objective.masking import Placement, mask_solution
from paint.training.run_log import new_run
from verdicts import is_correct

EVALUATION = Sampling(temperature=1.0, top_p=1.0, top_k=-1, max_new_tokens=96)


OPERATIONS = (("+", 38), ("*", 3), ("-", 59))


def chain_in(style: str) -> Chain:
    """A chain whose reference is in that style, which the hash of its text decides."""
    chains = (Chain(start, OPERATIONS) for start in range(100))
    return next(chain for chain in chains if chain.is_in_own_style == (style == "own"))


def test_chain_values_and_solution_match_arithmetic() -> None:
    own, other = chain_in("own"), chain_in("other")
    assert own.values == [own.start, *(result for _, result in worked_by_hand(own.start))]
    assert own.problem == f"Start at ${own.start}$ and apply $+38, \\times 3, -59$ modulo $100$."

    [(_, a), (_, b), (_, c)] = worked_by_hand(own.start)
    formula = rf"{own.start}+38 \equiv {a}\times 3 \equiv {b}-59 \equiv {c}"
    assert own.worked() == f"We get ${formula}$.\nThe answer is $\\boxed{{{c}}}$."
    assert own.solution == own.worked()

    [(x, a), (y, b), (z, c)] = worked_by_hand(other.start)
    assert other.solution.splitlines() == [
        rf"${x}+38 \equiv {a}$.",
        rf"${y}\times 3 \equiv {b}$.",
        rf"${z}-59 \equiv {c}$.",
        f"The result is $\\boxed{{{c}}}$.",
    ]


def worked_by_hand(start: int) -> list[tuple[int, int]]:
    """Number and result of each of OPERATIONS."""
    a = (start + 38) % 100
    b = 3 * a % 100
    return [(start, a), (a, b), (b, (b - 59) % 100)]


@pytest.mark.parametrize("style", ["own", "other"])
def test_visible_steps_are_those_complete_in_reference(style: str) -> None:
    chain = chain_in(style)
    befores = [(value, *step) for value, step in zip(chain.values, OPERATIONS, strict=False)]
    steps = dict(zip(befores, chain.values[1:], strict=True))
    assert visible_steps(chain.solution) == steps
    assert visible_steps(chain.problem) == {}
    assert visible_steps(f"The answer is ${boxed(chain.answer)}$.") == {}

    # Whatever is hidden, nothing else is told, and no digit of a number is taken for the number.
    for placement in get_args(Placement):
        for percent in range(1, 100):
            masked = mask_solution(chain.solution, percent / 100, placement=placement, seed=percent)
            assert visible_steps(masked).items() <= steps.items()
    assert 0 < len(visible_steps(mask_solution(chain.solution, 0.5))) < len(steps)


def test_chain_worked_errs_only_on_hidden_steps_at_slip_rate() -> None:
    rng = random.Random(0)
    slips = steps = 0
    for chain in [random_chain(rng) for _ in range(300)]:
        assert len(set(chain.operations)) == len(chain.operations)
        assert is_correct(chain.worked(), chain.answer)
        assert is_correct(chain.solution, chain.answer)
        assert chain.worked(1.0, rng, visible_steps(chain.solution)) == chain.worked()

        worked = visible_steps(chain.worked(0.03, rng))
        assert [step[1:] for step in worked] == list(chain.operations)
        assert [step[0] for step in worked][1:] == list(worked.values())[:-1]  # it is carried on
        slips += sum(apply(*step) != result for step, result in worked.items())
        steps += len(worked)
    assert 0.025 < slips / steps < 0.035  # a standard deviation is 0.0025


def test_random_chains_use_both_styles_equally() -> None:
    chains = random_chains(1000, seed=3, held_out=False)
    assert 0.45 < sum(chain.is_in_own_style for chain in chains) / 1000 < 0.55


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


@pytest.mark.parametrize(
    "place", ["demo-sft/seed-3", "demo-grpo/seed-3", "demo-opsd/seed-4", "demo-paint/seed-4"]
)
def test_demo_methods_use_shipped_recipes_and_consecutive_seeds(
    place: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    new_run(
        to_table(Config()), tmp_path / place, {"problems": "", "context": "", "model": {}}
    )  # what the experiment must meet
    flags = ["--methods", "sft", "grpo", "opsd", "paint", "--seeds", "2", "--seed", "3"]
    assert main(["demo", *flags, "--output-dir", str(tmp_path)]) == 2
    run_name = place.replace("/seed-", ", seed ")
    assert f"{tmp_path} holds {run_name}, with other settings" in capsys.readouterr().err
