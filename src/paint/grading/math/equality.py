r"""Equality of a boxed answer with the gold answer, by integers, text and algebra.

    answers -> integers -> without conditions, units and names -> text -> algebra

`compare_text` decides by integers and by normalised text, in linear time. `compare_symbolic` uses
algebra, which may not terminate: paint.grading.math.grader compares each pair in a separate
process. docs/concepts/grading.md says what is forgiven. What cannot be decided is not right.
"""

import re
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from paint.grading.math.ascii import GREEK, latex_of_ascii
from paint.objective.anchors import normalize, plain_characters

Reason = Literal[
    "right", "wrong", "no box", "unclosed thought", "truncated", "unparsable gold", "timed out"
]


@dataclass(frozen=True, slots=True)
class GoldReading:
    """How the grader reads a gold answer."""

    text: str  # "" if it does not parse
    reason: str = ""  # why it does not parse
    suspicions: tuple[str, ...] = ()  # why it may be misread

    @property
    def parses(self) -> bool:
        """True if answers can be compared with it by more than their text."""
        return not self.reason


# Characters; longer answers are compared as integers and as text only.
LONGEST_ANSWER = 2000

# The last box counts, but not the empty one of the instruction "within \boxed{}".
# The blanks are possessive: given back, one of them would hide an empty box from the lookahead.
_BOX = re.compile(r"\\(?:boxed|fbox|framebox)(?![a-zA-Z])\s*+(?!\{\s*+\})")
_UNBRACED = re.compile(r"\\?[^\s$\\{}]+(?:\{[^{}]*\})*")
# An escape is one piece, so that the brace of \{ does not count.
_ESCAPE_OR_BRACE = re.compile(r"\\.|[{}]", re.DOTALL)

_DELIMITERS = (("$$", "$$"), ("$", "$"), (r"\(", r"\)"), (r"\[", r"\]"))
_WRAPPER = r"\\(?:text(?:bf|it|rm|normal)?|math(?:rm|bf|it|sf)|mbox)\s*\{"
# Phrases around an answer, and commands of its size.
_ANSWER_PHRASE = re.compile(
    rf"^(?:(?:(?:{_WRAPPER}\s*)?[Tt]he\s+(?:final\s+)?answer\s+is[\s:]*\}}?|\\therefore(?![A-Za-z]))\s*)*"
    rf"(?:(?:{_WRAPPER}\s*)?(?:Option|Choice|Answer)[\s:]*\}}?\s*(?=\(?[A-Z]\)?(?:\}}?$|[:.]?\s)))?"
    r"|\\(?:[lL]arge|LARGE|[hH]uge|small)(?![A-Za-z])\s*|\s*\\checkmark$"
)
_CASES_WORDS = re.compile(rf"{_WRAPPER}\s*(?:if|for|when)?\s*\}}|[,;.](?=\s*(?:&|\\\\|\\end))")
_WRAPPED = re.compile(rf"{_WRAPPER}([^{{}}]*)\}}")
_SEPARATOR = r"(?:,\\!\s*|\{,\}|\\[,;: ]|[, ~])"
_INTEGER = re.compile(rf"([+\-\u2212]?)\s*([0-9]{{1,3}}(?:{_SEPARATOR}[0-9]{{3}})+|[0-9]+)")

# What stands before a value: x = and a currency sign.
_NAME = re.compile(
    rf"(?:[^0-9=<>!:{{}}]|\{{[^0-9={{}}]*\}}|\^\{{-1\}}|_[0-9])+=(?=[^=]+$)|\s*{_WRAPPER}[^{{}}]*\}}\s*="
)
_CURRENCY_SIGN = r"\\?\$|€|£|\\pounds(?![a-z])|\\text\s*\{\s*\\?\$\s*\}"
_CURRENCY = re.compile(rf"\s*({_CURRENCY_SIGN})")

