"""The mathematics grader: compares the boxed answer with the gold answer, with a reason.

A grade is for analysis and evaluation only: it never drives the method (paper: section
'Overlap-Adaptive Partial Solution Conditioning'). strictgrade decides what the answer is, and
whether two answers are equal.
"""

from collections.abc import Sequence

from paint.grading.contract import Grade, Grader, Item
from paint.grading.processes import worker_errors
from strictgrade.comparer import Comparer, answer_text, unreadable, why_no_answer
from strictgrade.equality import boxed

LENIENT = "lenient_accuracy"
"""Metric of a grade: 1 where the last box anywhere is right, which may stand in a thought."""


class MathGrader(Grader):
    """Grades by the boxed answer. Workers start when a pair needs algebra.

    A reward is 1 where the last box after the last closed thought is right, and 0 elsewhere; that
    box is the answer. The metric ``lenient_accuracy`` is of the last box anywhere.

    ``deadline`` is the processor time of a pair in seconds, from 0.01 to a day. ``workers`` is by
    default the number of cores. For one thread at a time.
    """

    gives_answers = True

    def __init__(self, *, workers: int | None = None, deadline: float = 5.0) -> None:
        self._comparer = Comparer(workers=workers, deadline=deadline)

    def grade(self, items: Sequence[Item]) -> list[Grade]:
        answers = [(answer_text(item.text, item.tags), boxed(item.text)) for item in items]
        # Both readings in one call: mostly they are one pair, which is compared once.
        given = [
            (answer, item.gold)
            for item, strict_and_lenient in zip(items, answers, strict=True)
            for answer in strict_and_lenient
            if answer is not None
        ]
        with worker_errors():
            reasons = iter(self._comparer.compare(given))
        grades = []
        for item, (answer, anywhere) in zip(items, answers, strict=True):
            if answer is not None:
                reason = next(reasons)
            else:
                reason = why_no_answer(item.text, item.tags, truncated=item.truncated)
            is_right_anywhere = anywhere is not None and next(reasons) == "right"
            metrics = {LENIENT: float(is_right_anywhere)}
            grades.append(Grade(float(reason == "right"), reason, answer=answer, metrics=metrics))
        return grades

    def equal(self, pairs: Sequence[tuple[str, str]]) -> list[bool]:
        with worker_errors():
            return self._comparer.equal(pairs)

    def unreadable(self, gold: str) -> str:
        return unreadable(gold)

    def close(self) -> None:
        self._comparer.close()

    def __enter__(self) -> "MathGrader":
        return self
