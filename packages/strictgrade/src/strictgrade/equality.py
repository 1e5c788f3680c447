r"""Equality of a boxed answer with the gold answer, by integers, text and algebra.

    answers -> integers -> without conditions, units and names -> text -> algebra

`compare_text` decides by integers and by normalised text, in linear time. `compare_symbolic` uses
algebra, which may not terminate: strictgrade.comparer compares each pair in a separate process.
docs/concepts/grading.md says what is forgiven. What cannot be decided is not right.
"""

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

from strictgrade.ascii import GREEK, latex_of_ascii
from strictgrade.free_names import IS_IN_SET, IS_INTEGER, with_names_of
from strictgrade.inputs import Answer, require_packages, text_of
from strictgrade.spelling import (
    LONGEST_ANSWER,
    WRAPPER,
    is_too_deep,
    joined_thousands,
    plain_commands,
    plain_signs,
    with_powers,
)
from strictgrade.text import normalize
from strictgrade.units import (
    Quantity,
    QuantityUnit,
    has_letters,
    number_factors,
    split_quantity,
    split_signs,
)

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


_UNSCALED = ("1", "1")

# The last box counts, but not the empty one of the instruction "within \boxed{}".
# The blanks are possessive: given back, one of them would hide an empty box from the lookahead.
_BOX = re.compile(r"\\(?:boxed|fbox|framebox)(?![a-zA-Z])\s*+(?!\{\s*+\})")
_UNBRACED = re.compile(r"\\?[^\s$\\{}]+(?:\{[^{}]*\})*")
# An escape is one piece, so that the brace of \{ does not count.
_ESCAPE_OR_BRACE = re.compile(r"\\.|[{}]", re.DOTALL)

_DELIMITERS = (("$$", "$$"), ("$", "$"), (r"\(", r"\)"), (r"\[", r"\]"))
# Phrases around an answer, and commands of its size.
_ANSWER_PHRASE = re.compile(
    rf"^(?:(?:(?:{WRAPPER}\s*)?[Tt]he\s+(?:final\s+)?answer\s+is[\s:]*\}}?|\\therefore(?![A-Za-z]))\s*)*"
    rf"(?:(?:{WRAPPER}\s*)?(?:Option|Choice|Answer)[\s:]*\}}?\s*(?=\(?[A-Z]\)?(?:\}}?$|[:.]?\s)))?"
    r"|\\(?:[lL]arge|LARGE|[hH]uge|small)(?![A-Za-z])\s*|(?<!\s)\s*\\checkmark$"
)
_CASES_WORDS = re.compile(rf"{WRAPPER}\s*(?:if|for|when)?\s*\}}|[,;.](?=\s*(?:&|\\\\|\\end))")
_WRAPPED = re.compile(rf"{WRAPPER}([^{{}}]*)\}}")
_SEPARATOR = r"(?:,\\!\s*|\{,\}|\\[,;: ]|[, ~])"
# 12,34,567, or a list of three.
_IN_PAIRS = r"[0-9]{1,2}(?:(?:,|\{,\})[0-9]{2})+(?:,|\{,\})[0-9]{3}"
_INTEGER = re.compile(
    rf"([+\-\u2212]?)\s*([0-9]{{1,3}}(?:{_SEPARATOR}[0-9]{{3}})+|(?P<pairs>{_IN_PAIRS})|[0-9]+)"
)
_LIST_OR_THOUSANDS = re.compile("[1-9][0-9]{2}(?:,[1-9][0-9]{2})+")  # 107,109

# What stands before a value: x =
_NAME = re.compile(
    rf"(?:[^0-9=<>!:{{}}]|\{{[^0-9={{}}]*\}}|\^\{{-1\}}|_[0-9])+=(?=[^=]+$)|\s*{WRAPPER}[^{{}}]*\}}\s*="
)
_WRITTEN_BASE = re.compile(  # 52 (base 8) is 52_{8}, and so is (52)_8
    rf"\(?([0-9]+)\)?(?:\\[,; ]|[\s~])*(?:_\{{?|(?:{WRAPPER}\s*)?\(?base\s*\$?)([0-9]+)[$)}}\s]*"
)

