r"""Equality of two parsed answers, with one rule for each kind; undecided counts as different.

- Numbers: exactly, as fractions or at rising precision. With a decimal point, to six places.
- Formulas: at random points, where names are real, or complex, or, in exponents, whole numbers.
- Equations and inequalities: their differences of sides have a constant ratio.
- Tuples by their order, assignments by their names, lists and sets in any order.
- Regions: as sets of real numbers, however they are written.
"""

import operator
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import pairwise, product
from math import comb, factorial, prod
from typing import Any
from zlib import crc32

import sympy
from mpmath import mp, mpc, mpf  # type: ignore[import-untyped]
from sympy import Abs, Add, Derivative, I, Mul, Pow, oo
from sympy.core.function import AppliedUndef

from paint.grading.math.parse import Builder, Listing, Region, Scalar, Statement, Value


class Undefined(Exception):
    """A formula has no value at a point, or none that can be computed."""


class _Different(BaseException):
    """Two formulas differ exactly, so that no other point can make them equal."""


OF_NUMBERS, OF_POINTS = 1920, 300  # digits; at points, of which there are many, fewer will do
POINTS, WHOLE_POINTS, FEWEST_POINTS = 9, 40, 3
MOST_BITS = 1 << 21  # of an exact power; larger ones are computed with rounding
MOST_OF_FACTORIAL = 100_000
ABSOLUTE, RELATIVE = 1e-6, 1e-5  # what rounding may change in a number with a decimal point

_COMPLEX_NAMES = {"z", "w", "math{omega}"}
_WHOLE_NAMES = {"k", "m", "n", "N"}
_STEPS = (sympy.floor, sympy.ceiling, sympy.Mod)


def values_equal(a: Value, b: Value) -> bool:
    """Whether two values say the same; symmetric. May take for ever."""
    a, b = _lone(a), _lone(b)
    match a, b:
        case Scalar(), Scalar():
            return _same_scalars(a, b)
        case Statement(), Statement():
            return _same_statements(a, b)
        case Builder(), Builder():
            return values_equal(a.condition, b.condition) and values_equal(a.element, b.element)
        case Listing(), Listing() if _same_listings(a, b):
            return True
        case Region(), Region() if a.operation == b.operation and _matched(a.parts, b.parts):
            return True

    for one, other in ((a, b), (b, a)):
        if isinstance(one, Statement) and any(values_equal(value, other) for value in _values(one)):
            return True
    return _same_regions(a, b)


def _lone(value: Value) -> Value:
    """A list, or a set of a tuple, with one part is its part."""
    if isinstance(value, Listing) and len(value.parts) == 1 and value.brackets != "[[":
        part = value.parts[0]
        if not (isinstance(part, Listing) and not part.parts):
            return part
    return value


# --- Numbers and formulas


@dataclass(frozen=True)
class _World:
    """What names stand for: real numbers, complex ones, or whole ones where they are exponents."""

    kind: str
    seed: int = 0
    whole: frozenset[str] = frozenset()

    def value(self, name: str) -> Any:
        draw = crc32(f"{self.seed} {name}".encode())
        if name in self.whole:
            if len(self.whole) > 1:
                return Fraction(draw % 24 + 1 if self.seed % 4 else -(draw % 6) - 1)
            return Fraction(self.seed - 4)
        real = Fraction((draw % 1999 - 999) or 1, 101)
        if self.kind == "complex":
            return mp.mpmathify(real) + mpc(0, mpf((draw >> 12) % 1999 - 999) / 103)
        return real


def _same_scalars(a: Scalar, b: Scalar) -> bool:
    if any(value.expr.has(oo) for value in (a, b)):
        ends = [sympy.sympify(value.expr).doit() for value in (a, b)]
        return ends[0] == ends[1] and ends[0] in (oo, -oo)
    return _everywhere(a.expr, b.expr, is_rounded=a.is_decimal or b.is_decimal)


