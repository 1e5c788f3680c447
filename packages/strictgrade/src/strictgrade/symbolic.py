r"""Equality of two parsed answers, with one rule for each kind; undecided counts as different.

- Numbers: exactly, as fractions or at rising precision. With a decimal point, to six places.
- Formulas: at random points, where names are real, or complex, or, in exponents, integers.
- Equations and inequalities: their differences of sides have a constant ratio.
- Tuples by their order, assignments by their names, lists and sets in any order.
- Regions: as sets of real numbers, however they are written.
"""

import operator
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import pairwise, product
from math import comb, factorial, prod
from typing import Any, NamedTuple
from zlib import crc32

import sympy
from mpmath import mp, mpc, mpf  # type: ignore[import-untyped]
from sympy import Abs, Add, Derivative, I, Mul, Pow, oo
from sympy.core.function import AppliedUndef

from strictgrade.parse import Builder, Listing, Region, Scalar, Statement, Value


class Undefined(Exception):
    """A formula has no value at a point, or none that can be computed."""


# A BaseException: `except Exception`, for points without a value, lets it pass.
class _ProvenUnequal(BaseException):
    """Raised when exact evaluation proves two formulas unequal."""


NUMBER_DIGITS = 1920  # precision for formulas without names
POINT_DIGITS = 300  # precision at random points, of which there are many
POINTS = 9  # random real or complex points
INTEGER_POINTS = 40
FEWEST_POINTS = 3  # at which both formulas must be defined
MAX_BITS = 1 << 21  # of an exact power; larger ones are computed with rounding
MAX_FACTORIAL = 100_000

# Tolerances for numbers with a decimal point.
ABSOLUTE = 1e-6
RELATIVE = 1e-5

_COMPLEX_NAMES = {"z", "w", "math{omega}"}
_INTEGER_NAMES = {"k", "m", "n", "N"}
_STEPS = (sympy.floor, sympy.ceiling, sympy.Mod)


def values_equal(a: Value, b: Value) -> bool:
    """True if two values are equal; symmetric. May not terminate."""
    a, b = _single(a), _single(b)
    match a, b:
        case Scalar(), Scalar():
            return _same_scalars(a, b)
        case Statement(), Statement():
            return _same_statements(a, b)
        case Builder(), Builder():
            return values_equal(a.condition, b.condition) and values_equal(a.element, b.element)
        case Listing(), Listing() if _same_listings(a, b):
            return True
        case (Listing(parts, ":"), Scalar() as number) | (Scalar() as number, Listing(parts, ":")):
            return _same_quotient(parts, number)
        case Region(), Region() if a.operation == b.operation and _equal_in_any_order(
            a.parts, b.parts
        ):
            return True

    for one, other in ((a, b), (b, a)):
        if isinstance(one, Statement) and any(values_equal(value, other) for value in _values(one)):
            return True
    return _same_regions(a, b)


def _single(value: Value) -> Value:
    """The only part of a list or set with one part; other values unchanged."""
    if isinstance(value, Listing) and len(value.parts) == 1 and value.brackets != "[[":
        part = value.parts[0]
        if not (isinstance(part, Listing) and not part.parts):
            return part
    return value


# --- Numbers and formulas


@dataclass(frozen=True)
class _Point:
    """A pseudorandom point at which formulas are evaluated: a value for each name.

    Attributes:
        domain: of the values, "real" or "complex".
        seed: of the draw.
        integers: names whose values are integers, as those in exponents.
    """

    domain: str
    seed: int = 0
    integers: frozenset[str] = frozenset()

    def value(self, name: str) -> Any:
        # By the name, so that both formulas get the same value. hash() differs from process to
        # process.
        draw = crc32(f"{self.seed} {name}".encode())
        if name in self.integers:
            if len(self.integers) == 1:
                # Consecutive, so that every remainder of a small divisor occurs.
                return Fraction(self.seed - 4)  # -4, -3, ...
            if self.seed % 4 == 0:
                return Fraction(-(draw % 6) - 1)
            return Fraction(draw % 24 + 1)

        # Not 0, where too many formulas agree. A fraction, so that rational formulas are compared
        # exactly.
        real = Fraction((draw % 1999 - 999) or 1, 101)
        if self.domain == "complex":
            return mp.mpmathify(real) + mpc(0, mpf((draw >> 12) % 1999 - 999) / 103)
        return real


