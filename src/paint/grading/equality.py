r"""Are two answers the same? The content of a box, and its equality with the gold answer.

    answers -> integers -> without units and names -> text -> math-verify

`at_sight` decides by integers and `latex.normalize`, in linear time. The rest is algebra, which may
take for ever (9^{9^{9}}): paint.grading.grader gives each pair a process of its own, which can be
ended.

Forgiven: a unit, a percent or currency sign or a name (`x =`) that only one side has, the order of
a list, decimals that agree to six places.

Not forgiven: two different units, another order in a tuple, open ends of an interval for closed
ones, a tuple for a set in braces, dots for omitted terms unless both texts are the same.

Left out: several boxes read as one list, how often a list holds an element, bounds found by solving
(x^2 < 4 for -2 < x < 2).

Each rule is here because a verdict changes without it (docs/log.md, 2026-11-22).
"""

import contextlib
import logging
import re
from dataclasses import dataclass
from typing import Any, Literal

from paint.latex import normalize

Reason = Literal[
    "right", "wrong", "no box", "unclosed thought", "truncated", "unparsable gold", "timed out"
]

Kind = Literal[
    "number", "expression", "relation", "tuple", "set", "interval", "matrix", "text", "nothing"
]


@dataclass(frozen=True, slots=True)
class Reading:
    """What the grader understands of a gold answer."""

    kind: Kind
    text: str  # what was understood; empty where nothing was
    reason: str = ""  # why nothing was understood; empty where something was
    suspicions: tuple[str, ...] = ()  # why a person should look at it; most readings have none

    @property
    def parses(self) -> bool:
        """Whether answers can be compared with it otherwise than by their text."""
        return self.kind != "nothing"


# Characters; longer answers are compared as integers and as text only.
LONGEST_ANSWER = 2000

# The last box counts, but not the empty one of the instruction "within \boxed{}".
_BOX = re.compile(r"\\(?:boxed|fbox|framebox)(?![a-zA-Z])\s*+(?!\{\s*+\})")
_UNBRACED = re.compile(r"\\?[^\s$\\{}]+(?:\{[^{}]*\})*")
_ESCAPE_OR_BRACE = re.compile(r"\\.|[{}]", re.DOTALL)

_DELIMITERS = (("$$", "$$"), ("$", "$"), (r"\(", r"\)"), (r"\[", r"\]"))
_WRAPPER = r"\\(?:text(?:bf|it|rm|normal)?|math(?:rm|bf|it|sf)|mbox)\s*\{"
_WRAPPED = re.compile(rf"{_WRAPPER}([^{{}}]*)\}}")
_SEPARATOR = r"(?:,\\!|\{,\}|\\[,;: ]|[, ~])"
_INTEGER = re.compile(rf"([+\-\u2212]?)\s*([0-9]{{1,3}}(?:{_SEPARATOR}[0-9]{{3}})+|[0-9]+)")

# What stands before a value: x =, (x, y) = and a currency sign.
_NAME = re.compile(r"(?:[^0-9=<>!:{}]|\{[^0-9={}]*\})+=(?=[^=]+$)")
_TUPLE_NAME = re.compile(r"\(\s*[A-Za-z](?:\s*,\s*[A-Za-z])+\s*\)\s*=")
_CURRENCY_SIGN = r"\\?\$|€|£|\\pounds(?![a-z])|\\text\s*\{\s*\\?\$\s*\}"
_CURRENCY = re.compile(rf"\s*({_CURRENCY_SIGN})")

# What stands after it: one or more units, up to the end.
_GAP = r"(?:[\s~/]|\\[,;:! ]|\\cdot(?![A-Za-z]))*+"
_POWER = r"(?:\s*\^\s*(?:\{\s*-?[0-9]\s*\}|[0-9]))?"
_WRAPPED_UNIT = (  # \mathrm{i} and \mathrm{e} are numbers
    rf"{_WRAPPER}(?!\s*[ei]\s*\}})[^{{}}]*\}}{_POWER}"
)
_RAISED_CIRCLE = r"\^\s*(?:\\circ|\{\s*\\circ\s*\})"
_DEGREE_SIGN = rf"{_RAISED_CIRCLE}(?:\s*[CF](?![A-Za-z]))?|\\degree(?![A-Za-z])|°"
_PERCENT_SIGN = r"\\?%"
_PLAIN_WORD = r"(?<![A-Za-z\\])[a-z]{4,}"
_ABBREVIATION = (  # only after a blank: 2km may be 2 times k times m
    r"(?<=[\s~,;:!])(?:[cmk]m|[km]?g|ft|lb|oz|hr|min|sec|mph|[ap]\.?m)"
)
_PLAIN_UNIT = rf"(?:{_PLAIN_WORD}|{_ABBREVIATION})\b{_POWER}"
_BASE = r"(?<=[0-9])_(?:[0-9]|\{[0-9]+\})"  # 52_8: forgiven like a unit
_ONE_UNIT = rf"(?:{_WRAPPED_UNIT}|{_DEGREE_SIGN}|{_PERCENT_SIGN}|{_PLAIN_UNIT}|{_BASE})"
_UNIT = re.compile(rf"(?:{_GAP}{_ONE_UNIT})+\s*$")

