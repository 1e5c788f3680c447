"""References that go wrong: which steps and rules, which answer and which rows."""

import re
from typing import Any

import pytest

from demo_problems import RULES, VALUES, Chain, apply, random_chains, visible_rules
from wrong_references import Corruption, Kind, boxed_answer, corrupt_rows, parse_chain, step_texts

# A lookahead, since the result of a step is the number of the next one.
STEP = re.compile(r"(?=(?:\$|equiv )(\d+)(\+|-|\\times) ?(\d+) \\equiv (\d+))")
CHAINS = random_chains(60, list(RULES), seed=5, held_out=False)


ROWS: list[dict[str, Any]] = []
for number, chain in enumerate(CHAINS):
    row = {"id": f"row-{number}", "problem": chain.problem}
    ROWS.append({**row, "solution": chain.reference(RULES), "answer": chain.answer(RULES)})


def corrupted(corruption: Corruption) -> list[tuple[dict[str, Any], Chain, int]]:
    """Each row with its chain and the place from which the last share of its steps begins."""
    ends = [round((1 - corruption.share) * len(chain.operations)) for chain in CHAINS]
    return list(zip(corrupt_rows(ROWS, corruption), CHAINS, ends, strict=True))


def steps_of(reference: str) -> list[tuple[int, str, int, int]]:
    """Number, sign, operand and result of each step."""
    steps = []
    for value, sign, operand, result in STEP.findall(reference):
        sign = "*" if "times" in sign else sign
        steps.append((int(value), sign, int(operand), int(result)))
    return steps


def places_of_errors(reference: str) -> list[int]:
    """Places of the steps whose result is not that of their own number and operation."""
    places = []
    for place, (value, sign, operand, result) in enumerate(steps_of(reference)):
        if result != apply(value, sign, operand):
            places.append(place)
    return places


def first_uses(chain: Chain) -> dict[str, int]:
    """The place of the step in which each word is first used."""
    operands = [operand for _, operand in chain.operations]
    return {word: operands.index(word) for word in chain.words}


def assert_follows_its_rules(reference: str, chain: Chain, errors: list[int]) -> None:
    """Its steps are those of the chain under the rules that it states, but for these errors."""
    stated = visible_rules(reference)
    assert list(stated) == list(chain.words)
    numbers = [stated.get(str(operand), operand) for _, operand in chain.operations]
    steps = steps_of(reference)
    assert [step[2] for step in steps] == numbers
    assert [step[0] for step in steps] == [chain.start, *(step[3] for step in steps[:-1])]
    assert places_of_errors(reference) == errors


@pytest.mark.parametrize("chain", CHAINS[:20], ids=lambda chain: chain.problem)
def test_parse_chain_returns_the_chain_of_the_problem(chain: Chain) -> None:
    assert parse_chain(chain.problem) == chain


def test_end_has_errors_in_each_of_the_last_steps_and_their_answer() -> None:
    for row, chain, end in corrupted(Corruption("end", 0.4)):
        last = list(range(end, len(chain.operations)))
        assert_follows_its_rules(row["solution"], chain, last)
        assert row["answer"] == boxed_answer(row["solution"])
        assert row["answer"] == str(steps_of(row["solution"])[-1][3])
        assert row["problem"] == chain.problem


@pytest.mark.parametrize("kind", ["end", "rule"])
def test_rules_of_the_last_steps_alone_are_wrong(kind: Kind) -> None:
    wrong = right = 0
    for row, chain, end in corrupted(Corruption(kind, 0.5)):
        stated = visible_rules(row["solution"])
        for word, place in first_uses(chain).items():
            assert stated[word] in VALUES
            assert (stated[word] != RULES[word]) == (place >= end), (row["solution"], word)
            wrong += place >= end
            right += place < end
    assert wrong > 20
    assert right > 20


