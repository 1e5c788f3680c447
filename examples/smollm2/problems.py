"""Word problems for a small real model: six families to warm up on, eight that it never met.

A problem of the six tells every number that its solution needs. A problem of the other eight is
about an old measure, and what a pupil has to know, how much one is, stands in its solution alone:
"A fathom is 6 feet." That is a rule, the same in every problem of its family, and it can be learnt
by reading solutions. A solution of another family says nothing about it.

Everything is a function of the seed. Which split a problem belongs to is decided by the hash of
its solution, so that no seed and no count can move it into another; and since a solution of a
measure names nobody, the same numbers in another name are in the same split.

Left out on purpose: torch.
"""

import hashlib
import random
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from paint.objective.masking import mask_solution
from paint.objective.messages import INSTRUCTION, student_messages, teacher_messages

Split = Literal["train", "validation", "evaluation"]

HIDDEN = 0.35
"""The hidden share of a solution in the warm-up: the middle of the paper's 0.30 and 0.40."""

WRONG_SEED = 11
"""The seed of the errors in references that end wrong."""

ERRORS = [error for error in range(-9, 10) if error != 0]
"""By how much a wrong step is off."""

TRIES = 200
"""How many problems are made, at most, for each one that is wanted."""

NAMES = ("Ann", "Ben", "Cleo", "Dan", "Eva", "Finn", "Gita", "Hugo", "Ida", "Jon", "Kim", "Leo")


@dataclass(frozen=True)
class WordProblem:
    """A problem with its computed solution, which ends in the boxed answer.

    Attributes:
        family: of problems that need the same steps, or the same rule.
    """

    family: str
    problem: str
    solution: str
    answer: int

    @property
    def split(self) -> Split:
        """Train for eight of ten; the first two runs had one each to validate and evaluate with."""
        match hashlib.sha256(self.solution.encode()).digest()[0] % 10:
            case 0:
                return "evaluation"
            case 1:
                return "validation"
            case _:
                return "train"


Maker = Callable[[random.Random], WordProblem]


def _word_problem(family: str, problem: str, steps: Sequence[str], answer: int) -> WordProblem:
    solution = " ".join([*steps, f"The answer is \\boxed{{{answer}}}."])
    return WordProblem(family, problem, solution, answer)


def _packs(rng: random.Random) -> WordProblem:
    name, thing = rng.choice(NAMES), rng.choice(("pencils", "cards", "eggs", "stickers"))
    packs, size, single = rng.randint(2, 9), rng.randint(3, 9), rng.randint(2, 9)
    held = packs * size
    return _word_problem(
        "packs",
        f"{name} buys {packs} packs of {size} {thing} and {single} single {thing}. "
        f"How many {thing} is that?",
        [
            f"The packs hold {packs} * {size} = {held} {thing}.",
            f"Together it is {held} + {single} = {held + single}.",
        ],
        held + single,
    )


def _change(rng: random.Random) -> WordProblem:
    name, thing = rng.choice(NAMES), rng.choice(("apples", "rolls", "stamps", "pens"))
    count, price, left = rng.randint(2, 9), rng.randint(2, 6), rng.randint(1, 20)
    cost = count * price
    return _word_problem(
        "change",
        f"{name} has {cost + left} coins and buys {count} {thing} for {price} coins each. "
        f"How many coins are left?",
        [
            f"The {thing} cost {count} * {price} = {cost} coins.",
            f"What is left is {cost + left} - {cost} = {left}.",
        ],
        left,
    )


def _ages(rng: random.Random) -> WordProblem:
    first, second, third = rng.sample(NAMES, 3)
    age, older, younger = rng.randint(8, 40), rng.randint(2, 9), rng.randint(2, 7)
    middle = age + older
    return _word_problem(
        "ages",
        f"{first} is {age} years old. {second} is {older} years older than {first}, and {third} is "
        f"{younger} years younger than {second}. How old is {third}?",
        [
            f"{second} is {age} + {older} = {middle} years old.",
            f"{third} is {middle} - {younger} = {middle - younger}.",
        ],
        middle - younger,
    )