# Prose is compared as text: as a formula, seat and east are the same product of letters.
_NOT_WORDS = "sqrt matrix pmatrix bmatrix vmatrix array cases"
_NO_WORD = rf"(?!(?:{'|'.join(_NOT_WORDS.split())})(?![A-Za-z]))"
_WORD = re.compile(rf"(?<![\\A-Za-z]){_NO_WORD}[A-Za-z]{{4,}}")
_SHORT_WORD = r"(?<![A-Za-z])(?:(?!and(?![A-Za-z]))[A-Za-z]{3}|[Nn][Oo](?![A-Za-z]))"
_WORDS_ONLY = re.compile(rf"(?=.*{_SHORT_WORD})[A-Za-z\s.,'-]+", re.DOTALL)

_ALTERNATIVE = re.compile(rf"{WRAPPER}\s*OR\s*\}}|(?<![A-Za-z\\])OR(?![A-Za-z])")
_WRAPPED_WORD = re.compile(rf"{WRAPPER}\s*[A-Za-z]{{2,3}}\.?\s*\}}")

# Conditions and remarks after an answer. Some of them restrict nothing.
_BEFORE_CONDITION = rf"(?:[\s,;~(]|\\[,;: ]|\\q?quad(?![A-Za-z])|{WRAPPER}[\s,;(]*)*"
_CONDITION_WORDS = (
    r"for|where|if|when|whenever|with|provided|such that|about|approximately|approx|by|i\.e\."
)
# m, n \in \mathbb{Z} behind a comma; behind a blank one name, as of 2\pi n, n \in \mathbb{Z}.
_MEMBERSHIP = (
    r"(?:(?<=[,;(])\s*[A-Za-z](?:\s*,\s*[A-Za-z])*|(?<=quad)\s*[A-Za-z]|(?<=\s)[A-Za-z])"
    rf"(?:{IS_IN_SET}|{IS_INTEGER})"
)
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

# Of conditions in small letters.
_SET_OF_NUMBERS = re.compile(
    r"(?<=∈)(?:\\mathbb ?(?:\{([nzqrc])\}|([nzqrc]))|\\([nzqrc])(?![a-z]))"
)
_LETTERS_OF_SETS = str.maketrans("ℕℤℚℝℂ", "nzqrc")  # noqa: RUF001
_INTEGER_IN_WORDS = re.compile(
    r"(?:(?:for|if|when) )?(?:(?:an )?integers? ([a-z])|([a-z]) (?:(?:is|be) )?(?:an )?integers?)"
)

_SMALL_WORD = re.compile(r"(?<![A-Za-z\\])(?:of|is|the|in|to|at|on|per|each)(?![A-Za-z])")
_DOTS_AFTER_DECIMAL = re.compile(r"\.[0-9]++…")  # a decimal with dots is no list with dots
# (A) 5, (A): 5, (A) x = 5, A: 5, A. 5 and A) 5, but not the ratio A:b and the products A.5 and (A)x
_NO_FURTHER_LETTER = r"(?!.*(?<![A-Za-z])(?:or|and)(?![A-Za-z]))[^A-Z,]*"
_LETTER_AND_ANSWER = (
    r"(?:\((?P<letter>[A-J])\)(?P<colon>[:.]\s?)?|(?P<labelled>[A-J])(?:[:)]|\. |\.(?![0-9])))"
    r"(?:-?\.?[0-9]|\\[a-z]|[a-z](?:_\{[a-z0-9]\})?[=<>≤≥≠≈∈]"
    r"|(?(labelled)(?:[a-z]{2}|[a-z(]+[-+*/^=|])|(?(colon)[a-z(]|(?!))))"
    rf"{_NO_FURTHER_LETTER}"
)
_LETTER_ALONE = r"\(?(?P<alone>[A-J])\)?"
_CHOICE = re.compile(rf"{_LETTER_AND_ANSWER}|{_LETTER_ALONE}")
# B - 7 is a choice with its text only where a letter is asked.
_DASHED_CHOICE = re.compile(
    rf"\(?([A-J])\)?(?:\s+-{{1,3}}\s+|\s*[\u2013\u2014]\s*)(?=[-.0-9\\$({{a-z]){_NO_FURTHER_LETTER}"
)