# What stands after it: one or more units, up to the end.
_GAP = r"(?:[\s~/]|\\[,;:! ]|\\cdot(?![A-Za-z]))*+"
_POWER = r"(?:\s*\^\s*(?:\{\s*-?[0-9]\s*\}|[0-9]))?"
_WRAPPED_UNIT = rf"{_WRAPPER}(?!\s*[ei]\s*\}})[^{{}}]*\}}{_POWER}"  # \mathrm{i} is a number
_RAISED_CIRCLE = r"\^\s*(?:\\circ|\{\s*\\circ\s*\})"
_DEGREE_SIGN = rf"{_RAISED_CIRCLE}(?:\s*[CF](?![A-Za-z]))?|\\degree(?![A-Za-z])|°"
_PERCENT_SIGN = r"(?:\\?%|‰|\\permil(?![A-Za-z])|(?:percent(?:age)?|pct)(?![a-z]))"
_PLAIN_WORD = r"(?<![A-Za-z\\])[a-z]{4,}"
_ABBREVIATION = (  # only after a blank: 2km may be 2 times k times m
    r"(?<=[\s~,;:!])(?:[cmk]m|[km]?g|ft|lb|oz|hr|min|sec|mph|[ap]\.?m)"
)
_PLAIN_UNIT = rf"(?:{_PLAIN_WORD}|{_ABBREVIATION})\b{_POWER}"
_BASE = r"(?<=[0-9])_(?:[0-9]|\{[0-9]+\})"  # 52_8: forgiven like a unit
_ONE_UNIT = rf"(?:{_WRAPPED_UNIT}|{_DEGREE_SIGN}|{_PERCENT_SIGN}|{_PLAIN_UNIT}|{_BASE})"
_WRITTEN_BASE = re.compile(  # 52 (base 8) is 52_{8}, and so is (52)_8
    rf"\(?([0-9]+)\)?(?:\\[,; ]|[\s~])*(?:_\{{?|(?:{_WRAPPER}\s*)?\(?base\s*\$?)([0-9]+)[$)}}\s]*"
)
_UNIT = re.compile(rf"(?:{_GAP}{_ONE_UNIT})+\s*$")

# Words after a number that change it instead of counting something.
_CHANGING_WORDS = """
and or not if unless except than least most plus minus half halves squared cubed factorial
impossible is isn wrong incorrect false k K M B bn mn tenth tenths hundredth hundredths thousandth
thousandths score
"""
_CHANGING_WORD = rf"(?<![A-Za-z])(?:{'|'.join(_CHANGING_WORDS.split())})(?![A-Za-z])"
_FURTHER_NUMBER = r"(?<!mod)(?<!base)[\s~][0-9]"  # 2 hours 30 minutes
_NO_UNIT = re.compile(rf"{_CHANGING_WORD}|{_FURTHER_NUMBER}")

# Units are compared part by part, each in one spelling.
_UNIT_PART = re.compile(r"[ap]\.m|[A-Za-z]+|[%‰°$€£]|[\^_]?[^A-Za-z0-9]*[0-9]+")
_SPELLINGS = """
cm centimeter centimetre; mm millimeter millimetre; km kilometer kilometre; m meter metre
in inch inche; ft foot feet; yd yard; mi mile; g gram; kg kilogram; lb pound; oz ounce; s sec second
min minute; h hr hour; l liter litre; $ dollar; % percent percentage pct; ‰ permil
° degree deg circ; ^{2 square sq; ^{3 cubic cu; am a.m; pm p.m
"""
_SAME_UNIT = {
    name: unit
    for unit, *names in map(str.split, re.split("[;\n]", _SPELLINGS.strip()))
    for name in names
}
_PERCENT, _PERMILLE, _DEGREE = frozenset("%"), frozenset("‰"), frozenset("°")

