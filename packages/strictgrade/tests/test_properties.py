r"""Properties of verdicts: symmetry, no error on any text, time linear in a text's length.

Gold answers of several kinds are drawn with a rewriting that keeps the value and one that changes
it. The verdict is the same from both sides.
"""

import time
from collections.abc import Iterator
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strictgrade import Comparer, answer_text, chosen_letter, explain_gold
from strictgrade.equality import compare_symbolic, compare_text

EXAMPLES = 40

Drawn = tuple[str, str, str]  # an answer, another one of its value, and one of another value

UNITS = [  # the spellings of one unit a line
    ("km/h", r"\text{km/h}", "kilometers per hour", r"km\cdot h^{-1}", r"\frac{km}{h}", "kph"),
    ("m/s", r"\,\mathrm{m/s}", "meters per second", "m s^{-1}", r"\frac{\text{m}}{\text{s}}"),
    ("m/s^2", r"m·s^{-2}", r"\text{ m/s}^2", "meters per second squared"),
    ("kg/m^3", r"\text{kg/m}^3", "kilograms per cubic meter"),
    ("mg/L", r"\text{ mg/L}", "milligrams per liter"),
    ("rpm", "rev/min", "revolutions per minute"),
    ("kW", r"\text{kW}", "kilowatts"),
    ("N·m", r"N\cdot m", "newton meters", r"\text{N m}"),
    ("J/(kg K)", "J kg^{-1} K^{-1}", r"\text{J/(kg K)}"),
    ("cm", r"\text{cm}", "centimeters"),
    ("m^2", r"\text{m}^2", "square meters"),
    ("$/h", r"\text{ dollars per hour}"),
    (r"^\circ C", r"\text{ degrees Celsius}", "°C"),
]
LETTERS = "kmnjpqt"


def written(number: Fraction, draw: st.DrawFn) -> str:
    """A spelling of a number."""
    top, bottom = number.numerator, number.denominator
    forms = [
        rf"\frac{{{top}}}{{{bottom}}}",
        f"{top}/{bottom}",
        rf"\dfrac{{{3 * top}}}{{{3 * bottom}}}",
    ]
    if bottom == 1:
        forms = [str(top), f"{top:,}".replace(",", "{,}"), f"{top}.0", rf"\frac{{{2 * top}}}{{2}}"]
    elif 1000 % bottom == 0:
        forms.append(str(float(number)))
    return draw(st.sampled_from(forms))


@st.composite
def numbers(draw: st.DrawFn) -> Drawn:
    top, bottom = draw(st.integers(-9999, 9999)), draw(st.sampled_from([1, 1, 1, 2, 3, 7, 8, 40]))
    number = Fraction(top, bottom)
    other = number + Fraction(draw(st.sampled_from(["1", "-1", "10", "1/3"])))
    forms = [written(one, draw) for one in (number, number, other)]
    name = draw(st.sampled_from(["", "x = ", "N="]))
    return forms[0], name + forms[1], name + forms[2]


@st.composite
def quantities(draw: st.DrawFn) -> Drawn:
    number = Fraction(draw(st.integers(1, 5000)), draw(st.sampled_from([1, 1, 2, 4, 5])))
    unit, different = draw(st.permutations(UNITS).map(lambda units: units[:2]))
    texts = [written(number, draw) for _ in range(3)]
    gold = f"{texts[0]} {draw(st.sampled_from(unit))}"
    kept = draw(st.sampled_from(["", *unit]))
    changed = [
        f"{texts[2]} {draw(st.sampled_from(different))}",
        f"{written(number + 1, draw)} {draw(st.sampled_from(['', *unit]))}",
    ]
    return gold, f"{texts[1]} {kept}", draw(st.sampled_from(changed))


