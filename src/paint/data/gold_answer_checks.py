"""Warnings about gold answers that do not parse or may be misread.

If a gold answer does not parse, every other spelling of it is graded wrong; if it is misread, right
answers are graded wrong. No metric shows this. Such answers are therefore listed before generation,
on the page of an evaluation, and by `paint data validate`.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from paint.core.display import Display
from paint.data.benchmarks import Benchmark
from paint.data.problems import Problem, row_of
from paint.data.readers import DataError, shorten
from paint.data.row_checks import announce_rows, listed, place_of
from paint.grading.contract import Grader
from strictgrade.comparer import INTEGER
from strictgrade.equality import explain_gold


@dataclass(frozen=True, slots=True)
class GoldWarning:
    """A gold answer to look at, and why."""

    problem: Problem
    answer: str
    parses: bool  # whether other spellings of it can be graded right
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
                found.append(GoldWarning(problem, answer, False, reading.reason))
            elif reading.suspicions:
                why = f"{'; '.join(reading.suspicions)} (read as {shorten(reading.text)})"
                found.append(GoldWarning(problem, answer, True, why))
    return found


def announce_benchmark(grader: Grader, benchmark: Benchmark, display: Display) -> None:
    """Say how an evaluation set was read, and warn of rows and answers that cannot be graded.

    Raises DataError if none of them can, or a row lacks what the grader needs.
    """
    name, problems = benchmark.name, benchmark.problems
    for note in benchmark.notes:
        display.note(note)
    for problem in problems:
        lacking = grader.lacks(row_of(problem))
        if lacking:
            raise DataError(f"{name}, problem {problem.name}: {lacking}")
    announce_rows(grader, problems, name, display)
    count, unparsed = 0, []
    for problem in problems:
        for answer in problem.answers:
            count += 1
            why = grader.unreadable(answer)
            if why:
                unparsed.append(GoldWarning(problem, answer, parses=False, why=why))
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