_POWERS = {"dozen": "12", "hundred": "10^2", "thousand": "10^3"}
_POWERS |= {"million": "10^6", "billion": "10^9", "trillion": "10^{12}"}
_MAGNITUDE = re.compile(
    rf"(?<=[0-9])(?:[\s~]|\\[,;: ])*+({_WRAPPER}\s*)?({'|'.join(_POWERS)})(?![A-Za-z])"
)
# 1.5e-8 and 15e8. In a formula 3e-1 may have Euler's number; as a complete value it is a number.
_SCIENTIFIC = re.compile(
    r"(?<![A-Za-z0-9.}])(?:([0-9]+\.[0-9]+)[eE]([+-]?[0-9]+)|([0-9]+)[eE]([0-9]+))(?![A-Za-z0-9.])"
)
_JUNCTION = (  # what stands between values
    r"[,;=<>≤≥≈]|\\(?:le|ge|leq|geq|approx)(?![A-Za-z])"
    rf"|(?:{_WRAPPER}\s*)?(?<![A-Za-z])(?:and|or)\s*\}}?"
)
_SCIENTIFIC_VALUE = re.compile(
    rf"((?:^|[(\[]|\\\{{|{_JUNCTION})\s*[+-]?)"
    r"([0-9]++(?:\.[0-9]*+)?+|\.[0-9]++)[eE]([+-]?[0-9]{1,6})"
    rf"(?=\s[A-Za-z]|\s*(?:$|[)\]]|\\\}}|{_JUNCTION}))"
)
# 7\text{K} is 7000, but 7\text{ K} may be a temperature.
_SHORT_MAGNITUDE = re.compile(rf"(?<=[0-9]){_WRAPPER}([KkMB]|bn|mn)\}}")
_SHORT_POWERS = {"K": "10^3", "k": "10^3", "M": "10^6", "mn": "10^6", "B": "10^9", "bn": "10^9"}

# Prose is compared as text: as a formula, seat and east are the same product of letters.
_NOT_WORDS = "sqrt matrix pmatrix bmatrix vmatrix array cases"
_NO_WORD = rf"(?!(?:{'|'.join(_NOT_WORDS.split())})(?![A-Za-z]))"
_WORD = re.compile(rf"(?<![\\A-Za-z]){_NO_WORD}[A-Za-z]{{4,}}")
_SHORT_WORD = r"(?<![A-Za-z])(?:(?!and(?![A-Za-z]))[A-Za-z]{3}|[Nn][Oo](?![A-Za-z]))"
_WORDS_ONLY = re.compile(rf"(?=.*{_SHORT_WORD})[A-Za-z\s.,'-]+", re.DOTALL)

_ALTERNATIVE = re.compile(rf"{_WRAPPER}\s*OR\s*\}}|(?<![A-Za-z\\])OR(?![A-Za-z])")
_WRAPPED_WORD = re.compile(rf"{_WRAPPER}\s*[A-Za-z]{{2,3}}\.?\s*\}}")

# Conditions and remarks after an answer. Some of them restrict nothing.
_BEFORE_CONDITION = rf"(?:[\s,;~(]|\\[,;: ]|\\q?quad(?![A-Za-z])|{_WRAPPER}[\s,;(]*)*"
_CONDITION_WORDS = (
    r"for|where|if|when|whenever|with|provided|such that|about|approximately|approx|by|i\.e\."
)
_MEMBERSHIP = r"(?<=[,\s(d])[A-Za-z](?:\s*,\s*[A-Za-z])*\s*\\in\s*(?:\\mathbb|\\N|\\Z|\\R)"
_CONDITION = re.compile(
    rf"(?<=[^\s,]){_BEFORE_CONDITION}"
    rf"((?:(?<![A-Za-z\\])(?:{_CONDITION_WORDS})(?![A-Za-z])|\\forall|{_MEMBERSHIP}).*)$",
    re.DOTALL,
)
_ROMAN = re.compile("[ivx]+")
_GREEK_WORDS = str.maketrans(dict(zip(GREEK.values(), GREEK, strict=True)))  # as in beta decay
_OTHERWISE = re.compile(r"(?<![A-Za-z])(?:otherwise|else)(?![A-Za-z])")  # two answers in one
_NEUTRAL_CONDITION = re.compile(
    r"for\s+(?:all|any|every|each)|\\forall|where|with|about|approx|by|i\.e\."
)

