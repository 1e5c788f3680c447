r"""Parser of answers: numbers, formulas, statements, lists, regions and sets by a condition.

    text -> one spelling -> parts -> relations -> brackets -> formulas (latex2sympy) -> value

Lists, tuples, chains, unions and `\pm` are split here, where their order, names and brackets are
still known. latex2sympy, math-verify's parser, reads formulas only. Its public function takes none
of the changes below, so its class is used, which is private: pyproject.toml pins it.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import accumulate, product
from typing import Any

from latex2sympy2_extended.latex2sympy2 import ConversionConfig, _Latex2Sympy
from sympy import Expr, I, Integral, Limit, Piecewise, Product, Rational, Sum, Symbol, nan, zoo
from sympy.core.function import AppliedUndef

from strictgrade.ascii import GREEK
from strictgrade.matrices import sides_of_matrices
from strictgrade.spelling import is_too_deep, is_too_large
from strictgrade.text import normalize


class AnswerParseError(Exception):
    """A text has no value."""


@dataclass(frozen=True)
class Scalar:
    """A number or a formula."""

    expr: Any
    is_decimal: bool = False  # written with a decimal point, so perhaps rounded
    place: Rational | None = None  # of the last written digit, of a number in digits

    def __str__(self) -> str:
        return str(self.expr)


@dataclass(frozen=True)
class Statement:
    """Sides and the relations between adjacent ones: x = 3, 0 < x < 1, x ∈ A."""

    sides: tuple["Value", ...]
    relations: tuple[str, ...]

    def __str__(self) -> str:
        rest = zip(self.relations, self.sides[1:], strict=True)
        return " ".join([str(self.sides[0]), *(f"{sign} {side}" for sign, side in rest)])


@dataclass(frozen=True)
class Listing:
    """Several values. Brackets are "" for a list, "or" for alternatives, "[[" for a matrix.

    Those of a ratio are ":", and those of an open interval that is no tuple, such as ]0, 1[, "⟮⟯".
    """

    parts: tuple["Value", ...]
    brackets: str = ""
    is_ranking: bool = False  # letters that are not in the alphabet's order

    def __str__(self) -> str:
        if self.brackets == "or":
            return " or ".join(map(str, self.parts))
        if self.brackets == ":":
            return ":".join(map(str, self.parts))
        inner = ", ".join(map(str, self.parts))
        opening, closing = self.brackets[:1], self.brackets[1:].replace("[", "]")
        return f"{opening}{inner}{closing}".replace("⟮", "(").replace("⟯", ")")


@dataclass(frozen=True)
class Region:
    """∪, ∩ or ∖ of regions, or a set of numbers such as ℝ."""

    operation: str
    parts: tuple["Value", ...] = ()

    def __str__(self) -> str:
        return f" {self.operation} ".join(map(str, self.parts)) or self.operation


@dataclass(frozen=True)
class Builder:
    r"""\{element : condition\}."""

    element: "Value"
    condition: "Value"

    def __str__(self) -> str:
        return f"{{{self.element} : {self.condition}}}"


Value = Scalar | Statement | Listing | Region | Builder

_SIGNS = """
( langle lparen; ) rangle rparen; ∪ cup bigcup; ∩ cap bigcap; ∖ setminus backslash; ∓ mp; < lt; > gt
"""  # noqa: RUF001
_COMMANDS = {name: sign for sign, *names in map(str.split, _SIGNS.split(";")) for name in names}


def _angle_name(angle: re.Match[str]) -> str:
    """An angle as one name, for either direction: ∠CBA as angleABC."""
    points = re.findall(r"[A-Z](?:_\{[0-9]+\})?", angle[1])
    letters = "".join(min(points, points[::-1])).translate(str.maketrans("", "", "_{}"))
    return rf"\mathrm{{angle{letters}}}"


_SPELLINGS = [
    (re.compile(pattern), replacement)
    for pattern, replacement in (
        (r"\\([A-Za-z]+)", lambda command: _COMMANDS.get(command[1], command[0])),
        (r"(?<=[\sA-Za-z])!=", "≠"),
        (r":=", "="),
        (r"(?<![A-Za-z\\])lim(?=_)", r"\\lim"),
        (r"(?<=lim_\{)([A-Za-z])→", r"\1\\to "),
        (r"(?<![A-Za-z])lg(?![A-Za-z])", "log_{10}"),
        (r"(?<![A-Za-z\\{])E(?=_)", r"\\mathrm{E}"),  # not Euler's number
        (r"∠((?:\s*[A-Z](?:_\{[0-9]+\})?){3})", _angle_name),
    )
]
_OR = re.compile(r"(?<![A-Za-z\\])or(?![A-Za-z])")
_AND = re.compile(r"(?<![A-Za-z\\])(?:and|or)(?![A-Za-z])")
_RELATION = re.compile("[=≤≥<>≠≈∈]")
_NOT_MATHEMATICS = re.compile("[≡⇒⇔→…]")
_NUMBER_SETS = re.compile(r"\\mathbb\{([NZQRC])\}|([ℕℤℚℝℂ])")  # noqa: RUF001
_LETTER = re.compile("[A-Z]")
_TOKEN = re.compile(r"\\[A-Za-z]+|\\.|.", re.DOTALL)
_DEPTH = dict.fromkeys(["(", "[", "{", r"\{", "⟮"], 1)
_DEPTH |= dict.fromkeys([")", "]", "}", r"\}", "⟯"], -1)
_PERIOD = r"\\(?:overline|bar|dot)\s*\{\s*([0-9]{1,20})\s*\}"
_REPEATING = re.compile(rf"([0-9]*)\.([0-9]*){_PERIOD}")
_MIXED = re.compile(r"(?<![0-9.,}\])A-Za-z])([0-9]+)\\frac\{([0-9]+)\}\{([0-9]+)\}(?![\^])")
_DIGITS = re.compile(r"-?[0-9]*(?:\.([0-9]+))?")
_NOT_A_NUMBER = re.compile(r"[0-9]_|[0-9] [0-9]|[0-9]\s*(?:\^\{)?'")
_ANGLE_FUNCTION = "sin|cos|tan|cot|sec|csc"
_FUNCTION = re.compile(
    rf"(?<![A-Za-z\\])(?<!_\{{)((?:arc)?(?:{_ANGLE_FUNCTION})h?|log|ln|exp|max|min)(?![A-Za-z])"
)
_TRIGONOMETRIC = re.compile(rf"(?<![A-Za-z])(?:{_ANGLE_FUNCTION})(?![a-z])")
_OPERATOR = re.compile(r"(?<![A-Za-z\\])(gcd|lcm)(?![A-Za-z])")
_PLAIN_LOG = re.compile(r"(?<![A-Za-z])log(?![A-Za-z_])")
_DEGREES = re.compile(
    r"((?:[0-9]+(?:\.[0-9]+)?|\\frac\{[0-9]+\}\{[0-9]+\}|[^\W\d_]|\([^()]*\)))\s*°"
)
_GREEK = {letter: rf"\mathrm{{{name}}}" for name, letter in GREEK.items() if letter != "π"}
_LATEX = str.maketrans(
    _GREEK
    | {"*": r"\cdot ", "∞": r"\infty ", "π": r"\pi ", "'": "_{prime}"}
    | {"∠": r"\angle ", "△": r"\triangle ", "ℓ": r"\ell "}  # noqa: RUF001
)


def parse_answer(text: str, *, log: str = "ln") -> Value:
    r"""Parse an answer; ``log`` is the reading of `\log` without a base, "ln" or "log_{10}".

    Raises AnswerParseError. May not terminate for an integral or a limit.
    """
    if is_too_deep(text):
        raise AnswerParseError
    if r"\begin" in text:
        return _parse_matrices(text, log)

    plain = normalize(text)
    for spelling, replacement in _SPELLINGS:
        plain = spelling.sub(replacement, plain)
    plain = _with_usual_brackets(plain)
    # 0.333... is a decimal; 1, 2, ... is a list with omitted terms.
    plain = re.sub(r"(?<=[0-9])…", "", plain) if "." in plain else plain
    if _NOT_MATHEMATICS.search(plain):
        raise AnswerParseError
    return _parse_value(_PLAIN_LOG.sub("log_{10}" if log != "ln" else "ln", plain))


def _parse_matrices(text: str, log: str) -> Value:
    """Matrices, products and sums of them, and equations of these."""
    try:
        sides = sides_of_matrices(text)
    except ValueError:
        raise AnswerParseError from None
    values: list[Value] = []
    for side in sides:
        if isinstance(side, str):
            values.append(parse_answer(side, log=log))
            continue
        rows = [tuple(parse_answer(cell, log=log) for cell in row) for row in side]
        values.append(Listing(tuple(Listing(row, "[[") for row in rows), "[["))
    if len(values) == 1:
        return values[0]
    return Statement(tuple(values), ("=",) * (len(values) - 1))


_BEFORE_INTERVAL = re.compile(r"(?:^|[=<>≤≥≠≈∈∪∩∖,;({|:]|(?<![A-Za-z])(?:or|and))\s*$")  # noqa: RUF001


def _with_usual_brackets(text: str) -> str:
    """Intervals with outward brackets by parentheses: ]0; 1] as (0, 1], in unions too."""
    written = ""
    position = 0
    while position < len(text):
        is_start = text[position] in "[](" and _BEFORE_INTERVAL.search(written)
        interval = _outward_interval(text, position) if is_start else None
        if interval:
            usual, position = interval
            written += usual
        else:
            written += text[position]
            position += 1
    return written


def _outward_interval(text: str, start: int) -> tuple[str, int] | None:
    """The interval that begins here, as usual, and its end; None if no bracket is outward."""
    depth, separators = 0, []
    for end in range(start + 1, len(text)):
        character = text[end]
        if depth == 0 and character in "[])":
            break
        depth += (character in "({") - (character in ")}")
        if depth == 0 and character in ",;":
            separators.append(end)
    else:
        return None
    opening, closing, inner = text[start], text[end], text[start + 1 : end]
    low, _, high = inner.partition(";" if ";" in inner else ",")
    is_pair = len(separators) == 1 or [text[place] for place in separators].count(";") == 1
    is_outward = opening == "]" or closing == "["
    if not (is_outward and is_pair and low.strip() and high.strip()):
        return None
    if len(separators) > 1:  # 0,5 and 1,5 between semicolons are decimals
        low, high = (re.sub(r"(?<=[0-9]),\s?(?=[0-9])", ".", side) for side in (low, high))
        if "," in low + high:
            return None
    usual = {"]": "(", "[": "[", "(": "("}[opening] + {"[": ")", "]": "]", ")": ")"}[closing]
    usual = "⟮⟯" if usual == "()" else usual
    return f"{usual[0]}{low},{high}{usual[1]}", end + 1


def has_value(value: Value) -> bool:
    """True if no part of a value is 1/0 or another undefined constant."""
    match value:
        case Scalar(expr):
            return not expr.has(zoo, nan)
        case Statement(parts) | Listing(parts) | Region(_, parts):
            return all(map(has_value, parts))
    return True


def free_symbols(value: Value) -> bool:
    """True if a value has unknowns, such as x and f(2)."""
    match value:
        case Scalar(expr):
            return bool(expr.free_symbols or expr.atoms(AppliedUndef))
        case Statement(parts) | Listing(parts):
            return any(map(free_symbols, parts))
    return True


def _parse_value(text: str) -> Value:
    """The value of a text; a list if commas separate several."""
    parts = _parse_parts(text)
    if not parts:
        raise AnswerParseError
    if len(parts) == 1:
        return parts[0]
    letters = [str(part) if isinstance(part, Scalar) else "" for part in parts]
    is_ranking = (
        all(map(_LETTER.fullmatch, letters))
        and letters != sorted(letters)
        and not _AND.search(text)
    )
    return Listing(tuple(parts), "or" if _OR.search(text) else "", is_ranking)


def _parse_parts(text: str) -> list[Value]:
    """The values between commas."""
    pieces, _ = _split(_AND.sub(",", text), re.compile("[,;]"))
    parts = [
        _parse_part(sign) for piece in pieces if piece.strip() for sign in _sign_choices(piece)
    ]
    first = parts[0] if parts else None
    if isinstance(first, Statement) and first.relations == ("=",):  # x = 1, 2 are two values of x
        name = first.sides[0]
        parts = [
            part if isinstance(part, Statement) else replace(first, sides=(name, part))
            for part in parts
        ]
    return [_with_order_of(part, _assigned_sides(first)) for part in parts]


def _assigned_sides(value: Value | None) -> list[Value]:
    """The left sides of a tuple of assignments."""
    parts = value.parts if isinstance(value, Listing) else ()
    sides: list[Value] = [part.sides[0] for part in parts if isinstance(part, Statement)]
    return sides


def _with_order_of(value: Value, names: list[Value]) -> Value:
    """A tuple of assignments in the order of ``names``: (n, m) = (2, 3) as (m, n) = (3, 2)."""
    own = _assigned_sides(value)
    if not names or len(own) != len(names) or any(name not in names for name in own):
        return value
    assert isinstance(value, Listing)
    parts = sorted(value.parts, key=lambda part: names.index(_assigned_sides(Listing((part,)))[0]))
    return replace(value, parts=tuple(parts))


def _sign_choices(text: str) -> Iterator[str]:
    r"""The text with each choice of its \pm; \mp is the opposite of the first."""
    # Those of a set are chosen element by element, when its inside is parsed.
    if text.strip().startswith(r"\{") or not re.search("[±∓]", text):
        yield text
        return
    # At most 32 values, each of which costs comparisons.
    for signs in product("+-", repeat=min(text.count("±"), 5) or 1):
        signed = text.replace("∓", "-" if signs[0] == "+" else "+")
        for sign in signs:
            signed = signed.replace("±", sign, 1)
        yield signed


def _parse_part(text: str) -> Value:
    text = text.strip()
    sides, relations = _split(text, _RELATION)
    if relations:
        return _parse_statement(sides, relations)

    for operation in "∪∩∖":  # noqa: RUF001
        regions, found = _split(text, re.compile(operation))
        if found:
            return Region(operation, tuple(map(_parse_part, regions)))

    terms, found = _split(text, re.compile(":"))
    if found:
        return _parse_ratio(text, terms)
    vector = _parse_vector(text)
    if vector:
        return vector

    numbers = _NUMBER_SETS.fullmatch(text)
    if numbers:
        return Region(numbers[1] or "NZQRC"["ℕℤℚℝℂ".index(numbers[2])])  # noqa: RUF001
    if text in ("∅", r"\{∅\}"):
        return Listing((Listing((), "{}"),) if len(text) > 1 else (), "{}")

    tokens = _TOKEN.findall(text)
    opening = next(iter(tokens), "")
    depths = list(accumulate(_DEPTH.get(token, 0) for token in tokens))
    if _DEPTH.get(opening) == 1 and 0 not in depths[:-1]:  # it closes at the end
        closing = text[-1]
        inner = text[len(opening) : -len(opening)]
        if opening == r"\{":
            return _parse_braces(inner)
        parts = _parse_parts(inner)
        if len(parts) == 1 and opening != "[":
            return parts[0]
        if len(parts) > 1 and opening != "{":
            return Listing(tuple(parts), opening + closing)
    return _parse_scalar(text)


def _parse_ratio(text: str, terms: list[str]) -> Value:
    """A ratio of numbers; a:b of two unknowns is their quotient."""
    ratio = Listing(tuple(map(_parse_part, terms)), ":")
    if len(terms) == 2 and free_symbols(ratio):
        return _parse_scalar(text)
    return ratio


def _parse_vector(text: str) -> Listing | None:
    """A multiple of a tuple such as 2(1, x), or a sum of these; None for other texts."""
    pieces, signs = _split(text, re.compile("[+-]"))
    if signs and not pieces[0].strip():  # of -(1, 2)
        pieces = pieces[1:]
    else:
        signs = ["+", *signs]
    terms = [term for term in map(_factor_and_tuple, pieces) if term]
    lengths = {len(parts) for _, parts in terms}
    if len(terms) < len(pieces) or len(lengths) != 1 or (signs, terms[0][0]) == (["+"], ""):
        return None
    # f(1, 2) is the value of a function, but (0, 1) + t(1, 2) a vector.
    if not any(_IS_FACTOR.fullmatch(factor) for factor, _ in terms):
        return None
    cells = [""] * len(terms[0][1])
    for sign, (factor, parts) in zip(signs, terms, strict=True):
        before = f"{sign}({factor.rstrip('* ') or 1})"
        cells = [f"{cell}{before}*({part})" for cell, part in zip(cells, parts, strict=True)]
    return Listing(tuple(map(_parse_part, cells)), "()")


# A number, or what a sign of a product follows.
_IS_FACTOR = re.compile(r"(?:[^A-Za-z\\]|\\(?:frac|sqrt)(?![A-Za-z]))*|.*\*\s*", re.DOTALL)


def _factor_and_tuple(text: str) -> tuple[str, list[str]] | None:
    """The text before a tuple, and the tuple's parts; None for what does not end with a tuple."""
    text = text.strip()
    depth = start = 0
    for start in range(len(text) - 1, -1, -1):
        depth += (text[start] == ")") - (text[start] == "(")
        if depth == 0:
            break
    if not text.endswith(")") or depth:
        return None
    parts, _ = _split(text[start + 1 : -1], re.compile("[,;]"))
    if len(parts) < 2:
        return None
    return text[:start].strip(), parts


