r"""Random gold answers, each rewritten so that it stays right or becomes nearly right.

A rule draws a gold answer with its right and its wrong rewritings; both are so by construction.
`pairs` draws a number of pairs, the same of each rule. As a program, it grades them and prints a
table of false rights and false wrongs by rule:

    python packages/strictgrade/tests/rewritings.py --seed 0 --count 3000
"""

import argparse
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import cycle
from math import comb, gcd
from random import Random

from strictgrade import Comparer, answer_text, chosen_letter
from strictgrade.choice import named_letters

Rewriting = tuple[str, list[str], list[str]]  # a gold answer, right answers, wrong ones
Rule = Callable[[Random], Rewriting]


@dataclass(frozen=True)
class Pair:
    """A gold answer and a completion, and whether that is right."""

    rule: str
    grader: str
    gold: str
    text: str
    is_right: bool


def number(rng: Random) -> Rewriting:
    n, k = rng.randint(10**4, 10**7), rng.randint(2, 9)
    commas = f"{n:,}"
    right = [commas, commas.replace(",", "{,}"), commas.replace(",", r"\,"), f"{n}.0"]
    right += [rf"\frac{{{k * n}}}{{{k}}}", f"{n - k} + {k}", f"x = {n}"]
    right += [rf"{n / 10**4} \times 10^4", f"{n / 10**4}e4", rf"\therefore {n}", rf"\large {n}"]
    right += [rf"N = {n - k} + {k} = {n}"]
    wrong = [str(n + 1), f"{n}0", f"-{n}", f"{n}.5", rf"\frac{{{n}}}{{{k}}}", rf"\ge {n}", f"{n}'"]
    wrong += [f"{n / 10**4}e5", rf"{n} \text{{ is wrong}}", rf"N = {n - k} + {k} = {n + k}"]
    return str(n), right, wrong


def mixed(rng: Random) -> Rewriting:
    whole, bottom = rng.randint(2, 40), rng.choice([4, 5, 8])
    top = rng.choice([n for n in range(1, bottom) if gcd(n, bottom) == 1])
    value = whole + Fraction(top, bottom)
    right = [rf"\frac{{{value.numerator}}}{{{bottom}}}", str(float(value))]
    right += [f"{whole} {top}/{bottom}", rf"{whole} + \frac{{{top}}}{{{bottom}}}"]
    right += [rf"{whole}\dfrac{{{2 * top}}}{{{2 * bottom}}}"]
    wrong = [rf"{whole}\cdot\frac{{{top}}}{{{bottom}}}", rf"{whole}\frac{{{bottom}}}{{{top}}}"]
    wrong += [rf"{whole + 1}\frac{{{top}}}{{{bottom}}}", rf"\frac{{{top}}}{{{bottom}}}"]
    return rf"{whole}\frac{{{top}}}{{{bottom}}}", right, wrong


def degrees(rng: Random) -> Rewriting:
    n = rng.randint(2, 350)
    turn = Fraction(n, 180)
    right = [str(n), rf"{n} \text{{ degrees}}", f"{n}°", rf"\angle ABC = {n}^\circ"]
    right += [rf"\frac{{{turn.numerator}\pi}}{{{turn.denominator}}}", rf"{n}^{{\circ}}"]
    wrong = [rf"{n + 1}^\circ", rf"\frac{{{n}\pi}}{{90}}", rf"{n}\%", rf"\frac{{{n}^\circ}}{{2}}"]
    return rf"{n}^\circ", right, wrong


def percent(rng: Random) -> Rewriting:
    n = rng.randint(2, 99)
    right = [str(n), str(n / 100), rf"{n} \text{{ percent}}", f"{n} percent"]
    right += [rf"\frac{{{n}}}{{100}}"]
    wrong = [str(n / 10), rf"{n + 1}\%", rf"{n}‰", rf"{n}^\circ", rf"\frac{{{n + 1}}}{{100}}"]
    return rf"{n}\%", right, wrong


def quantity(rng: Random) -> Rewriting:
    n = rng.randint(2, 500)
    short, long, other = rng.choice(
        [("cm", "centimeters", "m"), ("kg", "kilograms", "g"), ("hr", "hours", "min")]
    )
    right = [str(n), f"{n} {short}", rf"{n}\,\mathrm{{{short}}}", rf"{n}\text{{ {long}}}"]
    right += [f"{n} {long}"]
    wrong = [rf"{n} \text{{ {other}}}", rf"{n + 1} \text{{ {short}}}", rf"{n} \text{{ {short}}}^2"]
    wrong += [rf"{n} \text{{ thousand {long}}}", rf"{n} \text{{ and a half {long}}}"]
    return rf"{n} \text{{ {short}}}", right, wrong


def based(rng: Random) -> Rewriting:
    base = rng.randint(5, 9)
    n = rng.randint(100, 444)
    right = [str(n), f"{n}_{base}", f"({n})_{{{base}}}", rf"{n} \text{{ (base {base})}}"]
    wrong = [f"{n}_{{{base + 1}}}", rf"{n + 1}_{{{base}}}", rf"{n} \text{{ (base {base - 1})}}"]
    return f"{n}_{{{base}}}", right, wrong


def listing(rng: Random) -> Rewriting:
    values = rng.sample(range(-20, 20), rng.randint(2, 5))
    texts = [str(n) for n in rng.sample(values, len(values))]
    right = [", ".join(texts), "; ".join(texts), rf"\{{{', '.join(texts)}\}}"]
    right += [f"x = {', '.join(texts)}"]
    right += [rf"{', '.join(texts[1:])} \text{{ and }} {texts[0]}", "$, $".join(texts)]
    right += [r" \text{ or } ".join(f"x = {text}" for text in texts)]
    wrong = [", ".join(texts[1:]), ", ".join([*texts, "77"]), ", ".join([*texts[1:], "55"])]
    wrong += [f"[{texts[0]}, {texts[1]}]", rf"({', '.join(sorted(texts[1:]))})"]
    return ",".join(map(str, values)), right, wrong


def interval(rng: Random) -> Rewriting:
    low = rng.randint(-9, 9)
    high = low + rng.randint(2, 9)
    right = [rf"{low} \le x < {high}", f"[{low}, {high}[", rf"x \in [{low},{high})"]
    right += [f"{high} > x ≥ {low}"]
    right += [rf"\{{x : {low} \leq x < {high}\}}", rf"\left[ {low}, {high} \right)"]
    right += [rf"[{low},{low + 1}) \cup [{low + 1},{high})", rf"\{{{low}\}} \cup ]{low},{high}["]
    wrong = [f"({low}, {high})", f"[{low}, {high}]", f"]{low}, {high}]", f"{low} < x < {high}"]
    wrong += [f"[{low}, {high + 1})", rf"\{{{low}, {high}\}}", f"{low}, {high}"]
    wrong += [rf"[{low},{low + 1}) \cup ({low + 1},{high})"]
    return f"[{low},{high})", right, wrong


def matrix(rng: Random) -> Rewriting:
    a, b, c, d = rng.sample(range(-9, 10), 4)

    def text(*cells: object, kind: str = "pmatrix") -> str:
        rows = rf"{cells[0]} & {cells[1]} \\ {cells[2]} & {cells[3]}"
        return rf"\begin{{{kind}}} {rows} \end{{{kind}}}"

    array = rf"\left(\begin{{array}}{{cc}}{a} & {b}\\{c} & {d}\end{{array}}\right)"
    right = [text(a, b, c, d, kind="bmatrix"), rf"A = {text(a, b, c, d)}", array]
    right += [rf"A^{{-1}} = {text(a, b, c, d)}", text(rf"\frac{{{3 * a}}}{{3}}", b, c, f"{d}.0")]
    wrong = [text(a, c, b, d), text(c, d, a, b), text(a, b, c, d + 1), f"({a}, {b}, {c}, {d})"]
    return text(a, b, c, d).replace(" ", ""), right, wrong


def point(rng: Random) -> Rewriting:
    values = rng.sample(range(-20, 20), 3)
    named = [f"{name} = {n}" for name, n in zip("xyz", values, strict=True)]
    x, y, z = values
    right = [rf"\left({x}, {y}, {z}\right)", rf"\langle {x}, {y}, {z} \rangle", ", ".join(named)]
    right += [", ".join(rng.sample(named, 3)), f"(x, y, z) = ({x}, {y}, {z})"]
    right += [f"({x}.0, {y}, {2 * z}/2)"]
    wrong = [f"({y}, {x}, {z})", rf"\{{{x}, {y}, {z}\}}", f"({x}, {y}, {z + 1})", f"({x}, {y})"]
    wrong += [f"x = {y}, y = {x}, z = {z}", f"z = {x}, y = {y}, x = {z}"]
    return f"({x},{y},{z})", right, wrong


def polynomial(rng: Random) -> Rewriting:
    a, b = rng.sample(range(1, 12), 2)
    right = [f"(n+{a})(n+{b})", f"{a * b} + {a + b}n + n^2", rf"n\left(n+{a + b}\right)+{a * b}"]
    right += [f"f(n) = (n+{a})(n+{b})", rf"n^2+{a + b}n+{a * b} \text{{ for all }} n \ge 1"]
    wrong = [f"(n-{a})(n+{b})", f"n^2+{a * b}n+{a + b}", f"n^3+{a + b}n+{a * b}"]
    wrong += [f"(n+{a})(n+{b})+1"]
    wrong += [rf"n^2+{a + b}n+{a * b} \text{{ if }} n>2, \text{{ otherwise }} 0"]
    return f"n^{{2}}+{a + b}n+{a * b}", right, wrong


def root(rng: Random) -> Rewriting:
    a, b = rng.randint(2, 12), rng.choice([2, 3, 5, 7, 11])
    right = [rf"\sqrt{{{a * a * b}}}", rf"{a} \cdot {b}^{{1/2}}"]
    right += [rf"\frac{{{a * b}}}{{\sqrt{{{b}}}}}", f"{a}√{b}"]
    right += [rf"x = \sqrt{{{a * a * b}}} \approx {a * b**0.5:.2f}"]
    wrong = [rf"\sqrt{{{a * b}}}", rf"{a}\sqrt{{{b + 1}}}", rf"-{a}\sqrt{{{b}}}"]
    wrong += [f"{a * b**0.5:.2f}", rf"x = \sqrt{{{a * a * b}}} = {a * b**0.5 + 1:.1f}"]
    return rf"{a}\sqrt{{{b}}}", right, wrong