_SMALL_WORD = re.compile(r"(?<![A-Za-z\\])(?:of|is|the|in|to|at|on|per|each)(?![A-Za-z])")
_DOTS_AFTER_DECIMAL = re.compile(r"\.[0-9]++…")  # a decimal with dots is no list with dots
# (A) 5, A: 5, A. 5 and A) 5, but not the ratio A:b and the product A.5
_LETTER_AND_ANSWER = (
    r"(?:\((?P<letter>[A-J])\)|(?P<labelled>[A-J])(?:[:)]|\. |\.(?![0-9])))"
    r"(?:-?\.?[0-9]|\\[a-z]|(?(labelled)(?:[a-z]{2}|[a-z(]+[-+*/^=|])|(?!)))"
    r"(?!.*(?<![A-Za-z])(?:or|and)(?![A-Za-z]))[^A-Z,]*"
)
_LETTER_ALONE = r"\(?(?P<alone>[A-J])\)?"
_CHOICE = re.compile(rf"{_LETTER_AND_ANSWER}|{_LETTER_ALONE}")

# Numbers of statements: \textcircled{1} is ①.
_CIRCLED = re.compile(r"\\(?:text)?circled\s*(?:\{\s*(?:\\[a-z]+\s*)?(1?[1-9]|[12]0)\s*\}|([1-9]))")
_LABELS = re.compile(r"(?:[\s,;(){}]|and|\\)*(?:[①-⑳](?:[\s,;(){}]|and|\\)*)+")
_LOGARITHM = re.compile(r"log(?!_)")
_COMMAND_OF_ANGLES = r"\\(?:sin|cos|tan|cot|sec|csc)"
_PLAIN_FUNCTION = r"(?<![A-Za-z\\])(?:sin|cos|tan)"
_TRIGONOMETRIC = re.compile(rf"(?:{_COMMAND_OF_ANGLES}|{_PLAIN_FUNCTION})(?![a-z])")


def boxed(text: str) -> str | None:
    r"""The content of the last \boxed{...} (or \fbox, \framebox), its braces balanced.

    None without a box, and where the last box never closes: the text was cut inside its answer.
    Empty boxes, as in the instruction "within \boxed{}", are passed over.
    """
    for box in reversed(list(_BOX.finditer(text))):
        if text.startswith("{", box.end()):
            end = _closing_brace(text, box.end())
            if end is None:
                return None
            content = text[box.end() + 1 : end].strip()

        else:  # of \boxed 5, the text up to white space, $ or a brace, unless it is a word
            unbraced = _UNBRACED.match(text, box.end())
            content = unbraced[0].rstrip(".,;:!?)") if unbraced else ""
            if len(content) > 1 and content.isalpha():
                content = ""

        if content:
            return content
    return None


def alternatives(gold: str) -> list[str]:
    """The gold answer, and each of those that a capital OR joins: `1/2 OR 0.5`."""
    answers = []
    for part in _ALTERNATIVE.split(gold):
        if part.strip():
            answers.append(part)
    if len(answers) > 1:
        # The complete text, too: an answer may repeat it as it is.
        return [*answers, gold]
    return [gold]


def compare_text(given: str, gold: str) -> Reason | None:
    """Compare by integers and by text, in linear time; None if only algebra can decide."""
    # Of the answers as written: \text{no} is a word, and no alone a product of two letters.
    is_short_word = any(_WRAPPED_WORD.fullmatch(text.strip()) for text in (given, gold))
    given, gold = _plain_answer(given), _plain_answer(gold)
    integers = _integer(given), _integer(gold)
    if None not in integers:
        if integers[0] == integers[1]:
            return "right"
        return "wrong"
    if _same_text(given, gold):
        return "right"

    # After the texts: the same text is right, however long it is.
    if len(gold) > LONGEST_ANSWER or not normalize(gold):
        return "unparsable gold"
    if len(given) > LONGEST_ANSWER:
        return "wrong"
    if _same_choice(given, gold):
        return "right"
    labels = _circled_labels(gold)
    if labels:
        if _circled_labels(given) == labels:
            return "right"
        return "wrong"

    given, condition = _split_condition(given)
    gold, gold_condition = _split_condition(gold)
    if not _have_compatible_conditions(condition, gold_condition):
        return "wrong"
    own, other = _split_units(given, gold)
    if own.unit and other.unit and own.unit != other.unit:
        return "wrong"
    given, gold = own.number, other.number
    if _same_text(given, gold):
        return "right"
    if _has_ellipsis(given) or _has_ellipsis(gold):
        return "wrong"
    is_prose = any(_WORD.search(text) or _WORDS_ONLY.fullmatch(text) for text in (given, gold))
    if is_prose or is_short_word:
        if _prose(given) == _prose(gold):
            return "right"
        return "wrong"
    return None