def _parse_statement(sides: list[str], relations: list[str]) -> Value:
    if not sides[0].strip() and relations[0] in "=≈":  # = 5
        sides, relations = sides[1:], relations[1:]
    values = tuple(map(_parse_part, sides))
    if not relations:
        return values[0]

    # (x, y) = (1, 2) is x = 1 and y = 2.
    names, last = values[0], values[-1]
    if relations == ["="] and isinstance(names, Listing) and isinstance(last, Listing):
        if ":" in (names.brackets, last.brackets):
            return Statement(values, tuple(relations))
        if len(names.parts) == len(last.parts) and "" not in (names.brackets, last.brackets):
            pairs = zip(names.parts, last.parts, strict=True)
            return Listing(tuple(Statement(pair, ("=",)) for pair in pairs), last.brackets)
        raise AnswerParseError
    return Statement(values, tuple(relations))


def _parse_braces(inner: str) -> Value:
    """A set by its elements, or by a condition."""
    (element, *rest), _ = _split(inner, re.compile(r"[:|]"))
    condition = "|".join(rest).strip()
    if not (element and _RELATION.search(condition)):
        return Listing(tuple(_parse_parts(inner)), "{}")

    name = re.fullmatch(r"([A-Za-z])(?:∈\\mathbb\{R\})?", element.strip())
    if name and name[1] in condition:
        return _parse_value(condition)
    return Builder(_parse_part(element), _parse_value(condition))