# Words after a number that change it instead of counting something.
_CHANGING_WORDS = """
and or not if unless except than least most plus minus half halves squared cubed factorial
impossible k
"""
_CHANGING_WORD = rf"(?<![A-Za-z])(?:{'|'.join(_CHANGING_WORDS.split())})(?![A-Za-z])"
_FURTHER_NUMBER = r"(?<!mod)(?<!base)[\s~][0-9]"  # 2 hours 30 minutes
_NO_UNIT = re.compile(rf"{_CHANGING_WORD}|{_FURTHER_NUMBER}")

# Units are compared part by part, each in one spelling.
_UNIT_PART = re.compile(r"[ap]\.m|[A-Za-z]+|[%°$€£]|[\^_][^A-Za-z0-9]*[0-9]+")
_SPELLINGS = """
cm centimeter centimetre; mm millimeter millimetre; km kilometer kilometre; m meter metre
in inch inche; ft foot feet; yd yard; mi mile; g gram; kg kilogram; lb pound; oz ounce; s sec second
min minute; h hr hour; l liter litre; $ dollar; % percent; ° degree deg circ
^{2 square sq; ^{3 cubic cu; am a.m; pm p.m
"""
_SAME_UNIT = {
    name: unit
    for unit, *names in map(str.split, re.split("[;\n]", _SPELLINGS.strip()))
    for name in names
}
_PERCENT, _DEGREE = frozenset("%"), frozenset("°")

_POWERS = {
    "dozen": "12",
    "hundred": "10^2",
    "thousand": "10^3",
    "million": "10^6",
    "billion": "10^9",
}
_MAGNITUDE = re.compile(
    rf"(?<=[0-9])(?:[\s~]|\\[,;: ])*+({_WRAPPER}\s*)?({'|'.join(_POWERS)})(?![A-Za-z])"
)

# Prose is compared as text: for math-verify, seat and east are the same product of letters.
_NOT_WORDS = "sqrt matrix pmatrix bmatrix vmatrix array cases"
_NO_WORD = rf"(?!(?:{'|'.join(_NOT_WORDS.split())})(?![A-Za-z]))"
_WORD = re.compile(rf"(?<![\\A-Za-z]){_NO_WORD}[A-Za-z]{{4,}}")
_SHORT_WORD = r"(?<![A-Za-z])(?!and(?![A-Za-z]))[A-Za-z]{3}"
_WORDS_ONLY = re.compile(rf"(?=.*{_SHORT_WORD})[A-Za-z\s.,'-]+", re.DOTALL)

_GOES_ON = re.compile(r"\.[0-9]++…")  # a decimal with dots is no list with dots
_LETTER_AND_ANSWER = r"\((?P<letter>[A-E])\)-?(?:[0-9]|\\[a-z])[^A-Z,]*"  # (A) 5
_LETTER_ALONE = r"\(?(?P<alone>[A-E])\)?"
_CHOICE = re.compile(rf"{_LETTER_AND_ANSWER}|{_LETTER_ALONE}")
_LONE_TUPLE = re.compile(  # \{(1, 2)\} is (1, 2)
    r"(?:\\left\s*)?\\\{\s*(\([^(){}]*\))\s*(?:\\right\s*)?\\\}"
)
_OR = re.compile(r"(?<![A-Za-z])or(?![A-Za-z])")

