r"""Gold answers under changes that keep their meaning, or that do not: false rights and wrongs.

    python benchmarks/changed_answers.py [SEED] [FILE ...]

The gold answers are those below and the `answer` of each row of the FILEs (JSONL). Each is changed
in every way that its form allows, and prints what the grader says wrongly. A change that takes its
meaning may by accident leave it (x^0 for x^1 at x = 1), so read what is printed.
"""

import json
import random
import re
import resource
import sys
from collections import Counter
from pathlib import Path

from paint.grading.grader import Grader, Item

GOLDS = r"""
7; -12; 1024; 0; 3628800; 0.25; -3.5; \frac{3}{7}; -\frac{22}{5}; 2\frac{1}{4}; \sqrt{5}; 3\sqrt{7}
\frac{1+\sqrt{5}}{2}; 2^{100}; 2^{-50}; \frac{1}{3^{40}}; 10!; \binom{12}{5}; 5\pi; \frac{\pi}{6}
e^{2}; 1-\frac{1}{e}; \ln 3; \log_{2} 5; \sin 1; 3+4i; \frac{1-2i}{5}; \sqrt[3]{2}; 7\cdot 2^{9}
x+1; x^{2}-3x+2; \frac{x}{x+1}; a^{2}+b^{2}; n(n+1); \frac{n(n-1)}{2}; 2^{n}-1; (-1)^{n}; x^{2}y^{3}
\binom{n}{3}; n!; \sqrt{x^{2}+1}; \frac{a+b}{c}; \lfloor \frac{n}{2} \rfloor; 3^{k+1}; \sin x
x=4; y=2x+1; f(x)=x^{2}+1; x^{2}+y^{2}=9; a_{n}=3n-1; f(3)=8; z=2-3i; P(A)=\frac{1}{4}; I=3t
(1,2); (3,-1,4); (\frac{1}{2},\sqrt{3}); (0,1,2,3); \{1,2,5\}; \{-3,7\}; 2,9; -1,4,6; \sqrt{2},5
x=1,x=6; a=2,b=5; m=4,n=7,p=9; (1,2),(5,3); f(1)=4,f(2)=9; 2\pm\sqrt{3}; \pm 6; x=1\pm 2i
[0,5]; (2,9]; (-\infty,4); x>3; x\le 7; 1<x<8; (0,2)\cup(3,6); x\ne 5; a<b
50\%; 12\text{ cm}; \$15; 40^\circ; \text{Monday}; \text{no}; \text{B}; \text{even}; \text{B, D, A}
""".replace("\n", ";")

NUMBER = r"-?[0-9]+(?:\.[0-9]+)?|-?\\d?frac\{?[0-9]+\}?\{?[0-9]+\}?"
WORD = re.compile(r"text|[a-z]{4,}(?<!frac|sqrt)|%|\\\$|circ")
BARE_LIST = re.compile(rf"(?:{NUMBER})(?:\s*,\s*(?:{NUMBER}))+")


def is_scalar(gold: str) -> bool:
    """One number or formula, without a name or a unit."""
    plain = gold.replace(r"\left", "").replace(r"\right", "")
    return not re.search(r"[=<>,\[\]]|\\(?:le|ge|ne|pm|cup|in|text|infty|\{|\$)", plain) and not (
        WORD.search(re.sub(r"\\[a-z]+", "", plain)) or "%" in plain or "circ" in plain
    )


def split(gold: str) -> list[str]:
    """The parts between commas outside of brackets."""
    parts, depth = [""], 0
    for sign in gold:
        depth += (sign in "([{") - (sign in ")]}")
        if sign == "," and not depth:
            parts.append("")
        else:
            parts[-1] += sign
    return parts


def kept(gold: str, rng: random.Random) -> dict[str, str]:
    """The same answer in other words."""
    changes = {
        "dfrac": gold.replace(r"\frac", r"\dfrac"),
        "blanks": re.sub(r"([=+])", r" \1 ", gold),
        "sizes": gold.replace("(", r"\left(").replace(")", r"\right)"),
        "delimiters": f"${gold}$",
        "full stop": f"{gold}.",
        "display": rf"\displaystyle {gold}",
    }
    parts = split(gold)
    if is_scalar(gold):
        changes |= {
            "name": f"x = {gold}",
            "brackets": rf"\left({gold}\right)",
            "plus zero": f"0+{gold}" if not gold.startswith("-") else f"{gold}+0",
            "halves": rf"\frac{{2({gold})}}{{2}}",
            "power one": f"({gold})^{{1}}",
            "chain": rf"S = 1\cdot({gold}) = {gold}",
            "remark": rf"{gold} \text{{ (by symmetry)}}",
        }
        if not re.search("[a-zA-Z]", re.sub(r"\\[a-z]+", "", gold)):
            changes["unit"] = rf"{gold} \text{{ units}}"
        else:
            changes["condition"] = rf"{gold} \quad \text{{for all }} n \ge 1"
    if re.fullmatch("-?[0-9]+", gold):
        number = int(gold)
        first = rng.randrange(2, 50)
        changes |= {
            "fraction": rf"\frac{{{3 * number}}}{{3}}",
            "decimal": f"{number}.0",
            "commas": f"{number:,}",
            "sum": f"{first}+{number - first}" if number > first else f"{number + first}-{first}",
            "product": f"2({number})-{number}" if number > 0 else gold,
        }
    if fraction := re.fullmatch(r"(-?)\\frac\{([0-9]+)\}\{([0-9]+)\}", gold):
        sign, top, bottom = fraction.groups()
        changes["multiple"] = rf"{sign}\frac{{{7 * int(top)}}}{{{7 * int(bottom)}}}"
        changes["slash"] = f"{sign}{top}/{bottom}"
    if len(parts) > 1:
        shuffled = rng.sample(parts, len(parts))
        changes["and"] = r",".join(parts[:-1]) + r" \text{ and } " + parts[-1]
        if "text" not in gold:
            changes["order"] = ", ".join(shuffled)
            if len({*parts}) == len(parts) and "=" not in gold:
                changes["set"] = rf"\{{{', '.join(shuffled)}\}}"
    if gold.startswith(r"\{"):
        inner = split(gold[2:-2])
        changes["order in a set"] = rf"\{{{', '.join(rng.sample(inner, len(inner)))}\}}"
    if named := re.fullmatch(r"([a-zA-Z](?:\([a-z]\))?)=([^=,]*)", gold):
        changes["value"] = named[2]
    return {name: text for name, text in changes.items() if text != gold}