def _everywhere(
    a: Any, b: Any, *, is_rounded: bool, factors: Sequence[Any] = (Fraction(1), Fraction(1))
) -> bool:
    """Whether two formulas, times a factor each, agree wherever they are defined."""
    names = _names(a) | _names(b)
    whole = _exponents(a) | _exponents(b) | names & _WHOLE_NAMES
    at_real = [_World("real", seed) for seed in range(POINTS if names else 1)]
    at_complex = [_World("complex", seed) for seed in range(POINTS if names else 1)]
    at_whole = [_World("real", seed, whole) for seed in range(WHOLE_POINTS if whole else 0)]

    def agree(worlds: Sequence[_World]) -> bool:
        defined = 0
        for world in worlds:
            try:
                if not _agree_at(world, (a, b), factors, is_rounded):
                    return False
            except Exception:  # no value at this point
                continue
            defined += 1
        return defined >= (FEWEST_POINTS if names else 1)

    try:
        if names and (a.has(*_STEPS) or b.has(*_STEPS)):  # points seldom meet the steps
            return agree(at_whole) and (names <= _WHOLE_NAMES or agree(at_real))
        if names & _COMPLEX_NAMES:
            return agree(at_complex)
        return any(map(agree, (at_whole, at_real, at_complex)))
    except _Different:
        return False