@st.composite
def times(draw: st.DrawFn) -> Drawn:
    hour, minute = draw(st.integers(1, 12)), draw(st.integers(0, 59))
    halves = [("AM", "a.m.", "am", r"\text{ A.M.}"), ("PM", "p.m.", "pm", r"\text{ p.m.}")]
    half, other = draw(st.permutations(halves))
    blank = draw(st.sampled_from(["", " ", "~", r"\ "]))
    gold = f"{hour}:{minute:02d}{blank}{draw(st.sampled_from(half))}"
    kept = f"{hour:02d}:{minute:02d} {draw(st.sampled_from(['', *half]))}"
    changed = [
        f"{hour}:{minute:02d} {draw(st.sampled_from(other))}",
        f"{hour}:{(minute + 1) % 60:02d} {draw(st.sampled_from(['', *half]))}",
        f"{hour % 12 + 1}:{minute:02d} {draw(st.sampled_from(half))}",
    ]
    if 2 * hour <= 12 and 0 < 2 * minute < 60:  # the same ratio
        changed.append(f"{2 * hour}:{2 * minute:02d} {draw(st.sampled_from(half))}")
    return gold, kept, draw(st.sampled_from(changed))


def declared(name: str, draw: st.DrawFn) -> str:
    forms = [rf", {name}\in\mathbb{{Z}}", rf"\ ({name} \in \mathbb Z)", rf", {name}∈ℤ"]
    forms += [rf" \text{{ for integers }} {name}", rf", {name} \text{{ an integer}}"]
    return draw(st.sampled_from(forms))


def family(step: int, start: int, circle: bool, name: str, draw: st.DrawFn) -> str:
    turn = r"\pi" if circle else ""
    first = rf"\frac{{\pi}}{{{start}}}" if circle else str(start)
    terms = [f"{step}{name}{turn}", first]
    if not circle:
        terms[0] = draw(st.sampled_from([f"{step}{name}", rf"{name}\cdot {step}"]))
    return "+".join(draw(st.permutations(terms)))


@st.composite
def families(draw: st.DrawFn) -> Drawn:
    step, start = draw(st.integers(2, 9)), draw(st.integers(2, 9))
    circle = draw(st.booleans())
    name, other, third = draw(st.permutations(LETTERS).map(lambda letters: letters[:3]))
    gold = family(step, start, circle, name, draw) + declared(name, draw)
    kept = family(step, start, circle, other, draw)
    kept += draw(st.sampled_from(["", declared(other, draw)]))
    changed = [
        family(step + 1, start, circle, other, draw) + declared(other, draw),
        family(step, start + 1, circle, other, draw) + declared(other, draw),
        family(step, start, circle, f"{other}{third}", draw) + declared(other, draw),
        str(start),
    ]
    return gold, kept, draw(st.sampled_from(changed))


@st.composite
def integrals(draw: st.DrawFn) -> Drawn:
    power, factor = draw(st.integers(2, 6)), draw(st.integers(2, 9))
    form = draw(
        st.sampled_from(["{}x^{}", r"\frac{{{}}}{{x^{}}}", r"\sin({}x)+x^{}", "e^{{{}x}}-x^{}"])
    )
    name = draw(st.sampled_from(["", "y = ", "F(x)="]))
    kept, changed = form.format(factor, power), form.format(factor + 1, power)
    letter = draw(st.sampled_from("CKcDABk"))
    others = [f"{changed}+{letter}", kept, f"{kept}+7", f"{kept}+x", f"{kept}+{letter}x"]
    return f"{kept}+C", f"{name}{letter}+{kept}", name + draw(st.sampled_from(others))


@st.composite
def intervals(draw: st.DrawFn) -> Drawn:
    low = draw(st.integers(-50, 50))
    high = low + draw(st.integers(1, 50))

    def form(low: int, high: int, is_closed: bool) -> str:
        sign = r"\le" if is_closed else "<"
        opening, outward = ("[", "[") if is_closed else ("(", "]")
        forms = [f"{opening}{low}, {high})", f"{outward}{low}; {high}[", f"{low} {sign} x < {high}"]
        return draw(st.sampled_from([*forms, rf"x \in {opening}{low},{high})"]))

    is_closed = draw(st.booleans())
    # Inequalities say nothing of the number of dimensions, so a pair is an interval here.
    gold = form(low, high, is_closed)
    changed = [form(low, high + 1, is_closed), form(low - 1, high, is_closed)]
    changed += [form(low, high, not is_closed)]
    return gold, form(low, high, is_closed), draw(st.sampled_from(changed))