def compare_symbolic(given: str, gold: str) -> Reason:
    """Compare by algebra what compare_text leaves undecided. Never raises; may not terminate."""
    from sympy import Rational, pi

    from paint.grading.math.parse import Scalar, parse_answer
    from paint.grading.math.symbolic import values_equal

    given, _ = _split_condition(_plain_answer(given))
    gold, _ = _split_condition(_plain_answer(gold))
    own, other = _split_units(given, gold)
    # A \log without a base is read as natural and as decimal, the same on both sides.
    has_log = _LOGARITHM.search(own.number + other.number)
    for log in ("ln", "log_{10}") if has_log else ("ln",):
        try:
            expected = parse_answer(other.number, log=log)
        except Exception:
            return "unparsable gold"

        try:
            value = parse_answer(own.number, log=log)
            if values_equal(value, expected):
                return "right"
            if not (isinstance(value, Scalar) and isinstance(expected, Scalar)):
                continue
            scales = {_PERCENT: Rational(1, 100), _PERMILLE: Rational(1, 1000), _DEGREE: pi / 180}
            for unit, scale in scales.items():
                # A unit that one side has scales its number: 50 % is 0.5.
                if own.unit == other.unit or unit not in (own.unit, other.unit):
                    continue
                a = _scaled(value, scale if own.unit == unit else 1)
                b = _scaled(expected, scale if other.unit == unit else 1)
                if values_equal(a, b):
                    return "right"
        except Exception:  # what cannot be read or compared is not right
            continue
    return "wrong"


def _scaled(value: Any, factor: Any) -> Any:
    """A Scalar times a factor."""
    return type(value)(value.expr * factor, value.is_decimal)


def explain_gold(gold: str) -> GoldReading:
    """How a gold answer is read, for a person who checks data. Never raises."""
    from paint.grading.math.parse import Statement, free_symbols, has_value, parse_answer

    bare = _plain_answer(gold)
    if not normalize(bare):
        return GoldReading("", "it is empty")
    if len(bare) > LONGEST_ANSWER:
        return GoldReading("", f"it is longer than {LONGEST_ANSWER} characters")

    answer, condition = _split_condition(bare)
    quantity, unit = _split_unit(answer)
    suspicions = []
    if boxed(gold) and not gold.strip().startswith(("\\boxed", "$\\boxed")):
        suspicions.append("only its box is read")
    if len(alternatives(gold)) > 1:
        suspicions.append("it is read as several accepted answers")
    if condition:
        suspicions.append(f"it is read without {condition!r}")

    labels = _circled_labels(quantity)
    if labels:
        return GoldReading(labels, suspicions=tuple(suspicions))
    if _WORD.search(quantity) or _WORDS_ONLY.fullmatch(quantity) or _has_ellipsis(quantity):
        return GoldReading(_prose(quantity), suspicions=("it is read as text", *suspicions))
    try:
        value = parse_answer(_integer(quantity) or quantity)
    except Exception:
        return GoldReading("", "it does not parse", tuple(suspicions))
    if not has_value(value):
        return GoldReading("", "it has no value", tuple(suspicions))

    if _SMALL_WORD.search(quantity):
        suspicions.append("its words are read as letters")
    if isinstance(value, Statement) and not free_symbols(value):
        suspicions.append("it is a statement about numbers, true or false")
    text = " ".join([str(value), *sorted(unit)])
    return GoldReading(text, suspicions=tuple(suspicions))