def test_rule_makes_what_follows_from_the_wrong_rules() -> None:
    unchanged = 0
    for row, chain, end in corrupted(Corruption("rule", 0.4)):
        assert_follows_its_rules(row["solution"], chain, [])
        assert row["answer"] == chain.answer(visible_rules(row["solution"]))
        assert row["answer"] == boxed_answer(row["solution"])
        if all(place < end for place in first_uses(chain).values()):
            assert row["solution"] == chain.reference(RULES)
            unchanged += 1
    assert 0 < unchanged < len(CHAINS)


def test_slip_has_one_error_in_the_last_steps() -> None:
    found = set()
    for row, chain, end in corrupted(Corruption("slip", 0.4)):
        [place] = places_of_errors(row["solution"])
        assert end <= place < len(chain.operations)
        assert visible_rules(row["solution"]).items() <= RULES.items()
        assert_follows_its_rules(row["solution"], chain, [place])
        found.add(place - end)
    assert len(found) > 2


def test_beginning_has_errors_in_each_of_the_first_steps() -> None:
    for row, chain, _ in corrupted(Corruption("beginning", 0.4)):
        first = list(range(round(0.4 * len(chain.operations))))
        assert_follows_its_rules(row["solution"], chain, first)
        assert visible_rules(row["solution"]).items() <= RULES.items()
        assert row["answer"] == boxed_answer(row["solution"])


def test_recovered_has_right_results_after_the_first_steps() -> None:
    for row, chain, _ in corrupted(Corruption("recovered", 0.4)):
        last_wrong = round(0.4 * len(chain.operations)) - 1
        results = [result for *_, result in steps_of(row["solution"])]
        assert results[last_wrong:] == chain.values(RULES)[last_wrong + 1 :]
        assert results[0] != chain.values(RULES)[1]
        assert set(places_of_errors(row["solution"])) >= set(range(last_wrong))
        assert row["answer"] == chain.answer(RULES)


def test_other_end_has_the_end_of_a_reference_in_the_same_style() -> None:
    references = {row["solution"]: chain for row, chain in zip(ROWS, CHAINS, strict=True)}
    for row, chain, end in corrupted(Corruption("other-end", 0.4)):
        own = "".join(step_texts(chain.reference(RULES))[0][:end])
        assert row["solution"].startswith(own)
        rest = row["solution"].removeprefix(own)
        assert rest.count("equiv") == len(chain.operations) - end
        [other] = [x for reference, x in references.items() if reference.endswith(rest)]
        assert other != chain
        assert other.is_in_own_style == chain.is_in_own_style
        assert row["answer"] == other.answer(RULES)


def test_cut_is_the_beginning_without_the_rules_and_results_behind_it() -> None:
    for row, chain, end in corrupted(Corruption("cut", 0.4)):
        whole = chain.reference(RULES)
        assert whole.startswith(row["solution"])
        assert row["solution"].count("equiv") == end
        assert boxed_answer(whole) == row["answer"]
        stated = visible_rules(row["solution"])
        assert set(stated) == {word for word, place in first_uses(chain).items() if place < end}
        assert not row["solution"].endswith("\n")


def test_answer_changes_the_box_alone() -> None:
    for row, chain, _ in corrupted(Corruption("answer")):
        assert step_texts(row["solution"])[0] == step_texts(chain.reference(RULES))[0]
        assert row["answer"] == boxed_answer(row["solution"]) != chain.answer(RULES)


@pytest.mark.parametrize("kind", ["end", "rule", "slip", "other-end", "answer"])
def test_kept_answers_are_right_beside_the_same_references(kind: Kind) -> None:
    kept = corrupt_rows(ROWS, Corruption(kind, keep_answers=True))
    own = corrupt_rows(ROWS, Corruption(kind))
    assert [row["solution"] for row in kept] == [row["solution"] for row in own]
    assert [row["answer"] for row in kept] == [row["answer"] for row in ROWS]
    assert [row["answer"] for row in own] != [row["answer"] for row in ROWS]


def test_corrupt_rows_refuses_a_reference_of_another_problem() -> None:
    [row, other, *_] = ROWS
    with pytest.raises(ValueError, match="another reference"):
        corrupt_rows([{**row, "solution": other["solution"]}], Corruption())
