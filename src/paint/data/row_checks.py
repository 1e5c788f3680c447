"""Rows and gold answers that cannot be graded, found before a completion is sampled.

Of a row whose own solution is not graded, no completion gets a reward. If a gold answer does not
parse, other spellings of it are graded wrong; if it is misread, right answers are. `paint data
validate` tries all rows; a run and an evaluation as many as ROW_SECONDS allow, which are drawn at
random.
"""

import random
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from paint.core.display import Display
from paint.data.benchmarks import Benchmark
from paint.data.problems import Problem, row_of
from paint.data.readers import DataError, shorten
from paint.grading.contract import Grader
from strictgrade.comparer import INTEGER
from strictgrade.equality import explain_gold

SHOWN = 20  # rows that are listed; all are counted
AT_ONCE = 64

ROW_SECONDS = 60.0
"""Seconds after which no further rows are tried before a run."""


@dataclass(slots=True)
class RowChecks:
    """What was found of rows.

    Attributes:
        total: number of rows, of which ``tried`` were tried.
        faults: rows of which no completion can be graded, and why, in the order of the rows.
        notes: number of rows that are graded in another way than the rest, by what is said of one.
    """

    total: int
    tried: int = 0
    faults: list[tuple[Problem, str]] = field(default_factory=list)
    notes: Counter[str] = field(default_factory=Counter)

    def warning(self, name: str) -> str:
        """Return the rows of the data ``name`` that cannot be graded, as a text; "" for none."""
        if not self.faults:
            return ""
        of = f"{self.tried:,}" if self.tried == self.total else f"{self.tried:,} tried"
        title = f"{name}: {len(self.faults):,} of {of} rows cannot be graded; fix or leave them out"
        return listed(title, (f"{place_of(problem)}: {why}" for problem, why in self.faults))

    def lines(self) -> Iterator[str]:
        """Yield how many rows are graded in another way, and of how many nothing is known."""
        for note, count in self.notes.items():
            yield f"{count:,} of {self.tried:,} rows: each {note}"
        if self.tried < self.total:
            yield f"{self.tried:,} of {self.total:,} rows were tried by their own solution"


def place_of(problem: Problem) -> str:
    """Return the row, if it is known, and the id of a problem."""
    return f"{f'row {problem.row}, ' if problem.row else ''}id {problem.name}"


def listed(title: str, lines: Iterable[str]) -> str:
    """Return a title with the first lines below it, and the number of the others."""
    first, *others = title, *lines
    left = [f"and {len(others) - SHOWN:,} more"] if len(others) > SHOWN else []
    return "\n  ".join([first, *others[:SHOWN], *left])


def check_rows(
    grader: Grader,
    problems: Sequence[Problem],
    *,
    seconds: float = ROW_SECONDS,
    count: Callable[[int], object] | None = None,
) -> RowChecks:
    """Try the rows of problems by their own solutions, for at most so many seconds.

    ``count`` is called with the number of rows that have been tried.
    """
    checks = RowChecks(len(problems))
    end = time.monotonic() + seconds
    # In random order, so that the rows that are tried stand for all.
    places = random.Random(0).sample(range(len(problems)), len(problems))
    found: dict[int, str] = {}
    for start in range(0, len(places), AT_ONCE):
        if time.monotonic() > end:
            break
        chunk = places[start : start + AT_ONCE]
        results = grader.check_rows([row_of(problems[place]) for place in chunk])
        for place, check in zip(chunk, results, strict=True):
            if check.fault:
                found[place] = check.fault
            elif check.note:
                checks.notes[check.note] += 1
        checks.tried += len(chunk)
        if count is not None:
            count(checks.tried)
    checks.faults = [(problems[place], found[place]) for place in sorted(found)]
    return checks


def announce_rows(grader: Grader, problems: Sequence[Problem], name: str, display: Display) -> None:
    """Warn of rows that the grader cannot grade. Raises DataError if it can grade none of them."""
    if type(grader).check_rows is Grader.check_rows:
        return  # a grader that tries none finds nothing
    checks = check_rows(grader, problems)
    warning = checks.warning(name)
    if warning and len(checks.faults) == checks.tried:
        raise DataError(warning)
    if warning:
        display.warn(warning)
    for line in checks.lines():
        display.note(f"{name}: {line}")


@dataclass(frozen=True, slots=True)
class GoldWarning:
    """A gold answer to look at, and why."""

    problem: Problem
    answer: str
    why: str

    def __str__(self) -> str:
        return f"{place_of(self.problem)}: {shorten(self.answer)}: {self.why}"


def gold_warnings(problems: Sequence[Problem]) -> list[GoldWarning]:
    """Return the gold answers that do not parse or may be misread, in the order of the problems."""
    found = []
    for problem in problems:
        for answer in problem.answers:
            if INTEGER.fullmatch(answer):
                continue
            reading = explain_gold(answer)
            if not reading.parses:
                found.append(GoldWarning(problem, answer, reading.reason))
            elif reading.suspicions:
                why = f"{'; '.join(reading.suspicions)} (read as {shorten(reading.text)})"
                found.append(GoldWarning(problem, answer, why))
    return found


def announce_benchmark(grader: Grader, benchmark: Benchmark, display: Display) -> None:
    """Say how an evaluation set was read, and warn of rows and answers that cannot be graded.

    Raises DataError if none of them can.
    """
    name, problems = benchmark.name, benchmark.problems
    for note in benchmark.notes:
        display.note(note)
    announce_rows(grader, problems, name, display)
    count, unparsed = 0, []
    for problem in problems:
        for answer in problem.answers:
            count += 1
            why = grader.unreadable(answer)
            if why:
                unparsed.append(GoldWarning(problem, answer, why))
    # Then the column is probably not that of the answers.
    if unparsed and len(unparsed) == count:
        raise DataError(
            f"{name}: none of the {count} gold answers parses ({unparsed[0]}); name the column "
            f"that holds the answers, as FILE:problem,answer, or fix the file"
        )
    if unparsed:
        title = (
            f"warning: {name}: {len(unparsed)} of {count} gold answers do not parse; only the same "
            f"text is graded right. Fix them, or list further right answers "
            f"(docs/how-to/own-data.md)"
        )
        display.warn(listed(title, map(str, unparsed)))