# --- Numbers of files, and numbers with an exponent


def file_number(rng: Random) -> Rewriting:
    """A number as JSON and Parquet write it."""
    digits, exponent = rng.randint(1, 9), rng.choice([-9, -8, -7, -6, 16, 17, 19])
    sign = rng.choice(["", "-"])
    gold = rng.choice([f"{sign}{digits}e{exponent:+03d}", f"{sign}{digits}E{exponent:+d}"])
    power = f"10^{{{exponent}}}"
    right = [rf"{sign}{digits} \times {power}", f"{sign}{digits}.0e{exponent}", gold.lower()]
    right += [rf"{sign}{digits}\cdot {power}", f"x = {sign}{digits}e{exponent}"]
    right += [f"{sign}{digits}*10^{exponent}", f"{sign}{digits}*10**({exponent})"]
    right += [f"{sign}0.{digits}e{exponent + 1}"]
    if exponent > 0:
        right.append(f"{sign}{digits}{'0' * exponent}")
    else:
        right.append(f"{sign}0.{'0' * (-exponent - 1)}{digits}")
        right.append(rf"{sign}\frac{{{digits}}}{{10^{{{-exponent}}}}}")
    other = "-" if not sign else ""
    wrong = [rf"{sign}{digits} \times 10^{{{exponent + 1}}}", f"{sign}{digits}e{exponent - 1}"]
    wrong += [rf"{sign}{digits} \times 10^{{{-exponent}}}", f"{other}{digits}e{exponent}"]
    wrong += [f"{sign}{digits % 9 + 1}e{exponent}", rf"{sign}{digits} e {exponent:+d}"]
    wrong += [f"{sign}{2.718281828 * digits + exponent:.6f}", f"{sign}{digits}", "0"]
    return gold, right, wrong


def decimal(rng: Random) -> Rewriting:
    """A number of a file without an exponent."""
    value = Fraction(rng.choice([n for n in range(-999, 1000) if n % 10]), 10)
    gold = str(float(value))
    right = [gold + "0", rf"\frac{{{value.numerator}}}{{{value.denominator}}}"]
    right += [f"{gold}e0", f"{float(value) / 100:.3f}e2", f"{value.numerator}/{value.denominator}"]
    wrong = [str(float(value + 1)), str(float(-value)), f"{gold}e1", f"{gold}5", f"{gold}e-1"]
    return gold, right, wrong


def exponent(rng: Random) -> Rewriting:
    """An answer in digits, e and exponent, to a gold answer in LaTeX."""
    digits, exponent = rng.randint(11, 99), rng.choice([-12, -7, -5, -3, 5, 8, 23])
    while digits % 10 == 0:
        digits = rng.randint(11, 99)
    tenth = f"{digits // 10}.{digits % 10}"
    gold = rf"{tenth} \times 10^{{{exponent}}}"
    right = [f"{tenth}e{exponent}", f"{tenth}E{exponent:+03d}", f"{digits}e{exponent - 1}"]
    right += [f"{tenth}0e{exponent}", rf"{tenth}e{exponent} \text{{ m}}", f"x = {tenth}e{exponent}"]
    right += [f"{digits}.e{exponent - 1}", f"{tenth}*10**{exponent}", f"{digits}E{exponent - 1:+d}"]
    right += [f"{tenth}e\u2212{-exponent}" if exponent < 0 else f"{tenth}e{exponent}"]
    wrong = [f"{tenth}e{exponent + 1}", f"{digits}e{exponent}", f"-{tenth}e{exponent}"]
    wrong += [f"{tenth}e{-exponent}", f"{digits + 1}e{exponent - 1}", f"{tenth} e"]
    return gold, right, wrong


def exponents(rng: Random) -> Rewriting:
    """Tuples, lists and intervals of numbers with an exponent."""
    low, high = sorted(rng.sample(range(-9, -2), 2))
    opening, closing = rng.choice([("(", ")"), ("[", "]"), ("(", "]")])
    gold = rf"{opening}10^{{{low}}}, 10^{{{high}}}{closing}"
    right = [f"{opening}1e{low}, 1e{high}{closing}"]
    right += [f"{opening}1E{low:+03d},1E{high:+03d}{closing}"]
    wrong = [f"{opening}1e{high}, 1e{low}{closing}", f"{opening}1e{low}, 1e{high + 1}{closing}"]
    wrong += [f"{opening}1e{low - 1}, 1e{high}{closing}"]
    return gold, right, wrong


# --- ASCII


def ascii_pi(rng: Random) -> Rewriting:
    top, bottom = rng.choice([n for n in range(-12, 13) if abs(n) > 1]), rng.choice([1, 5, 7, 11])
    fraction = Fraction(top, bottom)
    top, bottom = fraction.numerator, fraction.denominator
    sign, size = "-" if top < 0 else "", abs(top)
    gold = rf"{sign}\frac{{{size}\pi}}{{{bottom}}}" if bottom > 1 else rf"{top}\pi"
    over = f"/{bottom}" if bottom > 1 else ""
    right = [f"{top}*pi{over}", f"{top}pi{over}", f"{top} pi{over}", f"pi*{top}{over}"]
    right += [f"({top}{over})*pi", f"{sign}(pi{over})*{size}", f"x = {top}*pi{over}"]
    right += [rf"\text{{{top}*pi{over}}}", f"{top}π{over}", f"{top}*pi*2/{2 * bottom}"]
    wrong = [f"{top}*p{over}", f"{top}{over}", f"{top + 30}*pi{over}", f"{-top}*pi{over}"]
    wrong += [f"{top}*pi**2{over}", f"{top}*phi{over}", f"{top}/(pi*{bottom})"]
    if top != 1:
        wrong.append(f"pi{over}")
    return gold, right, wrong


def ascii_root(rng: Random) -> Rewriting:
    a, b = rng.randint(2, 12), rng.choice([2, 3, 5, 7, 11])
    right = [f"{a}*sqrt({b})", f"{a}sqrt({b})", f"{a} sqrt({b})", f"sqrt({a * a * b})"]
    right += [f"{a}*{b}**(1/2)", f"{a}*{b}^(1/2)", f"{a * b}/sqrt({b})", rf"{a}\sqrt({b})"]
    right += [f"{a}*sqrt{{{b}}}", f"{a}√({b})", f"sqrt({a})*sqrt({a * b})", f"{a}sqrt{b}"]
    wrong = [f"{a}*sqrt({b + 1})", f"sqrt({a * b})", f"-{a}*sqrt({b})", f"{a}*cbrt({b})"]
    wrong += [f"{a}*{b}**2", f"{a}*{b}", f"sqrt({a}+{b})", f"{a}+sqrt({b})"]
    return rf"{a}\sqrt{{{b}}}", right, wrong


def ascii_power(rng: Random) -> Rewriting:
    a, b, n = rng.randint(2, 9), rng.randint(1, 9), rng.randint(2, 6)
    gold = f"{a}x^{{{n}}}+{b}"
    right = [f"{a}*x**{n}+{b}", f"{a}x**{n} + {b}", f"{b}+{a}*x^({n})", f"{a}*x^{n}+{b}"]
    right += [f"{a}*(x**{n})+{b}", f"{a}*x**(1+{n - 1})+{b}"]
    wrong = [f"{a}*x**{n + 1}+{b}", f"{a}*{n}**x+{b}", f"{a}*x*{n}+{b}", f"({a}*x)**{n}+{b}"]
    wrong += [f"{a}*x**({n}+{b})", f"{a}*y**{n}+{b}", f"{a}*x**-{n}+{b}"]
    return gold, right, wrong


def ascii_exponent(rng: Random) -> Rewriting:
    a, b = rng.randint(2, 9), rng.randint(1, 9)
    right = [f"{a}**(n+{b})", f"{a}^(n+{b})", f"{a}**n*{a}**{b}", f"{a**b}*{a}**n"]
    wrong = [f"{a}**n+{b}", f"{a}^n+{b}", f"(n+{b})**{a}", f"{a}**(n-{b})", f"{a + 1}**(n+{b})"]
    return rf"{a}^{{n+{b}}}", right, wrong


def ascii_function(rng: Random) -> Rewriting:
    """The same function by name, and other functions."""
    a, b = rng.sample(range(2, 10), 2)
    cube = a * b + 1
    forms: list[Rewriting] = [
        (rf"e^{{{a}x}}", [f"exp({a}*x)", f"exp({a}x)", f"e**({a}*x)", f"e^({a}x)"],
         [f"exp({b}*x)", f"{a}**x", f"exp({a})", f"{a}*exp(x)", f"log({a}*x)"]),
        (rf"\sin^2({a}x)", [f"sin({a}*x)**2", f"sin^2({a}x)", f"1-cos({a}*x)**2", f"sin({a}x)^2"],
         [f"cos({a}*x)**2", f"sin({a}*x)", f"sin({a}*x**2)", f"sin({b}*x)**2", f"sinh({a}*x)**2"]),
        (rf"\arctan\frac{{1}}{{{a}}}", [f"atan(1/{a})", f"arctan(1/{a})"],
         [f"tan(1/{a})", f"atan({a})", f"asin(1/{a})", f"arccos(1/{a})", f"1/atan({a})"]),
        (rf"\ln(x+{a})", [f"ln(x+{a})", f"log(x+{a})", f"ln({a}+x)"],
         [f"ln(x)+{a}", f"exp(x+{a})", f"ln(x+{b})", f"log10(x+{a})+1", f"ln({a}*x)"]),
        (rf"\log_{{2}} {2 * a + 1}", [f"log2({2 * a + 1})", f"ln({2 * a + 1})/ln(2)"],
         [f"log10({2 * a + 1})", f"ln({2 * a + 1})", f"log2({2 * b + 1})", f"log2({2 * a + 1})+1"]),
        (rf"|x-{a}|", [f"abs(x-{a})", f"abs({a}-x)"],
         [f"x-{a}", f"abs(x)-{a}", f"abs(x-{b})", f"abs(x+{a})", f"floor(x-{a})"]),
        (rf"\left\lfloor \frac{{n}}{{{a}}} \right\rfloor", [f"floor(n/{a})"],
         [f"ceil(n/{a})", f"n/{a}", f"floor(n/{b})", f"floor(n)/{a}", f"abs(n/{a})"]),
        (rf"\binom{{n}}{{{a}}}", [f"binomial(n,{a})", f"binom(n, {a})"],
         [f"binomial(n,{b})", f"binomial({a},n)", f"n/{a}", f"binomial(n+1,{a})"]),
        (rf"\sinh {a}", [f"sinh({a})", f"(exp({a})-exp(-{a}))/2", f"(e^{a}-e^(-{a}))/2"],
         [f"sin({a})", f"cosh({a})", f"sinh({b})", f"asinh({a})"]),
        (rf"\sqrt[3]{{{cube}}}", [f"cbrt({cube})", f"({cube})**(1/3)"],
         [f"sqrt({cube})", f"cbrt({cube + 1})", f"({cube})**3", f"{cube}/3"]),
    ]  # fmt: skip
    return rng.choice(forms)