def _same_text(given: str, gold: str) -> bool:
    a, b = normalize(given), normalize(gold)
    if not a:
        return False
    # 107,109 may be a list of two numbers, and 107, 109 is one.
    return a == b or given.replace(", ", ",") == gold.replace(", ", ",")


def _same_choice(given: str, gold: str) -> bool:
    """True if one answer is a choice, and the other the same choice with its text: A and (A) 5."""
    choices = []
    for text in (given, gold):
        choices.append(_CHOICE.fullmatch(normalize(text)))
    letters = set()
    for choice in choices:
        if choice:
            letters.add(choice["letter"] or choice["labelled"] or choice["alone"])
    has_letter_alone = any(choice and choice["alone"] for choice in choices)
    return None not in choices and len(letters) == 1 and has_letter_alone


def _circled_labels(text: str) -> str:
    """The circled numbers of an answer that consists of them, such as ①③ of "①, ③"; else ""."""
    written = normalize(text)
    if _LABELS.fullmatch(written):
        return re.sub("[^①-⑳]", "", written)
    return ""


def _split_condition(text: str) -> tuple[str, str]:
    """Split an answer from a condition or remark after it: "n^2, for all n > 2"."""
    condition = _CONDITION.search(text)
    if (
        condition is None
        or _OTHERWISE.search(text)
        or not re.match(r"[^A-Za-z]|[A-Za-z](?![A-Za-z])", text)
    ):
        return text, ""
    answer = text[: condition.start()]
    if len(re.findall(r"[(\[]|\\{", answer)) > len(re.findall(r"[)\]]|\\}", answer)):
        return text, ""
    unclosed = answer.count("{") - answer.count("}")
    return answer + "}" * unclosed, condition[1]


def _have_compatible_conditions(condition: str, other: str) -> bool:
    """True if two answers may be compared without their conditions."""
    if not (condition and other) or any(map(_NEUTRAL_CONDITION.match, (condition, other))):
        return True
    return _prose(condition) == _prose(other)


def _prose(text: str) -> str:
    """Words in one spelling; Roman numerals, as of statements, sorted and without braces."""
    words = normalize(text).translate(_GREEK_WORDS)
    words = re.sub(r",?\s*\band\b,?\s*", ", ", words.casefold())
    numerals = words.removeprefix(r"\{").removesuffix(r"\}").replace(" ", "").split(",")
    if all(map(_ROMAN.fullmatch, numerals)):
        return ", ".join(sorted(numerals))
    return words


def _has_ellipsis(text: str) -> bool:
    """True if dots stand for omitted terms: 1, 2, ..., 9 is not 1, 2, 9."""
    return "…" in _DOTS_AFTER_DECIMAL.sub("", normalize(text))


class _Quantity(NamedTuple):
    """A number, and the parts of its unit in one spelling."""

    number: str
    unit: frozenset[str]


def _split_units(given: str, gold: str) -> tuple[_Quantity, _Quantity]:
    """Both answers as quantities, without a name that only one of them has."""
    given, gold = _last_side(given, gold), _last_side(gold, given)
    if "=" not in gold:
        given = _without_name(given)
    elif "=" not in given:
        gold = _without_name(gold)
    return _split_unit(given), _split_unit(gold)


def _last_side(text: str, other: str) -> str:
    """Of a chain with an ellipsis, 1 + ... + 9 = 45, the last side if the other is a value."""
    last = text.rpartition("=")[2]
    is_chain = "=" not in other and _has_ellipsis(text) and not _has_ellipsis(last)
    if is_chain:
        return last
    return text


def _without_name(text: str) -> str:
    """The answer without a leading `x =`."""
    name = _NAME.match(text)
    if name:
        return text[name.end() :]
    return text


