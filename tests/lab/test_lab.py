"""The embedded lab: half known alone, known better with a reference, and improved by PAINT."""

import json
import random
from pathlib import Path
from typing import get_args

import pytest

from paint.cli import main
from paint.config import Config
from paint.context import Placement, mask_solution
from paint.data.problems import Problem
from paint.engines.local import LocalEngine
from paint.engines.protocol import Sampling
from paint.evaluation.intervals import compare_seeds
from paint.experiments.lab import run_lab
from paint.experiments.report import shares
from paint.grading.grader import is_correct
from paint.lab.problems import (
    Chain,
    apply,
    boxed,
    random_chain,
    random_chains,
    told_steps,
)
from paint.model.policy import Policy
from paint.training.runlog import new_run

EVALUATION = Sampling(temperature=1.0, top_p=1.0, top_k=-1, max_new_tokens=96)


OPERATIONS = (("+", 38), ("*", 3), ("-", 59))


def chain_in(style: str) -> Chain:
    """A chain whose reference is in that style, which the hash of its text decides."""
    return next(
        chain
        for start in range(100)
        if (chain := Chain(start, OPERATIONS)).is_in_own_style == (style == "own")
    )


def test_a_chain_is_worked_and_solved_by_the_rules_of_arithmetic() -> None:
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
def test_a_reference_tells_the_steps_that_stand_in_it_whole(style: str) -> None:
    chain = chain_in(style)
    values = chain.values
    steps = {
        (value, *operation): result
        for value, operation, result in zip(values, OPERATIONS, values[1:], strict=False)
    }
    assert told_steps(chain.solution) == steps
    assert told_steps(chain.problem) == {}
    assert told_steps(f"The answer is ${boxed(chain.answer)}$.") == {}

    # Whatever is hidden, nothing else is told, and no digit of a number is taken for the number.
    for placement in get_args(Placement):
        for percent in range(1, 100):
            masked = mask_solution(chain.solution, percent / 100, placement=placement, seed=percent)
            assert told_steps(masked).items() <= steps.items()
    assert 0 < len(told_steps(mask_solution(chain.solution, 0.5))) < len(steps)


def test_a_told_step_never_slips_and_every_other_one_does_at_its_rate() -> None:
    rng = random.Random(0)
    slips = steps = 0
    for chain in [random_chain(rng) for _ in range(300)]:
        assert len(set(chain.operations)) == len(chain.operations)
        assert is_correct(chain.worked(), chain.answer)
        assert is_correct(chain.solution, chain.answer)
        assert chain.worked(1.0, rng, told_steps(chain.solution)) == chain.worked()

        worked = told_steps(chain.worked(0.03, rng))
        assert [step[1:] for step in worked] == list(chain.operations)
        assert [step[0] for step in worked][1:] == list(worked.values())[:-1]  # it is carried on
        slips += sum(apply(*step) != result for step, result in worked.items())
        steps += len(worked)
    assert 0.025 < slips / steps < 0.035  # a standard deviation is 0.0025


def test_references_are_in_two_styles_and_no_more_than_their_text_decides() -> None:
    chains = random_chains(1000, seed=3, held_out=False)
    assert 0.45 < sum(chain.is_in_own_style for chain in chains) / 1000 < 0.55


@pytest.mark.parametrize(
    ("count", "gain"), [(100, 0.1), pytest.param(300, 0.14, marks=pytest.mark.slow)]
)
def test_the_model_solves_half_alone_and_clearly_more_with_a_reference(
    policy: Policy, problems: list[Problem], count: int, gain: float
) -> None:
    some = problems[:count]

    def accuracy(prompts: list[list[int]]) -> float:
        engine = LocalEngine(policy, batch_size=count)
        completions = engine.generate(prompts, EVALUATION, range(count))
        texts = [policy.decode(c.ids) for c in completions]
        return sum(is_correct(t, p.answer) for t, p in zip(texts, some, strict=True)) / count

    def teacher_prompt(problem: Problem) -> list[int]:
        context = mask_solution(problem.solution, 0.4)
        return policy.teacher_prompt(problem.problem, context, complete=False)

    alone = accuracy([policy.student_prompt(p.problem) for p in some])
    partial = accuracy([teacher_prompt(p) for p in some])
    whole = accuracy([policy.teacher_prompt(p.problem, p.solution, complete=True) for p in some])
    assert 0.45 < alone < 0.75
    assert partial > alone + gain
    assert whole > partial
    assert whole > 0.8


def test_the_model_thinks_when_asked_to_and_closes_its_thought(
    policy: Policy, problems: list[Problem]
) -> None:
    prompts = [policy.student_prompt(p.problem, thinking=True) for p in problems[:40]]
    completions = LocalEngine(policy, batch_size=40).generate(prompts, EVALUATION, range(40))
    texts = [policy.decode(c.ids, special=True) for c in completions]
    assert all(text.startswith("<think>\nWe get $") for text in texts)
    assert sum("\n</think>\n\nThe answer is" in text for text in texts) == 40


@pytest.mark.slow
def test_paint_raises_the_lab_by_fifteen_points(tmp_path: Path) -> None:
    recipe = Path(__file__).parents[2] / "recipes/lab-paint.toml"
    base, after = run_lab([recipe], tmp_path, seeds=[0], problems=60, samples=6)
    gain = compare_seeds(shares([base]), shares([after]))
    assert gain.mean >= 0.15
    assert gain.low > 0.1

    path = tmp_path / "evaluation/seed-0/lab-paint/lab/completions.jsonl"
    stored = path.read_text().splitlines()
    assert len(stored) == 360
    assert not any(json.loads(line)["truncated"] for line in stored)


@pytest.mark.parametrize(
    "place", ["lab-sft/seed-3", "lab-grpo/seed-3", "lab-opsd/seed-4", "lab-paint/seed-4"]
)
def test_methods_are_the_labs_recipes_and_seeds_count_from_the_first(
    place: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    new_run(Config(), tmp_path / place, "", {})  # another setting, which the experiment must meet
    flags = ["--methods", "sft", "grpo", "opsd", "paint", "--seeds", "2", "--seed", "3"]
    assert main(["demo", *flags, "--folder", str(tmp_path)]) == 2
    run_name = place.replace("/seed-", ", seed ")
    assert f"{tmp_path} holds {run_name}, in another setting" in capsys.readouterr().err


def test_an_unknown_method_is_one_clear_message(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "--methods", "opsdd", "paint"]) == 2
    error = capsys.readouterr().err
    assert error.startswith("paint demo: unknown recipe lab-opsdd; did you mean lab-opsd?")