def ascii_greek(rng: Random) -> Rewriting:
    names = [
        "alpha",
        "beta",
        "gamma",
        "delta",
        "theta",
        "lambda",
        "mu",
        "rho",
        "sigma",
        "tau",
        "phi",
        "omega",
    ]
    name, other = rng.sample(names, 2)
    n = rng.randint(2, 30)
    right = [f"{n}*{name}", f"{n} {name}", f"{n}{name}", rf"{n}\cdot\{name}", f"{name}*{n}"]
    right += [f"{name} + {n - 1}*{name}"]
    wrong = [f"{n}*{other}", f"{n + 1}*{name}", str(n), f"{n}*{name}**2", name, f"{n}*{name[0]}"]
    wrong += [f"{n} {other}", f"{n}{name[:-1]}"]
    return rf"{n}\{name}", right, wrong


def ascii_gold(rng: Random) -> Rewriting:
    """The gold answer is the one in ASCII."""
    gold, right, wrong = rng.choice([ascii_pi, ascii_root, ascii_power, ascii_greek])(rng)
    ascii_right = [answer for answer in right if answer.isascii() and "\\" not in answer]
    return rng.choice(ascii_right), [gold], [answer for answer in wrong if answer != gold]


def ascii_interval(rng: Random) -> Rewriting:
    a, b = sorted(rng.sample(range(-9, 10), 2))
    gold = rf"(-\infty, {a}) \cup ({b}, \infty)"
    right = [f"(-inf, {a}) U ({b}, inf)", f"(-infinity,{a}) U ({b},infinity)"]
    right += [f"x < {a} or x > {b}", f"(-oo, {a}) ∪ ({b}, oo)"]
    wrong = [f"(-inf, {a}] U ({b}, inf)", f"(-inf, {b}) U ({b}, inf)", f"(-inf, {a})"]
    wrong += [f"(-inf, {a}) U ({b + 1}, inf)", f"({a}, {b})"]
    return gold, right, wrong


# --- Unicode's compatibility forms


def full_width(text: str) -> str:
    """Every visible ASCII character in its full width, except those of LaTeX."""
    return "".join(
        chr(ord(c) + 0xFEE0) if "!" <= c <= "~" and c not in "\\{}$" else c for c in text
    )


def unicode_width(rng: Random) -> Rewriting:
    a, b = rng.sample(range(2, 400), 2)
    gold, right, wrong = rng.choice(
        [
            (str(a), [str(a), f"x={a}"], [str(a + 1), f"-{a}"]),
            (f"{a}.5", [f"{a}.5", f"{a}.50"], [f"{a}.6", f"{a}5"]),
            (f"({a},{b})", [f"({a},{b})"], [f"({b},{a})", f"[{a},{b}]"]),
            (f"{a % 99}, 5", [f"{a % 99},5", f"5,{a % 99}"], [f"{a % 99},6", f"{a % 99}"]),
            (rf"{a}\%", [f"{a}%"], [f"{a + 1}%"]),
            (f"-{a}", [f"-{a}"], [str(a)]),
            (rf"\frac{{{a}}}{{{2 * a + 1}}}", [f"{a}/{2 * a + 1}"], [f"{2 * a + 1}/{a}"]),
            (f"x+{a}", [f"x+{a}", f"{a}+x"], [f"x-{a}", f"y+{a}"]),
            (rf"x \ge {a}", [f"x>={a}"], [f"x>{a}", f"x<={a}"]),
        ]
    )
    return gold, [full_width(answer) for answer in right], [full_width(answer) for answer in wrong]


def unicode_blank(rng: Random) -> Rewriting:
    n, k = rng.randint(1, 999), rng.randint(100, 999)
    blank = rng.choice("\u202f\u00a0\u2009\u2002\u205f\u3000")
    hidden = rng.choice("\u200b\u200d\u2060\ufeff\u00ad")
    right = [f"{n}{blank}{k}", f"{n}{k}{hidden}", f"{hidden}{n}{k}", f"{n}{hidden}{k}"]
    right += [rf"{n}{k}{blank}\text{{cm}}", f"x{blank}={blank}{n}{k}"]
    wrong = [f"{n}{blank}{k + 1}", f"{n}{k}{hidden}0", f"{n}{blank}{k}{blank}{k}", f"{n}{hidden}"]
    wrong += [f"{n},{blank}{k},", f"-{hidden}{n}{k}"]
    return f"{n}{k}", right, wrong


def unicode_minus(rng: Random) -> Rewriting:
    n = rng.randint(2, 999)
    minus = rng.choice("\u2010\u2011\u2012\u2212\uff0d\ufe63")
    right = [f"{minus}{n}", f"{minus} {n}", f"{n}{minus}{2 * n}", f"x = {minus}{n}.0"]
    wrong = [f"{minus}{n + 1}", f"{minus}(-{n})", f"{2 * n}{minus}{n}", f"{n}{minus}{n}"]
    return f"-{n}", right, wrong


def unicode_fraction(rng: Random) -> Rewriting:
    forms = {"½": (1, 2), "⅓": (1, 3), "⅔": (2, 3), "¼": (1, 4), "¾": (3, 4), "⅕": (1, 5)}
    forms |= {"⅖": (2, 5), "⅗": (3, 5), "⅘": (4, 5), "⅙": (1, 6), "⅚": (5, 6), "⅐": (1, 7)}
    forms |= {"⅛": (1, 8), "⅜": (3, 8), "⅝": (5, 8), "⅞": (7, 8), "⅑": (1, 9), "⅒": (1, 10)}
    (sign, (top, bottom)), (other, _) = rng.sample(sorted(forms.items()), 2)
    if rng.random() < 0.5:
        right = [sign, f"{top}\u2044{bottom}", f"{top}\u2215{bottom}", f"x = {sign}"]
        wrong = [other, f"{bottom}\u2044{top}", f"-{sign}", f"1{sign}"]
        return rf"\frac{{{top}}}{{{bottom}}}", right, wrong
    n = rng.randint(2, 20)
    right = [f"{n}{sign}", f"{n} {sign}", f"{n} {top}\u2044{bottom}", f"{n}+{sign}"]
    wrong = [f"{n}·{sign}", f"{n}{other}", f"{n + 1}{sign}", sign, f"{n}-{sign}"]
    return rf"\frac{{{n * bottom + top}}}{{{bottom}}}", right, wrong


RAISED = str.maketrans("0123456789+-=()nix", "⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻⁼⁽⁾ⁿⁱˣ")
LOWERED = str.maketrans("0123456789+-nx", "₀₁₂₃₄₅₆₇₈₉₊₋ₙₓ")


def raised(number: int) -> str:
    return str(number).translate(RAISED)


def lowered(number: int) -> str:
    return str(number).translate(LOWERED)


def unicode_script(rng: Random) -> Rewriting:
    a, b, n = rng.randint(2, 9), rng.randint(2, 99), rng.choice([*range(-15, -1), *range(2, 16)])
    other = raised(n + 1 or 2)
    return rng.choice(
        [
            (f"10^{{{n}}}", [f"10{raised(n)}", f"1·10{raised(n)}"], [f"10{other}", f"10·{n}"]),
            (f"x^{{{n}}}+{a}", [f"x{raised(n)}+{a}", f"{a}+x{raised(n)}"], [f"x{other}+{a}"]),
            (f"{a}^n", [f"{a}ⁿ", f"{a}·{a}ⁿ⁻¹"], [f"n{raised(a)}", f"{a}n", f"{a}ˣ"]),
            (f"{a}^{{n+1}}", [f"{a}ⁿ⁺¹", f"{a}·{a}ⁿ"], [f"{a}ⁿ+1", f"{a}ⁿ⁻¹"]),
            (f"x_{{{b}}}", [f"x{lowered(b)}"], [f"x{lowered(b + 1)}", f"x{raised(b)}", f"x{b}"]),
            (f"e^{{-{a}x}}", [f"e⁻{raised(a)}ˣ"], [f"e{raised(a)}ˣ", f"e⁻{raised(a + 1)}ˣ"]),
        ]
    )


def styled(text: str, first_letter: int, first_digit: int) -> str:
    """Small letters and digits in a style of mathematical alphanumerics."""
    written = []
    for c in text:
        if "a" <= c <= "z" and c != "h":  # some styles have no h
            c = chr(first_letter + ord(c) - ord("a"))
        elif c.isdigit():
            c = chr(first_digit + ord(c) - ord("0"))
        written.append(c)
    return "".join(written)


