"""Normalisation: equal spellings of a formula agree, and different formulas differ."""

import pytest

from strictgrade.text import normalize


@pytest.mark.parametrize(
    "spellings",
    [
        (r"\dfrac12", r"\tfrac{1}{2}", r"\frac 1 2", r"\frac1{2}", r"\frac{1}2", "1/2", "$1 / 2$"),
        (r"\frac{x^2}3", r"\frac{x^{2}}{3}"),
        (r"\left( \frac{a}{b} \right)", r"\bigl(\frac ab\bigr)", r"\(( \frac{a}{b} )\)"),
        ("$x = 5$", r"\(x=5\)", r"\[ x\,=\;5 \]", r"x~=\quad 5", "x=5"),
        (r"3 \cdot 4", r"3\times4", "3 × 4", "3*4", "3 · 4"),
        (r"a \leq b", r"a\le b", r"a \leqslant b", "a ≤ b", "a <= b"),
        (r"a \ge b", r"a\geqslant b", "a>=b", "a ≥ b"),
        (r"a \neq b", r"a\ne b", r"a \not= b", "a ≠ b"),
        ("6 ÷ 3", r"6 \div 3", "6/3"),
        ("x − 1", "x-1", "x – 1"),
        ("1,000", "1{,}000", r"1\,000", r"1,\!000", "1000", r"\$1,000", r"\boxed{1,000}"),
        ("1,234,567.5", "1234567.5"),
        (r"48^\circ", r"48^{\circ}", "48°", r"48\degree"),
        (r"5\text{ cm}", r"5\mathrm{cm}", "5 cm", r"5 \textrm{ cm}"),
        (r"f^{\prime}(x)", r"f^\prime(x)", "f'(x)", "f′(x)"),
        (r"\sqrt2", r"\sqrt{2}", r"\sqrt 2", "√2"),
        ("x^2", "x^{2}", "x ^ 2", "x²"),
        ("x^{10}", "x^10", "x¹⁰"),
        ("10^{-3}", "10⁻³"),
        ("2^{n}", "2ⁿ", "𝟐^𝑛"),
        ("x_{12}", "x₁₂"),
        ("2\\frac{1}{3}", "2⅓"),
        ("\\frac{1}{3}", "⅓", "1⁄3"),
        ("(1, 2)", "（1，2）"),
        ("x=1", "ｘ＝１"),
        ("\\{1, 2\\}", "｛１，２｝"),
        ("-5", "\u20115", "\uff0d5", "−5"),
        ("12", "1\u200b2", "12\ufeff", "\u00ad12"),
        ("1 000", "1\u202f000", "1\u00a0000", "1\u3000000"),
        ("2π", "2\U0001d70b"),
        ("x_1 y", "x_{1}y"),
        (r"2 \pi r", r"2\pi r", "2πr"),
        (r"1, 2, \ldots, n", "1,2,...,n", r"1,2,\dots,n", r"1,2,\cdots, n"),
        (
            r"k \equiv 1 \pmod{n}",
            r"k\equiv1\pmod n",
            r"k \equiv 1(\bmod n)",
            r"k\equiv1\ (\mathrm{mod}\ n)",
        ),
        (r"\operatorname{gcd}(a, b)", r"\gcd(a,b)", "gcd(a,b)"),
        (r"\{1, 2\}", r"\left\{1,2\right\}", r"\lbrace 1,2\rbrace"),
        ("(2,251,252)", "(2, 251, 252)"),
        (r"\begin{aligned} a &= b \\[4pt] &= c \end{aligned}", "a=b=c"),
        (r"x=5 \tag{3}", "x=5"),
        (r"\fbox{7}", r"\framebox{7}", r"\framebox[2cm]{7}", r"\boxed7", "7"),
        (r"100\%", "100%", r"100 \%"),
        (r"a\boxed{b}", r"$a$ \boxed b", r"\boxed{a}\,b", "a*b"),  # a box does not run into letters
        (r"\boxed{5},000", r"$\boxed{5}$ ,000", "5, 000"),
    ],
)
def test_normalize_equal_spellings_agree(spellings: tuple[str, ...]) -> None:
    assert {normalize(spelling) for spelling in spellings} == {normalize(spellings[0])}
    assert normalize(spellings[0])


DIFFERENT = [
    *[("A", "a"), ("1,00", "100"), ("1, 000", "1000"), ("(1,234)", "(1234)"), ("2.50", "2.5")],
    *[("12,3456", "123456"), ("104,106,...,152,154", "104106,...,152154"), ("1 2", "12")],
    *[("1. 5", "1.5"), (r"\frac{1}{23}", r"\frac{12}{3}"), ("x^{12}", "x^{1}2"), ("x_2", "x^2")],
    *[(r"\mathbb{Z}", "Z"), ("-4", "4"), ("< 5", r"\le 5"), ("n! = 6", "n ≠ 6"), ("50%", "50")],
    *[("ℝ", "R"), ("①③", "13"), ("ℓ", "l"), ("x²", "x2"), ("10⁻³", "10-3"), ("⅓", "13")],
    *[("2^3/4", r"2^{\frac{3}{4}}"), ("the rapist", "therapist")],
]


@pytest.mark.parametrize(("one", "other"), DIFFERENT)
def test_normalize_different_formulas_differ(one: str, other: str) -> None:
    assert normalize(one) != normalize(other)
