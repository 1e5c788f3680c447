"""References that go wrong: which steps, which answer and which rows."""

import random
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


def test_slip_has_one_error_in_the_last_steps() -> None:
    places = set()
    for row, chain in zip(corrupt_rows(ROWS, Corruption("slip", 0.4)), CHAINS, strict=True):
        (place,) = places_of_errors(row["solution"])
        assert place >= round(0.6 * len(chain.operations))
        places.add(place - len(chain.operations))
        assert row["answer"] == boxed_answer(row["solution"])
    assert len(places) > 4


def test_beginning_has_errors_in_the_first_steps_alone() -> None:
    for row, chain in zip(corrupt_rows(ROWS, Corruption("beginning", 0.4)), CHAINS, strict=True):
        wrong = places_of_errors(row["solution"])
        assert wrong == list(range(round(0.4 * len(chain.operations))))
        assert row["answer"] == boxed_answer(row["solution"])


def test_recovered_ends_as_the_right_reference() -> None:
    for row, chain in zip(corrupt_rows(ROWS, Corruption("recovered", 0.4)), CHAINS, strict=True):
        first = round(0.4 * len(chain.operations))
        found = list(visible_steps(row["solution"]).items())
        assert found[first:] == list(visible_steps(chain.solution).items())[first:]
        assert set(places_of_errors(row["solution"])) >= set(range(first - 1))
        assert row["answer"] == chain.answer


def test_cut_is_a_prefix_without_an_answer() -> None:
    for row, chain in zip(corrupt_rows(ROWS, Corruption("cut", 0.4)), CHAINS, strict=True):
        assert chain.solution.startswith(row["solution"])
        assert row["solution"].count(r"\equiv") == round(0.6 * len(chain.operations))
        assert r"\boxed" not in row["solution"]
        assert row["answer"] == chain.answer


def test_other_end_is_that_of_another_row_in_the_same_style() -> None:
    for row, chain in zip(corrupt_rows(ROWS, Corruption("other-end", 0.4)), CHAINS, strict=True):
        kept = round(0.6 * len(chain.operations))
        steps, answer = step_texts(row["solution"])
        assert steps[:kept] == step_texts(chain.solution)[0][:kept]
        end = "".join(steps[kept:]) + answer
        others = [other for other in CHAINS if other.solution.endswith(end)]
        assert others
        assert others[0] != chain
        assert others[0].is_in_own_style == chain.is_in_own_style
        assert row["answer"] == others[0].answer


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


@pytest.mark.parametrize("kind", ["end", "other-end", "answer"])
def test_smaller_share_of_rows_is_part_of_a_larger_one(kind: Kind) -> None:
    quarter = corrupt_rows(ROWS, Corruption(kind, 0.4, rows=0.25))
    half = corrupt_rows(ROWS, Corruption(kind, 0.4, rows=0.5))
    every = corrupt_rows(ROWS, Corruption(kind, 0.4))
    changed = []
    for before, few, more, all_rows in zip(ROWS, quarter, half, every, strict=True):
        assert few in (before, all_rows)
        assert few in (before, more)
        changed.append((few != before, more != before, all_rows != before))
    counts = [sum(column) for column in zip(*changed, strict=True)]
    assert 0 < counts[0] < counts[1] < counts[2] == len(ROWS)


def test_corruption_depends_on_seed_and_row_and_not_on_the_order_of_rows() -> None:
    shuffled = random.Random(0).sample(ROWS, len(ROWS))
    first = corrupt_rows(ROWS, Corruption("end"))
    assert corrupt_rows(ROWS, Corruption("end")) == first
    again = {row["id"]: row for row in corrupt_rows(shuffled, Corruption("end"))}
    assert [again[row["id"]] for row in ROWS] == first
    assert corrupt_rows(ROWS, Corruption("end", seed=12)) != first