def _same_scalars(a: Scalar, b: Scalar) -> bool:
    # Infinity has no value at a point: it is equal to itself only.
    if any(value.expr.has(oo) for value in (a, b)):
        ends = [sympy.sympify(value.expr).doit() for value in (a, b)]
        return ends[0] == ends[1] and ends[0] in (oo, -oo)
    other = _with_constant_of(a.expr, b.expr)
    return _agree_everywhere(a.expr, other, is_rounded=a.is_decimal or b.is_decimal)


_CONSTANT = re.compile(r"[CK](?:_\{?[0-9]\}?)?")
_CONSTANT_OR_LETTER = re.compile(r"[A-Za-z](?:_\{?[0-9]\}?)?")


def _with_constant_of(a: Any, b: Any) -> Any:
    """A formula with another one's constant of integration: x^2 + K as x^2 + C.

    That is a letter that both add to other names, C or K in one of them. In Ax + By + C it is a
    coefficient like the capitals beside it.
    """
    if not (a.is_Add and b.is_Add):
        return b
    lone = []
    for formula, other in ((a, b), (b, a)):
        terms = [term for term in formula.args if term.is_Symbol and not other.has(term)]
        if len(terms) != 1 or (formula - terms[0]).has(terms[0]):
            return b
        lone.append(terms[0])
    names = (_names(a) | _names(b)) - set(map(str, lone))
    are_letters = all(_CONSTANT_OR_LETTER.fullmatch(term.name) for term in lone)
    has_constant = any(_CONSTANT.fullmatch(term.name) for term in lone)
    has_capitals = any(name[0].isupper() and len(name) == 1 for name in names)
    if names and are_letters and has_constant and not has_capitals:
        return b.xreplace({lone[1]: lone[0]})
    return b


def _agree_everywhere(
    a: Any, b: Any, *, is_rounded: bool, factors: Sequence[Any] = (Fraction(1), Fraction(1))
) -> bool:
    """True if two formulas, each times its factor, agree wherever they are defined."""
    names = _names(a) | _names(b)
    integers = _names_in_exponents(a) | _names_in_exponents(b) | names & _INTEGER_NAMES
    count = POINTS if names else 1
    at_reals = [_Point("real", seed) for seed in range(count)]
    at_complexes = [_Point("complex", seed) for seed in range(count)]
    at_integers: list[Any] = []
    if integers:
        at_integers = []
        for seed in range(INTEGER_POINTS):
            at_integers.append(_Point("real", seed, integers))

    def agree(points: Sequence[_Point]) -> bool:
        defined = 0
        for point in points:
            try:
                if not _agree_at(point, (a, b), factors, is_rounded):
                    return False
            except Exception:  # no value at this point
                continue
            defined += 1
        # Formulas without common points are undecided, so different.
        return defined >= (FEWEST_POINTS if names else 1)

    try:
        if names and (a.has(*_STEPS) or b.has(*_STEPS)):  # points seldom meet the steps
            return agree(at_integers) and (names <= _INTEGER_NAMES or agree(at_reals))
        if names & _COMPLEX_NAMES:
            return agree(at_complexes)
        return any(map(agree, (at_integers, at_reals, at_complexes)))
    except _ProvenUnequal:
        return False


