"""References that go wrong: which steps, which answer and which rows."""

from typing import Any

import pytest

from demo_problems import Chain, apply, random_chains, visible_steps
from wrong_references import (
    Corruption,
    Kind,
    boxed_answer,
    corrupt_rows,
    parse_chain,
    step_texts,
)

CHAINS = random_chains(40, seed=5, held_out=False)


def rows_of(chains: list[Chain]) -> list[dict[str, Any]]:
    rows = []
    for number, chain in enumerate(chains):
        row = {"id": f"row-{number}", "problem": chain.problem}
        rows.append({**row, "solution": chain.solution, "answer": chain.answer})
    return rows


ROWS = rows_of(CHAINS)


def places_of_errors(reference: str) -> list[int]:
    """Places of the steps whose result is not that of their own number and operation."""
    places = []
    for place, ((value, sign, operand), result) in enumerate(visible_steps(reference).items()):
        if result != apply(value, sign, operand):
            places.append(place)
    return places


@pytest.mark.parametrize("chain", CHAINS[:10])
def test_parse_chain_returns_the_chain_of_the_problem(chain: Chain) -> None:
    assert parse_chain(chain.problem) == chain


def test_end_has_errors_in_each_of_the_last_steps_and_their_answer() -> None:
    for row, chain in zip(corrupt_rows(ROWS, Corruption("end", 0.4)), CHAINS, strict=True):
        count = len(chain.operations)
        assert places_of_errors(row["solution"]) == list(range(round(0.6 * count), count))
        results = list(visible_steps(row["solution"]).values())
        assert row["answer"] == boxed_answer(row["solution"]) == str(results[-1])
        assert row["problem"] == chain.problem


def test_answer_changes_the_box_alone() -> None:
    for row, chain in zip(corrupt_rows(ROWS, Corruption("answer")), CHAINS, strict=True):
        assert step_texts(row["solution"])[0] == step_texts(chain.solution)[0]
        assert row["answer"] == boxed_answer(row["solution"]) != chain.answer


@pytest.mark.parametrize("kind", ["end", "slip", "other-end", "answer"])
def test_kept_answers_are_right_beside_the_same_references(kind: Kind) -> None:
    kept = corrupt_rows(ROWS, Corruption(kind, keep_answers=True))
    own = corrupt_rows(ROWS, Corruption(kind))
    assert [row["solution"] for row in kept] == [row["solution"] for row in own]
    assert [row["answer"] for row in kept] == [row["answer"] for row in ROWS]
    assert [row["answer"] for row in own] != [row["answer"] for row in ROWS]