# Spellings that latex2sympy does not know, or takes for something else. It knows ≤, ≥, ∪ and ∅.
_PERIOD = r"\\(?:overline|bar|dot)\s*\{\s*([0-9]{1,20})\s*\}"
_REPEATING = re.compile(rf"([0-9]*)\.([0-9]*){_PERIOD}")
_COMMAND_OF_ANGLES = r"\\(?:sin|cos|tan|cot|sec|csc)"
_PLAIN_FUNCTION = r"(?<![A-Za-z\\])(?:sin|cos|tan)"
_TRIGONOMETRIC = re.compile(rf"(?:{_COMMAND_OF_ANGLES}|{_PLAIN_FUNCTION})(?![a-z])")
_NUMBER = r"(?:[0-9]+(?:\.[0-9]+)?|\\frac\{[0-9]+\}\{[0-9]+\})"
_VARIABLE = r"(?:[A-Za-z]|\\[A-Za-z]+)"
_DEGREES = re.compile(rf"({_NUMBER}|{_VARIABLE})\s*(?:{_RAISED_CIRCLE}|\\degree(?![A-Za-z]))")
_LATEX_OF_SIGNS = str.maketrans(
    {
        "∞": r"\infty ",
        "√": r"\sqrt ",
        "²": "^{2}",
        "³": "^{3}",
        "½": r"\frac{1}{2}",
        "¼": r"\frac{1}{4}",
        "¾": r"\frac{3}{4}",
        "°": r"^{\circ}",
    }
)
_SYNONYMS = [
    (re.compile(rf"\\{unknown}(?![A-Za-z])"), rf"{known} ")
    for unknown, known in (
        ("langle", "("),
        ("rangle", ")"),
        ("bigcup", r"\\cup"),
        ("lg", r"\\log_{10}"),
        (r"log_(?:e|\{e\})", r"\\ln"),
    )
]
_PLUS_MINUS = re.compile(r"\\pm(?![A-Za-z])|±")


def boxed(text: str) -> str | None:
    r"""The content of the last \boxed{...} (or \fbox, \framebox), its braces balanced.

    None without a box, and where the last box never closes: the text was cut inside its answer.
    Empty boxes, as in the instruction "within \boxed{}", are passed over. Without braces, \boxed 5
    holds the text up to white space, $ or a brace, unless it is a word of prose.
    """
    for box in reversed(list(_BOX.finditer(text))):
        if text.startswith("{", box.end()):
            end = _closing_brace(text, box.end())
            if end is None:
                return None
            content = text[box.end() + 1 : end].strip()

        else:
            unbraced = _UNBRACED.match(text, box.end())
            content = unbraced[0].rstrip(".,;:!?)") if unbraced else ""
            content = "" if len(content) > 1 and content.isalpha() else content

        if content:
            return content
    return None


def at_sight(given: str, gold: str) -> Reason | None:
    """Decides by integers and by text, in linear time; None where it takes algebra."""
    given, gold = _bare(given), _bare(gold)
    is_same = _same_integers(given, gold)
    if is_same is not None:
        return "right" if is_same else "wrong"
    if _same_text(given, gold):
        return "right"

    if len(gold) > LONGEST_ANSWER or not normalize(gold):
        return "unparsable gold"
    if len(given) > LONGEST_ANSWER:
        return "wrong"
    if _same_choice(given, gold):
        return "right"

    given, unit, gold, gold_unit = _quantities(given, gold)
    if unit and gold_unit and unit != gold_unit:
        return "wrong"
    is_same = _same_integers(given, gold)
    if is_same or _same_text(given, gold):
        return "right"
    if is_same is False and (unit == gold_unit or _PERCENT not in (unit, gold_unit)):
        return "wrong"

    if _set_and_tuple(given, gold) or _set_and_tuple(gold, given):
        return "wrong"
    if _leaves_out(given) or _leaves_out(gold):
        return "wrong"
    if any(_WORD.search(text) or _WORDS_ONLY.fullmatch(text) for text in (given, gold)):
        is_same = normalize(given).casefold() == normalize(gold).casefold()
        return "right" if is_same else "wrong"
    return None


def by_algebra(given: str, gold: str) -> Reason:
    """Decides by math-verify what at_sight leaves open. Never raises; may take for ever."""
    from latex2sympy2_extended import is_expr_of_only_symbols
    from math_verify import verify
    from sympy import Eq, Rational, pi

    # It warns that its time-outs are off.
    logging.getLogger("math_verify").setLevel(logging.ERROR)

    given, unit, gold, gold_unit = _quantities(_bare(given), _bare(gold))
    value, expected = _parsed(given), _parsed(gold)
    if expected is None:
        return "unparsable gold"
    if value is None:
        return "wrong"

    # math-verify takes x^2+y^2=1 for 1.
    is_equation = isinstance(value, Eq)
    is_statement = is_equation and value.lhs.free_symbols and not is_expr_of_only_symbols(value.lhs)
    if is_statement and not isinstance(expected, Eq):
        return "wrong"

    candidates = [(value, expected)]
    for sign, factor in ((_PERCENT, Rational(1, 100)), (_DEGREE, pi / 180)):
        if unit != gold_unit and sign in (unit, gold_unit):
            with contextlib.suppress(TypeError):  # a list of percentages
                converted = (value * factor, expected) if unit else (value, expected * factor)
                candidates.append(converted)
    if _OR.search(given) or _OR.search(gold):
        candidates.append((_union(value), _union(expected)))

    for a, b in candidates:
        if not _apart(a, b) and verify(b, a, timeout_seconds=None, allow_set_relation_comp=True):
            return "right"
    return "wrong"