def unicode_style(rng: Random) -> Rewriting:
    a, b = rng.sample(range(2, 60), 2)
    style = rng.choice(
        [(0x1D41A, 0x1D7CE), (0x1D44E, 0x1D7D8), (0x1D5BA, 0x1D7E2), (0x1D68A, 0x1D7F6)]
    )
    gold, right, wrong = rng.choice(
        [
            (f"{a}x+{b}", [f"{a}x+{b}", f"{b}+{a}x"], [f"{a}x-{b}", f"{b}x+{a}", f"{a}y+{b}"]),
            (str(a * b), [str(a * b), f"x={a * b}"], [str(a * b + 1)]),
            (f"({a}, {b})", [f"({a},{b})"], [f"({b},{a})"]),
            (rf"{a}\pi", [f"{a}\U0001d70b", f"{a}\U0001d6d1"], [f"{a}\U0001d70c", f"{a}"]),
            (rf"\theta + {a}", [f"\U0001d703+{a}"], [f"\U0001d704+{a}", f"\U0001d703-{a}"]),
        ]
    )
    return gold, [styled(x, *style) for x in right], [styled(x, *style) for x in wrong]


# --- Choices, and other spellings


def labelled(rng: Random) -> Rewriting:
    """A gold letter for the mathematics grader."""
    letter, other = rng.sample("ABCDE", 2)
    n = rng.randint(2, 99)
    right = [f"{letter}: {n}", f"{letter}. {n}", f"({letter}) {n}", f"{letter}) {n}"]
    right += [rf"\text{{{letter}: {n}}}", rf"{letter}: \frac{{1}}{{{n}}}"]
    right += [rf"\textbf{{({letter})}}\ {n}"]
    right += [rf"{letter}. \sqrt{{{n}}}", f"Option {letter}"]
    wrong = [f"{other}: {n}", f"{other}. {n}", f"{letter}: {n}, {other}: {n + 1}", f"{n}"]
    wrong += [f"{letter} or {other}", rf"{letter} \text{{ and }} {other}", f"{letter}/{other}"]
    wrong += [f"({letter}) {n} or ({other}) {n}", f"{n}{letter}", f"{letter}+{n}"]
    return letter, right, wrong


def pointed(rng: Random) -> Rewriting:
    """Numbers with a point and no digit behind it."""
    top = rng.choice([n for n in range(-20, 21) if n])
    bottom = rng.choice([n for n in range(2, 12) if gcd(n, top) == 1])
    right = [f"{top}./{bottom}", f"{top}./{bottom}.", f"({top}.)/{bottom}", f"{top}.0/{bottom}"]
    wrong = [f"{-top}./{bottom}", f"{top}./{bottom + 1}", f"{top}{bottom}.", f"{top}.{bottom}"]
    wrong += [f"{top + bottom}./{bottom}"]
    return rf"\frac{{{top}}}{{{bottom}}}", right, wrong


def circled(rng: Random) -> Rewriting:
    numbers = sorted(rng.sample(range(1, 10), rng.randint(1, 4)))
    signs = [chr(0x2460 + n - 1) for n in numbers]
    latex = [rf"\textcircled{{{n}}}" for n in numbers]
    other = next(n for n in range(1, 10) if n not in numbers)
    gold, right = rng.choice([("".join(signs), "".join(latex)), ("".join(latex), "".join(signs))])
    rights = [right, ",".join(signs), "、".join(signs), " ".join(latex)]
    rights += [rf"\text{{{''.join(signs)}}}"]
    wrong = ["".join(signs) + chr(0x2460 + other - 1), rf"\textcircled{{{other}}}"]
    wrong += ["".join(signs[1:]) or str(other), "".join(map(str, numbers)) + "0"]
    if len(numbers) > 1:
        wrong.append("".join(map(str, numbers)))
    return gold, rights, wrong


def choice(rng: Random) -> Rewriting:
    """A completion for the choice grader."""
    letter, other, third = rng.sample("ABCDEFGH", 3)
    n = rng.randint(2, 99)
    word = rng.choice(["Paris", "polygenic score", "heat", "12 cm", r"\frac{1}{2}"])
    boxes = [letter, f"({letter})", f"{letter}. {word}", f"{letter}: {word}", f"{letter}) {word}"]
    boxes += [rf"\text{{{letter}}}", rf"\textbf{{({letter})}}\ {n}", rf"\mathrm{{{letter}}}"]
    boxes += [f"Option {letter}", f"Answer: {letter}", letter.lower(), full_width(letter)]
    boxes += [rf"\text{{{letter}. {word}}}", f"({letter}) {word}", f"{letter}."]
    right = [rf"So \boxed{{{box}}}" for box in boxes]
    right += [f"The answer is ({letter}).", f"**Answer: {letter}**", f"{letter}. Paris", letter]
    right += [f"Not {other}.\nThe correct answer is {letter}.", f"Final answer: **{letter}**"]
    right += [rf"\boxed{{{other} = {third}^2}} **Answer: {letter}**", f"Answer: {letter}. {word}"]
    right += [rf"$\boxed{{{n}}}$. The answer is {letter} because it is."]
    several = [f"{letter} and {other}", f"{letter}, {other}", f"{letter}/{other}"]
    several += [f"{letter},{other}", rf"{letter} \text{{ or }} {other}"]
    several += [f"({letter}), ({other})", f"{other} and {letter}"]
    several += [f"{letter}; {other}", f"{letter}, {other} and {third}", f"({letter})({other})"]
    several += [f"{letter}{other}", f"{letter} & {other}", f"{letter}: 5, {other}: 6"]
    formulas = [f"{letter}(n,2)", f"{letter} = mc^2", f"{letter}+{n}", f"{letter}_{{{n}}}"]
    formulas += [f"{letter}'"]
    formulas += [f"P({letter})", rf"{letter} \cup {other}", f"2{letter}", f"{letter}x+{n}"]
    formulas += [rf"\frac{{{letter}}}{{2}}", f"Not {letter}", f"{letter}B{other}", str(n)]
    wrong = [rf"So \boxed{{{box}}}" for box in [*several, *formulas, other, f"({other}) {word}"]]
    wrong += [f"Answer: {box}" for box in several[:7]] + [f"The answer is {other}.", "None of them"]
    wrong += [rf"\boxed{{{letter}}} or \boxed{{{other}}}", f"Answer: {letter} = mc^2"]
    if letter == "A":
        wrong += [r"\boxed{A polygenic score}", "A city in France"]
    return letter, right, wrong


# --- Intervals of other countries


def interval_text(low: str, high: str, ends: str, style: str) -> str:
    """An interval with its ends "[)" and so on, in a style such as "] ; " (outward, semicolon)."""
    opening, closing = ends[0], ends[1]
    if style[0] == "]":
        opening, closing = opening.replace("(", "]"), closing.replace(")", "[")
    if style.endswith("left"):
        opening, closing = rf"\left{opening} ", rf" \right{closing}"
    return f"{opening}{low}{style[1]} {high}{closing}"


STYLES = ["(,", "(;", "],", "];", "(,left", "(;left", "],left", "];left"]


def semicolon_interval(rng: Random) -> Rewriting:
    """One interval with commas, semicolons, outward brackets or an inequality."""
    low, high = sorted(rng.sample(range(-20, 20), 2))
    top = str(high)
    form = rng.random()
    if form < 0.3:
        top = rf"\frac{{{2 * high + 1}}}{{2}}"
    elif form < 0.5:
        top = rf"{abs(high) + 30}\sqrt{{3}}"
    ends = rng.choice(["()", "[)", "(]", "[]"])
    bottom = str(low)
    if rng.random() < 0.2:
        bottom, ends = r"-\infty", "(" + ends[1]
    gold = interval_text(bottom, top, ends, rng.choice(STYLES))
    right = [interval_text(bottom, top, ends, style) for style in STYLES]
    right += [rf"x \in {interval_text(bottom, top, ends, style)}" for style in STYLES[-3:]]
    right += [f"S = {interval_text(bottom, top, ends, style).replace(' ', '')}" for style in STYLES]
    others = [other for other in ("()", "[)", "(]", "[]") if other != ends]
    if bottom.startswith("-\\"):
        others = ["()", "(]"]
        others.remove(ends)
    wrong = [interval_text(bottom, top, other, "];") for other in others]
    wrong += [interval_text(str(low - 1), top, ends, style) for style in ("];", "(;")]
    wrong += [interval_text(bottom, str(high + 99), ends, "];"), f"{bottom}; {top}"]
    wrong += [rf"\{{{bottom}; {top}\}}", interval_text(bottom, top, ends, "];") + r" \cup \{99\}"]
    return gold, right, wrong


def interval_union(rng: Random) -> Rewriting:
    """Unions of intervals in any of the styles, mixed ones too."""
    a, b, c, d = sorted(rng.sample(range(-20, 20), 4))
    first, last = rng.choice([(rf"{a}", rf"{d}"), (r"-\infty", r"+\infty"), (r"-\infty", rf"{d}")])
    ends = [
        "(" + rng.choice(")]") if "infty" in first else rng.choice(["()", "[)", "(]", "[]"]),
        rng.choice("([") + ")" if "infty" in last else rng.choice(["()", "[)", "(]", "[]"]),
    ]

    def union(ends: Sequence[str], high: float = c, sign: str = r"\cup") -> str:
        texts = [
            interval_text(first, str(b), ends[0], rng.choice(STYLES)),
            interval_text(str(high), last, ends[1], rng.choice(STYLES)),
        ]
        if rng.random() < 0.3:
            texts.reverse()
        text = f" {sign} ".join(texts)
        if sign != "U" and rng.random() < 0.5:
            text = text.replace(" ", "")
        return text

    def inequality(low: str, high: str, ends: str) -> str:
        left = "" if "infty" in low else f"{low} {'<' if ends[0] == '(' else '≤'} "
        right = "" if "infty" in high else f" {'<' if ends[1] == ')' else '≤'} {high}"
        return f"{left}x{right}"

    def other(one: str) -> str:
        return one[0] + {")": "]", "]": ")"}[one[1]]

    right = [union(ends) for _ in range(5)] + [union(ends, sign="∪"), union(ends, sign="U")]
    right += [f"S = {union(ends)}", rf"x \in {union(ends)}"]
    written = [inequality(first, str(b), ends[0]), inequality(str(c), last, ends[1])]
    right.append(r" \text{ or } ".join(written))
    wrong = [union([other(ends[0]), ends[1]]) for _ in range(3)]
    wrong += [
        union(ends, high=c - 0.5),
        union(ends, sign=r"\cap"),
        interval_text(first, str(b), ends[0], "];"),
    ]
    return union(ends), right, wrong


