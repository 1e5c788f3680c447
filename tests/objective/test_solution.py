"""The solution beside the completion: hidden part, anchors in their places."""

import random
from typing import get_args

import pytest

from paint.data.problems import Problem
from paint.objective.anchors import contains
from paint.objective.masking import MARKER, Placement, mask_solution, overlap
from paint.objective.solution import anchors_of, hidden_part, locate, written
from strictgrade.text import normalize


@pytest.mark.parametrize("placement", get_args(Placement))
@pytest.mark.parametrize("ratio", [0.0, 0.1, 0.37, 0.9])
def test_hidden_part_is_masked(problems: list[Problem], placement: Placement, ratio: float) -> None:
    for problem in problems[:20]:
        solution = f"  {problem.solution}\n"
        context = mask_solution(solution, ratio, placement=placement, seed=3)
        hidden = hidden_part(solution, context)
        assert hidden is not None
        start, end = hidden
        parts = (solution[:start].strip(), MARKER, solution[end:].strip())
        seen = " ".join(part for part in parts if part)
        assert seen == context if start < end else context == solution
        assert hidden_part(solution, None) == (0, len(solution))
    assert hidden_part("another solution", f"We get {MARKER}") is None


def test_anchors_of_matches_overlap_and_places(problems: list[Problem]) -> None:
    rng = random.Random(0)
    for problem in problems[:30]:
        completion = problem.solution[: rng.randrange(10, len(problem.solution))]
        anchors = anchors_of(problem.solution, completion)
        share = sum(a.found for a in anchors) / len(anchors)
        assert share == overlap(completion, problem.solution)
        for anchor in anchors:
            assert anchor.place is not None
            assert (anchor.met is not None) == anchor.found
            for text, place in ((problem.solution, anchor.place), (completion, anchor.met)):
                if place:
                    assert contains(normalize(text[place[0] : place[1]]), anchor.text)


@pytest.mark.parametrize(
    ("anchor", "text", "piece"),
    [
        ("12", "We have 312, then 12.", "12"),
        ("\\frac{3}{4}", "It is $3/4$ here.", "3/4"),
        ("\\frac{3}{4}", "so \\dfrac34, or", "\\dfrac34"),
        ("1000", "about 1,000 of them", "1,000"),
        ("12", "only 312", None),
        ("12", "are １２ in all", "１２"),
        ("12", "are 1\u200b2 in all", "1\u200b2"),
        ("10^{-3}", "so\u202f10⁻³ of it", "10⁻³"),
        ("\\frac{1}{3}", "we add ⅓ to it", "⅓"),
    ],
)
def test_locate_finds_anchor_in_other_spelling(anchor: str, text: str, piece: str | None) -> None:
    place = locate(anchor, text)
    assert (place and text[place[0] : place[1]].strip("$ ,")) == piece


def test_written_assigns_letters_to_their_tokens() -> None:
    pieces = [b"a", "é".encode()[:1], "é".encode()[1:], b"b", b"\xff"]
    text, owners = written(pieces)
    assert text == "aéb�"
    assert owners == [0, 1, 3, 4]

    # What is cut in a letter, and the replacement character itself, shift nothing behind them.
    pieces = [b"\xe2", b"\x82", "�".encode(), b"12"]
    assert written(pieces) == ("���12", [0, 1, 2, 3, 3])