_TIME = re.compile(r"([0-9]{1,2})(?::([0-9]{2}))?")

# Numbers of statements: \textcircled{1} is ①.
_CIRCLED = re.compile(r"\\(?:text)?circled\s*(?:\{\s*(?:\\[a-z]+\s*)?(1?[1-9]|[12]0)\s*\}|([1-9]))")
_LABELS = re.compile(r"(?:[\s,;(){}]|and|\\)*(?:[①-⑳](?:[\s,;(){}]|and|\\)*)+")
_LABELS_IN_BRACKETS = re.compile(r"(?:\((?:1?[1-9]|[12]0)\)[\s,;]*)+")
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
    answers = [part for part in _ALTERNATIVE.split(gold) if part.strip()]
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
        if not any(map(_is_in_pairs, (given, gold))):
            return "wrong"
    if _same_text(given, gold):
        return "right"

    # After the texts: the same text is right, however long and deep it is.
    if len(gold) > LONGEST_ANSWER or is_too_deep(gold) or not normalize(gold):
        return "unparsable gold"
    if len(given) > LONGEST_ANSWER or is_too_deep(given):
        return "wrong"
    if _same_choice(given, gold):
        return "right"
    own_labels, labels = _circled_labels(given), _circled_labels(gold)
    if labels or own_labels:
        if (own_labels or _bracketed_labels(given)) == (labels or _bracketed_labels(gold)):
            return "right"
        if labels:
            return "wrong"

    (given, condition), (gold, gold_condition) = _split_conditions(given, gold)
    if not _have_compatible_conditions(condition, gold_condition):
        return "wrong"
    own, other = _split_units(given, gold)
    factors_of_numbers = number_factors(own.unit, other.unit)
    if not factors_of_numbers:
        return "wrong"
    given, gold = own.number, other.number
    if own.unit.is_half_of_day or other.unit.is_half_of_day:
        times = _TIME.fullmatch(given.strip()), _TIME.fullmatch(gold.strip())
        if times[0] and times[1]:
            return "right" if _minutes(times[0]) == _minutes(times[1]) else "wrong"
    if _UNSCALED in factors_of_numbers and _same_number_or_text(given, gold):
        return "right"
    if _has_ellipsis(given) or _has_ellipsis(gold):
        return "wrong"
    is_prose = any(_WORD.search(text) or _WORDS_ONLY.fullmatch(text) for text in (given, gold))
    if is_prose or is_short_word:
        if _UNSCALED in factors_of_numbers and _prose(given) == _prose(gold):
            return "right"
        return "wrong"
    return None


def compare_symbolic(given: str, gold: str) -> Reason:
    """Compare by algebra what compare_text leaves undecided. Never raises; may not terminate."""
    from sympy import sympify

    from strictgrade.parse import Scalar, parse_answer
    from strictgrade.symbolic import values_equal

    (given, _), (gold, _) = _split_conditions(_plain_answer(given), _plain_answer(gold))
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
            for pair in number_factors(own.unit, other.unit):
                a, b = value, expected
                if pair != _UNSCALED:
                    if not (isinstance(value, Scalar) and isinstance(expected, Scalar)):
                        continue
                    a, b = _scaled(value, sympify(pair[0])), _scaled(expected, sympify(pair[1]))
                if values_equal(a, b):
                    return "right"
        except Exception:  # what cannot be read or compared is not right
            continue
    return "wrong"


def _scaled(value: Any, factor: Any) -> Any:
    """A Scalar times a factor."""
    return type(value)(value.expr * factor, value.is_decimal)