def decimal_comma(rng: Random) -> Rewriting:
    """Ends with decimal commas, where a semicolon separates them and a bracket is outward."""
    low, high = sorted(rng.sample(range(1, 90), 2))
    ends = rng.choice(["()", "[)", "(]"])
    texts = [f"{n // 10},{n % 10}" for n in (low, high)]
    gold = interval_text(f"{low / 10}", f"{high / 10}", ends, "(,")
    right = [interval_text(texts[0], texts[1], ends, style) for style in ("];", "];left")]
    right += [interval_text(f"{low}/10", texts[1], ends, "];")]
    other = "(]" if ends != "(]" else "()"
    wrong = [
        interval_text(texts[0], texts[1], other, "];"),
        interval_text(texts[0], "99,5", ends, "];"),
    ]
    return gold, right, wrong


# --- Products before and of matrices


def matrix_text(rows: Sequence[Sequence[object]], kind: str) -> str:
    inner = r" \\ ".join(" & ".join(map(str, row)) for row in rows)
    if kind == "array":
        return rf"\left[\begin{{array}}{{{'c' * len(rows[0])}}} {inner} \end{{array}}\right]"
    if kind == "matrix":
        return rf"\left( \begin{{matrix}} {inner} \end{{matrix}} \right)"
    return rf"\begin{{{kind}}} {inner} \end{{{kind}}}"


def drawn_matrix(rng: Random) -> list[list[int]]:
    height, width = rng.choice([(2, 2), (2, 1), (3, 1), (1, 3), (2, 3), (3, 3)])
    return [
        [rng.choice([n for n in range(-9, 10) if n]) for _ in range(width)] for _ in range(height)
    ]


KINDS = ["pmatrix", "bmatrix", "pmatrix", "array", "matrix"]


def scaled_matrix(rng: Random) -> Rewriting:
    """A factor before a matrix, and the product."""
    rows = drawn_matrix(rng)
    k = rng.randint(2, 9)
    factors = {
        str(k): [str(k), rf"{k}\cdot", rf"{k} \times", f"{k}*", f"{k} ", rf"({k})", rf"{k}\,"],
        "-1": ["-", "-1", r"-1\cdot", "(-1)"],
        f"-{k}": [f"-{k}", rf"-{k} \cdot ", f"(-{k})"],
        rf"\frac{{1}}{{{k}}}": [
            rf"\frac1{k}", rf"\frac{{1}}{{{k}}}\cdot ", rf"\dfrac{{1}}{{{k}}}", rf"\tfrac1{k} ",
            f"1/{k} ", f"(1/{k})", rf"\left(\frac{{1}}{{{k}}}\right)", f"{k}^{{-1}}",
        ],
        rf"\frac{{1}}{{\sqrt{{{k}}}}}": [
            rf"\frac{{1}}{{\sqrt{k}}}", rf"\frac1{{\sqrt{{{k}}}}}", rf"\frac{{\sqrt{k}}}{{{k}}}",
            rf"\frac{{1}}{{\sqrt{{{k}}}}}\cdot", f"{k}^{{-1/2}}",
        ],
        rf"\sqrt{{{k}}}": [rf"\sqrt{k}", rf"\sqrt{{{k}}}", f"√{k}", rf"\sqrt{{{k}}} \cdot"],
        "0.5": ["0.5", r"0.5 \times", r"\frac12", "½"],
        r"\pi": [r"\pi", "π", r"\pi \cdot"],
        "t": ["t", r"t \cdot", "t*", "t "],
        r"\lambda": [r"\lambda ", r"\lambda\cdot "],
        "(a+b)": ["(a+b)", r"\left(a+b\right)", r"(b+a)\cdot "],
        r"\frac{1}{a-b}": [r"\frac{1}{a-b}", r"\frac1{a-b}\cdot", r"(a-b)^{-1}"],
        f"{k}t": [f"{k}t", rf"{k}t\cdot "],
        "e^{2t}": ["e^{2t}", r"e^{2t}\,", "e^{t+t}"],
    }  # fmt: skip
    factor, spellings = rng.choice(list(factors.items()))
    value, other = (f"{factor}*" if factor != "-1" else "-"), rng.choice(KINDS)
    cells = [[f"{value}({n})" for n in row] for row in rows]
    gold_kind = rng.choice(KINDS)
    scaled = [spelling + matrix_text(rows, rng.choice(KINDS)) for spelling in spellings]
    gold, right = matrix_text(cells, gold_kind), scaled
    if rng.random() < 0.5:
        gold, right = rng.choice(scaled), [*scaled, matrix_text(cells, other)]
    right = [*right, f"A = {rng.choice(scaled)}", rf"\vec{{v}} = {rng.choice(scaled)}"]
    if not factor.startswith("-"):
        right.append(matrix_text(rows, other) + rf" \cdot {factor}")
    damaged = [row[:] for row in rows]
    damaged[-1][-1] += 1
    turned = [row[::-1] for row in rows[::-1]]
    wrong = [spelling + matrix_text(damaged, other) for spelling in spellings[:2]]
    wrong += [
        matrix_text(rows, other),
        rf"{k + 1}{spellings[0].lstrip('-')}" + matrix_text(rows, other),
    ]
    wrong += [
        spellings[0] + matrix_text([*rows, rows[0]], other),
        f"{k}+{matrix_text(rows, other)}",
    ]
    partly = [row[:] for row in cells]
    partly[0][0] = str(rows[0][0])
    wrong += [matrix_text(partly, other)]
    if turned != rows:
        wrong.append(spellings[0] + matrix_text(turned, other))
    return gold, right, wrong


def matrix_sum(rng: Random) -> Rewriting:
    """Sums of matrices and of their multiples."""
    rows = drawn_matrix(rng)
    more = [[rng.randint(1, 9) for _ in row] for row in rows]
    a, b = rng.sample(range(2, 9), 2)
    sign = rng.choice("+-")
    factor = b if sign == "+" else -b
    cells = [
        [a * x + factor * y for x, y in zip(*pair, strict=True)]
        for pair in zip(rows, more, strict=True)
    ]
    one, two = matrix_text(rows, rng.choice(KINDS)), matrix_text(more, rng.choice(KINDS))
    written = [f"{a}{one} {sign} {b}{two}", rf"{a}\cdot{one}{sign}{b} \cdot {two}"]
    written += [
        f"{factor}{two} + {a}{one}",
        rf"{a}\left({one}{sign}\frac{{{b}}}{{{a}}}{two}\right)",
    ]
    written += [rf"\frac{{{2 * a}}}2{one} {sign} \frac{{{b}}}{{1}}{two}"]
    gold = matrix_text(cells, "pmatrix")
    right = [*written, f"x = {written[0]}"]
    if rng.random() < 0.4:
        gold, right = written[0], [*right, gold]
    other = "-" if sign == "+" else "+"
    wrong = [
        f"{a}{one} {other} {b}{two}",
        f"{b}{one} {sign} {a}{two}",
        f"{a}{one}",
        f"{one}{sign}{two}",
    ]
    return gold, right, wrong


def line(rng: Random) -> Rewriting:
    """A line in space: a point and a multiple of a direction."""
    point, direction = ([rng.randint(1, 9) for _ in range(3)] for _ in range(2))
    name = rng.choice(["t", "s", r"\lambda ", "k"])
    columns = [
        matrix_text([[n] for n in v], rng.choice(["pmatrix", "bmatrix"]))
        for v in (point, direction)
    ]
    gold = f"{columns[0]} + {name}{columns[1]}"
    sums = [[f"{p}+{d}{name}"] for p, d in zip(point, direction, strict=True)]
    right = [f"{name}{columns[1]}+{columns[0]}", rf"{columns[0]} + {name} \cdot {columns[1]}"]
    right += [matrix_text(sums, "pmatrix"), rf"\mathbf{{r}} = {gold}", f"r = {gold}"]
    wrong = [f"{columns[0]} - {name}{columns[1]}", f"{columns[1]} + {name}{columns[0]}", columns[0]]
    wrong += [f"{columns[0]} + u{columns[1]}"]
    return gold, right, wrong


def scaled_vector(rng: Random) -> Rewriting:
    """A factor before a vector in a row."""
    values, k = [rng.randint(-9, 9) or 1 for _ in range(3)], rng.randint(2, 9)
    inner = ", ".join(map(str, values))
    top = ", ".join(rf"\frac{{{n}}}{{{k}}}" for n in values)
    brackets = [("(", ")"), (r"\langle ", r" \rangle"), (r"\left(", r"\right)")]
    vectors = [f"{left}{inner}{right}" for left, right in brackets]
    gold = rng.choice([f"({top})", rf"\langle {top} \rangle"])
    right = [rf"\frac{{1}}{{{k}}}{vector}" for vector in vectors]
    right += [rf"\frac1{k} {rng.choice(vectors)}", rf"\frac1{k}\cdot {rng.choice(vectors)}"]
    right += [rf"\vec{{v}} = \frac{{1}}{{{k}}}{rng.choice(vectors)}", f"(1/{k}){vectors[0]}"]
    right += [rf"\frac{{2}}{{{2 * k}}}{vectors[1]}"]
    if rng.random() < 0.4:
        gold, right = rng.choice(right[:3]), [*right, f"({top})"]
    wrong = [vectors[0], rf"\frac{{1}}{{{k + 1}}}{vectors[0]}", f"{k}{vectors[1]}", f"-({top})"]
    wrong += [rf"\frac{{1}}{{{k}}}({inner}, 0)"]
    return gold, right, wrong