def _agree_at(
    point: _Point, exprs: Sequence[Any], factors: Sequence[Any], is_rounded: bool
) -> bool:
    """True if two formulas, each times its factor, agree at a point."""
    have_names = any(map(_names, exprs))
    with mp.workdps(POINT_DIGITS if have_names else NUMBER_DIGITS):
        values = [_number(expr, point) for expr in exprs]
        x, y = map(_product, values, factors)
        if _all_exact((x, y)) and not is_rounded:
            if x != y:
                # Exact and unequal at one point: no other domain is asked.
                raise _ProvenUnequal
            return True
        x, y = mp.mpmathify(x), mp.mpmathify(y)
        gap, size = abs(x - y), max(abs(x), abs(y))
        if not mp.isfinite(gap):
            raise Undefined
        if not have_names and mp.mag(size) > mp.prec // 2:
            raise Undefined  # too large to compare the last digits
        if is_rounded:
            # Small numbers by their size: 1e-7 is not 2e-7.
            return bool(gap <= min(ABSOLUTE, RELATIVE * size))
        # Half of the digits: cancellation may have cost the others.
        return bool(gap <= mpf(10) ** (-mp.dps // 2) * max(size, 1))


def _is_name(expr: Any) -> bool:
    is_rate = isinstance(expr, Derivative) and not expr.expr.has(Add, Mul, Pow)
    return expr.is_Symbol or isinstance(expr, AppliedUndef) or is_rate


def _names(expr: Any) -> set[str]:
    """The unknowns of a formula: x, f(2) and dy/dx."""
    if _is_name(expr):
        return {str(expr)}
    return set().union(*map(_names, expr.args))


def _names_in_exponents(expr: Any) -> frozenset[str]:
    """The unknowns in exponents, factorials and the like."""
    if _is_name(expr):
        return frozenset()
    discrete: tuple[Any, ...] = ()
    if expr.is_Pow:
        discrete = expr.args[1:]
    elif type(expr).__name__ in _DISCRETE:
        discrete = expr.args
    return frozenset().union(*map(_names, discrete), *map(_names_in_exponents, expr.args))


def _number(expr: Any, point: _Point) -> Any:
    """The value of a formula at a point: a Fraction as long as it is rational, else of mpmath."""
    if expr.is_Rational:
        return Fraction(expr.p, expr.q)
    if _is_name(expr):
        return point.value(str(expr))
    if expr is I:
        if point.domain == "real":
            raise Undefined
        return mpc(0, 1)
    if expr in _CONSTANTS:
        # mpmath's constants have no digits of their own: plus gives them the present precision.
        return +_CONSTANTS[expr]

    values = [_number(part, point) for part in expr.args]
    name = type(expr).__name__
    value = _power(point, *values) if name == "Pow" else _RULES[name](*values)
    if point.domain == "real" and isinstance(value, mpc):
        if value.imag:
            raise Undefined
        return value.real
    return value


def _all_exact(values: Iterable[Any]) -> bool:
    return all(isinstance(value, Fraction) for value in values)


def _sum(*terms: Any) -> Any:
    if _all_exact(terms):
        return sum(terms)
    return mp.fsum(terms)


def _product(*factors: Any) -> Any:
    if _all_exact(factors):
        return prod(factors, start=Fraction(1))
    return mp.fprod(factors)


def _power(point: _Point, base: Any, exponent: Any) -> Any:
    if _all_exact((base, exponent)) and exponent.denominator == 1:
        bits = (abs(base.numerator) | base.denominator).bit_length() * abs(exponent)
        if bits <= MAX_BITS:
            return base**exponent.numerator

    if mp.mag(exponent) > 60:  # a power tower
        raise Undefined
    # The real cube root of -8 is -2.
    is_odd_root = isinstance(exponent, Fraction) and exponent.denominator % 2
    if is_odd_root and point.domain == "real" and mp.mpmathify(base) < 0:
        value = mp.power(-base, exponent)
        if exponent.numerator % 2:
            return -value
        return value
    return mp.power(base, exponent)


def _small_integer(value: Any, most: int) -> int:
    """A number as an integer from 0 to ``most``. Raises Undefined for any other."""
    if not isinstance(value, Fraction) or value.denominator != 1 or not 0 <= value <= most:
        raise Undefined
    return value.numerator


def _floor(value: Any) -> Any:
    if isinstance(value, Fraction):
        return Fraction(value.numerator // value.denominator)
    if isinstance(value, mpc) or mp.mag(value) > 3 * mp.dps:
        raise Undefined
    # An integer up to rounding, such as log_2 8, is that integer.
    nearest = mp.nint(value)
    is_integer = abs(value - nearest) < mpf(10) ** (-mp.dps // 2)
    return Fraction(int(nearest if is_integer else mp.floor(value)))


def _logarithm(value: Any, base: Any = mp.e) -> Any:
    if not value:
        raise Undefined
    return mp.log(value) / mp.log(base)


_CONSTANTS = {sympy.pi: mp.pi, sympy.E: mp.e}
_ANGLE_FUNCTIONS = ("sin", "cos", "tan", "cot", "sec", "csc")
_DISCRETE = {"exp", "factorial", "binomial", "floor", "ceiling", "Mod"}
_RULES: dict[str, Callable[..., Any]] = {
    "Add": _sum,
    "Mul": _product,
    "exp": mp.exp,
    "log": _logarithm,
    "factorial": lambda n: Fraction(factorial(_small_integer(n, MAX_FACTORIAL))),
    "binomial": lambda n, k: Fraction(
        comb(_small_integer(n, 10 * MAX_FACTORIAL), _small_integer(k, MAX_FACTORIAL))
    ),
    "floor": _floor,
    "ceiling": lambda value: -_floor(-value),
    "Mod": lambda value, modulus: value - modulus * _floor(value / modulus),
    "Max": lambda *values: max(values, key=mp.mpmathify),
    "Min": lambda *values: min(values, key=mp.mpmathify),
    "Abs": abs,
    "UnevaluatedExpr": lambda value: value,
} | {
    name: getattr(mp, name)
    for name in map("".join, product(("", "a"), _ANGLE_FUNCTIONS, ("", "h")))
}


# --- Statements


def _values(statement: Statement) -> list[Value]:
    """The sides that are values of a statement: 4/2 and 2 of x = 4/2 = 2, none of 1 = 2."""
    sides, relations = statement.sides, set(statement.relations)
    if relations == {"∈"}:
        return [sides[-1]]
    if not relations <= {"=", "≈"}:
        return []
    has_name = _leading_name(statement) is not None
    values = sides[1:] if has_name else sides
    if len(values) == 1:
        return list(values)

    scalars = [side for side in reversed(values) if isinstance(side, Scalar)]
    if len(scalars) != len(values):
        is_true = all(values_equal(x, y) for x, y in pairwise(values))
        return list(values) if is_true else []
    accepted: list[Value] = [scalars[0]]
    signs = reversed(statement.relations)
    for (later, earlier), sign in zip(pairwise(scalars), signs, strict=False):
        if _is_true_step(earlier, later, is_rounded=sign == "≈"):
            accepted.append(earlier)
        elif has_name and _names(earlier.expr):  # A = pi r^2 = 9 pi
            break
        else:
            return []
    return accepted


def _is_true_step(a: Scalar, b: Scalar, *, is_rounded: bool) -> bool:
    """True if a step of a chain holds, for rounded numbers to one unit of the last place."""
    if _same_scalars(a, b):
        return True
    places = [side.place for side in (a, b) if side.place and (side.is_decimal or is_rounded)]
    if not places or _names(a.expr) | _names(b.expr):
        return False
    try:
        x, y = (mp.mpmathify(_number(side.expr, _Point("real"))) for side in (a, b))
        return bool(abs(x - y) <= mp.mpmathify(max(places)))
    except Exception:
        return False


def _leading_name(statement: Statement) -> Any:
    """The unknown that a statement begins with, or None."""
    first = statement.sides[0]
    if isinstance(first, Listing) and first.brackets == ":" and all(map(_is_variable, first.parts)):
        return first
    if not isinstance(first, Scalar):
        return None
    factors = Mul.make_args(first.expr)
    bases = [
        factor.args[0] if factor.is_Pow or factor.func is Abs else factor for factor in factors
    ]
    is_name = all(map(_is_name, bases))
    is_inverse = all(factor.exp == -1 for factor in factors if factor.is_Pow)  # f^{-1}(x)
    if is_name and is_inverse:
        return first.expr
    return None


def _same_statements(a: Statement, b: Statement) -> bool:
    name, other = _leading_name(a), _leading_name(b)
    if isinstance(name, AppliedUndef) and isinstance(other, AppliedUndef):
        b = _with_arguments(b, name, other)

    if name == _leading_name(b) and any(values_equal(x, y) for x in _values(a) for y in _values(b)):
        return True
    try:
        if _equal_in_any_order(_relations_to_zero(a), _relations_to_zero(b), _same_relations):
            return True
    except Undefined:
        pass
    return _same_regions(a, b)


def _with_arguments(statement: Statement, name: Any, other: Any) -> Statement:
    """A statement with other arguments of its function: f(t) = t^2 as f(x) = x^2."""
    are_variables = all(str(argument).islower() for argument in (*other.args, *name.args))
    if not are_variables or name.func != other.func or len(other.args) != len(name.args):
        return statement
    new_names = dict(zip(other.args, name.args, strict=True))
    sides = [
        replace(side, expr=side.expr.xreplace(new_names)) if isinstance(side, Scalar) else side
        for side in statement.sides
    ]
    return replace(statement, sides=tuple(sides))


class _Relation(NamedTuple):
    """A relation of a formula to zero, such as x - 2 > 0."""

    sign: str
    formula: Any
    is_decimal: bool  # a side has a decimal point


def _relations_to_zero(statement: Statement) -> list[_Relation]:
    """Each relation between two sides as one to zero: 2 < x as x - 2 > 0."""
    found = []
    for left, relation, right in zip(
        statement.sides, statement.relations, statement.sides[1:], strict=False
    ):
        if not (isinstance(left, Scalar) and isinstance(right, Scalar)) or relation in "∈≈":
            raise Undefined
        if relation in "<≤":
            left, right, relation = right, left, {"<": ">", "≤": "≥"}[relation]
        is_decimal = left.is_decimal or right.is_decimal
        found.append(_Relation(relation, Add(left.expr, Mul(-1, right.expr)), is_decimal))
    return found


def _same_relations(a: _Relation, b: _Relation) -> bool:
    names = _names(a.formula)
    if a.sign != b.sign or names != _names(b.formula) or not names:
        return False
    is_rounded = a.is_decimal or b.is_decimal
    is_inequality = a.sign in ">≥"
    if _proportional(a.formula, b.formula, is_rounded, is_positive=is_inequality):
        return True
    # An equation may also be multiplied by its denominators.
    numerators = [sympy.fraction(sympy.together(side.formula))[0] for side in (a, b)]
    return not is_inequality and _proportional(numerators[0], numerators[1], is_rounded)


def _proportional(f: Any, g: Any, is_rounded: bool, *, is_positive: bool = False) -> bool:
    """True if f/g is one number everywhere, other than 0."""
    # The complex one where the real one has no value, such as log x at a negative x.
    for point in (_Point("real"), _Point("complex")):
        try:
            with mp.workdps(POINT_DIGITS):
                scale = [_number(formula, point) for formula in (g, f)]
            break
        except Exception:  # no value at this point
            continue
    else:
        return False
    # Zeros up to rounding have no ratio.
    if any(abs(mp.mpmathify(value)) < mpf(10) ** -100 for value in scale):
        return False
    # A negative factor turns an inequality around.
    if is_positive and (point.domain == "complex" or (scale[0] > 0) != (scale[1] > 0)):
        return False
    return _agree_everywhere(f, g, is_rounded=is_rounded, factors=scale)


# --- Lists, tuples and sets


def _same_quotient(ratio: Sequence[Value], number: Scalar) -> bool:
    """True if a ratio is the fraction; 6:2 is not 3, since a number in digits compares nothing."""
    if len(ratio) != 2 or (number.place and number.expr.is_Integer):
        return False
    a, b = _scalars(ratio)
    quotient = replace(a, expr=a.expr / b.expr, is_decimal=a.is_decimal or b.is_decimal)
    return _same_scalars(quotient, number)


def _same_ratios(a: Listing, b: Listing) -> bool:
    """True if the terms of two ratios are proportional."""
    if len(a.parts) != len(b.parts):
        return False
    pairs = list(zip(_scalars(a.parts), _scalars(b.parts), strict=True))
    return all(_same_scalars(_times(x, w), _times(y, v)) for (x, y), (v, w) in pairwise(pairs))


def _times(a: Scalar, b: Scalar) -> Scalar:
    return Scalar(a.expr * b.expr, a.is_decimal or b.is_decimal)


def _scalars(values: Sequence[Value]) -> list[Scalar]:
    """The values, which are numbers or formulas. Raises Undefined for others."""
    if not all(isinstance(value, Scalar) for value in values):
        raise Undefined
    return [value for value in values if isinstance(value, Scalar)]


def _same_listings(a: Listing, b: Listing) -> bool:
    if ":" in (a.brackets, b.brackets):
        return a.brackets == b.brackets and _same_ratios(a, b)
    a, b = _without_duplicates(a), _without_duplicates(b)
    if len(a.parts) != len(b.parts):
        return False

    kinds = [_kind(listing) for listing in (a, b)]
    if set(kinds) == {"set", "tuple"}:
        return False
    if len(a.parts) == 2:
        brackets = [listing.brackets.replace("⟮⟯", "()") for listing in (a, b)]
        if kinds == ["tuple", "tuple"] and brackets[0] != brackets[1]:
            return False  # open or closed at other ends
        if "list" in kinds and any(map(_is_interval, (a, b))):
            return False

    names = [_assigned_names(listing) for listing in (a, b)]
    are_assignments = [len(own) > 1 for own in names]
    is_ordered = "tuple" in kinds or a.is_ranking or b.is_ranking or any(are_assignments)
    if is_ordered and not all(names):
        # Assignments without brackets in the order of their names: y = 3, x = 1 is (1, 3).
        if are_assignments[0]:
            a = _sorted_by_name(a)
        if are_assignments[1]:
            b = _sorted_by_name(b)
        return all(values_equal(x, y) for x, y in zip(a.parts, b.parts, strict=True))
    return _equal_in_any_order(a.parts, b.parts)


def _is_interval(listing: Listing) -> bool:
    """True for a pair that is no tuple: with another bracket than (), or an infinite end."""
    ends = {end.expr for end in listing.parts if isinstance(end, Scalar)}
    if listing.brackets == "()":
        return not ends.isdisjoint({oo, -oo})
    return listing.brackets in ("[]", "[)", "(]", "⟮⟯")


def _kind(listing: Listing) -> str:
    return {"{}": "set", "": "list", "or": "list"}.get(listing.brackets, "tuple")


def _assigned_names(listing: Listing) -> set[Any]:
    """The names of assignments; none if other parts are among them."""
    names = set()
    for part in listing.parts:
        names.add(_leading_name(part) if isinstance(part, Statement) else None)
    if None in names:
        return set()
    return names


def _sorted_by_name(listing: Listing) -> Listing:
    if listing.brackets:
        return listing
    return replace(listing, parts=tuple(sorted(listing.parts, key=str)))


def _without_duplicates(listing: Listing) -> Listing:
    """A set with each element once; other brackets as they are."""
    if listing.brackets != "{}":
        return listing
    parts: list[Value] = []
    for part in listing.parts:
        if not any(values_equal(part, earlier) for earlier in parts):
            parts.append(part)
    return replace(listing, parts=tuple(parts))


def _equal_in_any_order(
    a: Sequence[Any], b: Sequence[Any], equal: Callable[..., bool] = values_equal
) -> bool:
    """True if the parts can be paired so that both of each pair are equal."""
    unpaired = list(b)
    for part in a:
        match = next((i for i, other in enumerate(unpaired) if equal(part, other)), None)
        if match is None:
            return False
        del unpaired[match]
    return not unpaired


# --- Regions of the number line


def _same_regions(a: Value, b: Value) -> bool:
    """True if both are regions with the same numbers, tested at their ends and between these."""
    try:
        variables = [_variables(x) for x in (a, b)]
        if all(variables) and variables[0] != variables[1]:
            return False
        with mp.workdps(POINT_DIGITS):
            ends = _numbers([end for x in (a, b) for end in _ends(x)])
            finite = sorted({mpf(0), *filter(mp.isfinite, ends.values())})
            between = []
            for low, high in pairwise(finite):
                between.append((low + high) / 2)
            below, above = mp.floor(finite[0]) - 1, mp.ceil(finite[-1]) + 1
            # Integers, a fraction and an irrational number distinguish sets such as ℤ and ℚ.
            of_sets = [*map(mp.floor, between), above + mpf(1) / 2, above + mp.sqrt(2)]
            points = [*finite, *between, below, above, *of_sets]
            return all(_is_in(x, a, ends) == _is_in(x, b, ends) for x in points)
    except Exception:  # a value that is no region
        return False


def _numbers(ends: Sequence[Scalar]) -> dict[Value, Any]:
    """The value of each end."""
    values: dict[Value, Any] = {
        end: mpf(str(end.expr).replace("oo", "inf")) for end in ends if end.expr in (oo, -oo)
    }
    finite = [end for end in ends if end not in values]
    if any(_names(end.expr) for end in finite):
        raise Undefined
    values |= {end: mp.mpmathify(_number(end.expr, _Point("real"))) for end in finite}
    # Ends that are equal up to decimal rounding get one value.
    for earlier, end in pairwise(sorted(finite, key=lambda end: values[end])):
        if _same_scalars(earlier, end):
            values[end] = values[earlier]
    return values


def _ends(value: Value) -> list[Scalar]:
    match value:
        case Scalar():
            return [value]
        case Statement(sides):
            ends: list[Scalar] = []
            for side in sides:
                if not _is_variable(side):
                    ends.extend(_ends(side))
            return ends
        case Listing(parts) | Region(_, parts):
            return [end for part in parts for end in _ends(part)]
    raise Undefined


def _variables(value: Value) -> set[str]:
    match value:
        case Statement(sides):
            variables: set[str] = set()
            for side in sides:
                if _is_variable(side):
                    variables.add(str(side))
            return variables
        case Listing(parts) | Region(_, parts):
            return set().union(*map(_variables, parts))
    return set()


def _is_variable(value: Value) -> bool:
    return isinstance(value, Scalar) and _is_name(value.expr)


def _is_in(x: Any, region: Value, ends: dict[Value, Any]) -> bool:
    """True if a number is in a region. Raises Undefined for a value that is no region."""
    match region:
        case Region(operation, ()):
            is_integer = bool(mp.isint(x))
            sets = {"N": is_integer and x > 0, "Z": is_integer, "Q": mp.isint(2 * x), "R": True}
            return bool(sets[operation])
        case Region(operation, parts):
            inside = [_is_in(x, part, ends) for part in parts]
            if operation == "∖":  # noqa: RUF001
                return inside[0] and not any(inside[1:])
            return any(inside) if operation == "∪" else all(inside)  # noqa: RUF001
        case Listing(_, "" | ":"):
            raise Undefined
        case Listing(parts, "{}"):
            return x in [ends[part] for part in parts]
        case Listing(parts, "or"):
            for part in parts:
                if isinstance(part, Listing) and not {oo, -oo} & {end.expr for end in _ends(part)}:
                    raise Undefined  # may be pairs of numbers
            inside = [_is_in(x, part, ends) for part in parts]
            return any(inside)
        case Listing((left, right), brackets):
            low, high = ends[left], ends[right]
            if low >= high:
                raise Undefined
            return (
                low < x < high or (x == low and "[" in brackets) or (x == high and "]" in brackets)
            )
        case Statement(sides, relations):
            relations_between = zip(sides, relations, sides[1:], strict=False)
            holds = [_holds(x, left, sign, right, ends) for left, sign, right in relations_between]
            return all(holds)
    raise Undefined


def _holds(x: Any, left: Value, sign: str, right: Value, ends: dict[Value, Any]) -> bool:
    if sign == "∈":
        return _is_in(x, right, ends)
    if _is_variable(left) == _is_variable(right):
        raise Undefined
    a, b = (x if _is_variable(side) else ends[side] for side in (left, right))
    return bool(_RELATIONS[sign](a, b))


_RELATIONS: dict[str, Callable[[Any, Any], bool]] = {
    "=": operator.eq,
    "≠": operator.ne,
    "<": operator.lt,
    "≤": operator.le,
    ">": operator.gt,
    "≥": operator.ge,
}