def spoilt(gold: str, rng: random.Random) -> dict[str, str]:
    """Other answers."""
    changes: dict[str, str] = {}
    numbers = [n for n in re.finditer("[0-9]+", gold) if not gold[: n.start()].endswith("_{")]
    if numbers:
        number = rng.choice(numbers)
        more = str(int(number[0]) + 1)
        changes["one more"] = gold[: number.start()] + more + gold[number.end() :]
    exponents = list(re.finditer(r"\^\{?([0-9]+)\}?", gold))
    if exponents:
        power = rng.choice(exponents)
        more = f"^{{{int(power[1]) + 1}}}"
        changes["exponent"] = gold[: power.start()] + more + gold[power.end() :]
    signs = list(re.finditer(r"(?<=[0-9a-z)}])\s*[+-]", gold))
    if signs:
        sign = rng.choice(signs)
        opposite = "-" if sign[0].endswith("+") else "+"
        changes["sign within"] = gold[: sign.start()] + opposite + gold[sign.end() :]
    parts = split(gold)
    if is_scalar(gold) and not re.fullmatch("-?0+", gold):
        changes |= {
            "sign": f"-({gold})",
            "double": f"2({gold})",
            "half": rf"\frac{{{gold}}}{{2}}",
            "one more behind": f"{gold}+1",
            "thousand": rf"{gold}\cdot 10^3",
        }
        if gold != "1" and "(-1)" not in gold:
            changes["inverse"] = rf"\frac{{1}}{{{gold}}}"
        if "." not in gold:
            changes["a little more"] = f"{gold}+10^{{-{rng.choice((7, 40, 400))}}}"
        if re.fullmatch("-?[0-9]+", gold):
            changes["K"] = rf"{gold}\text{{K}}"
    if len(parts) > 1:
        changes["one less"] = ",".join(parts[:-1])
        changes["one twice"] = ",".join([*parts, parts[0] + "+1"])
    pair = re.fullmatch(r"\(([^()]*)\)", gold)
    if pair and (inner := split(pair[1])) and len(set(inner)) > 1:
        turned = inner[1:] + inner[:1]
        changes["turned"] = f"({','.join(turned)})"
        changes["as a set"] = rf"\{{{','.join(inner)}\}}"
    if len(parts) > 1 and all("=" in part for part in parts):
        sides = [part.split("=") for part in parts]
        if len({name for name, _ in sides}) == len(sides):
            values = [value for _, value in sides]
            turned = values[1:] + values[:1]
            changes["values exchanged"] = ",".join(
                f"{name}={value}" for (name, _), value in zip(sides, turned, strict=True)
            )
            changes["values turned"] = f"({','.join(turned)})"
    for old, new in ((r"\le ", "<"), ("<", r"\le "), (">", "<"), ("]", ")"), ("[", "(")):
        if old in gold and "(" not in gold.replace(r"\infty", "")[:1] + "":
            changes[f"{old} as {new}"] = gold.replace(old, new)
    if gold.startswith(r"\text{") and "," in gold:
        letters = gold[6:-1].split(", ")
        changes["ranking turned"] = rf"\text{{{', '.join(letters[::-1])}}}"
    return {name: text for name, text in changes.items() if text != gold}


def main() -> None:
    """Print each false verdict, and their number by change."""
    seed = int(sys.argv[1]) if len(sys.argv) > 1 else 0
    golds = [gold.strip() for gold in GOLDS.split(";") if gold.strip()]
    for path in sys.argv[2:]:
        rows = Path(path).read_text(encoding="utf-8").splitlines()
        golds += [str(json.loads(row)["answer"]).strip().strip("$") for row in rows]
    golds = [gold for gold in dict.fromkeys(golds) if "$" not in gold.replace(r"\$", "")]

    rng = random.Random(seed)
    asked = [
        (gold, given, name, right)
        for gold in golds
        for right, change in ((True, kept), (False, spoilt))
        for name, given in change(gold, rng).items()
    ]
    with Grader() as grader:
        grades = grader.grade([Item(rf"\boxed{{{given}}}", gold) for gold, given, *_ in asked])
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    took = used.ru_utime + used.ru_stime

    wrongly: Counter[tuple[bool, str]] = Counter()
    for (gold, given, name, right), grade in zip(asked, grades, strict=True):
        if grade.strict.correct != right:
            wrongly[right, name] += 1
            kind = "false wrong" if right else "FALSE RIGHT"
            print(f"{kind} ({name}): {gold}  <-  {given}  [{grade.strict.reason}]")
    for right, kind in ((False, "false rights"), (True, "false wrongs")):
        count = sum(n for (is_right, _), n in wrongly.items() if is_right == right)
        total = sum(is_right == right for *_, is_right in asked)
        print(f"{kind}: {count} of {total}")
    print(f"{len(golds)} gold answers, {len(asked)} pairs, {took:.1f} s of processors, seed {seed}")


if __name__ == "__main__":
    main()