# --- Currencies and units

CURRENCIES = {
    "usd": [r"\$#", r"#\$", "$#", "# USD", "USD #", r"# \text{ dollars}", "# dollars", "US$#"],
    "eur": ["€#", "# €", "#€", "# EUR", "EUR #", r"# \text{ euros}", "# euros", r"#\,\text{€}"],
    "gbp": ["£#", "# £", r"\pounds #", "# GBP", "GBP #", r"# \text{ pounds}", "# pounds"],
    "jpy": ["¥#", "# ¥", "# JPY", "JPY #", r"# \text{ yen}", r"#\text{ JPY}"],
    "inr": ["₹#", "# ₹", "# INR", "INR #", r"# \text{ rupees}", "# rupees", r"\text{Rs. } #"],
    "krw": ["₩#", "# KRW", "KRW #", r"# \text{ won}"],
    "rub": ["₽#", "# ₽", "# RUB", r"# \text{ rubles}"],
    "cny": ["# CNY", "CNY #", r"# \text{ yuan}", "# RMB"],
    "chf": ["# CHF", "CHF #", r"# \text{ Swiss francs}"],
    "ils": ["₪#", "# ₪", "# ILS", r"# \text{ shekels}"],
}


def currency(rng: Random) -> Rewriting:
    """A sum of money by sign, code and name, before and behind the number."""
    one, other = rng.sample(sorted(CURRENCIES), 2)
    if {one, other} == {"jpy", "cny"}:  # both have the sign ¥
        other = "eur"
    n = rng.choice([str(rng.randint(2, 900)), f"{rng.randint(1, 99)}.{rng.randint(10, 99)}"])

    def texts(name: str, number: str) -> list[str]:
        return [form.replace("#", number) for form in CURRENCIES[name]]

    right = texts(one, n)
    larger = str(Fraction(n) + 1) if "." not in n else f"{float(n) + 1:.2f}"
    wrong = [rng.choice(texts(one, larger)), rng.choice(texts(other, larger))]
    wrong += [rng.choice(texts(one, f"-{n}")), rf"{n}\%"]
    if rng.random() < 0.4:
        return n, right, wrong
    wrong += [*rng.sample(texts(other, n), 3), rf"{n} \text{{ kg}}"]
    return rng.choice(right), [*right, n], wrong


def cents(rng: Random) -> Rewriting:
    """Cents and the dollars that they are."""
    n = rng.randint(2, 250)
    amount = f"{n / 100:.2f}"
    cents = [rf"{n} \text{{ cents}}", f"{n} cents", f"{n}¢", rf"{n}\,¢", rf"{n}\text{{¢}}"]
    dollars = [rf"\${amount}", rf"{amount} \text{{ dollars}}", f"{amount} USD", f"${amount}"]
    wrong = [rf"\${n}", rf"{n} \text{{ dollars}}", f"£{n}", rf"{n + 1} \text{{ cents}}"]
    wrong += [rf"\${n / 10:.1f}", rf"{amount} \text{{ cents}}"]
    gold = rng.choice([*cents[:3], *dollars[:2]])
    return gold, [*cents, *dollars], wrong


UNITS = [  # sign, singular, plural
    ("N", "newton", "newtons"), ("J", "joule", "joules"), ("W", "watt", "watts"),
    ("Hz", "hertz", "hertz"), ("Pa", "pascal", "pascals"), ("V", "volt", "volts"),
    ("A", "ampere", "amperes"), ("C", "coulomb", "coulombs"), ("F", "farad", "farads"),
    ("T", "tesla", "teslas"), (r"\Omega", "ohm", "ohms"), ("kJ", "kilojoule", "kilojoules"),
    ("kN", "kilonewton", "kilonewtons"), ("kW", "kilowatt", "kilowatts"),
    ("MHz", "megahertz", "megahertz"), ("kHz", "kilohertz", "kilohertz"),
    ("MW", "megawatt", "megawatts"), ("mW", "milliwatt", "milliwatts"),
    ("kPa", "kilopascal", "kilopascals"), ("nm", "nanometer", "nanometers"),
    ("µm", "micrometer", "micrometers"), ("mL", "milliliter", "milliliters"),
    ("L", "liter", "litres"), ("m", "meter", "metres"), ("s", "second", "seconds"),
    ("kg", "kilogram", "kilograms"), ("mg", "milligram", "milligrams"), ("cm", "centimetre", "cm"),
    ("km", "kilometer", "kilometres"), ("ms", "millisecond", "milliseconds"),
    ("mol", "mole", "moles"), ("eV", "electronvolt", "electronvolts"), ("h", "hour", "hours"),
    ("min", "minute", "minutes"), ("ft", "foot", "feet"), ("in", "inch", "inches"),
    ("mi", "mile", "miles"), ("yd", "yard", "yards"), ("lb", "pound", "pounds"),
    ("oz", "ounce", "ounces"), ("mV", "millivolt", "millivolts"),
    ("mA", "milliampere", "milliamps"),
    ("GHz", "gigahertz", "gigahertz"), ("MJ", "megajoule", "megajoules"), ("g", "gram", "grams"),
    ("mm", "millimeter", "millimetres"), ("rad", "radian", "radians"),
    ("ha", "hectare", "hectares"), ("kWh", "kilowatt-hour", "kilowatt hours"),
    ("dB", "decibel", "decibels"),
]  # fmt: skip


def unit_texts(n: object, sign: str, one: str, many: str) -> list[str]:
    roman = rf"\mathrm{{{sign}}}" if sign.isascii() else rf"\text{{{sign}}}"
    if sign == r"\Omega":
        signs = [rf"{n}\ \Omega", rf"{n}\,\Omega", f"{n} Ω", f"{n} \u2126", rf"{n}\text{{ Ω}}"]
    else:
        signs = [
            rf"{n}\,{roman}",
            rf"{n}\ \text{{{sign}}}",
            rf"{n}\text{{ {sign}}}",
            rf"{n}~{roman}",
        ]
        signs += [rf"{n} \text{{{sign}}}"]
    if sign.startswith("µ"):
        rest = sign[1:]
        signs += [f"{n} \u00b5{rest}", f"{n} \u03bc{rest}", rf"{n}\ \mu\text{{{rest}}}"]
        signs += [rf"{n}\,\mathrm{{\mu {rest}}}"]
    return [*signs, rf"{n} \text{{ {many}}}", rf"{n}\text{{ {one}}}", f"{n} {many}"]


def unit(rng: Random) -> Rewriting:
    """A quantity whose unit is a sign or a name."""
    one, other = rng.sample(UNITS, 2)
    n = rng.randint(2, 900)
    forms = unit_texts(n, *one)
    forms = [form for form in forms if not form.endswith(f"{n} cm")]
    gold = rng.choice(forms)
    wrong = rng.sample(unit_texts(n, *other), 3)
    wrong += [rng.choice(unit_texts(n + 1, *one)), rf"{rng.choice(forms[:2])}^2", rf"\${n}"]
    if one[0] == "lb":
        wrong.append(rf"{n} \text{{ kg}}")
    return gold, [*forms, str(n)], wrong


QUOTIENTS = [  # signs, names, other units
    (["m/s", "m s^{-1}", r"m\,s^{-1}", r"m\cdot s^{-1}"],
     ["meters per second", "metres per second"], ["m s", "m/s^2", "km/s", "s/m"]),
    (["m/s^2", "m s^{-2}", r"m\,s^{-2}"],
     ["meters per second squared", "meters per square second"], ["m/s", "m^2/s", "m s^2"]),
    (["km/h", r"km\,h^{-1}"],
     ["kilometers per hour", "kilometres per hour", "kph", "km/hr", "km per hour"],
     ["m/h", "km", "km/s", "h/km"]),
    (["mi/h"], ["mph", "miles per hour"], ["km/h", "mi/s"]),
    (["kg/m^3", r"kg\,m^{-3}"], ["kilograms per cubic meter"], ["kg/m^2", "g/m^3", "kg"]),
    (["g/cm^3", r"g\cdot cm^{-3}"], ["grams per cubic centimeter"], ["g/cm", "kg/cm^3"]),
    (["m^2"], ["square meters", "sq m", "meters squared"], ["m", "m^3", "cm^2"]),
    (["cm^3"], ["cubic centimeters", "cubic cm", "cu. cm"], ["cm^2", "m^3"]),
    ([r"N\cdot m", "N m", r"N\,m"], ["newton meters", "newton-meters"], ["N/m", "N"]),
    (["N/m", r"N\,m^{-1}"], ["newtons per meter"], [r"N\cdot m", "N"]),
    (["rad/s", r"rad\,s^{-1}"], ["radians per second"], ["rad", "rad/min"]),
    (["J/K", r"J\,K^{-1}"], ["joules per kelvin"], ["J", r"J\cdot K"]),
]  # fmt: skip


def unit_quotient(rng: Random) -> Rewriting:
    """Quotients and powers of units."""
    signs, names, others = rng.choice(QUOTIENTS)
    n = rng.randint(2, 900)

    def forms(sign: str) -> list[str]:
        found = [rf"{n}\,\mathrm{{{sign}}}", rf"{n} \text{{ {sign}}}", rf"{n}\ \text{{{sign}}}"]
        if "/" in sign and "^" not in sign:
            top, bottom = sign.split("/")
            found += [
                rf"{n}\,\text{{{top}}}/\text{{{bottom}}}",
                rf"{n} \frac{{\text{{{top}}}}}{{\text{{{bottom}}}}}",
            ]
            found += [rf"{n}\,\text{{{top}}}\,\text{{{bottom}}}^{{-1}}"]
            found += [rf"{n}\,\text{{{top}}}\cdot\text{{{bottom}}}^{{-1}}"]
        return found

    right = [form for sign in signs for form in forms(sign)]
    right += [rf"{n} \text{{ {name}}}" for name in names]
    right += [f"{n} {name}" for name in names]
    wrong = [form for sign in others for form in forms(sign)[:2]]
    wrong += [right[0].replace(str(n), str(n + 1), 1)]
    return rng.choice(right), [*right, str(n)], wrong


