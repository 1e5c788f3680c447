r"""Quantities: numbers with units and currencies, by sign, code and name.

    12 \text{ km/h} -> 12, km·h⁻¹    12 kilometers per hour -> the same
    \$5 -> 5, a dollar of some country    50 cents -> 50, hundredths of a dollar or euro

`split_quantity` splits a number from its unit, and `number_factors` says how the numbers of two
quantities are compared. A unit is what its spelling may mean: a pound is a mass or a currency.
Words that are in no table, such as apples, are units of their own.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import product
from math import prod
from typing import NamedTuple, TypeVar

from strictgrade.spelling import WRAPPER, with_magnitudes, with_powers

# --- Tables. An entry has a sign and its other names, in the singular.

_PREFIXES = """
T tera; G giga; M mega; k kilo; h hecto; d deci; c centi; m milli; µ micro; n nano; p pico; f femto
"""
_UNITS_WITH_PREFIX = """
m metre meter; g gram gramme; s sec second; L l ℓ litre liter; A amp ampere; K kelvin; mol mole
N newton; J joule; W watt; Hz hertz; Pa pascal; V volt; C coulomb; F farad; T tesla; Wb weber; Ω ohm
H henry; S siemens; eV electronvolt; Bq becquerel; Gy gray; Sv sievert; lm lumen; lx lux; t tonne
cal calorie; B byte; b bit; bar; pc parsec; rad radian
"""  # noqa: RUF001
_UNITS = """
in inch; ft foot feet; yd yard; mi mile; lb pound; oz ounce; min minute; h hr hour; d day; wk week
mo month; yr year; ha hectare; ac acre; gal gallon; qt quart; pt pint; tbsp tablespoon; tsp teaspoon
atm atmosphere; rev revolution; dB decibel; Å angstrom; ° degree deg circ; °C celsius; °F fahrenheit
am a.m; pm p.m; µm micron; kΩ kilohm; MΩ megohm; person people; child children; man men
woman women
"""
_PRODUCTS = """
mph mi/h; kph km/h; kmh km/h; kmph km/h; mps m/s; fps ft/s; rpm rev/min; cc cm^3; psi lb/in^2
sqm m^2; sqft ft^2; Nm N*m; Wh W*h; kWh kW*h; MWh MW*h; Ah A*h; mAh mA*h
"""
_CURRENCIES = """
USD $ US$ dollar buck US-dollar American-dollar; EUR € euro; GBP £ pound quid; JPY ¥ 円 yen
CNY ¥ 元 yuan renminbi RMB; INR ₹ Rs rupee Indian-rupee; PKR Rs rupee Pakistani-rupee; KRW ₩ won
RUB ₽ ruble rouble; CHF SFr franc Swiss-franc; CAD $ C$ CA$ dollar Canadian-dollar
AUD $ A$ AU$ dollar Australian-dollar; NZD $ NZ$ dollar; HKD $ HK$ dollar; SGD $ S$ dollar
MXN MX$ peso Mexican-peso; PHP ₱ peso Philippine-peso; BRL R$ reais; ILS ₪ shekel; UAH ₴ hryvnia
TRY ₺ lira Turkish-lira; PLN zł zloty; SEK krona kronor; NOK krone kroner; DKK krone kroner
CZK koruna; HUF forint; ZAR rand; THB ฿ baht; VND ₫ dong; NGN ₦ naira; IDR rupiah; MYR ringgit
SAR riyal; AED dirham; BTC ₿ bitcoin
"""
_HUNDREDTHS = """
cent ¢ USD EUR CAD AUD NZD HKD SGD; penny pence GBP USD CAD; centavo MXN PHP BRL
paisa paise INR PKR; rappen CHF; centime CHF; kopeck kopek RUB; agora ILS; kurus TRY; fen CNY
"""
_RATIO_NAMES = "% percent percentage pct p.c; ‰ permil permille"
_PHRASES = """
per cent, %; percentage point, %; year old, yr; electron volt, eV; pound sterling, GBP
degree kelvin, K; degree c, °C; degree celsius, °C; ° c, °C; ° celsius, °C
degree f, °F; degree fahrenheit, °F; ° f, °F; ° fahrenheit, °F
"""

# Signs that need no \text behind a blank. Others may be products, and are units only beside a
# number without letters: 5 nm is 5 times n times m.
_PLAIN_SIGNS = """
cm mm km g mg kg ft yd lb lbs oz hr hrs min mins sec secs mph kph kmh am pm a.m p.m mL ml dL Hz kHz
MHz GHz kPa MPa kWh dB mol rad deg ohm yen won bit bits day days amp amps pct per sq cu
"""

# Words that change a number instead of counting something.
_CHANGING_WORDS = """
and or not if unless except than least most plus minus half halves factorial impossible is isn wrong
incorrect false root power divided multiplied raised increased decreased reduced score gross ten
tens hundred hundreds thousand thousands third thirds fourth fourths fifth fifths sixth sixths
seventh sevenths eighth eighths ninth ninths tenth tenths eleventh elevenths twelfth twelfths
hundredth hundredths thousandth thousandths
"""

# --- Units

Reading = tuple[tuple[str, int], ...]
"""Signs of units with their exponents, in the order of the signs."""

MOST_READINGS = 64


@dataclass(frozen=True)
class QuantityUnit:
    """What the unit of a number may mean, the usual first."""

    readings: tuple[Reading, ...] = ((),)
    scale: Fraction = Fraction(1)  # of hundredths of a currency
    ratio: Fraction = Fraction(1)  # of per cent and per mille

    @property
    def is_none(self) -> bool:
        """True for a number alone."""
        return self == QuantityUnit()

    @property
    def counts(self) -> bool:
        """True if the number counts something; per cent alone does not."""
        return self.readings != ((),)

    @property
    def is_degree(self) -> bool:
        """True for an angle in degrees."""
        return self.readings == ((("°", 1),),)

    @property
    def is_half_of_day(self) -> bool:
        """True for a.m. and p.m."""
        return self.readings[0] in ((("am", 1),), (("pm", 1),))

    def may_be(self, other: "QuantityUnit") -> bool:
        """True if both may mean the same, apart from their scales."""
        return not set(self.readings).isdisjoint(other.readings)

    def __str__(self) -> str:
        signs = [sign for sign, ratio in _RATIOS.items() if self.ratio == ratio]
        for sign, power in self.readings[0]:
            signs.append(sign if power == 1 else f"{sign}^{power}")
        if self.scale != 1:
            signs.append(f"({self.scale})")
        return " ".join(signs)


class Quantity(NamedTuple):
    """A number, and its unit."""

    number: str
    unit: QuantityUnit


def number_factors(given: QuantityUnit, gold: QuantityUnit) -> list[tuple[str, str]]:
    """Factors of the two numbers, of which one pair has to make them equal; [] for other units.

    A unit that only one of the two has is ignored. But 50 % is 0.5 and not 50, except where the
    gold answer says per cent and the given one says 50.
    """
    same = ("1", "1")
    if given.counts and gold.counts:
        if not given.may_be(gold):
            return []
        if given.scale != gold.scale:
            return [(str(given.scale), str(gold.scale))]
    if given.ratio != gold.ratio:
        if any(unit.ratio == 1 and unit.counts for unit in (given, gold)):
            return []
        ratios = str(given.ratio), str(gold.ratio)
        return [same, ratios] if given.is_none else [ratios]
    if given.is_degree != gold.is_degree:
        radians = ["pi/180" if unit.is_degree else "1" for unit in (given, gold)]
        return [same, (radians[0], radians[1])]
    return [same]


# --- Spellings

T = TypeVar("T")


def _entries(table: str) -> Iterator[list[str]]:
    return map(str.split, re.split("[;\n]", table.strip()))


def _signs_by_spelling() -> dict[str, list[str]]:
    """The signs that each spelling may mean."""
    found: dict[str, list[str]] = {}
    for sign, *names in [*_entries(_UNITS), *_entries(_UNITS_WITH_PREFIX), *_entries(_CURRENCIES)]:
        for spelling in (sign, *names):
            found.setdefault(spelling.replace("-", " "), []).append(sign)
    plain = set(found) - {"pm"}  # afternoon, or picometers
    for (prefix, name), (sign, *names) in product(
        _entries(_PREFIXES), _entries(_UNITS_WITH_PREFIX)
    ):
        prefixes = [prefix, "u", "μ"] if prefix == "µ" else [prefix]
        for spelling in (sign, *names):
            # A name takes the prefix's name, and a sign its sign: kilonewton and kN.
            for before in [name] * (len(spelling) > 2) + prefixes * (len(spelling) < 4):
                if before + spelling not in plain:  # min is a minute
                    found.setdefault(before + spelling, []).append(prefix + sign)
    return found


_SIGNS = _signs_by_spelling()
_CASELESS: dict[str, list[str]] = {}
for _spelling, _signs in _SIGNS.items():
    _CASELESS.setdefault(_spelling.lower(), []).extend(_signs)
_PHRASE_SIGNS = dict(entry.split(", ") for entry in re.split("; |\n", _PHRASES.strip()))
_PHRASE_SIGNS |= {name.lower(): signs[0] for name, signs in _SIGNS.items() if " " in name}
_PRODUCT_UNITS = dict(_entries(_PRODUCTS))
_HUNDREDTH_CODES = {
    word: [code for code in entry if code.isupper()]
    for entry in _entries(_HUNDREDTHS)
    for word in entry
    if not word.isupper()
}
_RATIOS = {"%": Fraction(1, 100), "‰": Fraction(1, 1000)}
_RATIO_SIGNS = {name: sign for sign, *names in _entries(_RATIO_NAMES) for name in (sign, *names)}


def _forms(word: str) -> list[str]:
    """A word, and what it is the plural of if it is one; the singular is the last."""
    forms = [word]
    if word.endswith("s") and len(word) > 2 and not word.endswith("ss"):
        forms.append(word[:-1])
    if word.endswith("ies") and len(word) > 4:
        forms.append(f"{word[:-3]}y")
    elif re.search("(?:ss|x|z|ch|sh)es$", word):
        forms.append(word[:-2])
    return forms


def _entry(word: str, table: Mapping[str, T]) -> T | None:
    """The entry of a word, also in the singular and in small letters."""
    for form in [*_forms(word), *_forms(word.lower())]:
        if form in table:
            return table[form]
    return None


# --- From a text to its unit

_BRACED = r"\{((?:[^{}]|\{[^{}]*\})*+)\}"
_COMMANDS = dict(
    zip(("Omega", "mu", "ell", "degree", "circ", "permil", "AA"), "Ωµℓ°°‰Å", strict=True)
)
_AS_PLAIN = tuple(
    (re.compile(pattern), replacement)
    for pattern, replacement in (
        (rf"\\[dt]?frac\s*{_BRACED}\s*{_BRACED}", r"(\1)/(\2)"),
        (r"\^\s*(?:\\circ(?![A-Za-z])|\{\s*(?:\\circ|°)\s*\}|°)", "°"),
        (r"(?:\^|\*\*)\s*(?:\{\s*(-?[0-9])\s*\}|(-?[0-9]))", r"^\1\2"),
        (r"(?<=[A-Za-z])([23])(?![0-9])", r"^\1"),  # cm2
        (WRAPPER, " "),
        (r"(?<![A-Za-z])(kilo|mega|giga|milli|micro|nano|centi)-(?=[a-z])", r"\1"),
        (r"\\([A-Za-z]+)", lambda command: _COMMANDS.get(command[1], " ")),
        (r"\\(?=[$%])", ""),
        (r"\\.|[{}~]", " "),
        (r"[μµ]\s*(?=[A-Za-zΩ])", "µ"),
        (r"(?<![^\W\d_])([kMmG])\s+(?=Ω)", r"\1"),
    )
)
_TOKEN = re.compile(
    r"[ap]\.m|[AP]\.M|p\.c|\^-?[0-9]|[/()%‰°¢]|_? *[0-9]+|(?:US|CA?|AU?|NZ|HK|S|MX|R)\$|[^\W\d_]+"
    r"|[$€£¥₹₩₽₪₴₺฿₫₦₱₿]"
)
_POWERS_BEFORE = {"square": 2, "sq": 2, "cubic": 3, "cu": 3}
_POWERS_AFTER = {"squared": 2, "cubed": 3}


def _tokens(text: str) -> list[str]:
    """The words and signs of a unit; phrases as one, products of units in brackets."""
    for pattern, replacement in _AS_PLAIN:
        text = pattern.sub(replacement, text)
    words = _TOKEN.findall(text)
    tokens: list[str] = []
    for word in words:
        tokens.append(word)
        pairs = product(*(_forms(each.lower()) for each in tokens[-2:]))
        phrases = [phrase for phrase in map(" ".join, pairs) if phrase in _PHRASE_SIGNS]
        if phrases:
            tokens[-2:] = [_PHRASE_SIGNS[phrases[0]]]
        elif tokens[-1] in _PRODUCT_UNITS:
            tokens[-1:] = ["(", *_TOKEN.findall(_PRODUCT_UNITS[word]), ")"]
    return tokens


def unit_of(text: str) -> QuantityUnit:
    r"""The unit of a text such as `\text{km}/h`; words that are in no table are units, too."""
    parts: list[tuple[Sequence[str], int]] = []  # what a part may mean, and its exponent
    scale = ratio = Fraction(1)
    power = 1  # of the next part
    group = side = 1  # 1 above the line, and -1 below it: of these brackets, and of the next part
    outside: list[tuple[int, int]] = []
    before = ""
    for token in _tokens(text):
        word = token.lower()
        if word in ("/", "per"):
            side = -group
        elif token == "(":
            outside.append((group, group if before in ("/", "per") else side))
            group = side
        elif token == ")":
            group, side = outside.pop() if outside else (group, side)
        elif word in _POWERS_BEFORE:
            power = _POWERS_BEFORE[word]
        elif token[0] == "^" or word in _POWERS_AFTER:
            if parts:
                parts[-1] = parts[-1][0], parts[-1][1] * (_POWERS_AFTER.get(word) or int(token[1:]))
        elif sign := _entry(word, _RATIO_SIGNS):
            ratio *= _RATIOS[sign]
        elif codes := _entry(word, _HUNDREDTH_CODES):
            scale *= Fraction(1, 100) ** side
            parts.append((codes, side))
        else:
            signs = _entry(token, _SIGNS) or _CASELESS.get(word) or _forms(word)[-1:]
            parts.append((signs, side * power))
            power = 1
        before = word

    many = prod(len(signs) for signs, _ in parts) > MOST_READINGS
    choices = [signs[:1] if many else signs for signs, _ in parts]
    readings: dict[Reading, None] = {}
    for chosen in product(*choices):
        powers: dict[str, int] = {}
        for sign, (_, exponent) in zip(chosen, parts, strict=True):
            powers[sign] = powers.get(sign, 0) + exponent
        readings[tuple(sorted((sign, n) for sign, n in powers.items() if n))] = None
    return QuantityUnit(tuple(readings), scale, ratio)


# --- From an answer to its quantity


def _any_of(words: Iterable[str]) -> str:
    longest_first = sorted(set(words), key=lambda word: (-len(word), word))
    return "|".join(re.escape(word).replace(r"\$", r"\\?\$") for word in longest_first)


# Signs such as € need no blank before them; codes such as EUR do.
_MONEY = [word for entry in _entries(_CURRENCIES) for word in entry]
_MONEY_SIGN = rf"(?:{_any_of(word for word in _MONEY if not word.isascii() or '$' in word)})"
_CODES = ["Rs", "SFr", *(word for word in _MONEY if word.isupper() and word.isalpha())]
_CODE = rf"(?:{_any_of(_CODES)})(?![A-Za-z])\.?"

_BLANK = r"(?:[\s~]|\\[,;:! ])"
_GAP = rf"(?:{_BLANK}|/|\\(?:cdot|times)(?![A-Za-z])|[·\u00d7*]|(?<=[a-z])-(?=[a-z]))*+"
_AFTER_BLANK = r"(?:(?<=[\s~,;:!])|(?<=[A-Za-z}]/))"
_POWER = r"(?:\s*\^\s*(?:\{\s*-?[0-9]\s*\}|[0-9]))?"
# \mathrm{i} is a number.
_WRAPPED = rf"{WRAPPER}(?!\s*[ei]\s*\}})(?:[^{{}}]|\{{[^{{}}]*\}})*+\}}{_POWER}"
_CIRCLE = r"(?:(?:\{\})?\^\s*(?:\\circ|\{\s*\\circ\s*\})|°)"
_DEGREE = rf"{_CIRCLE}(?:\s*[CF](?![A-Za-z]))?|\\degree(?![A-Za-z])"
_PERCENT = r"(?:\\?%|‰|\\permil(?![A-Za-z]))"
_WORD = r"(?<![A-Za-z\\])[A-Za-z][a-z]{3,}"
_ABBREVIATION = rf"{_AFTER_BLANK}(?:{_any_of(_PLAIN_SIGNS.split())})"
_PLAIN = rf"(?:{_WORD}|{_ABBREVIATION})(?:[23](?![0-9])|\b\.?{_POWER})"
_MICRO = rf"(?:\\mu\s*|[µμ]\s*){_WRAPPED}|{_AFTER_BLANK}[µμ][A-Za-z]{{1,2}}(?![A-Za-z]){_POWER}"
_OHM = rf"(?<=[\s~,;:!}}])(?:[kMmG]|\\mu\s*|[µμ])?(?:Ω|\\Omega(?![A-Za-z])){_POWER}"
_BASE = r"(?<=[0-9])_(?:[0-9]|\{[0-9]+\})"  # 52_8: forgiven like a unit
_QUOTIENT = rf"\\[dt]?frac\s*\{{\s*{_WRAPPED}\s*\}}\s*\{{\s*{_WRAPPED}\s*\}}"
_CURRENCY_AFTER = rf"{_MONEY_SIGN}|{_AFTER_BLANK}{_CODE}|¢"
_ONE = "|".join(
    (_WRAPPED, _DEGREE, _PERCENT, _PLAIN, _MICRO, _OHM, _BASE, _QUOTIENT, _CURRENCY_AFTER)
)
_UNIT = re.compile(rf"(?:{_GAP}(?:{_ONE}))+\s*$")

# Letters that are a unit only if the other answer has it: 5 N is 5 newtons, or 5 times N.
_LETTERS = (
    r"(?<![A-Za-z\\])(?:[AaPp]\.[Mm]|[A-Za-zµμΩ]{1,5})(?![A-Za-z])|\\(?:mu|Omega|ell)(?![A-Za-z])"
)
_TWO_NUMBERS = r"\{\s*[0-9]+\s*\}\s*\{\s*[0-9]+\s*\}"
_LETTER_QUOTIENT = rf"\\[dt]?frac\s*(?!{_TWO_NUMBERS})\{{[^{{}}]{{1,20}}\}}\s*\{{[^{{}}]{{1,20}}\}}"
# Possessive: several alternatives match the same letters, and trying all takes exponential time.
_LETTER_UNIT = re.compile(
    rf"(?:{_GAP}(?:{_ONE}|(?:{_LETTERS}){_POWER}|{_LETTER_QUOTIENT}|[()]))++\s*$"
)

# Of letters behind a number without others, what shows that they are no product.
_QUOTIENT_SIGN = re.compile(r"/|(?<![A-Za-z])per(?![A-Za-z])|\\[dt]?frac")
_SIGN = r"(?<![A-Za-z\\])[A-Za-zµΩ]+"
_SEVERAL_SIGNS = re.compile(rf"{_SIGN}[^A-Za-z]*?(?:\\cdot(?![A-Za-z])|[·*])\s*\\?[A-Za-zµΩ]")
_AREA = re.compile(r"\s*m\s*\^\s*(?:\{\s*[23]\s*\}|[23])\s*")
_NEGATIVE_POWER = re.compile(r"\^\s*\{\s*-")
_HALF_OF_DAY = re.compile(r"\s*[AaPp]\.?[Mm]\s*")
_LONG_SIGN = re.compile(r"(?<![A-Za-z\\])[A-Za-zµ]{2,}")
_COMMANDS_OF_LETTERS = re.compile(r"\\[A-Za-z]+")

_CURRENCY_BEFORE = re.compile(
    rf"\s*([-+\u2212]?)\s*(?:{WRAPPER}\s*((?:{_MONEY_SIGN}|{_CODE}))\s*\}}|({_MONEY_SIGN})"
    rf"|({_CODE})(?={_BLANK}*[-+]?{_BLANK}*(?:\.?[0-9]|\\[dt]?frac)))"
)

_JOINED = re.compile(r"(?<![A-Za-z])(?:and|or)\s*$")
_CHANGING_WORD = (
    rf"(?<![A-Za-z])(?:{'|'.join(_CHANGING_WORDS.split())}|[a-z]*(?:teenth|tieth|illionth)s?|nths?)"
    r"(?![A-Za-z])"
)
_FURTHER_NUMBER = re.compile(r"(?<!mod)(?<!base)[\s~][0-9]")  # 2 hours 30 minutes
_SQUARED = r"^[^A-Za-z]*(?:squared|cubed)(?![A-Za-z])"
_ORDINAL = r"(?<![A-Za-z])(?:st|nd|rd|th)\s+(?:roots|powers)(?![A-Za-z])"
_CHANGE = re.compile("|".join((_CHANGING_WORD, _SQUARED, _ORDINAL)))
_MAGNITUDE_LETTER = re.compile(r"\W*(?:[kKMB]|bn|mn)\W*")
_NAME = re.compile(rf"{WRAPPER}[^{{}}]*\}}|(?<![A-Za-z\\])([A-Z][a-z]{{3,}})")

# 1.200,50 of a currency.
_DECIMAL_COMMA = re.compile(r"([-+]?[0-9]{1,3}(?:\.[0-9]{3})*),([0-9]{2})")

_COMMAND_OF_ANGLES = r"\\(?:sin|cos|tan|cot|sec|csc)"
_PLAIN_FUNCTION = r"(?<![A-Za-z\\])(?:sin|cos|tan)"
_TRIGONOMETRIC = re.compile(rf"(?:{_COMMAND_OF_ANGLES}|{_PLAIN_FUNCTION})(?![a-z])")


def split_quantity(text: str, *, letters: bool = False, are_signs: bool = False) -> Quantity:
    """Split a number from its unit; with ``letters``, letters behind it are units, not factors.

    With ``are_signs``, these are known signs of units, and look like no product.
    """
    text = with_magnitudes(text, has_letters=not letters)
    currency = _CURRENCY_BEFORE.match(text)
    written = ""
    if currency:
        written = currency[2] or currency[3] or currency[4]
        text = currency[1] + text[currency.end() :]

    behind = (_LETTER_UNIT if letters else _UNIT).search(text)
    is_unit = behind and _is_unit(behind[0], letters)
    if behind and is_unit and (not are_signs or _are_signs(written + behind[0])):
        before = text[: behind.start()]
        # A word without a number before it is no unit, nor is that of "5 or more". The degrees of
        # \sin 30^\circ belong to the angle.
        has_number = re.search(r"[0-9]|\\pi|π", before) and not _JOINED.search(before)
        if has_number and not _TRIGONOMETRIC.search(before):
            text, written = before, f"{written} {behind[0]}"

    number, unit = with_powers(text.strip()), unit_of(written)
    decimal = _DECIMAL_COMMA.fullmatch(number)
    if decimal and any(sign in _CODES for sign, _ in unit.readings[0]):
        number = f"{decimal[1].replace('.', '')}.{decimal[2]}"
    return Quantity(number, unit)


def split_signs(text: str) -> Quantity | None:
    """Split a number from known signs of units behind it, as in 60 km/h and 7 PM.

    None where other letters stand before or among them, or where they look like a product.
    """
    quantity = split_quantity(text, letters=True, are_signs=True)
    if quantity.unit.counts and not has_letters(quantity.number):
        return quantity
    return None


def has_letters(text: str) -> bool:
    """True if letters other than those of commands stand in a text: an unknown, or a word."""
    return re.search("[A-Za-z]", _COMMANDS_OF_LETTERS.sub("", text)) is not None


def _is_unit(text: str, letters: bool) -> bool:
    """True if words behind a number count something, and do not change it."""
    words = re.sub(rf"{WRAPPER}|[{{}}]", " ", text)
    if _FURTHER_NUMBER.search(text) or _CHANGE.search(words):
        return False
    if _MAGNITUDE_LETTER.fullmatch(words) and not letters:
        return False
    # A word with a capital is a unit only if it is in a table: Newtons, but not Monday.
    names = [name[1] for name in _NAME.finditer(text) if name[1]]
    return all(_entry(name, _SIGNS) or _entry(name, _RATIO_SIGNS) for name in names)


def _are_signs(text: str) -> bool:
    """True if letters behind a number are known signs of units, and no product."""
    if re.match(r"\s*(?:[*·\u00d7]|\\(?:cdot|times)(?![A-Za-z]))", text):
        return False  # 5 \cdot m/s
    if not all(map(_is_sign, _tokens(text))):
        return False
    if _QUOTIENT_SIGN.search(text, 1) or _HALF_OF_DAY.fullmatch(text):
        return True
    if not re.match(_BLANK, text):
        return False  # 2km is 2 times k times m
    several = _SEVERAL_SIGNS.search(text) or (
        _NEGATIVE_POWER.search(text) and re.search(rf"{_SIGN}.*{_SIGN}", text)
    )
    return bool(several or _LONG_SIGN.search(text) or _AREA.fullmatch(text))


def _is_sign(token: str) -> bool:
    """True for a sign of a unit in its own case, a name or a plain word, and what joins them."""
    if not token[0].isalpha():
        return not token[0].isdigit() and token[0] != "_"
    is_known = any(form in _SIGNS for form in _forms(token)) or _HALF_OF_DAY.fullmatch(token)
    return bool(is_known) or re.fullmatch("per|sq|cu|[a-z]{4,}", token) is not None
