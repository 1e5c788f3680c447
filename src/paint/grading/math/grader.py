r"""The mathematics grader: compares the boxed answer with the gold answer, with a reason.

    completion -> box after the thought (strict), box anywhere (lenient)
    box, gold answer -> integers -> text -> algebra -> right or a reason why not

A grade is for analysis and evaluation only: it never drives the method (paper: section
'Overlap-Adaptive Partial Solution Conditioning'). paint.grading.math.equality decides whether two
answers are equal. Algebra may not terminate, so each pair of answers is compared in a separate
process (paint.grading.processes), and a grade depends on nothing but the pair.
"""

import re
from collections.abc import Iterable, Mapping, Sequence

from paint.grading.contract import Gold, Grade, Grader, Item
from paint.grading.math.equality import (
    Reason,
    alternatives,
    boxed,
    compare_text,
    explain_gold,
)
from paint.grading.processes import Pool
from paint.grading.thoughts import ThoughtTags, split_thought

Pair = tuple[str, str]  # the given answer and the gold one

# With several accepted answers the first of these reasons counts.
_BEST_FIRST: tuple[Reason, ...] = ("right", "timed out", "wrong", "unparsable gold")

MEMORY_BYTES = 4 << 30

INTEGER = re.compile(r"0|-?[1-9][0-9]{0,17}")
"""Gold answers that are read without parsing."""

_WARM_UP = (  # sympy loads some modules late; with these pairs it does so before the first fork
    (r"\frac{x+1}{2}", "0.5 + 0.5x"),
    (r"\{1, 2\pi\}", r"(1, 2\sqrt{3}]"),
    ("x<3", "y = x^2"),
    (r"\frac{1}{7}", "x+1"),
    (r"\sqrt{2}", r"\frac{3}{5}"),
)


LENIENT = "lenient_accuracy"
"""Metric of a grade: 1 where the last box anywhere is right, which may stand in a thought."""


class MathGrader(Grader):
    """Grades by the boxed answer. Workers start when a pair needs algebra.

    A reward is 1 where the last box after the last closed thought is right, and 0 elsewhere; that
    box is the answer. The metric ``lenient_accuracy`` is of the last box anywhere.

    ``deadline`` is the processor time of a pair in seconds, from 0.01 to a day. ``workers`` is by
    default the number of cores. Raises PaintError when a worker cannot be started. For one thread
    at a time.
    """

    gives_answers = True

    def __init__(self, *, workers: int | None = None, deadline: float = 5.0) -> None:
        self._pool = Pool(
            "paint.grading.math.equality:compare_symbolic",
            deadline=deadline,
            workers=workers,
            warm_up=_WARM_UP,
            memory=MEMORY_BYTES,
        )

    def grade(self, items: Sequence[Item]) -> list[Grade]:
        answers = [(answer_text(item.text, item.tags), boxed(item.text)) for item in items]
        # Both readings in one call: mostly they are one pair, which is compared once.
        pairs = []
        for item, strict_and_lenient in zip(items, answers, strict=True):
            for given in strict_and_lenient:
                if given is not None:
                    pairs += [(given, gold) for gold in accepted(item.gold)]
        reasons, hard = _decide_by_text(pairs)
        reasons |= self._compare(hard)
        grades = []
        for item, (answer, anywhere) in zip(items, answers, strict=True):
            reason = _reason(item, answer, reasons)
            is_right_anywhere = _reason(item, anywhere, reasons) == "right"
            grades.append(
                Grade(
                    float(reason == "right"),
                    reason,
                    answer=answer,
                    metrics={LENIENT: float(is_right_anywhere)},
                )
            )
        return grades

    def equal(self, pairs: Sequence[Pair]) -> list[bool]:
        """True for each pair of equal answers, False where that is undecided.

        An answer that does not parse, or that times out when compared with itself, equals only its
        own text; an empty answer equals nothing.
        """
        reasons, hard = _decide_by_text(pairs)
        answers = dict.fromkeys(answer for pair in hard for answer in pair)
        own = self._compare([(answer, answer) for answer in answers])
        # An answer that takes too long with itself does so with any other.
        hopeless = {answer for (answer, _), reason in own.items() if reason == "timed out"}
        reasons |= self._compare([pair for pair in hard if hopeless.isdisjoint(pair)])
        return [reasons.get(pair) == "right" for pair in pairs]

    def unreadable(self, gold: str) -> str:
        if INTEGER.fullmatch(gold):  # parsing takes milliseconds
            return ""
        reading = explain_gold(gold)
        return "" if reading.parses else reading.reason

    def close(self) -> None:
        self._pool.close()

    def __enter__(self) -> "MathGrader":
        return self

    def _compare(self, hard: Sequence[Pair]) -> dict[Pair, Reason]:
        """The reason for each of several different pairs, by algebra."""
        # compare_symbolic never raises: a call without a value was ended.
        results = self._pool.call(hard)
        return {
            pair: "timed out" if result.error else result.value
            for pair, result in zip(hard, results, strict=True)
        }


def accepted(gold: Gold) -> list[str]:
    """The gold answers of which each is right. Raises ValueError where there is none."""
    answers = [gold] if isinstance(gold, str) else list(gold)
    if not answers:
        raise ValueError("a list of accepted answers is empty")
    found: list[str] = []
    for answer in answers:
        found.extend(alternatives(answer))
    return found


def answer_text(completion: str, tags: Sequence[ThoughtTags] = ()) -> str | None:
    """The boxed answer after the last closed thought; None without one, or in an open thought."""
    answer = split_thought(completion, tags).answer
    if answer is None:
        return None
    return boxed(answer)


def _decide_by_text(pairs: Iterable[Pair]) -> tuple[dict[Pair, Reason], list[Pair]]:
    """The reasons of pairs that text decides, and the pairs that need algebra."""
    decided = {}
    for pair in dict.fromkeys(pairs):
        decided[pair] = compare_text(*pair)
    reasons = {pair: reason for pair, reason in decided.items() if reason}
    return reasons, [pair for pair in decided if pair not in reasons]


def _reason(item: Item, given: str | None, reasons: Mapping[Pair, Reason]) -> Reason:
    """Why an answer is right or not; without one (None), why there is none."""
    if given is not None:
        found = {reasons[given, gold] for gold in accepted(item.gold)}
        return next(each for each in _BEST_FIRST if each in found)
    if item.truncated:
        return "truncated"
    if split_thought(item.text, item.tags).answer is None:
        return "unclosed thought"
    return "no box"
