"""Chains of operations, the problems of the demo: values, references and their visible steps."""

from typing import get_args

import pytest

from demo_problems import Chain, boxed, visible_steps
from paint.objective.masking import Placement, mask_solution

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