def reading_of(gold: str) -> Reading:
    """How a gold answer is understood, for a person who checks data. Never raises."""
    bare = _bare(gold)
    if not normalize(bare):
        return Reading("nothing", "", "it is empty")
    if len(bare) > LONGEST_ANSWER:
        return Reading("nothing", "", f"it is longer than {LONGEST_ANSWER} characters")
    digits = _integer(bare)
    if digits is not None:
        return Reading("number", digits)

    number, unit = _quantity(_unnamed(bare))
    if _WORD.search(number) or _WORDS_ONLY.fullmatch(number):
        return Reading("text", normalize(number), suspicions=("it is compared as text",))
    value = _parsed(number)
    if value is None:
        return Reading("nothing", "", "it does not parse")
    return Reading("expression", f"{value} {' '.join(sorted(unit))}".strip())


def _parsed(latex: str) -> Any:
    """The sympy object of a formula; None when it does not parse."""
    from latex2sympy2_extended import NormalizationConfig, latex2sympy
    from latex2sympy2_extended.latex2sympy2 import ConversionConfig
    from sympy import I, Symbol

    # units=True would take 4t for 4.
    forgiving = NormalizationConfig(units=False, malformed_operators=True, nits=True, boxed="none")
    exact = ConversionConfig(lowercase_symbols=False)
    i = Symbol("i", real=True)

    latex = _REPEATING.sub(_as_fraction, latex).translate(_LATEX_OF_SIGNS)
    for unknown, known in _SYNONYMS:
        latex = unknown.sub(known, latex)
    if _TRIGONOMETRIC.search(latex):
        latex = _DEGREES.sub(r"(\1\\cdot\\frac{\\pi}{180})", latex)

    # latex2sympy misreads \pm within a pair, and does not read it at all within a fraction.
    sides = _PLUS_MINUS.split(latex)
    if len(sides) == 2 and r"\{" not in latex:
        latex = ", ".join(sign.join(sides) for sign in "+-")

    try:
        value = latex2sympy(
            latex, is_real=True, normalization_config=forgiving, conversion_config=exact
        )
        # A free i is the imaginary unit; that of a sum is bound.
        return value.xreplace({i: I}) if i in value.free_symbols else value
    except Exception:
        return None


def _union(value: Any) -> Any:
    """One set of numbers for `x < 1 or x > 2`, which is parsed as a list; all else unchanged."""
    from sympy import And, FiniteSet, Interval, Union
    from sympy.core.relational import Relational

    if not isinstance(value, FiniteSet) or len(value.free_symbols) > 1:
        return value
    if any(isinstance(part, Interval) and part.measure.is_finite for part in value.args):
        return value  # perhaps pairs of numbers

    try:
        return Union(
            *(part.as_set() if isinstance(part, Relational | And) else part for part in value.args)
        )
    except Exception:
        return value


def _as_fraction(decimal: re.Match[str]) -> str:
    """The fraction of a repeating decimal: 0.1\\overline{6} is 15/90."""
    whole, start, period = decimal.groups()
    nines = f"{'9' * len(period)}{'0' * len(start)}"
    return rf"\frac{{{int(whole + start + period) - int(whole + start or '0')}}}{{{nines}}}"


def _apart(a: Any, b: Any) -> bool:
    """Whether two numbers differ by more than a rounding error.

    For math-verify, 0.0000001 is 0.0000002.
    """
    try:
        gap = abs((a - b).evalf())
        size = max(abs(a.evalf()), abs(b.evalf()))
        return bool(gap > 1e-5 * size and gap > 1e-60)  # evalf makes sin(pi) nearly 0
    except Exception:
        return False  # not two numbers


def _same_integers(given: str, gold: str) -> bool | None:
    """Whether two integers are equal; None unless both are integers."""
    integers = _integer(given), _integer(gold)
    return None if None in integers else integers[0] == integers[1]