def degree_name(rng: Random) -> Rewriting:
    n = rng.randint(2, 150)
    angle = [rf"{n}^\circ", rf"{n}^{{\circ}}", f"{n}°", rf"{n} \text{{ degrees}}", f"{n} degrees"]
    angle += [rf"{n}\text{{ degree}}", rf"{n}\degree", f"{n} deg", rf"{n}\text{{°}}"]
    celsius = [
        rf"{n}^\circ\text{{C}}",
        f"{n}°C",
        rf"{n}^\circ C",
        rf"{n} \text{{ degrees Celsius}}",
    ]
    celsius += [f"{n}℃", rf"{n}\,^\circ\mathrm{{C}}", f"{n} degrees Celsius", f"{n} °C"]
    fahrenheit = [rf"{n}^\circ\text{{F}}", f"{n}°F", rf"{n} \text{{ degrees Fahrenheit}}", f"{n}℉"]
    kinds = [angle, celsius, fahrenheit]
    own = rng.choice(kinds)
    wrong = [rf"{n + 1}^\circ", rf"{n}\%"]
    if own is angle:
        wrong += [rf"{n} \text{{ radians}}", rf"{n}\text{{ rad}}"]
    else:
        other = fahrenheit if own is celsius else celsius
        wrong += rng.sample(other, 3)
    return rng.choice(own), [*own, str(n)], wrong


def bare_percent(rng: Random) -> Rewriting:
    """A number to which per cent are not equal, unless they are its hundredths."""
    n = rng.choice([rng.randint(2, 99), rng.randint(100, 400), rng.randint(3, 199) / 2])
    spelled = [
        rf"{n}\%",
        f"{n}%",
        rf"{n} \%",
        f"{n} percent",
        rf"{n} \text{{ percent}}",
        f"{n} pct",
    ]
    spelled += [
        rf"{n} \text{{ per cent}}",
        f"{n} per cent",
        rf"{n}\text{{\%}}",
        f"{n}％",
        rf"x = {n}\%",
    ]
    spelled += [rf"{n}\text{{ pct}}", rf"{n}\text{{ \%}}", rf"{n}\,\%", f"{n} Percent"]
    if rng.random() < 0.5:
        wrong = [*spelled, f"{n}‰", rf"{n}\text{{ permil}}", rf"{n} \text{{ percent of it}}"]
        return str(n), [f"{n}.0" if isinstance(n, int) else f"{n}0", f"x = {n}"], wrong
    hundredth = Fraction(n) / 100
    gold = rng.choice(
        [rf"\frac{{{hundredth.numerator}}}{{{hundredth.denominator}}}", f"{n / 100:.4f}"]
    )
    return gold, spelled, [str(n), rf"{n + 1}\%", rf"{n / 100}\%", f"{n}‰"]


# --- Labels, mixed numbers, thousands and commands


def dashed_label(rng: Random) -> Rewriting:
    """Further spellings of a choice and its text, for a gold letter."""
    letter, other = rng.sample("ABCDEFGH", 2)
    n = rng.randint(2, 99)
    dash = rng.choice(["-", "--", "–", "—"])
    right = [f"({letter}): {n}", f"{letter} {dash} {n}", rf"\text{{({letter}) }} x={n}"]
    right += [rf"\text{{({letter})}} x = {n}", f"({letter}) {dash} {n}", f"({letter}). {n}"]
    right += [rf"\textbf{{({letter}):}}\ {n}", rf"\text{{{letter}}}: {n}", f"({letter}) x = {n}"]
    right += [rf"({letter})\; y={n}", rf"({letter}): \frac{{1}}{{{n}}}", f"({letter}): x = {n}"]
    right += [rf"\mathrm{{({letter})}}\ {n}", f"{letter}: x = {n}", rf"\textbf{{{letter}.}}\ {n}"]
    right += [chr(0x24B6 + ord(letter) - ord("A")), rf"\text{{{letter} {dash} }}{n}"]
    right += [rf"{letter} {dash} \sqrt{{{n}}}", f"Option {letter}: {n}"]
    wrong = [f"({other}): {n}", f"{other} {dash} {n}", rf"\text{{({other}) }} x={n}"]
    wrong += [f"{letter}-{n}", f"{letter}{n}", f"({letter}): {n}, ({other}): {n + 1}"]
    wrong += [f"({letter}) or ({other})", f"{letter} {dash} {other}", f"({letter})({other})"]
    wrong += [f"({letter})x", f"({letter})({n})", chr(0x24B6 + ord(other) - ord("A"))]
    wrong += [f"{letter} {dash} {n}, {other} {dash} {n + 1}", f"{letter} = {n}", f"{letter}x = {n}"]
    return letter, right, wrong


def mixed_number(rng: Random) -> Rewriting:
    """A whole number and a fraction, with and without blanks and braces."""
    whole, bottom = rng.randint(1, 40), rng.choice([2, 3, 4, 5, 7, 8, 9])
    top = rng.choice([n for n in range(1, bottom) if gcd(n, bottom) == 1])
    value = whole + Fraction(top, bottom)
    right = [
        rf"{whole} \frac{{{top}}}{{{bottom}}}",
        rf"{whole}\tfrac{top}{bottom}",
        f"{whole} {top}/{bottom}",
    ]
    right += [
        rf"{whole}\ {top}/{bottom}",
        rf"{whole}\,\frac{top}{bottom}",
        rf"{whole}~{top}/{bottom}",
    ]
    right += [rf"{whole}\dfrac{{{top}}}{{{bottom}}}", rf"{whole}\nicefrac{{{top}}}{{{bottom}}}"]
    right += [rf"{whole}{{\frac{{{top}}}{{{bottom}}}}}", rf"{{{whole}}}\frac{{{top}}}{{{bottom}}}"]
    right += [rf"{whole}\;\frac{{{top}}}{{{bottom}}}", f"{whole}\u00a0{top}\u2044{bottom}"]
    right += [rf"{whole}\!\frac{{{top}}}{{{bottom}}}", rf"x = {whole} \tfrac{{{top}}}{{{bottom}}}"]
    right += [
        rf"{whole} {top}/{bottom} \text{{ cups}}",
        rf"{whole}\frac{{{top}}}{{{bottom}}} \text{{ hours}}",
    ]
    wrong = [rf"{whole}\cdot\frac{top}{bottom}", f"{whole}, {top}/{bottom}"]
    wrong += [
        f"{whole + 1} {top}/{bottom}",
        rf"{whole} \frac{{{top}}}{{{bottom + 1}}}",
        f"{whole}{top}/{bottom}",
    ]
    wrong += [
        rf"{whole} \times {top}/{bottom}",
        f"-{whole} {top}/{bottom}",
        f"{whole}.{top}/{bottom}",
    ]
    gold = rf"\frac{{{value.numerator}}}{{{value.denominator}}}"
    if rng.random() < 0.3:
        gold = right[rng.randrange(5)]
    if rng.random() < 0.3:
        gold, right = f"-{gold}", [f"-{text}" for text in right if text[0].isdigit()]
        wrong = [f"-{text}" if text[0] != "-" else text[1:] for text in wrong]
    return gold, right, wrong


def indian(n: int) -> str:
    """A number in lakhs and crores: 12,34,567."""
    digits, last = str(n)[:-3], str(n)[-3:]
    groups: list[str] = []
    while digits:
        digits, group = digits[:-2], digits[-2:]
        groups.insert(0, group)
    return ",".join([*groups, last])


def thousands(rng: Random) -> Rewriting:
    """Separators of thousands, and lists that look like them."""
    n = rng.choice([rng.randint(1000, 99999), rng.randint(10**5, 10**9)])
    commas = f"{n:,}"
    separators = ["'", "’", "{,}", r"\,", "\u202f", r"\ ", r",\!", r"\;", "{\\,}", r"\text{,}"]
    right = [commas.replace(",", separator) for separator in separators]
    right += [indian(n), commas, f"{n}.0", indian(n).replace(",", "{,}")]
    right += [commas.replace(",", "'") + ".00", commas.replace(",", r"\,") + ".0"]
    right += [f"x = {commas}".replace(",", "'")]
    if n >= 10**6:
        right.append(commas.replace(",", "."))
    wrong = [commas.replace(",", "'") + "0", indian(n + 1), commas.replace(",", "; ")]
    wrong += [
        f"{n + 1:,}".replace(",", "'"),
        commas.replace(",", ".", 1) if n < 10**6 else str(n + 2),
    ]
    wrong += [indian(n * 10), commas[:-1], commas.replace(",", "'", 1).replace(",", "'")[:-2]]
    if n < 10**5:
        wrong.append(commas.replace(",", ", "))
    return rng.choice([str(n), str(n), commas if n < 10**5 else str(n)]), right, wrong