def _trips(rng: random.Random) -> WordProblem:
    name, way = rng.choice(NAMES), rng.choice(("walks", "cycles", "rows", "rides"))
    hours, speed, more = rng.randint(2, 6), rng.randint(3, 12), rng.randint(2, 9)
    far = hours * speed
    return _word_problem(
        "trips",
        f"{name} {way} for {hours} hours at {speed} km an hour, and then {more} km more. "
        f"How many km is that?",
        [
            f"In {hours} hours it is {hours} * {speed} = {far} km.",
            f"Together it is {far} + {more} = {far + more}.",
        ],
        far + more,
    )


def _shares(rng: random.Random) -> WordProblem:
    name, thing = rng.choice(NAMES), rng.choice(("sweets", "nuts", "shells", "coins"))
    friends, each, before = rng.randint(2, 9), rng.randint(2, 9), rng.randint(2, 9)
    total = friends * each
    return _word_problem(
        "shares",
        f"{name} has {before} {thing}. Then {total} {thing} are shared equally by {friends} "
        f"children, and {name} is one of them. How many {thing} does {name} have now?",
        [
            f"Each child gets {total} / {friends} = {each} {thing}.",
            f"Now {name} has {before} + {each} = {before + each}.",
        ],
        before + each,
    )


def _fences(rng: random.Random) -> WordProblem:
    name, place = rng.choice(NAMES), rng.choice(("garden", "field", "yard", "park"))
    long, wide = rng.randint(5, 30), rng.randint(3, 20)
    half = long + wide
    return _word_problem(
        "fences",
        f"{name} has a {place} that is {long} m long and {wide} m wide. "
        f"How many m of fence go around it?",
        [f"Two sides are {long} + {wide} = {half} m.", f"All four are 2 * {half} = {2 * half}."],
        2 * half,
    )


MEASURES: dict[str, tuple[str, str, int, str]] = {
    "fathom": ("fathoms", "feet", 6, "rope"),
    "hand": ("hands", "inches", 4, "plank"),
    "span": ("spans", "inches", 9, "table"),
    "league": ("leagues", "miles", 3, "way"),
    "furlong": ("furlongs", "chains", 10, "track"),
    "firkin": ("firkins", "gallons", 9, "store"),
    "peck": ("pecks", "quarts", 8, "harvest"),
    "clove": ("cloves", "pounds", 7, "cheese"),
}
"""Old English measures: several, the smaller one, how many of it are in one, what is measured."""


def _measure(measure: str, rng: random.Random) -> WordProblem:
    """Some of a measure, and some of the smaller one more or less."""
    several, small, ratio, thing = MEASURES[measure]
    name, count, rest = rng.choice(NAMES), rng.randint(2, 12), rng.randint(2, 15)
    whole = count * ratio
    rule = [f"A {measure} is {ratio} {small}.", f"{count} * {ratio} = {whole} {small}."]

    if rng.random() < 0.5 or rest >= whole:
        size = f"{count} {several} and {rest} {small}"
        step, answer = f"Together it is {whole} + {rest} = {whole + rest}.", whole + rest
    else:
        size = f"{rest} {small} less than {count} {several}"
        step, answer = f"What is left is {whole} - {rest} = {whole - rest}.", whole - rest
    problem = f"{name} has a {thing} of {size}. How many {small} is that?"
    return _word_problem(measure, problem, [*rule, step], answer)


WARM_UP: dict[str, Maker] = {
    "packs": _packs,
    "change": _change,
    "ages": _ages,
    "trips": _trips,
    "shares": _shares,
    "fences": _fences,
}


def _maker(measure: str) -> Maker:
    return lambda rng: _measure(measure, rng)