def _same_text(given: str, gold: str) -> bool:
    a, b = normalize(given), normalize(gold)
    if not a:
        return False
    # 107,109 may be a list of two numbers, and 107, 109 is one.
    return a == b or given.replace(", ", ",") == gold.replace(", ", ",")


def _same_choice(given: str, gold: str) -> bool:
    """Whether one side is a choice, and the other the same choice with its answer: A and (A) 5."""
    choices = [_CHOICE.fullmatch(normalize(text)) for text in (given, gold)]
    letters = {choice["letter"] or choice["alone"] for choice in choices if choice}
    has_letter_alone = any(choice and choice["alone"] for choice in choices)
    return None not in choices and len(letters) == 1 and has_letter_alone


def _set_and_tuple(a: str, b: str) -> bool:
    r"""Whether a is \{1, 2\} and b (1, 2).

    A set of tuples is no such set: \{(1, 2)\} equals (1, 2), and several tuples equal their set.
    """
    a, b = normalize(a), normalize(b)
    is_set = a.startswith(r"\{") and a.endswith(r"\}") and not a.startswith((r"\{(", r"\{["))
    is_tuple = b.startswith(("(", "[")) and b.endswith((")", "]")) and "),(" not in b
    return is_set and is_tuple


def _leaves_out(text: str) -> bool:
    """Whether dots stand for omitted terms. For math-verify, 1, 2, ..., 9 is 1, 2, 9."""
    return "…" in _GOES_ON.sub("", normalize(text))


def _quantities(given: str, gold: str) -> tuple[str, frozenset[str], str, frozenset[str]]:
    """Both answers, each followed by its unit, without the unit and without a lone side's name."""
    if "=" not in gold:
        given = _unnamed(given)
    elif "=" not in given:
        gold = _unnamed(gold)
    return (*_quantity(given), *_quantity(gold))


def _unnamed(text: str) -> str:
    """Without `x =`, or without every `(x, y) =` of several."""
    if _NAME.match(text):
        return _NAME.sub("", text, count=1)
    name = _TUPLE_NAME.match(text)
    return text.replace(name[0], "") if name else text


def _quantity(text: str) -> tuple[str, frozenset[str]]:
    """A number without its unit, and the unit in one spelling; empty where there is none."""
    text = _MAGNITUDE.sub(lambda word: rf"\cdot {_POWERS[word[2]]}{word[1] or ''}", text)
    currency = _CURRENCY.match(text)
    number = text[currency.end() :] if currency else text

    written = ""
    unit = _UNIT.search(number)
    if unit and not _NO_UNIT.search(unit[0]):
        before = number[: unit.start()]
        if re.search(r"[0-9]|\\pi|π", before) and not _TRIGONOMETRIC.search(before):
            number, written = before, normalize(unit[0]).lower().replace("mph", "mi/h")

    parts = [
        part.removesuffix("s") if len(part) > 2 else part for part in _UNIT_PART.findall(written)
    ]
    if currency:
        parts.append(currency[1] if currency[1] in "€£" else "$")
    return number.strip(), frozenset(_SAME_UNIT.get(part, part) for part in parts) - {"per"}


def _bare(text: str) -> str:
    r"""The content of its box, if any, without math delimiters, an outer \text and a full stop."""
    text = _without_stop(boxed(text) or text)
    for left, right in _DELIMITERS:
        if len(text) > len(left) + len(right) and text.startswith(left) and text.endswith(right):
            text = _without_stop(text[len(left) : -len(right)])
            break

    wrapped = _WRAPPED.fullmatch(text) or _LONE_TUPLE.fullmatch(text)
    return _without_stop(wrapped[1]) if wrapped else text


def _without_stop(text: str) -> str:
    return text.strip().removesuffix(".").strip()


def _integer(text: str) -> str | None:
    """The canonical digits of an integer, or None. Not int(), which refuses 5,000 digits."""
    integer = _INTEGER.fullmatch(text)
    if integer is None:
        return None
    digits = re.sub("[^0-9]", "", integer[2]).lstrip("0")
    is_negative = digits and integer[1] not in ("", "+")
    return f"-{digits}" if is_negative else digits or "0"


def _closing_brace(text: str, opening: int) -> int | None:
    depth = 0
    for match in _ESCAPE_OR_BRACE.finditer(text, opening):
        depth += {"{": 1, "}": -1}.get(match[0], 0)
        if depth == 0 and match[0] == "}":
            return match.start()
    return None
