r"""Quantities: which text behind or before a number is its unit, and what the unit may mean."""

from fractions import Fraction

import pytest

from strictgrade.units import QuantityUnit, number_factors, split_quantity, split_signs, unit_of

SAME = """
N | newton | newtons | Newtons
kN | kilonewton | kilo-newtons
\\Omega | Ω | ohms | \\text{ohm}
k\\Omega | \\text{k}\\Omega | kΩ | kilohms | kiloohm
µm | μm | um | \\mu\\text{m} | micrometres | microns
Hz | hertz | hz
m/s | m\\,s^{-1} | \\text{m}\\cdot\\text{s}^{-1} | \\frac{\\text{m}}{\\text{s}} | metres per second
m/s^2 | m s^{-2} | m/s/s | meters per second squared | meters per square second
km/h | kph | kilometers per hour | km/hr
m^2 | sq m | sq. m | square meters | meters squared | m2
J/(kg K) | J\\,kg^{-1}\\,K^{-1} | J/kg/K | joules per kilogram per kelvin
kWh | kilowatt-hours | kW\\cdot h
° | ^\\circ | degrees | deg | \\degree
°C | ^\\circ\\text{C} | degrees Celsius | ^\\circ C
% | \\% | percent | per cent | pct | percentage points
EUR | € | euro | euros
GBP | £ | pounds sterling
US$ | USD | US dollars | US\\$
Rs. | ₹ | rupees
cents | ¢ | cent
boxes | box
lb | lbs | pounds
people | persons
p.m. | pm | PM
"""
SPELLINGS = [
    (line.split(" | ")[0], other)
    for line in SAME.strip().splitlines()
    for other in line.split(" | ")[1:]
]

OTHERS = [
    *(("N", "J"), ("kN", "N"), ("MW", "mW"), ("m", "min"), ("m^2", "m")),
    *(("m/s", "s/m"), ("m/s", "m s"), ("m/s", "m/s^2")),
    *(("USD", "€"), ("USD", "CAD"), ("¥", "rupees"), ("£", "kg"), ("yen", "yuan"), ("°C", "°F")),
    *(("apples", "pears"), ("J/kg", "J/K"), ("a.m.", "p.m.")),
]  # fmt: skip


@pytest.mark.parametrize(("one", "other"), SPELLINGS)
def test_unit_of_other_spelling_is_same_unit(one: str, other: str) -> None:
    assert unit_of(one).may_be(unit_of(other))
    assert (unit_of(one).scale, unit_of(one).ratio) == (unit_of(other).scale, unit_of(other).ratio)


@pytest.mark.parametrize(("one", "other"), OTHERS)
def test_unit_of_other_kind_is_another_unit(one: str, other: str) -> None:
    assert not unit_of(one).may_be(unit_of(other))


@pytest.mark.parametrize(
    ("text", "number", "unit"),
    [
        ("5 €", "5", "EUR"),
        ("EUR 5", "5", "EUR"),
        (r"-\$5", "-5", "USD"),
        (r"\text{Rs. }5", "5", "INR"),
        ("1.200,50 €", "1200.50", "EUR"),
        (r"\$15\text{ per hour}", "15", "USD h^-1"),
        ("50 cents", "50", "USD (1/100)"),
        (r"2\pi\text{ cm}", r"2\pi", "cm"),
        (r"50\%", "50", "%"),
        ("5 kWh", "5", "h kW"),
        ("52_8", "52", "_8"),
        ("5 N", "5 N", ""),
        ("2km", "2km", ""),
        ("5 or more", "5 or more", ""),
        (r"5\text{ tens}", r"5\cdot 10", ""),
        (r"5\text{th root}", r"5\text{th root}", ""),
        (r"5\text{ squared}", r"5\text{ squared}", ""),
        (r"300\text{ K}", r"300\text{ K}", ""),
        ("5 Monday", "5 Monday", ""),
        (r"\sin 30^\circ", r"\sin 30^\circ", ""),
        (r"2 \text{ hours and 30 minutes}", r"2 \text{ hours and 30 minutes}", ""),
    ],
)
def test_split_quantity_text_has_number_and_unit(text: str, number: str, unit: str) -> None:
    quantity = split_quantity(text)
    assert (quantity.number.strip(), str(quantity.unit)) == (number, unit)


@pytest.mark.parametrize("text", ["5 N", r"5\,N", "5 m/s", r"5 \frac{m}{s}", r"300\text{ K}", "5Ω"])
def test_split_quantity_letters_are_units_only_if_asked_for(text: str) -> None:
    assert split_quantity(text, letters=True).unit.counts
    assert not split_quantity(text).unit.counts


@pytest.mark.parametrize(
    ("text", "unit"),
    [
        ("5 km/h", "h^-1 km"),
        (r"5\sqrt{2}\,m/s^2", "m s^-2"),
        ("5 kW", "kW"),
        ("5pm", "pm"),
        ("5 m^2", "m^2"),
        (r"\$5/h", "USD h^-1"),
        ("5 N·m", "N m"),
        ("5 W/(m^2 K)", "K^-1 W m^-2"),
    ],
)
def test_split_signs_known_signs_behind_a_number_are_its_unit(text: str, unit: str) -> None:
    quantity = split_signs(text)
    assert quantity
    assert str(quantity.unit) == unit


@pytest.mark.parametrize(
    "text", ["5", "5 m", "5km", "5 x/s", "5x m/s", r"5 \cdot m/s", "5/s", "5m^2", "5 ab", "5 Km"]
)
def test_split_signs_other_letters_are_a_product(text: str) -> None:
    assert split_signs(text) is None


@pytest.mark.parametrize(
    ("given", "gold", "pairs"),
    [
        ("5", "5 cm", [("1", "1")]),
        ("5 cm", "5", [("1", "1")]),
        ("5 cm", "5 kg", []),
        ("50 %", "50", [("1/100", "1")]),
        ("50", "50 %", [("1", "1"), ("1", "1/100")]),
        ("50 %", "50 %", [("1", "1")]),
        ("50 ‰", "5 %", [("1/1000", "1/100")]),
        ("50 students", "50 %", []),
        ("50 % of them", "50 %", [("1", "1")]),
        ("50 cents", r"\$0.50", [("1/100", "1")]),
        ("50 cents", "50", [("1", "1")]),
        ("30°", "1", [("1", "1"), ("pi/180", "1")]),
        ("30°", "30 degrees", [("1", "1")]),
    ],
)
def test_factors_depend_on_both_units(given: str, gold: str, pairs: list[tuple[str, str]]) -> None:
    given = given.replace("% of", r"\% \text{ of").replace("them", "them}")
    assert number_factors(split_quantity(given).unit, split_quantity(gold).unit) == pairs


def test_unit_of_many_ambiguous_words_has_few_readings() -> None:
    unit = unit_of("dollars " * 500)
    assert len(unit.readings) == 1
    assert unit_of("").is_none
    assert QuantityUnit(scale=Fraction(1, 100)) != QuantityUnit()
