r"""Are two answers the same? The content of a box, and its equality with the gold answer.

    answers -> integers -> units and names aside -> text -> math-verify

What integers and `latex.normalize` decide is decided `at_sight`, in linear time. The rest is algebra, which may take
for ever (9^{9^{9}}): paint.grading.grader gives each pair a process of its own, which can be ended.

Forgiven: a unit, a percent or currency sign or a name (`x =`) that only one side has, the order of a list, decimals
that agree to six places. Not forgiven: two different units, another order in a tuple, open ends of an interval for
closed ones, a tuple for a set in braces, dots for what is left out where the text is not the same. Left out: several
boxes read as one list, how often a list holds an element, bounds found by solving (x^2 < 4 for -2 < x < 2).
"""

import contextlib
import logging
import re
from typing import Any, Literal

from paint.latex import normalize

Reason = Literal["right", "wrong", "no box", "unclosed thought", "truncated", "unparsable gold", "timed out"]

LONGEST_ANSWER = 2000  # characters; longer ones are compared as integers and as text only

_BOX = re.compile(r"\\(?:boxed|fbox|framebox)(?![a-zA-Z])\s*+(?!\{\s*+\})")
_UNBRACED = re.compile(r"\\?[^\s$\\{}]+(?:\{[^{}]*\})*")
_ESCAPE_OR_BRACE = re.compile(r"\\.|[{}]", re.DOTALL)
_DELIMITERS = (("$$", "$$"), ("$", "$"), (r"\(", r"\)"), (r"\[", r"\]"))
_WRAPPER = r"\\(?:text(?:bf|it|rm|normal)?|math(?:rm|bf|it|sf)|mbox)\s*\{"
_WRAPPED = re.compile(rf"{_WRAPPER}([^{{}}]*)\}}")
_SEPARATOR = r"(?:,\\!|\{,\}|\\[,;: ]|[, ~])"
_INTEGER = re.compile(rf"([+\-\u2212]?)\s*([0-9]{{1,3}}(?:{_SEPARATOR}[0-9]{{3}})+|[0-9]+)")

_NAME = re.compile(r"(?:[^0-9=<>!:{}]|\{[^0-9={}]*\})+=(?=[^=]+$)")
_CURRENCY = re.compile(r"(-?)\s*(\\?\$|€|£|\\pounds(?![a-z])|\\text\s*\{\s*\\?\$\s*\})(?=.*[0-9])")
_POWER = r"(?:\s*\^\s*(?:\{\s*-?[0-9]\s*\}|[0-9]))?"
_UNIT = re.compile(  # i and e in \mathrm are numbers; km without a blank may be k times m
    rf"""(?: (?:[\s~/]|\\[,;:!\ ]|\\cdot(?![A-Za-z]))*+
        (?: (?<![_^]){_WRAPPER}(?!\s*[ei]\s*\}})[^{{}}]*\}}{_POWER}
        | \^\s*(?:\\circ|\{{\s*\\circ\s*\}})(?:\s*[CF](?![A-Za-z]))? | \\degree(?![A-Za-z]) | ° | \\?%
        | (?:(?<![A-Za-z\\])[a-z]{{4,}}|(?<=[\s~,;:!])(?:[cmk]m|[km]?g|ft|lb|oz|hr|min|sec|mph|[ap]\.?m))\b{_POWER}\.?
        | (?<=[0-9])_(?:[0-9]|\{{[0-9]+\}}) )
    )+\s*$""",
    re.VERBOSE,
)
_UNIT_PART = re.compile(r"[ap]\.m|[A-Za-z]+|[%°$€£]|[\^_][^A-Za-z0-9]*[0-9]+")
_SPELLINGS = """
cm centimeter centimetre; mm millimeter millimetre; km kilometer kilometre; m meter metre; in inch inche; ft foot feet
yd yard; mi mile; g gram; kg kilogram; lb pound; oz ounce; s sec second; min minute; h hr hour; l liter litre; $ dollar
% percent; ° degree deg circ; ^{2 square sq; ^{3 cubic cu; am a.m; pm p.m
"""
_SAME_UNIT = {name: unit for unit, *names in map(str.split, re.split("[;\n]", _SPELLINGS.strip())) for name in names}
_PERCENT, _DEGREE = frozenset("%"), frozenset("°")
_NO_UNIT = re.compile(  # what changes a number instead of counting something, and the rest of 2 hours 30 minutes
    r"(?<![A-Za-z])(?:and|or|not|if|unless|except|than|least|most|plus|minus|half|halves|squared|cubed|factorial"
    r"|impossible|k)(?![A-Za-z])|(?<!mod)(?<!base)[\s~][0-9]"
)
_POWERS = {"dozen": "12", "hundred": "10^2", "thousand": "10^3", "million": "10^6", "billion": "10^9"}
_MAGNITUDE = re.compile(rf"(?<=[0-9])(?:[\s~]|\\[,;:\ ])*+({_WRAPPER}\s*)?({'|'.join(_POWERS)})(?![A-Za-z])")