@st.composite
def sets(draw: st.DrawFn) -> Drawn:
    values = draw(st.lists(st.integers(-99, 99), min_size=2, max_size=5, unique=True))
    texts = [str(n) for n in draw(st.permutations(values))]
    forms = [rf"\{{{', '.join(texts)}\}}", ", ".join(texts), rf"x = {', '.join(texts)}"]
    forms += [r" \text{ or } ".join(f"x={text}" for text in texts)]
    changed = [", ".join(texts[1:]), ", ".join([*texts, "777"]), ", ".join([*texts[1:], "555"])]
    gold = rf"\{{{', '.join(map(str, values))}\}}"
    return gold, draw(st.sampled_from(forms)), draw(st.sampled_from(changed))


KINDS = st.one_of(numbers(), quantities(), times(), families(), integrals(), intervals(), sets())


def are_equal(answer: str, gold: str) -> bool:
    return (compare_text(answer, gold) or compare_symbolic(answer, gold)) == "right"


@settings(max_examples=EXAMPLES)
@given(KINDS)
def test_verdict_of_a_rewriting_is_that_of_its_value_from_both_sides(drawn: Drawn) -> None:
    gold, kept, changed = drawn
    assert are_equal(kept, gold)
    assert are_equal(gold, kept)
    assert not are_equal(changed, gold)
    assert not are_equal(gold, changed)


PIECES = (
    *(
        "{",
        "}",
        r"\frac",
        "(",
        ")",
        "[",
        "]",
        "^",
        "_",
        "~",
        "$",
        " ",
        "1",
        "23",
        ".5",
        ",",
        ";",
        "x",
    ),
    *(
        "n",
        "km/h",
        "PM",
        r"\boxed{",
        r"\text{",
        r"\in",
        r"\mathbb{Z}",
        "=",
        "<",
        "+",
        "-",
        "|",
        "%",
    ),
    *(
        "\\",
        r"\sqrt",
        r"\pi",
        r"\circ",
        "€",
        "²",
        "½",
        "\u200b",
        "∈",
        "or",
        "integer",
        r"\begin{cases}",
    ),
    *(
        "&",
        r"\\",
        r"\end{cases}",
        ":",
        "'",
        "C",
        "!",
        "<think>",
        "</think>",
        "\n",
        "答案",
        "A",
        "<answer>",
    ),
)
TEXTS = st.one_of(st.text(max_size=40), st.lists(st.sampled_from(PIECES), max_size=25).map("".join))


@pytest.fixture(scope="module")
def comparer() -> Iterator[Comparer]:
    with Comparer(workers=1, deadline=1.0) as comparer:
        yield comparer


@settings(max_examples=EXAMPLES)
@given(answer=TEXTS, gold=TEXTS)
def test_any_texts_have_a_verdict(answer: str, gold: str, comparer: Comparer) -> None:
    reasons = comparer.compare([(answer, gold), (gold, answer)])
    assert set(reasons) <= {"right", "wrong", "unparsable gold", "timed out"}
    if "unparsable gold" not in reasons and "timed out" not in reasons:
        assert reasons[0] == reasons[1]
    for text in (answer, rf"\boxed{{{answer}}}"):
        answer_text(text)
        chosen_letter(text)
    explain_gold(gold)


@pytest.mark.parametrize("piece", [*PIECES, "1,000", r"\textcolor{a}{", "A or ", "n, "])
def test_long_text_of_one_piece_is_read_in_time(piece: str) -> None:
    long = piece * (20_000 // len(piece))
    began = time.process_time()
    for text in (long, rf"\boxed{{x{long}y}}"):
        chosen_letter(text)
        compare_text(answer_text(text) or text, f"z{long}w")
    # Linear rules take 0.1 s, and those that were quadratic took 3.
    assert time.process_time() - began < 2