def _split(text: str, separator: re.Pattern[str]) -> tuple[list[str], list[str]]:
    """The pieces between separators that no bracket encloses, and the separators."""
    pieces, found, depth = [""], [], 0
    for token in _TOKEN.findall(text):
        depth += _DEPTH.get(token, 0)
        if depth < 0:
            raise AnswerParseError
        if depth == 0 and separator.fullmatch(token):
            pieces.append("")
            found.append(token)
        else:
            pieces[-1] += token
    if depth:
        raise AnswerParseError
    return pieces, found


def _parse_scalar(text: str) -> Scalar:
    if not text or _NOT_A_NUMBER.search(text) or is_too_large(text):
        raise AnswerParseError
    latex = _MIXED.sub(_as_sum, _REPEATING.sub(_as_fraction, text))
    turn = r"(\1\\cdot\\frac{\\pi}{180})" if _TRIGONOMETRIC.search(latex) else r"\1"
    latex = _DEGREES.sub(turn, latex).replace("Γ(", r"\Gamma(")
    latex = _OPERATOR.sub(r"\\operatorname{\1}", _FUNCTION.sub(r"\\\1 ", latex))
    try:
        # Names without assumptions: sympy rewrites \sqrt{x^2} of a real x to |x|.
        value = _Formula(is_real=None, config=_CONFIG).parse(latex.translate(_LATEX))
        if _IMAGINARY in value.free_symbols:  # the i of a sum is bound
            value = value.xreplace({_IMAGINARY: I})
        if value.has(Sum, Product, Integral, Limit):
            evaluated = value.doit()
            value = value if evaluated.has(Piecewise) else evaluated
    except Exception:
        value = None
    if not isinstance(value, Expr):
        raise AnswerParseError
    digits = _DIGITS.fullmatch(text)
    place = Rational(1, 10 ** len(digits[1] or "")) if digits else None
    return Scalar(value, re.search(r"\.[0-9]", text) is not None, place)