HELD_OUT: dict[str, Maker] = {measure: _maker(measure) for measure in MEASURES}


def word_problems(
    families: Mapping[str, Maker], split: Split, count: int, *, seed: int
) -> list[WordProblem]:
    """So many problems of a split, no two with one solution; a function of the arguments.

    The families come in turn. Raises ValueError where a family has not so many.
    """
    rng = random.Random(f"{seed}/{split}")
    found: dict[str, WordProblem] = {}
    for _ in range(TRIES * count):
        if len(found) == count:
            return list(found.values())
        made = list(families.values())[len(found) % len(families)](rng)
        if made.split == split:
            found.setdefault(made.solution, made)
    raise ValueError(f"there are hardly {count} problems in {split}, found {len(found)}")


def rows(problems: Sequence[WordProblem]) -> list[dict[str, Any]]:
    """As a file of problems holds them (docs/how-to/own-data.md)."""
    return [
        {
            "id": f"{p.family}-{number}",
            "problem": p.problem,
            "solution": p.solution,
            "answer": str(p.answer),
        }
        for number, p in enumerate(problems)
    ]


MEASURE_SOLUTION = re.compile(
    r"(?P<rule>A \w+ is \d+ \w+\. \d+ \* \d+ =) (?P<whole>\d+) (?P<unit>\w+\.) "
    r"(?P<words>Together it is|What is left is) \d+ (?P<sign>[-+]) (?P<rest>\d+) = "
    r"(?P<result>\d+)\. The answer is \\boxed\{(?P=result)\}\."
)


def wrong_end(solution: str, steps: int, rng: random.Random) -> str:
    """A measure's solution whose last steps, one or two, are wrong, and the boxed answer, too.

    The rule is stated rightly. Its application has two steps: how much the measures are in the
    smaller one, and what is more or less. A wrong step errs by -9 to 9, what follows is computed
    from it, and all results are positive.
    """
    found = MEASURE_SOLUTION.fullmatch(solution)
    if found is None:
        raise ValueError(f"not the solution of a measure: {solution!r}")
    whole, right = int(found["whole"]), int(found["result"])
    change = right - whole
    if steps == 2:
        whole = rng.choice([whole + e for e in ERRORS if whole + e > max(0, -change)])
    results = [whole + change + e for e in ERRORS]
    result = rng.choice([r for r in results if r > 0 and r != right])
    return (
        f"{found['rule']} {whole} {found['unit']} "
        f"{found['words']} {whole} {found['sign']} {found['rest']} = {result}. "
        f"The answer is \\boxed{{{result}}}."
    )


def with_wrong_ends(rows: Sequence[Mapping[str, Any]], steps: int) -> list[dict[str, Any]]:
    """Rows of measures with `wrong_end` references; ``answer`` stays right."""
    changed = []
    for row in rows:
        rng = random.Random(f"{WRONG_SEED}:{row['id']}")
        changed.append({**row, "solution": wrong_end(row["solution"], steps, rng)})
    return changed


def views(problems: Sequence[WordProblem], *, shown_of_four: int) -> list[dict[str, Any]]:
    """Rows of which so many of four are in the teacher's view, and the others in the student's.

    The teacher's is written into the row's problem, so that the student's prompt of that row is,
    letter by letter, the teacher's prompt of the problem: SFT on it needs nothing new.
    """
    made = rows(problems)
    for number, row in enumerate(made):
        if number % 4 < shown_of_four:
            context = mask_solution(row["solution"], HIDDEN)
            messages = teacher_messages(row["problem"], context, complete=False)
            row["problem"] = _as_problem(messages)
    return made


def _as_problem(messages: Sequence[Mapping[str, str]]) -> str:
    """The problem whose student's message is this message."""
    [message] = messages
    problem = message["content"].removeprefix("Problem: ").removesuffix(f"\n\n{INSTRUCTION}")
    assert student_messages(problem) == messages
    return problem