def _split_unit(text: str) -> _Quantity:
    """Split a number from its unit, which is empty if it has none."""
    text = _SCIENTIFIC.sub(r"\1\3\\cdot 10^{\2\4}", text)
    text = _SHORT_MAGNITUDE.sub(lambda letter: rf"\cdot {_SHORT_POWERS[letter[1]]}", text)
    text = _MAGNITUDE.sub(lambda word: rf"\cdot {_POWERS[word[2]]}{word[1] or ''}", text)
    currency = _CURRENCY.match(text)
    number = text[currency.end() :] if currency else text

    written = ""
    unit = _UNIT.search(number)
    if unit and not _NO_UNIT.search(unit[0]):
        before = number[: unit.start()]
        # A word without a number before it is no unit, and the degrees of \sin 30^\circ belong to
        # the angle.
        if re.search(r"[0-9]|\\pi|π", before) and not _TRIGONOMETRIC.search(before):
            number, written = before, normalize(unit[0]).lower().replace("mph", "mi/h")

    parts = []
    for part in _UNIT_PART.findall(written):
        # Plurals; s and ms are units themselves.
        parts.append(part.removesuffix("s") if len(part) > 2 else part)
    if currency:
        parts.append(currency[1] if currency[1] in "€£" else "$")
    number = _SCIENTIFIC_VALUE.sub(_as_power, number.strip())
    # Signs are no parts, so km/h and km per h are the same.
    unit_parts = {_SAME_UNIT.get(part, part) for part in parts} - {"per"}
    return _Quantity(number, frozenset(unit_parts))


def _plain_answer(text: str) -> str:
    r"""The content of the box, if there is one, without delimiters, \text and full stop."""
    text = plain_characters(text)
    text = (
        _without_full_stop(_with_single_backslashes(boxed(text) or text))
        .removeprefix(r"\displaystyle")
        .lstrip()
    )
    for left, right in _DELIMITERS:
        if len(text) > len(left) + len(right) and text.startswith(left) and text.endswith(right):
            text = _without_full_stop(text[len(left) : -len(right)])
            break

    wrapped = _WRAPPED.fullmatch(text)
    text = _ANSWER_PHRASE.sub("", _without_full_stop(wrapped[1]) if wrapped else text)
    if r"\begin{cases}" in text:
        text = _CASES_WORDS.sub("", text)
    base = _WRITTEN_BASE.fullmatch(text)
    if base:
        return rf"{base[1]}_{{{base[2]}}}"
    text = _SCIENTIFIC_VALUE.sub(_as_power, text.strip(" $"))
    return latex_of_ascii(_CIRCLED.sub(_circled, text))


def _as_power(number: re.Match[str]) -> str:
    """1e-8 as a power of ten; within brackets, as in (3e-1)x, it is a formula and stays."""
    before, digits, exponent = number.groups()
    after = number.string[number.end() :].lstrip()
    if before.startswith("(") and after.startswith(")"):
        return number[0]
    return rf"{before}{digits.rstrip('.')}\cdot 10^{{{int(exponent)}}}"


def _circled(number: re.Match[str]) -> str:
    return chr(ord("①") + int(number[1] or number[2]) - 1)


def _with_single_backslashes(text: str) -> str:
    r"""Commands with one backslash in place of JSON's two."""
    if not re.search(r"(?<!\\)\\(?!\\)", text):
        return text.replace(r"\\", "\\")
    # In a matrix, two backslashes end a row.
    if r"\begin" in text:
        return text
    return re.sub(r"\\\\(?=[A-Za-z])", r"\\", text)


def _without_full_stop(text: str) -> str:
    return text.strip().removesuffix(".").strip()


def _integer(text: str) -> str | None:
    """The canonical digits of an integer, or None."""
    integer = _INTEGER.fullmatch(text)
    if integer is None:
        return None
    # Not int(), which refuses 5,000 digits.
    digits = re.sub("[^0-9]", "", integer[2]).lstrip("0")
    is_negative = digits and integer[1] not in ("", "+")
    if is_negative:
        return f"-{digits}"
    return digits or "0"


def _closing_brace(text: str, opening: int) -> int | None:
    depth = 0
    for match in _ESCAPE_OR_BRACE.finditer(text, opening):
        depth += {"{": 1, "}": -1}.get(match[0], 0)
        if depth == 0 and match[0] == "}":
            return match.start()
    return None