def explain_gold(gold: Answer) -> GoldReading:
    """How a gold answer is read, for a person who checks data; it never raises for a text."""
    require_packages()
    return _explained(text_of(gold))


@lru_cache(maxsize=10_000)
def _explained(gold: str) -> GoldReading:
    from strictgrade.parse import Statement, free_symbols, has_value, parse_answer

    bare = _plain_answer(gold)
    if not normalize(bare):
        return GoldReading("", "it is empty")
    if len(bare) > LONGEST_ANSWER:
        return GoldReading("", f"it is longer than {LONGEST_ANSWER} characters")

    answer, condition = _split_condition(bare)
    quantity, unit = split_signs(answer) or split_quantity(answer)
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
    return GoldReading(f"{value} {unit}".strip(), suspicions=tuple(suspicions))


def _same_text(given: str, gold: str) -> bool:
    a, b = normalize(given), normalize(gold)
    if not a:
        return False
    if a == b:
        return _rows_and_columns(given) == _rows_and_columns(gold)
    # 107,109 may be a list of two numbers, and 107, 109 is one; 1,234 is no list.
    without_blanks = {text.replace(", ", ",") for text in (given, gold)}
    integers = [_integer(text) for text in (given, gold)]
    is_number = any(integers) and not all(map(_may_be_list, without_blanks))
    return len(without_blanks) == 1 and not is_number


def _rows_and_columns(text: str) -> list[str]:
    """The separators of cells and rows of matrices, which normalisation turns into blanks."""
    if "matrix}" not in text and "{array}" not in text:
        return []
    return re.findall(r"&|\\\\(?!\s*\\end)", text)


def _minutes(time: re.Match[str]) -> int:
    """The minutes of a time such as 2:30, which is no ratio beside p.m."""
    return 60 * int(time[1]) + int(time[2] or 0)


def _same_number_or_text(given: str, gold: str) -> bool:
    number = _integer(given)
    return _same_text(given, gold) or (number is not None and number == _integer(gold))


def _may_be_list(text: str) -> bool:
    """True if a number with commas may be a list without blanks: 107,109 or 12,34,567."""
    return _is_in_pairs(text) or _LIST_OR_THOUSANDS.fullmatch(text) is not None


def _is_in_pairs(text: str) -> bool:
    """True for a number such as 12,34,567, which may be a list."""
    integer = _INTEGER.fullmatch(text)
    return integer is not None and integer["pairs"] is not None


def _same_choice(given: str, gold: str) -> bool:
    """True if one answer is a choice, and the other the same choice with its text: A and (A) 5."""
    asked = re.fullmatch(_LETTER_ALONE, normalize(gold))
    dashed = _DASHED_CHOICE.fullmatch(re.sub(rf"{WRAPPER}|[{{}}]", "", given).strip())
    if asked and dashed and "=" not in given:
        return asked["alone"] == dashed[1]
    choices = [_CHOICE.fullmatch(normalize(text)) for text in (given, gold)]
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


def _bracketed_labels(text: str) -> str:
    """The numbers of an answer such as (1)(3) as circled ones; else ""."""
    if _LABELS_IN_BRACKETS.fullmatch(text):
        return "".join(chr(ord("①") + int(number) - 1) for number in re.findall("[0-9]+", text))
    return ""


def _split_conditions(given: str, gold: str) -> list[tuple[str, str]]:
    """Both answers and their conditions, by the free names of the gold answer."""
    answers = _split_condition(gold)[0], _split_condition(given)[0]
    given = with_names_of(gold, given, answers=answers)
    return [_split_condition(given), _split_condition(gold)]


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
    return _plain_condition(condition) == _plain_condition(other)