def _agree_at(
    world: _World, exprs: Sequence[Any], factors: Sequence[Any], is_rounded: bool
) -> bool:
    """Whether two formulas, times a factor each, agree at a point."""
    with mp.workdps(OF_POINTS if any(map(_names, exprs)) else OF_NUMBERS):
        values = [_number(expr, world) for expr in exprs]
        x, y = map(_product, values, factors)
        if _all_exact((x, y)) and not is_rounded:
            if x != y:
                raise _Different
            return True
        x, y = mp.mpmathify(x), mp.mpmathify(y)
        gap, size = abs(x - y), max(abs(x), abs(y))
        if not mp.isfinite(gap):
            raise Undefined
        if not any(map(_names, exprs)) and mp.mag(size) > mp.prec // 2:
            raise Undefined  # so large that the last digits are not seen
        if is_rounded:
            return bool(gap <= min(ABSOLUTE, RELATIVE * size))
        return bool(gap <= mpf(10) ** (-mp.dps // 2) * max(size, 1))


def _is_name(expr: Any) -> bool:
    is_rate = isinstance(expr, Derivative) and not expr.expr.has(Add, Mul, Pow)
    return expr.is_Symbol or isinstance(expr, AppliedUndef) or is_rate


def _names(expr: Any) -> set[str]:
    """The unknowns of a formula: x, f(2) and dy/dx."""
    return {str(expr)} if _is_name(expr) else set().union(*map(_names, expr.args))


def _exponents(expr: Any) -> frozenset[str]:
    """The unknowns in exponents, factorials and the like."""
    if _is_name(expr):
        return frozenset()
    inside = expr.args[1:] if expr.is_Pow else expr.args if type(expr).__name__ in _DISCRETE else ()
    return frozenset().union(*map(_names, inside), *map(_exponents, expr.args))


def _number(expr: Any, world: _World) -> Any:
    """The value of a formula at a point: a Fraction as long as it is rational, else of mpmath."""
    if expr.is_Rational:
        return Fraction(expr.p, expr.q)
    if _is_name(expr):
        return world.value(str(expr))
    if expr is I:
        if world.kind == "real":
            raise Undefined
        return mpc(0, 1)
    if expr in _CONSTANTS:
        return +_CONSTANTS[expr]

    values = [_number(part, world) for part in expr.args]
    name = type(expr).__name__
    value = _power(world, *values) if name == "Pow" else _RULES[name](*values)
    if world.kind == "real" and isinstance(value, mpc):
        if value.imag:
            raise Undefined
        return value.real
    return value


def _all_exact(values: Iterable[Any]) -> bool:
    return all(isinstance(value, Fraction) for value in values)


def _sum(*terms: Any) -> Any:
    return sum(terms) if _all_exact(terms) else mp.fsum(terms)


def _product(*factors: Any) -> Any:
    return prod(factors, start=Fraction(1)) if _all_exact(factors) else mp.fprod(factors)


def _power(world: _World, base: Any, exponent: Any) -> Any:
    if _all_exact((base, exponent)) and exponent.denominator == 1:
        bits = (abs(base.numerator) | base.denominator).bit_length() * abs(exponent)
        if bits <= MOST_BITS:
            return base**exponent.numerator

    if mp.mag(exponent) > 60:  # a tower
        raise Undefined
    is_odd_root = isinstance(exponent, Fraction) and exponent.denominator % 2
    if (
        is_odd_root and world.kind == "real" and mp.mpmathify(base) < 0
    ):  # the real cube root of -8 is -2
        value = mp.power(-base, exponent)
        return -value if exponent.numerator % 2 else value
    return mp.power(base, exponent)


def _whole(value: Any, most: int) -> int:
    """A whole number that is not negative; Undefined if it is not, or too large."""
    if not isinstance(value, Fraction) or value.denominator != 1 or not 0 <= value <= most:
        raise Undefined
    return value.numerator


def _floor(value: Any) -> Any:
    """Rounding must not make 2 of log_2 8."""
    if isinstance(value, Fraction):
        return Fraction(value.numerator // value.denominator)
    if isinstance(value, mpc) or mp.mag(value) > 3 * mp.dps:
        raise Undefined
    near = mp.nint(value)
    is_whole = abs(value - near) < mpf(10) ** (-mp.dps // 2)
    return Fraction(int(near if is_whole else mp.floor(value)))


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
    "factorial": lambda n: Fraction(factorial(_whole(n, MOST_OF_FACTORIAL))),
    "binomial": lambda n, k: Fraction(
        comb(_whole(n, 10 * MOST_OF_FACTORIAL), _whole(k, MOST_OF_FACTORIAL))
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
    """The sides that are a statement's value: x = 4/2 = 2 says 4/2 and 2, 1 = 2 says nothing."""
    sides, relations = statement.sides, set(statement.relations)
    if relations == {"∈"}:
        return [sides[-1]]
    if not relations <= {"=", "≈"}:
        return []
    has_name = _name(statement) is not None
    values = sides[1:] if has_name else sides
    if len(values) == 1:
        return list(values)

    scalars = [side for side in reversed(values) if isinstance(side, Scalar)]
    if len(scalars) != len(values):
        return []
    said: list[Value] = [scalars[0]]
    signs = reversed(statement.relations)
    for (later, earlier), sign in zip(pairwise(scalars), signs, strict=False):
        if _consistent(earlier, later, is_rounded=sign == "≈"):
            said.append(earlier)
        elif has_name and _names(earlier.expr):  # A = pi r^2 = 9 pi
            break
        else:
            return []
    return said


def _consistent(a: Scalar, b: Scalar, *, is_rounded: bool) -> bool:
    """Whether a step of a chain is true, if need be to one unit of its last written place."""
    if _same_scalars(a, b):
        return True
    places = [side.place for side in (a, b) if side.place and (side.is_decimal or is_rounded)]
    if not places or _names(a.expr) | _names(b.expr):
        return False
    try:
        x, y = (mp.mpmathify(_number(side.expr, _World("real"))) for side in (a, b))
        return bool(abs(x - y) <= mp.mpmathify(max(places)))
    except Exception:
        return False


def _name(statement: Statement) -> Any:
    """The unknown that a statement begins with, or None."""
    first = statement.sides[0]
    if not isinstance(first, Scalar):
        return None
    factors = Mul.make_args(first.expr)
    bases = [
        factor.args[0] if factor.is_Pow or factor.func is Abs else factor for factor in factors
    ]
    is_name = all(map(_is_name, bases))
    is_inverse = all(factor.exp == -1 for factor in factors if factor.is_Pow)  # f^{-1}(x)
    return first.expr if is_name and is_inverse else None


def _same_statements(a: Statement, b: Statement) -> bool:
    name, other = _name(a), _name(b)
    if isinstance(name, AppliedUndef) and isinstance(other, AppliedUndef):
        b = _renamed(b, name, other)

    if name == _name(b) and any(values_equal(x, y) for x in _values(a) for y in _values(b)):
        return True
    try:
        if _matched(_links(a), _links(b), _same_links):
            return True
    except Undefined:
        pass
    return _same_regions(a, b)


def _renamed(statement: Statement, name: Any, other: Any) -> Statement:
    """f(t) = t^2 with the x of f(x)."""
    olds, news = other.args, name.args
    is_free = all(str(arg).islower() for arg in (*olds, *news)) and name.func == other.func
    if not is_free or len(olds) != len(news):
        return statement
    names = dict(zip(olds, news, strict=True))
    return replace(
        statement,
        sides=tuple(
            replace(side, expr=side.expr.xreplace(names)) if isinstance(side, Scalar) else side
            for side in statement.sides
        ),
    )


def _links(statement: Statement) -> list[tuple[str, Any, bool]]:
    """Each relation as one to zero: 2 < x is x - 2 > 0; and whether it has a decimal point."""
    links = []
    for left, relation, right in zip(
        statement.sides, statement.relations, statement.sides[1:], strict=False
    ):
        if not (isinstance(left, Scalar) and isinstance(right, Scalar)) or relation in "∈≈":
            raise Undefined
        if relation in "<≤":
            left, right, relation = right, left, {"<": ">", "≤": "≥"}[relation]
        is_decimal = left.is_decimal or right.is_decimal
        links.append((relation, Add(left.expr, Mul(-1, right.expr)), is_decimal))
    return links


def _same_links(a: tuple[str, Any, bool], b: tuple[str, Any, bool]) -> bool:
    (relation, f, f_decimal), (other, g, g_decimal) = a, b
    if relation != other or _names(f) != _names(g) or not _names(f):
        return False
    is_rounded = f_decimal or g_decimal
    if _proportional(f, g, is_rounded, is_positive=relation in ">≥"):
        return True
    tops = [sympy.fraction(sympy.together(formula))[0] for formula in (f, g)]
    return relation not in ">≥" and _proportional(tops[0], tops[1], is_rounded)


def _proportional(f: Any, g: Any, is_rounded: bool, *, is_positive: bool = False) -> bool:
    """Whether f/g is the same number everywhere, and not 0."""
    for world in (_World("real"), _World("complex")):
        try:
            with mp.workdps(OF_POINTS):
                scale = [_number(formula, world) for formula in (g, f)]
            break
        except Exception:  # no value at this point
            continue
    else:
        return False
    if any(abs(mp.mpmathify(value)) < mpf(10) ** -100 for value in scale):
        return False
    if is_positive and (world.kind == "complex" or (scale[0] > 0) != (scale[1] > 0)):
        return False
    return _everywhere(f, g, is_rounded=is_rounded, factors=scale)


# --- Lists, tuples and sets


def _same_listings(a: Listing, b: Listing) -> bool:
    a, b = _without_twins(a), _without_twins(b)
    if len(a.parts) != len(b.parts):
        return False

    orders = [{"{}": "set", "": "list", "or": "list"}.get(x.brackets, "tuple") for x in (a, b)]
    if set(orders) == {"set", "tuple"}:
        return False
    if len(a.parts) == 2 and "list" in orders and "[" in f"{a.brackets}{b.brackets}"[:1]:
        return False  # an interval
    if orders == ["tuple", "tuple"] and len(a.parts) == 2 and a.brackets != b.brackets:
        return False

    names = [_names_of(x) for x in (a, b)]
    is_ordered = "tuple" in orders or a.is_ranking or b.is_ranking or any(len(x) > 1 for x in names)
    if is_ordered and not all(names):
        # y = 3, x = 1 is (1, 3).
        a, b = (_by_name(x) if len(own) > 1 else x for x, own in zip((a, b), names, strict=True))
        return all(values_equal(x, y) for x, y in zip(a.parts, b.parts, strict=True))
    return _matched(a.parts, b.parts)


def _names_of(listing: Listing) -> set[Any]:
    """The names of assignments; none if other parts are among them."""
    names = {_name(part) if isinstance(part, Statement) else None for part in listing.parts}
    return set() if None in names else names


def _by_name(listing: Listing) -> Listing:
    if listing.brackets:
        return listing
    return replace(listing, parts=tuple(sorted(listing.parts, key=str)))


def _without_twins(listing: Listing) -> Listing:
    """A set with each element once; other brackets as they are."""
    if listing.brackets != "{}":
        return listing
    parts: list[Value] = []
    for part in listing.parts:
        if not any(values_equal(part, earlier) for earlier in parts):
            parts.append(part)
    return replace(listing, parts=tuple(parts))


def _matched(a: Sequence[Any], b: Sequence[Any], equal: Callable[..., bool] = values_equal) -> bool:
    """Whether the parts are the same in some order."""
    left = list(b)
    for part in a:
        twin = next((i for i, other in enumerate(left) if equal(part, other)), None)
        if twin is None:
            return False
        del left[twin]
    return not left


# --- Regions of the number line


def _same_regions(a: Value, b: Value) -> bool:
    """Whether both are regions with the same numbers: at their ends, and around each of them."""
    try:
        variables = [_variables(x) for x in (a, b)]
        if all(variables) and variables[0] != variables[1]:
            return False
        with mp.workdps(OF_POINTS):
            ends = _numbers([end for x in (a, b) for end in _ends(x)])
            finite = sorted({mpf(0), *filter(mp.isfinite, ends.values())})
            beside = [(low + high) / 2 for low, high in pairwise(finite)]
            beyond = [mp.floor(finite[0]) - 1, mp.ceil(finite[-1]) + 1]
            # Whole numbers, a fraction and an irrational number tell sets such as the integers.
            beyond += [*map(mp.floor, beside), beyond[1] + mpf(1) / 2, beyond[1] + mp.sqrt(2)]
            points = [*finite, *beside, *beyond]
            return all(_is_in(x, a, ends) == _is_in(x, b, ends) for x in points)
    except Exception:  # a value that is no region
        return False


def _numbers(ends: Sequence[Scalar]) -> dict[Value, Any]:
    """The value of each end; ends that are equal within the rounding of decimals have the same."""
    values: dict[Value, Any] = {
        end: mpf(str(end.expr).replace("oo", "inf")) for end in ends if end.expr in (oo, -oo)
    }
    finite = [end for end in ends if end not in values]
    if any(_names(end.expr) for end in finite):
        raise Undefined
    values |= {end: mp.mpmathify(_number(end.expr, _World("real"))) for end in finite}
    for earlier, end in pairwise(sorted(finite, key=lambda end: values[end])):
        if _same_scalars(earlier, end):
            values[end] = values[earlier]
    return values


def _ends(value: Value) -> list[Scalar]:
    match value:
        case Scalar():
            return [value]
        case Statement(sides):
            return [end for side in sides if not _is_variable(side) for end in _ends(side)]
        case Listing(parts) | Region(_, parts):
            return [end for part in parts for end in _ends(part)]
    raise Undefined


def _variables(value: Value) -> set[str]:
    match value:
        case Statement(sides):
            return {str(side) for side in sides if _is_variable(side)}
        case Listing(parts) | Region(_, parts):
            return set().union(*map(_variables, parts))
    return set()


def _is_variable(value: Value) -> bool:
    return isinstance(value, Scalar) and _is_name(value.expr)


def _is_in(x: Any, region: Value, ends: dict[Value, Any]) -> bool:
    """Whether a number is in a region; Undefined if that is none."""
    match region:
        case Region(operation, ()):
            is_whole = bool(mp.isint(x))
            sets = {"N": is_whole and x > 0, "Z": is_whole, "Q": mp.isint(2 * x), "R": True}
            return bool(sets[operation])
        case Region(operation, parts):
            inside = [_is_in(x, part, ends) for part in parts]
            if operation == "∖":  # noqa: RUF001
                return inside[0] and not any(inside[1:])
            return any(inside) if operation == "∪" else all(inside)  # noqa: RUF001
        case Listing(parts, "{}"):
            return x in [ends[part] for part in parts]
        case Listing(parts, "or"):
            for part in parts:
                if isinstance(part, Listing) and not {oo, -oo} & {end.expr for end in _ends(part)}:
                    raise Undefined  # perhaps pairs of numbers
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
            links = zip(sides, relations, sides[1:], strict=False)
            held = [_holds(x, *link, ends) for link in links]
            return all(held)
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
