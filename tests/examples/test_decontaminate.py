"""Contamination: copies are found in any spelling, stock phrases are not taken for copies."""

import re
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import decontaminate
from decontaminate import Index, Match, Options, build_index, contaminated, main
from paint.data.benchmarks import Benchmark
from paint.data.problems import Problem
from runs import write_problems
from strictgrade.text import normalize

BOXES = (
    r"Three boxes hold $a$, $b$ and $c$ coins, where $a+b+c=\frac{1}{2}\cdot 2024$. Each day a "
    r"guard moves one coin from the fullest box to the emptiest. The probability that all are "
    r"equal can be written in the form $\frac{m}{n}$, where $m$ and $n$ are relatively prime "
    r"positive integers. Find $m+n$."
)
SHORT = r"Compute $\sin 60^\circ + 1$."
SQUARES = (
    r"Find the number of positive integers $n$ such that $n^2 + 24n + 35$ is a perfect square."
)
POSITIVE = (
    r"Let $a$, $b$, $c$ be positive real numbers such that $a+b+c=1$. Find the largest $k$ for "
    r"which the inequality $ab+bc+ca+k\,abc(a-b)^2(b-c)^2(c-a)^2 \le \frac{1}{3}$ always holds."
)


def words(text: str) -> list[str]:
    return re.findall(r"[0-9]+|[^\W\d_]+", normalize(text).casefold())


def index_of(*problems: str) -> Index:
    named = [Problem(problem, "", "1", f"p{number}") for number, problem in enumerate(problems)]
    return build_index([Benchmark("set", named)])


INDEX = index_of(BOXES, SHORT, SQUARES, POSITIVE)