def _plain_condition(condition: str) -> str:
    r"""A condition in one spelling: k \in \mathbb{Z}, k ∈ ℤ and "for integer k" are the same."""
    words = _SET_OF_NUMBERS.sub(lambda found: found[1] or found[2] or found[3], _prose(condition))
    if words.count(")") > words.count("("):  # of (k \in \mathbb{Z})
        words = words.removesuffix(")")
    integer = _INTEGER_IN_WORDS.fullmatch(" ".join(words.replace("}", " ").split()))
    if integer:
        return f"{integer[1] or integer[2]}∈z"
    return words.translate(_LETTERS_OF_SETS)


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


def _split_units(given: str, gold: str) -> tuple[Quantity, Quantity]:
    """Both answers as quantities, without a name that only one of them has."""
    given, gold = _last_side(given, gold), _last_side(gold, given)
    if "=" not in gold:
        given = _without_name(given)
    elif "=" not in given:
        gold = _without_name(gold)
    own, other = split_quantity(given), split_quantity(gold)
    # 5 N is 5 newtons if the other answer is in newtons.
    if other.unit.counts and not (own.unit.counts and own.unit.may_be(other.unit)):
        own = _in_unit_of(other, given, own)
    if own.unit.counts and not (other.unit.counts and other.unit.may_be(own.unit)):
        other = _in_unit_of(own, gold, other)
    own, other = _with_signs((given, own), (gold, other))
    return _without_pairs(own, other), _without_pairs(other, own)


def _without_pairs(quantity: Quantity, other: Quantity) -> Quantity:
    """12,34,567 as a number, unless the other answer is a list."""
    if _is_in_pairs(quantity.number) and "," not in other.number:
        return quantity._replace(number=str(_integer(quantity.number)))
    return quantity


def _with_signs(*answers: tuple[str, Quantity]) -> list[Quantity]:
    """Both answers with signs such as km/h as units, where neither has unknowns.

    Beside unknowns they are a product: 60 m/s is equal to 60m/s and \frac{60m}{s}.
    """
    names = [_NAME.match(text) for text, _ in answers]
    have_one_name = len({normalize(name[0]) if name else None for name in names}) == 1
    read = []
    for text, quantity in answers:
        number = quantity.number
        if have_one_name:
            text, number = _without_name(text), _without_name(number)
        has_unknowns = has_letters(number)
        read.append(split_signs(text) if has_unknowns else quantity._replace(number=number))
    found = [quantity for quantity in read if quantity]
    if len(found) == len(answers):
        return found
    # What was split from a product, as /cm from 5 N/cm, belongs to it.
    return [
        Quantity(text, QuantityUnit()) if signs and has_letters(quantity.number) else quantity
        for (text, quantity), signs in zip(answers, read, strict=True)
    ]


def _in_unit_of(other: Quantity, text: str, quantity: Quantity) -> Quantity:
    """The quantity with letters read as units, if they are the unit of the other one."""
    read = split_quantity(text, letters=True)
    if read.unit.counts and read.unit.may_be(other.unit):
        return read
    return quantity


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


def _plain_answer(text: str) -> str:
    r"""The content of the box, if there is one, without delimiters, \text and full stop."""
    text = plain_signs(text)
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
    if text.count("}") > text.count("{"):  # of \text{Option B: } 5
        text = text.replace("}", " ", 1)
    if r"\begin{cases}" in text:
        text = _CASES_WORDS.sub("", text)
    base = _WRITTEN_BASE.fullmatch(text)
    if base:
        return rf"{base[1]}_{{{base[2]}}}"
    text = with_powers(_without_dollar_signs(text))
    if len(text) <= LONGEST_ANSWER:
        text = joined_thousands(plain_commands(text))
    return latex_of_ascii(_CIRCLED.sub(_circled, text))


def _without_dollar_signs(text: str) -> str:
    r"""The text without the $ of formulas around it; that of $5 alone is \$, a currency."""
    bare = text.strip(" $")
    if text.count("$") == 1 and re.match(r"\s*\$\s*\.?[0-9]", text):
        return rf"\${bare}"
    return rf"{bare}$" if bare.endswith("\\") and "$" in text[len(bare) :] else bare


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
