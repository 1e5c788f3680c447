"""Which gold answers should a person look at?

A gold answer that does not parse makes every other spelling of it wrong, and one that is not read
as it was meant makes right answers wrong. No figure shows that, so such answers are named: before
anything is generated, in every summary, and by `paint data validate`.

Left out on purpose: whether a gold answer is the right one.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

from paint.data.problems import Problem
from paint.data.readers import DataError, shorten
from paint.grading.math.compare import explain_gold

SHOWN = 20
"""How many gold answers are named; all are counted."""

_reading = lru_cache(maxsize=10_000)(explain_gold)


@dataclass(frozen=True, slots=True)
class GoldWarning:
    """A gold answer to look at.

    Attributes:
        parses: whether other spellings of it can be right.
        why: what is doubtful about it, in words.
    """

    problem: Problem
    answer: str
    parses: bool
    why: str

    def __str__(self) -> str:
        row = f"row {self.problem.row}, " if self.problem.row else ""
        return f"{row}id {self.problem.id}: {shorten(self.answer)}: {self.why}"


def gold_warnings(problems: Sequence[Problem]) -> list[GoldWarning]:
    """The gold answers that do not parse or may be misread, in the order of the problems."""
    found = []
    for problem in problems:
        for answer in problem.answers:
            reading = _reading(answer)
            if not reading.parses:
                found.append(GoldWarning(problem, answer, False, reading.reason))
            elif reading.suspicions:
                why = f"{'; '.join(reading.suspicions)} (read as {shorten(reading.text)})"
                found.append(GoldWarning(problem, answer, True, why))
    return found


def name_unparsed(name: str, problems: Sequence[Problem], say: Callable[[str], object]) -> None:
    """Say which gold answers of a problem set do not parse, before it is asked.

    Raises:
        DataError: none of them does.
    """
    unparsed = [doubt for doubt in gold_warnings(problems) if not doubt.parses]
    if not unparsed:
        return
    count = sum(len(problem.answers) for problem in problems)
    if len(unparsed) == count:
        raise DataError(
            f"{name}: none of the {count} gold answers parses ({unparsed[0]}); name the column "
            f"that holds the answers, as FILE:problem,answer, or mend the file"
        )

    lines = [f"  {doubt}" for doubt in unparsed[:SHOWN]]
    lines += [f"  and {len(unparsed) - SHOWN} more"] * (len(unparsed) > SHOWN)
    say(
        "\n".join(
            [
                f"warning: {name}: {len(unparsed)} of {count} gold answers do not parse, and are "
                f"met by the same text alone",
                *lines,
                "  Mend them, or list other right answers beside them (docs/how-to/own-data.md). "
                "After grading, --overrides FILE judges single samples (docs/how-to/evaluate.md).",
            ]
        )
    )
