"""Chains of operations, the problems of the demo: references, rules and what a text tells."""

import random
import re
from collections import Counter
from typing import get_args

import pytest

from demo_problems import (
    NEW_RULES,
    RULES,
    SLIPS,
    Chain,
    Step,
    apply,
    is_held_out,
    random_chain,
    random_chains,
    visible_rules,
    visible_steps,
)
from paint.objective.masking import MARKER, Placement, mask_solution

CHAINS = random_chains(300, list(RULES), seed=5, held_out=False)
OPERATIONS = (("+", 12), ("*", 3), ("-", "zor"), ("+", "pum"), ("+", "zor"), ("-", 9))


def chain_in(style: str) -> Chain:
    """A chain whose reference is in that style, which the hash of its text decides."""
    chains = (Chain(start, OPERATIONS) for start in range(100))
    return next(chain for chain in chains if chain.is_in_own_style == (style == "own"))


def recomputed(problem: str, rules: dict[str, int]) -> tuple[list[Step], list[int]]:
    """The steps and results of a problem, from its text alone."""
    found = re.fullmatch(r"Start at \$(\d+)\$ and apply \$(.+)\$ modulo \$100\$\.", problem)
    assert found is not None
    value, steps, results = int(found[1]), [], []
    for text in found[2].split(", "):
        sign = text[0].replace("\\", "*")
        operand = text.removeprefix("\\times ").lstrip("+-")
        number = rules[operand] if operand.isalpha() else int(operand)
        steps.append((value, sign, number))
        value = {"+": value + number, "-": value - number, "*": value * number}[sign] % 100
        results.append(value)
    return steps, results


def hidden_in(solution: str) -> list[str]:
    """The solution with a part of it hidden, of every length and at every kind of place."""
    return [
        mask_solution(solution, percent / 100, placement=placement, seed=percent)
        for placement in get_args(Placement)
        for percent in range(2, 100)
    ]


def test_reference_in_own_style_is_one_formula_that_rules_interrupt() -> None:
    chain = chain_in("own")
    zor, pum = RULES["zor"], RULES["pum"]
    a = (chain.start + 12) % 100
    b = 3 * a % 100
    c = (b - zor) % 100
    d = (c + pum) % 100
    e = (d + zor) % 100
    f = (e - 9) % 100
    assert chain.problem == (
        rf"Start at ${chain.start}$ and apply $+12, \times 3, -zor, +pum, +zor, -9$ modulo $100$."
    )
    assert chain.reference(RULES) == (
        rf"${chain.start}+12 \equiv {a}\times 3 \equiv {b}$. A zor is ${zor}$. "
        rf"${b}-{zor} \equiv {c}$. A pum is ${pum}$. ${c}+{pum} \equiv {d}+{zor} \equiv {e}"
        rf"-9 \equiv {f}$."
        f"\nThe answer is $\\boxed{{{f}}}$."
    )
    assert chain.values(RULES) == [chain.start, a, b, c, d, e, f]
    assert chain.words == ("zor", "pum")


@pytest.mark.parametrize("rules", [RULES, NEW_RULES], ids=["rules", "new rules"])
def test_references_are_right_under_their_rules(rules: dict[str, int]) -> None:
    for chain in random_chains(300, list(rules), seed=7, held_out=False):
        steps, results = recomputed(chain.problem, rules)
        reference = chain.reference(rules)
        assert re.findall(r"\\equiv (\d+)", reference) == list(map(str, results))
        operands = re.findall(r"(?:[+-]|\\times )(\d+) \\equiv", reference)
        assert operands == [str(number) for *_, number in steps]
        assert re.findall(r"boxed\{(\d+)\}", reference) == [str(results[-1])]
        assert chain.answer(rules) == str(results[-1])
        assert visible_steps(reference) == dict(zip(steps, results, strict=True))


def test_held_out_chains_are_one_in_ten_and_none_to_train_on() -> None:
    train = random_chains(500, list(RULES), seed=2, held_out=False)
    test = random_chains(500, list(RULES), seed=2, held_out=True)
    assert len(set(train)) == len(set(test)) == 500
    assert not {chain.problem for chain in train} & {chain.problem for chain in test}
    assert not any(is_held_out(chain) for chain in train)
    assert all(is_held_out(chain) for chain in test)
    assert train == random_chains(500, list(RULES), seed=2, held_out=False)

    rng = random.Random(4)
    drawn = [is_held_out(random_chain(rng, list(RULES))) for _ in range(4000)]
    assert sum(drawn) / len(drawn) == pytest.approx(0.1, abs=0.02)


@pytest.mark.parametrize("style", ["own", "other"])
def test_nothing_but_complete_steps_and_rules_is_visible_where_a_part_is_hidden(style: str) -> None:
    chains = [chain for chain in CHAINS if chain.is_in_own_style == (style == "own")]
    parts = Counter[str]()
    for chain in [chain_in(style), *chains[:15]]:
        reference = chain.reference(RULES)
        steps, rules = visible_steps(reference), visible_rules(reference)
        for masked in hidden_in(reference):
            assert MARKER in masked
            # No digit of a number, and no end of a word, is taken for the whole.
            assert visible_steps(masked).items() <= steps.items()
            assert visible_rules(masked).items() <= rules.items()
            parts["steps"] += 0 < len(visible_steps(masked)) < len(steps)
            parts["rules"] += 0 < len(visible_rules(masked)) < len(rules)
    assert parts["steps"] > 1000
    assert parts["rules"] > 100


@pytest.mark.parametrize(
    ("text", "steps", "rules"),
    [
        (rf"$97+8 \equiv 5+11 \equiv 1 {MARKER}", {(97, "+", 8): 5}, {}),
        (rf"{MARKER} 7+8 \equiv 5+11 \equiv 16$.", {(5, "+", 11): 16}, {}),
        (rf"{MARKER} 6\times 3 \equiv 8-1 \equiv 7$.", {(8, "-", 1): 7}, {}),
        (rf"$97+8 \equiv 5 {MARKER} 6-7 \equiv 9$.", {}, {}),
        (rf"{MARKER} \equiv 16-7 \equiv 9$.", {(16, "-", 7): 9}, {}),
        (rf"A pum is $1 {MARKER} 1-9 \equiv 2$.", {}, {}),
        (rf"A pu {MARKER} um is $11$. $60+11 \equiv 71$.", {(60, "+", 11): 71}, {}),
        (rf"{MARKER} is $11$. $60+1 \equiv 61$. A zor is $3$.", {(60, "+", 1): 61}, {"zor": 3}),
    ],
)
def test_numbers_cut_at_a_mask_are_not_read(
    text: str, steps: dict[Step, int], rules: dict[str, int]
) -> None:
    assert visible_steps(text) == steps
    assert visible_rules(text) == rules


def test_work_copies_given_results_and_slips_in_others() -> None:
    slips = Counter[int]()
    rng = random.Random(0)
    for chain in CHAINS[:100]:
        first = (chain.start, chain.operations[0][0], chain.work(RULES).steps[0][2])
        worked = chain.work(RULES, 0.5, rng, {first: 42})
        assert worked.steps[0] == (*first, 42)
        for before, (value, sign, number, result) in zip(
            worked.steps, worked.steps[1:], strict=False
        ):
            assert value == before[3]
            slips[(result - apply(value, sign, number)) % 100] += 1
    steps = slips.total()
    assert set(slips) == {0, *(slip % 100 for slip in SLIPS)}
    assert slips[0] / steps == pytest.approx(0.5, abs=0.06)
    assert chain.work(RULES) == chain.work(RULES, 0.5)  # no source of errors, no errors
