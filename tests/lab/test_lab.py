"""The embedded lab: half known alone, known better with a reference, and improved by PAINT."""

import json
import random
import re
from pathlib import Path

import pytest

from paint.cli import main
from paint.config import Config
from paint.context import mask_solution
from paint.data.problems import Problem
from paint.engines.local import LocalEngine
from paint.engines.protocol import Sampling
from paint.evaluation.intervals import compare_seeds, over_seeds
from paint.experiments.lab import run_lab
from paint.experiments.results import shares
from paint.grading.grader import is_correct
from paint.lab.files import MODEL
from paint.lab.pretraining import build_tokenizer, write_problems
from paint.lab.problems import Chain, is_held_out, random_chain, random_chains
from paint.model.policy import Policy
from paint.training.runlog import new_run

EVALUATION = Sampling(temperature=1.0, top_p=0.95, top_k=-1, max_new_tokens=96)


def test_a_chain_is_worked_and_solved_by_the_rules_of_arithmetic() -> None:
    chain = Chain(47, (("+", 38), ("*", 3), ("-", 59)))
    assert chain.values == [47, 85, 55, 96]
    assert chain.problem == r"Start at $47$ and apply $+38$, $\times 3$, $-59$ modulo $100$."
    assert chain.solution == (
        r"We find $(47+38)\times 3 \equiv 55$, then $55-59 \equiv 96$, "
        r"so the result is $\boxed{96}$."
    )
    assert chain.worked().splitlines() == [
        "We start at $47$.",
        r"Add $38$: $47+38 \equiv 85$.",
        r"Multiply by $3$: $85\times 3 \equiv 55$.",
        r"Subtract $59$: $55-59 \equiv 96$.",
        r"The answer is $\boxed{96}$.",
    ]
    assert chain.known_results(chain.solution) == 3
    assert chain.known_results(mask_solution(chain.solution, 0.8)) == 0

    partly_hidden = r"We find $(47+38)\times 3 \equiv 55$, then $55 ...(omitted)..."
    assert chain.known_results(partly_hidden) == 2


def test_the_models_own_style_is_longer_than_the_references_and_slips_carry_on() -> None:
    rng = random.Random(0)
    for chain in [random_chain(rng) for _ in range(200)]:
        assert len(chain.worked()) > len(chain.solution)
        assert is_correct(chain.worked(), chain.answer)
        assert is_correct(chain.solution, chain.answer)
        slipped = chain.worked([1.0] * len(chain.operations), rng)
        results = [int(x) for x in re.findall(r"\\equiv (\d+)", slipped)]
        operands = [int(x) for x in re.findall(r": \$(\d+)", slipped)]
        assert operands[1:] == results[:-1]
        assert results[0] != chain.values[1]


def test_the_shipped_problems_are_made_by_the_shipped_code_and_the_held_out_ones_are(
    tmp_path: Path,
) -> None:
    write_problems(tmp_path)
    for name in ("train.jsonl", "held_out.jsonl"):
        assert (tmp_path / name).read_text() == (MODEL / name).read_text()
    train, test = (
        {json.loads(line)["problem"] for line in (MODEL / name).read_text().splitlines()}
        for name in ("train.jsonl", "held_out.jsonl")
    )
    assert not train & test
    assert len(train) == 1000
    assert len(test) == 200
    assert all(is_held_out(chain) for chain in random_chains(50, seed=9, held_out=True))


def test_the_shipped_tokenizer_is_made_by_the_shipped_code(policy: Policy) -> None:
    made = build_tokenizer()
    text = "<|im_start|>user\nStart at $47$<|im_end|>\n<think>\n47+38 and ünknown words</think>"
    assert made.get_vocab() == policy.tokenizer.get_vocab()
    assert made(text)["input_ids"] == policy.tokenizer(text)["input_ids"]
    assert policy.decode(made(text)["input_ids"], special=True) == text


@pytest.mark.parametrize(
    ("count", "gain"), [(100, 0.1), pytest.param(300, 0.2, marks=pytest.mark.slow)]
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
    assert 0.4 < alone < 0.7
    assert partial > alone + gain
    assert whole > 0.95


def test_the_model_thinks_when_asked_to_and_closes_its_thought(
    policy: Policy, problems: list[Problem]
) -> None:
    prompts = [policy.student_prompt(p.problem, thinking=True) for p in problems[:40]]
    completions = LocalEngine(policy, batch_size=40).generate(prompts, EVALUATION, range(40))
    texts = [policy.decode(c.ids, special=True) for c in completions]
    assert all(text.startswith("<think>\nWe start at") for text in texts)
    assert sum("\n</think>\n\nThe answer is" in text for text in texts) == 40


@pytest.mark.slow
def test_paint_raises_the_lab_by_fifteen_points(tmp_path: Path) -> None:
    recipe = Path(__file__).parents[2] / "recipes/lab-paint.toml"
    base, after = run_lab([recipe], tmp_path, seeds=[0], problems=60, samples=6)
    gain = compare_seeds(shares([base]), shares([after]))
    assert gain.mean >= 0.15
    assert gain.low > 0
    assert over_seeds(shares([after])).low > over_seeds(shares([base])).high

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
    flags = ["--methods", "sft,grpo,opsd,paint", "--seeds", "2", "--seed", "3"]
    assert main(["lab", *flags, "--folder", str(tmp_path)]) == 2
    run_name = place.replace("/seed-", ", seed ")
    assert f"{tmp_path} holds {run_name}, in another setting" in capsys.readouterr().err


def test_an_unknown_method_is_one_clear_message(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["lab", "--methods", "opsdd,paint"]) == 2
    error = capsys.readouterr().err
    assert error.startswith("paint lab: unknown recipe lab-opsdd; did you mean lab-opsd?")


LAB_HELP = [
    "default: runs/lab",
    "among sft, grpo, opsd, paint",
    "held-out problems",
    "grpo-long is grpo with 8 times",
    "--every-checkpoint",
    "paper: Experimental Det",
]
ABLATE_HELP = [
    "default: runs/ablate-RECIPE",
    "default: 3",
    "best within 100 steps",
    "mask_ratio_ablation",
    "Ablation Studies, aime_2024",
]


@pytest.mark.parametrize(
    ("verb", "parts"),
    [
        ("lab", LAB_HELP),
        ("ablate", ABLATE_HELP),
    ],
)
def test_help_explains_the_options(
    verb: str, parts: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main([verb, "--help"])
    text = "".join(capsys.readouterr().out.split())  # lines also end at hyphens
    for part in [*parts, "the same command goes on where it stopped", "is not done again"]:
        assert part.replace(" ", "") in text, part


@pytest.mark.parametrize("name", ["model.safetensors", "tokenizer.json", "pretraining.json"])
def test_the_embedded_model_is_small_enough_to_ship(name: str) -> None:
    assert 0 < (MODEL / name).stat().st_size < 4_000_000
