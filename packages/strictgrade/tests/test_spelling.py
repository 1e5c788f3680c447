r"""Spellings that are rewritten before answers are compared, and the depth of answers."""

import sys

import pytest

from strictgrade.equality import compare_symbolic, compare_text
from strictgrade.parse import AnswerParseError, parse_answer
from strictgrade.spelling import (
    DEEPEST,
    MOST_STEPS,
    is_too_deep,
    is_too_large,
    joined_thousands,
    plain_commands,
    plain_signs,
)


@pytest.mark.parametrize(
    ("text", "plain"),
    [
        ("3✕4", "3×4"),
        ("Ⓐ", "(A)"),
        ("🅑 7", "(B) 7"),
        ("ⓒ", "(c)"),
        ("①", "①"),
        ("5", "5"),
    ],
)
def test_plain_signs_rare_character_becomes_usual(text: str, plain: str) -> None:
    assert plain_signs(text) == plain


@pytest.mark.parametrize(
    ("text", "plain"),
    [
        (r"{5 \choose 2}", r"{\binom{5}{2}}"),
        (r"x = 5 \over 6", r"x =\frac{5}{6}"),
        (r"{n^{2} \choose k+1}x", r"{\binom{n^{2}}{k+1}}x"),
        (r"\frac{1 \over 2}{3}", r"\frac{\frac{1}{2}}{3}"),
        (r"\textcolor{red}{\frac{1}{2}}+1", r"\frac{1}{2}+1"),
        (r"x^\textcolor{red}{12}", "x^{12}"),
        (r"\nicefrac12", r"\frac12"),
        (r"2{\frac12}", r"2\frac12"),
        (r"\pounds 5", "£5"),
        (r"\mathopen{]}0;1\mathclose{[}", "]0;1["),
        ("2\u20623", r"2\cdot 3"),
        ("\u20625", "5"),
        (r"\over", r"\frac{}{}"),
        (r"\textcolor{red}{5", "5"),
    ],
)
def test_plain_commands_command_becomes_usual(text: str, plain: str) -> None:
    assert plain_commands(text) == plain


@pytest.mark.parametrize(
    ("text", "joined"),
    [
        ("1'234'567", "1234567"),
        ("1’234.5", "1234.5"),
        ("1.234.567", "1234567"),
        ("1_234_567", "1234567"),
        (r"1\;234", "1234"),
        (r"1{,}234", "1234"),
        ("1 234.5", "1234.5"),
        ("1.234", "1.234"),
        ("1_234", "1_234"),
        ("f'234", "f'234"),
        ("1, 234", "1, 234"),
        ("1'2345", "1'2345"),
        ("1'23", "1'23"),
    ],
)
def test_joined_thousands_groups_of_three_become_one_number(text: str, joined: str) -> None:
    assert joined_thousands(text) == joined


def nested(depth: int) -> str:
    return "(" * depth + "5" + ")" * depth


def test_compare_text_answer_deeper_than_limit_is_refused() -> None:
    assert not is_too_deep(nested(DEEPEST))
    assert is_too_deep(nested(DEEPEST + 1))
    assert (compare_text(nested(DEEPEST), "5") or compare_symbolic(nested(DEEPEST), "5")) == "right"
    assert compare_text(nested(DEEPEST + 1), "5") == "wrong"
    assert compare_text("5", nested(DEEPEST + 1)) == "unparsable gold"
    assert compare_text(nested(100_000), "5") == "wrong"
    assert compare_text(nested(100_000), nested(100_000)) == "right"  # the same text


def test_parse_answer_long_formula_is_refused() -> None:
    assert not is_too_large("+".join(["x"] * (MOST_STEPS // 2)))
    assert is_too_large("+".join(["x"] * MOST_STEPS))
    assert not is_too_large(", ".join(["1"] * 900))
    with pytest.raises(AnswerParseError):
        parse_answer("+".join(["x"] * MOST_STEPS))


DEEP = {
    "brackets": "[" * 200_000,
    "pairs": nested(990),
    "kinds": "[{(" * 300 + "1" + ")}]" * 300,
    "minus": "-" * 1500 + "1",
    "factorial": "3" + "!" * 1500,
    "powers": "^".join(["2"] * 600),
    "exponents": "2^{" * 300 + "2" + "}" * 300,
    "roots": r"\sqrt" * 300 + "2",
    "functions": r"\sin " * 300 + "2",
    "fractions": r"\frac1" * 300 + "2",
    "sets": r"\{" * 300 + "1" + r"\}" * 300,
    "primes": "x" + "'" * 1500,
    "sum": "x+" * 900 + "1",
    "quotient": "x/" * 900 + "2",
    "letters": "5 " + "m " * 900,
    "vectors": "(1,2)+" * 300 + "(1,2)",
    "matrices": r"2\left(" * 200 + r"\begin{pmatrix}1\end{pmatrix}" + r"\right)" * 200,
    "chain": "x=" * 100 + "1",
    "intervals": "]1;2[∪" * 40 + "]1;2[",
    "limit": r"\frac{1}{1+" * (DEEPEST // 2) + "(" * (DEEPEST // 2) + "2" + ")}" * (DEEPEST // 2),
    "colors": r"\textcolor{red}{" * 100 + "6" + "}" * 100,
    "choices": r"5 \choose " * 150 + "2",
}


@pytest.mark.parametrize("kind", DEEP)
def test_compare_stack_is_bounded_by_reader(kind: str) -> None:
    """The interpreter's limit is 1000 frames, of which a test has 100."""
    depth = deepest = 0

    def watch(_: object, event: str, __: object) -> None:
        nonlocal depth, deepest
        depth += {"call": 1, "return": -1}.get(event, 0)
        deepest = max(deepest, depth)

    previous = sys.getprofile()
    sys.setprofile(watch)
    try:
        for given, gold in ((DEEP[kind], "5"), ("5", DEEP[kind])):
            assert (compare_text(given, gold) or compare_symbolic(given, gold)) != "right"
    finally:
        sys.setprofile(previous)
    assert deepest < 650