COPIES = {
    "the problem itself": BOXES,
    "another spelling of its mathematics": BOXES.replace(r"\frac", r"\dfrac").replace(
        "$a+b+c=", r"\(a + b+c ="
    ),
    "no dollar signs, no punctuation, upper case": re.sub("[$,.]", "", BOXES).upper(),
    "a sentence before and two after": f"Solve it. {BOXES} Show all your work. Use a pen.",
    "without the last sentence": BOXES.removesuffix(" Find $m+n$."),
    "one word changed in the middle": BOXES.replace("guard", "wizard"),
    "the first half only": BOXES[: len(BOXES) // 2],
    "in paragraphs": BOXES.replace(". ", ".\n\n"),
}


@pytest.mark.parametrize("text", COPIES.values(), ids=COPIES)
def test_contaminated_finds_copy(text: str) -> None:
    match = contaminated(text, INDEX)
    assert match is not None
    assert (match.benchmark, match.id) == ("set", "p0")
    assert match.share >= 0.6
    assert match.shared in " ".join(words(BOXES))
    assert len(match.shared.split()) >= 13


INNOCENT = {
    "a stock opening": r"Find the number of positive integers $n$ such that $n^2 + 1$ is prime.",
    "the same opening, a long condition": (
        r"Find the number of positive integers $n$ such that $n^2 + 24$ divides the product of the "
        r"first $n$ primes."
    ),
    "a stock ending": (
        r"A fair die is rolled until a six comes up for the third time. The expected number of "
        r"rolls that show an even number, given that no five was rolled, can be written in the "
        r"form $\frac{m}{n}$, where $m$ and $n$ are relatively prime positive integers. Find $m+n$."
    ),
    "stock inequalities": (
        r"Let $a$, $b$, $c$ be positive real numbers such that $a+b+c=1$. Find the minimum of "
        r"$\frac{1}{a}+\frac{4}{b}+\frac{9}{c}$ and all triples for which it is attained."
    ),
    "a short problem that goes on in its formula": (
        r"Compute $\sin 60^\circ + 1/2$. Then divide it by the area of the triangle."
    ),
    "a short problem that began before": r"Simplify. Do not compute $2\sin 60^\circ + 1$.",
    "a short problem with another number": r"Compute $\sin 61^\circ + 1$.",
    "a short problem with another sign": r"Compute $\sin 60^\circ - 1$.",
    "nothing": "",
    "no word": "$$ + - $$",
}


@pytest.mark.parametrize("text", INNOCENT.values(), ids=INNOCENT)
def test_contaminated_ignores_similar_text(text: str) -> None:
    assert contaminated(text, INDEX) is None


SHORT_COPIES = [
    r"compute   \(\sin 60^{\circ}+1\)",
    rf"Solve this. Question: {SHORT} Write the answer in a box.",
    rf"Is it easy to {SHORT.removesuffix('.')} and to draw it?",
]


@pytest.mark.parametrize("text", SHORT_COPIES)
def test_contaminated_finds_short_problem_in_longer_text(text: str) -> None:
    assert len(words(SHORT)) < 13
    assert contaminated(text, INDEX) == Match("set", "p1", 1.0, "compute sin 60 ° + 1")


def test_contaminated_three_token_problem_must_be_complete_text() -> None:
    index = index_of("Find $x$!", "Compute $5!$")
    assert contaminated("find x!", index) == Match("set", "p0", 1.0, "find x !")
    assert contaminated("Let $y=5$. Find $x!$ if you can.", index) is None
    assert contaminated("Compute 5.", index) is None


def test_contaminated_ignores_text_shared_by_two_problems() -> None:
    ending = BOXES[BOXES.index("can be") :]
    other = "A frog jumps along a line of 20 stones, always to a stone that it has not been on. "
    other += f"The probability that it {ending}"
    short = f"The probability that two random points are near {ending}"
    assert contaminated(short, index_of(BOXES)) is not None
    assert contaminated(short, index_of(BOXES, other)) is None
    for text in (BOXES, other):
        assert contaminated(text, index_of(BOXES, other)) is not None
    twice = [Benchmark(name, [Problem(BOXES, "", "1", name)]) for name in ("a", "b")]
    assert contaminated(BOXES, build_index(twice)) == Match("a", "a", 1.0, " ".join(words(BOXES)))


NUMBERS = st.lists(st.integers(0, 3), min_size=0, max_size=12)


@given(NUMBERS, NUMBERS, st.integers(1, 4))
def test_contaminated_share_is_as_defined(a: Sequence[int], b: Sequence[int], ngram: int) -> None:
    """The definition, word by word: a position of `a` counts if n words around it are in `b`."""
    text, problem = (" ".join(map(str, numbers)) for numbers in (a, b))
    pieces = [tuple(b[start : start + ngram]) for start in range(len(b) - ngram + 1)]
    covered = [
        any(tuple(a[at : at + ngram]) in pieces for at in range(max(i - ngram + 1, 0), i + 1))
        for i in range(len(a))
    ]
    # A piece that begins near the end of `a` is shorter than n words, and is in no list of n-grams.
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(decontaminate, "NGRAM", ngram)
        patched.setattr(decontaminate, "SHARE", 0.0)
        match = contaminated(text, index_of(problem))
    if len(b) < ngram:
        assert (match is not None) == (list(a) == list(b))
    elif not any(covered):
        assert match is None
    else:
        assert match is not None
        assert match.share == pytest.approx(min(sum(covered) / min(len(a), len(b)), 1.0))
        assert match.shared in text


def test_rows_of_a_file_that_repeat_a_benchmark_problem_are_found(tmp_path: Path) -> None:
    posed = "Along the road stand trees on which {} owls sit and sleep by day until six."
    owls = write_problems(tmp_path / "owls.jsonl", [{"problem": posed.format(12), "answer": "3"}])
    rows = [{"problem": text} for text in ("1+1?", posed.format(12), posed.format(7))]
    found = main(Options(write_problems(tmp_path / "rows.jsonl", rows), benchmarks=(owls,)))
    assert {row: (match.benchmark, match.id) for row, match in found.items()} == {2: ("owls", "1")}