_NOT_WORDS = (
    "and or mod inf infinity infty sqrt arcsin arccos arctan sinh cosh tanh matrix pmatrix bmatrix vmatrix array cases"
)
_WORD = re.compile(rf"(?<![\\A-Za-z])(?!(?:{'|'.join(_NOT_WORDS.split())})(?![A-Za-z]))[A-Za-z]{{4,}}")
_WORDS_ONLY = re.compile(r"(?=.*(?<![A-Za-z])(?!and(?![A-Za-z]))[A-Za-z]{3})[A-Za-z\s.,'-]+", re.DOTALL)
_REPEATING = re.compile(r"([0-9]*)\.([0-9]*)\\(?:overline|bar|dot(?!.*\\dot))\s*\{\s*([0-9]{1,20})\s*\}")
_GOES_ON = re.compile(r"\.[0-9]++…")
_CHOICE = re.compile(r"\((?P<letter>[A-E])\)-?(?:[0-9]|\\[a-z])[^A-Z,]*|\(?(?P<alone>[A-E])\)?")
_LONE_TUPLE = re.compile(r"(?:\\left\s*)?\\\{\s*(\([^(){}]*\))\s*(?:\\right\s*)?\\\}")
_OR = re.compile(r"(?<![A-Za-z])or(?![A-Za-z])")
_TUPLE_NAME = re.compile(r"\(\s*[A-Za-z](?:\s*,\s*[A-Za-z])+\s*\)\s*=")
_TRIGONOMETRIC = re.compile(r"(?:\\(?:sin|cos|tan|cot|sec|csc)|(?<![A-Za-z\\])(?:sin|cos|tan))(?![a-z])")
_DEGREES = re.compile(
    r"((?:[0-9]+(?:\.[0-9]+)?|\\frac\{[0-9]+\}\{[0-9]+\})(?:[A-Za-z]|\\[A-Za-z]+)?|[A-Za-z]|\\[A-Za-z]+)"
    r"\s*(?:\^\s*(?:\\circ|\{\s*\\circ\s*\})|\\degree(?![A-Za-z]))"
)
_LATEX = str.maketrans(
    {"∞": r"\infty ", "√": r"\sqrt ", "≤": r"\le ", "≥": r"\ge ", "\u222a": r"\cup ", "∅": r"\emptyset "}
    | {"²": "^{2}", "³": "^{3}", "½": r"\frac{1}{2}", "¼": r"\frac{1}{4}", "¾": r"\frac{3}{4}", "°": r"^{\circ}"}
    | {"$": " ", "\n": " "}
)
_KNOWN = [  # to latex2sympy
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
    r"""What the last \boxed{...} (or \fbox, \framebox) holds, its braces balanced; None when there is none.

    Empty boxes, as in the instruction "within \boxed{}", are passed over. A last box whose brace never closes
    is a text that was cut inside its answer: None. Without braces, \boxed 5 holds what stands up to white
    space, $ or a brace, unless it is a word of prose.
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
    """Decides by integers and by text, in linear time; None for what takes algebra."""
    given, gold = _bare(given), _bare(gold)
    same = _same_integers(given, gold)
    if same is not None:
        return "right" if same else "wrong"
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
    same = _same_integers(given, gold)
    if same or _same_text(given, gold):
        return "right"
    if same is False and (unit == gold_unit or _PERCENT not in (unit, gold_unit)):
        return "wrong"
    if _set_and_tuple(given, gold) or _set_and_tuple(gold, given) or _leaves_out(given) or _leaves_out(gold):
        return "wrong"
    if any(_WORD.search(text) or _WORDS_ONLY.fullmatch(text) for text in (given, gold)):
        return "right" if normalize(given).casefold() == normalize(gold).casefold() else "wrong"
    return None


def by_algebra(given: str, gold: str) -> Reason:
    """Decides what at_sight leaves open, by math-verify. Never raises; may take for ever."""
    from latex2sympy2_extended import is_expr_of_only_symbols
    from math_verify import verify
    from sympy import Eq, Rational, pi

    logging.getLogger("math_verify").setLevel(logging.ERROR)  # it warns of doing without its time-outs
    given, unit, gold, gold_unit = _quantities(_bare(given), _bare(gold))
    found, expected = _parsed(given), _parsed(gold)
    if expected is None:
        return "unparsable gold"
    if found is None:
        return "wrong"
    statement = isinstance(found, Eq) and found.lhs.free_symbols and not is_expr_of_only_symbols(found.lhs)
    if statement and not isinstance(expected, Eq):
        return "wrong"  # math-verify takes x^2+y^2=1 for 1
    candidates = [(found, expected)]
    for one, value in ((_PERCENT, Rational(1, 100)), (_DEGREE, pi / 180)):
        if unit != gold_unit and one in (unit, gold_unit):
            with contextlib.suppress(TypeError):  # a list of percentages
                candidates += [(found * value, expected) if unit else (found, expected * value)]
    if _OR.search(given) or _OR.search(gold):
        candidates += [(_union(found), _union(expected))]
    for found, expected in candidates:
        near = not _apart(found, expected)
        if near and verify(expected, found, timeout_seconds=None, allow_set_relation_comp=True):
            return "right"
    return "wrong"


def _parsed(latex: str) -> Any:
    """The sympy object that stands there; None when it does not parse."""
    from latex2sympy2_extended import NormalizationConfig, latex2sympy
    from latex2sympy2_extended.latex2sympy2 import ConversionConfig
    from sympy import I, Symbol

    forgiving = NormalizationConfig(units=False, malformed_operators=True, nits=True, boxed="none")  # units: 4t is 4
    exact = ConversionConfig(lowercase_symbols=False)
    i = Symbol("i", real=True)
    latex = _REPEATING.sub(_as_fraction, latex).translate(_LATEX)
    for unknown, known in _KNOWN:
        latex = unknown.sub(known, latex)
    if _TRIGONOMETRIC.search(latex):
        latex = _DEGREES.sub(r"(\1\\cdot\\frac{\\pi}{180})", latex)
    both = _PLUS_MINUS.split(latex)  # parsed wrongly within a pair, and not at all within a fraction
    if len(both) == 2 and r"\{" not in latex:
        latex = ", ".join(sign.join(both) for sign in "+-")
    try:
        value = latex2sympy(latex, is_real=True, normalization_config=forgiving, conversion_config=exact)
        return value.xreplace({i: I}) if i in value.free_symbols else value  # not the i of a sum
    except Exception:
        return None


def _union(value: Any) -> Any:
    """x < 1 or x > 2, which are parsed as a list, as one set of numbers; all else as it is."""
    from sympy import And, FiniteSet, Interval, Union
    from sympy.core.relational import Relational

    if not isinstance(value, FiniteSet) or len(value.free_symbols) > 1:
        return value
    if any(isinstance(part, Interval) and part.measure.is_finite for part in value.args):
        return value  # perhaps pairs of numbers
    try:
        return Union(*(part.as_set() if isinstance(part, Relational | And) else part for part in value.args))
    except Exception:
        return value


def _as_fraction(decimal: re.Match[str]) -> str:
    whole, start, period = decimal.groups()
    nines = f"{'9' * len(period)}{'0' * len(start)}"
    return rf"\frac{{{int(whole + start + period) - int(whole + start or '0')}}}{{{nines}}}"


def _apart(a: Any, b: Any) -> bool:
    """Whether two numbers differ by more than a rounding. For math-verify, 0.0000001 is 0.0000002."""
    try:
        gap = abs((a - b).evalf())
        return bool(gap > 1e-5 * max(abs(a.evalf()), abs(b.evalf())) and gap > 1e-60)  # sin(pi) is nearly 0
    except Exception:
        return False  # not two numbers


def _same_integers(given: str, gold: str) -> bool | None:
    """Whether two integers are equal; None unless both are integers."""
    integers = _integer(given), _integer(gold)
    return None if None in integers else integers[0] == integers[1]


def _same_text(given: str, gold: str) -> bool:
    a, b = normalize(given), normalize(gold)
    return bool(a) and (a == b or given.replace(", ", ",") == gold.replace(", ", ","))  # 107,109 may be two numbers


def _same_choice(given: str, gold: str) -> bool:
    """Whether one names a choice, and the other the same one with what it says: A and (A) 5."""
    choices = [_CHOICE.fullmatch(normalize(text)) for text in (given, gold)]
    letters = {choice["letter"] or choice["alone"] for choice in choices if choice}
    return None not in choices and len(letters) == 1 and any(choice and choice["alone"] for choice in choices)


def _set_and_tuple(a: str, b: str) -> bool:
    r"""Whether a is \{1, 2\} and b (1, 2); but \{(1, 2)\} is what (1, 2) is, and two tuples are a set of two."""
    a, b = normalize(a), normalize(b)
    is_set = a.startswith(r"\{") and a.endswith(r"\}") and not a.startswith((r"\{(", r"\{["))
    return is_set and b.startswith(("(", "[")) and b.endswith((")", "]")) and "),(" not in b


def _leaves_out(text: str) -> bool:
    """Whether there are dots for what everybody is to fill in: for math-verify, 1, 2, ..., 9 is 1, 2, 9."""
    return "…" in _GOES_ON.sub("", normalize(text))


def _quantities(given: str, gold: str) -> tuple[str, frozenset[str], str, frozenset[str]]:
    """Both answers without a name that only one of them has, each followed by its unit, which it goes without."""
    if "=" not in gold:
        given = _unnamed(given)
    elif "=" not in given:
        gold = _unnamed(gold)
    return (*_quantity(given), *_quantity(gold))


def _unnamed(text: str) -> str:
    """Without `x =`, or every `(x, y) =` of several."""
    if _NAME.match(text):
        return _NAME.sub("", text, count=1)
    name = _TUPLE_NAME.match(text)
    return text.replace(name[0], "") if name else text


def _quantity(text: str) -> tuple[str, frozenset[str]]:
    """A number without its unit, and the unit in one spelling; empty where there is none."""
    text = _MAGNITUDE.sub(lambda word: rf"\cdot {_POWERS[word[2]]}{word[1] or ''}", text)
    currency = _CURRENCY.match(text)
    number = currency[1] + text[currency.end() :] if currency else text
    found = _UNIT.search(number)
    before = number[: found.start()] if found else ""
    if (
        found
        and re.search(r"[0-9]|\\pi|π", before)
        and not _NO_UNIT.search(found[0])
        and not _TRIGONOMETRIC.search(before)
    ):
        number, written = before, normalize(found[0]).lower().replace("mph", "mi/h")
    else:
        written = ""
    parts = [part.removesuffix("s") if len(part) > 2 else part for part in _UNIT_PART.findall(written)]
    parts += [currency[2][-1] if currency[2] in "€£" else "$"] if currency else []
    return number.strip(), frozenset(_SAME_UNIT.get(part, part) for part in parts) - {"per"}


def _bare(text: str) -> str:
    r"""The content of its box, if it has one, without math delimiters, an outer \text and a full stop."""
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
    found = _INTEGER.fullmatch(text)
    if found is None:
        return None
    digits = re.sub("[^0-9]", "", found[2]).lstrip("0")
    negative = digits and found[1] not in ("", "+")
    return f"-{digits}" if negative else digits or "0"


def _closing_brace(text: str, opening: int) -> int | None:
    depth = 0
    for found in _ESCAPE_OR_BRACE.finditer(text, opening):
        depth += {"{": 1, "}": -1}.get(found[0], 0)
        if depth == 0 and found[0] == "}":
            return found.start()
    return None