_CONFIG = ConversionConfig(lowercase_symbols=False)
_IMAGINARY = Symbol("i")


class _Formula(_Latex2Sympy):  # type: ignore[misc]
    def convert_postfix_list(self, arr: Any, i: int = 0) -> Any:
        # latex2sympy adds 5(4), as if it were a mixed number.
        first = self.convert_postfix(arr[i])
        if not isinstance(first, Expr):  # d/dx, or a matrix
            return super().convert_postfix_list(arr, i)
        is_last = i + 1 == len(arr)
        if is_last:
            return first
        return self.mul_flat(first, self.convert_postfix_list(arr, i + 1))

    def convert_atom_expr(self, atom_expr: Any) -> Any:
        # I is a letter here, and i the imaginary unit.
        value = super().convert_atom_expr(atom_expr)
        if value is I:
            return Symbol("I")
        return value

    def parse_number(self, text: str) -> Rational:
        # Decimals are exact.
        return Rational(text)


def _as_fraction(decimal: re.Match[str]) -> str:
    r"""The fraction of a repeating decimal: 0.1\overline{6} is 15/90."""
    integer_part, start, period = decimal.groups()
    numerator = int(integer_part + start + period) - int(integer_part + start or "0")
    denominator = "9" * len(period) + "0" * len(start)
    return rf"\frac{{{numerator}}}{{{denominator}}}"


def _as_sum(number: re.Match[str]) -> str:
    r"""A mixed number as a sum: 2\frac{1}{3} as 2 + 1/3; 2\frac{4}{3} is a product."""
    integer_part, numerator, denominator = number.groups()
    if int(numerator) >= int(denominator):
        return number[0]
    fraction = number[0][len(integer_part) :]
    return f"({integer_part}+{fraction})"