def commands(rng: Random) -> Rewriting:
    """Commands of packages and of plain TeX."""
    a, b = rng.sample(range(2, 12), 2)
    if gcd(a, b) > 1:
        b = a + 1
    n, k = rng.randint(5, 12), rng.randint(2, 4)
    color = rng.choice(["red", "blue", "green!50!black"])
    paint = rf"\textcolor{{{color}}}"
    quotient, swapped = rf"\frac{{{a}}}{{{b}}}", rf"\frac{{{b}}}{{{a}}}"
    chosen, turned = rf"{{{n} \choose {k}}}", rf"{{{n}\choose{n - k}}}"
    forms: list[Rewriting] = [
        (quotient,
         [rf"\nicefrac{{{a}}}{{{b}}}", rf"\sfrac{{{a}}}{{{b}}}", rf"{{{a} \over {b}}}",
          rf"{a} \over {b}", rf"{paint}{{{quotient}}}", rf"\frac{{{paint}{{{a}}}}}{{{b}}}",
          rf"\cfrac{{{a}}}{{{b}}}", rf"x = \nicefrac{{{a}}}{{{b}}}"],
         [rf"\nicefrac{{{b}}}{{{a}}}", rf"{{{b} \over {a}}}", rf"{paint}{{{swapped}}}",
          rf"\nicefrac{{{a}}}{{{b + 1}}}"]),
        (rf"\binom{{{n}}}{{{k}}}",
         [chosen, rf"{n} \choose {k}", rf"{{{n}\choose{k}}}", str(comb(n, k)), turned,
          rf"\dbinom{{{n}}}{{{k}}}", rf"1\cdot{chosen}"],
         [rf"{{{n + 1} \choose {k}}}", rf"\frac{{{n}}}{{{k}}}", f"2{chosen}", f"{chosen}+1"]),
        (str(3 * comb(n, k) + a),
         [f"3{chosen}+{a}", rf"3\binom{{{n}}}{{{k}}}+{a}", rf"{a}+3\cdot{chosen}"],
         [f"3{chosen}-{a}", f"3+{chosen}+{a}", rf"{{3{n} \choose {k}}}+{a}"]),
        (f"{a}x+{b}",
         [rf"{paint}{{{a}x+{b}}}", rf"{{\color{{{color}}} {a}x+{b}}}", rf"{paint}{{{a}x}}+{b}",
          rf"\color{{{color}}}{{{a}x}}+{b}", rf"\mathbf{{{a}x+{b}}}"],
         [rf"{paint}{{{a}x-{b}}}", rf"{paint}{{{b}x+{a}}}", rf"{{\color{{{color}}} {a}x}}"]),
    ]  # fmt: skip
    return rng.choice(forms)


def counted(rng: Random) -> Rewriting:
    """Words behind a number that change it, and ratios."""
    n = rng.randint(2, 30)
    right = [f"{n}.0", rf"{n} \text{{ apples}}", f"{n} students", rf"{n}\text{{ ways}}"]
    words = [
        "tens",
        "hundreds",
        "thousands",
        "dozens",
        "th root",
        "tenths",
        "thirds",
        "fifths",
        "ten",
    ]
    words += ["dozen", "hundred", "lakh", "million", "millions", "percent", "per cent", "halves"]
    words += [
        "eighths",
        "squared",
        "cubed",
        "factorial",
        "or more",
        "at most",
        "twelfths",
        "sixths",
    ]
    words += ["th power", "hundredths", "crore", "billions", "score"]
    wrong = [rf"{n} \text{{ {word}}}" for word in words] + [f"{n} {word}" for word in words]
    m = rng.randint(2, 9)
    wrong += [f"{n}:1", f"{n * m}:{m}", f"{n} : 1", f"1:{n}", f"{n}, 234", rf"{n}\text{{th root}}"]
    wrong += [f"{n}th root", f"{n} th root", rf"{n}^{{\text{{th}}}} \text{{ root}}"]
    return str(n), right, wrong


def ratio(rng: Random) -> Rewriting:
    a, b, c = rng.sample(range(1, 12), 3)
    k = rng.randint(2, 9)
    if rng.random() < 0.5:
        right = [
            f"{a} : {b} : {c}",
            f"{k * a}:{k * b}:{k * c}",
            f"x:y:z = {a}:{b}:{c}",
            rf"{a}\colon {b}\colon {c}",
        ]
        wrong = [
            f"{b}:{a}:{c}",
            f"{a}:{c}:{b}",
            f"{a}:{b}",
            f"{k * a}:{k * b}:{c}",
            f"{a}:{b}:{c + 1}",
        ]
        return f"{a}:{b}:{c}", right, wrong
    right = [f"{a} : {b}", f"{k * a}:{k * b}", f"x:y = {a}:{b}", f"{a}∶{b}"]
    wrong = [f"{b}:{a}", f"{a}:{b + 1}", f"{a}", f"{a}, {b}", f"{a}:{b}:1"]
    if a % b == 0:
        wrong.append(f"{a // b}")
    return f"{a}:{b}", right, wrong


def hidden_sign(rng: Random) -> Rewriting:
    """Signs of a product that are rare or invisible."""
    a, b = rng.sample(range(2, 60), 2)
    cross = rng.choice("✕✖⨯×⋅·∙")
    return rng.choice(
        [
            (str(a * b), [f"{a}{cross}{b}", f"{a} {cross} {b}", f"{a}\u2062{b}", f"\u2062{a * b}"],
             [f"{a}{cross}{b + 1}", f"{a}+{b}", f"{a}\u2062{b}0", f"{a}{b}"]),
            (f"{a}x", [f"{a}\u2062x", f"{a}{cross}x", f"x\u2062{a}", f"{a}\u2062\u200bx"],
             [f"{a}\u2062y", f"{a}+x", f"{b}\u2062x", f"{a}{cross}x{cross}x"]),
            (rf"{a}\sqrt{{3}}", [f"{a}\u2062\\sqrt{{3}}", f"{a}\u2062√3", f"{a}{cross}√3"],
             [f"{b}\u2062√3", f"{a}\u2062√2", f"{a}+√3"]),
            (rf"{a} \times 10^{{{b}}}", [f"{a} {cross} 10^{{{b}}}", f"{a}\u206210^{{{b}}}"],
             [f"{a} {cross} 10^{{{b + 1}}}", f"{a}10^{{{b}}}0"]),
        ]
    )  # fmt: skip


def circled_letter(rng: Random) -> Rewriting:
    """A completion for the choice grader with a letter in a circle or a square."""
    letter, other = rng.sample("ABCDE", 2)
    first = rng.choice([0x24B6, 0x24D0, 0x1F150, 0x1F130, 0x1F170])
    sign, wrong_sign = (chr(first + ord(x) - ord("A")) for x in (letter, other))
    right = [
        rf"\boxed{{{sign}}}",
        f"Answer: {sign}",
        rf"\boxed{{\text{{{sign}}}}}",
        f"The answer is {sign}.",
    ]
    right += [rf"\boxed{{{sign} 12}}", f"{sign}"]
    wrong = [
        rf"\boxed{{{wrong_sign}}}",
        rf"\boxed{{{sign}, {wrong_sign}}}",
        f"Answer: {wrong_sign}",
        rf"\boxed{{{sign}{wrong_sign}}}",
    ]
    return letter, right, wrong


RULES: list[Rule] = [
    *(number, mixed, degrees, percent, quantity, based),
    *(listing, interval, matrix, point, polynomial, root),
    *(file_number, decimal, exponent, exponents),
    *(ascii_pi, ascii_root, ascii_power, ascii_exponent, ascii_function, ascii_greek),
    *(ascii_gold, ascii_interval),
    *(unicode_width, unicode_blank, unicode_minus, unicode_fraction, unicode_script),
    *(unicode_style, labelled, pointed, circled, choice),
    *(semicolon_interval, interval_union, decimal_comma),
    *(scaled_matrix, matrix_sum, line, scaled_vector),
    *(currency, cents, unit, unit_quotient, degree_name, bare_percent),
    *(dashed_label, mixed_number, thousands, commands, counted, ratio),
    *(hidden_sign, circled_letter),
]
CHOICES = (choice, circled_letter)
"""Rules for the grader "choice", which reads completions; the others are for "math"."""


def written(answer: str, rng: Random) -> str:
    """A completion with the answer, in a form that does not change it."""
    forms = [answer, answer, f"${answer}$", f"{answer}."]
    forms += [rf"\displaystyle {answer}", rf"\({answer}\)"]
    if "$" not in answer:
        forms.append(answer.replace("\\", "\\\\"))  # as JSON leaves it
    if "text" not in answer:
        forms.append(rf"\text{{The answer is }} {answer}")
    before = rng.choice(["", r"Not \boxed{-1}: ", r"<think>\boxed{-1}</think>"])
    return rf"{before}$\boxed{{{rng.choice(forms)}}}$"


def pairs(seed: int, count: int, rules: Sequence[Rule] = RULES) -> list[Pair]:
    """`count` pairs, of each rule about as many right and as many wrong ones."""
    rng = Random(seed)
    drawn: list[Pair] = []
    for rule in cycle(rules):
        gold, *answers = rule(rng)
        for is_right, texts in zip((True, False), answers, strict=True):
            for text in rng.sample(texts, min(2, len(texts))):
                is_choice = rule in CHOICES
                completion = text if is_choice else written(text, rng)
                grader = "choice" if is_choice else "math"
                drawn.append(Pair(rule.__name__, grader, gold, completion, is_right))
        if len(drawn) >= count:
            return drawn[:count]
    raise ValueError("there are no rules")


def graded(drawn: Sequence[Pair], workers: int = 1) -> Iterator[tuple[Pair, bool]]:
    """Each pair, and whether it is taken for right."""
    answers = [(pair, answer_text(pair.text)) for pair in drawn if pair.grader == "math"]
    boxed = [(answer, pair.gold) for pair, answer in answers if answer is not None]
    with Comparer(deadline=20, workers=workers) as comparer:
        reasons = iter(comparer.compare(boxed))
    for pair, answer in answers:
        yield pair, answer is not None and next(reasons) == "right"
    for pair in drawn:
        if pair.grader == "choice":
            yield pair, chosen_letter(pair.text) == named_letters(pair.gold)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--count", type=int, default=3000)
    parser.add_argument("--list", action="store_true", help="print every false verdict")
    options = parser.parse_args(arguments)

    verdicts = list(graded(pairs(options.seed, options.count)))
    lines = [["rule", "right", "false wrong", "wrong", "false right"]]
    for rule in ["all", *(rule.__name__ for rule in RULES)]:
        own = [(pair, taken) for pair, taken in verdicts if rule in ("all", pair.rule)]
        right = [taken for pair, taken in own if pair.is_right]
        wrong = [taken for pair, taken in own if not pair.is_right]
        numbers = (len(right), len(right) - sum(right), len(wrong), sum(wrong))
        lines.append([rule, *map(str, numbers)])
    for line in lines:
        print("| " + " | ".join(line) + " |")
    for pair, taken in verdicts:
        if options.list and taken != pair.is_right:
            kind = "false right" if taken else "false wrong"
            print(f"{kind} ({pair.rule}): gold {pair.gold!r}, completion {pair.text!r}")


if __name__ == "__main__":
    main()
