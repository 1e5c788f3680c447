r"""Completions and their gold answers: the boxed answer, and why it is right or not.

    completion -> box after the thought -> answer
    answer, gold answer -> integers -> text -> algebra -> right or a reason why not

strictgrade.equality decides whether two answers are equal. Algebra may not terminate, so each pair
of answers is compared in a separate process (strictgrade.processes), and a verdict depends on
nothing but the pair.
"""

import atexit
import os
import re
from collections.abc import Iterable, Sequence
from functools import cache
from threading import Lock

from strictgrade.equality import Reason, alternatives, boxed, compare_text, explain_gold
from strictgrade.inputs import Answer, Gold, require_packages, require_text, text_of, texts_of
from strictgrade.processes import Pool
from strictgrade.thoughts import ThoughtTags, split_thought

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


def verify(completion: str, gold: Gold) -> bool:
    r"""True if the boxed answer after a completion's thought is right.

    verify(r"<think>...</think> It is \boxed{\frac{1}{2}}.", "0.5") is True. Of several accepted
    answers each is right. A number is taken as Python writes it, so a float is a decimal, which is
    compared to six places. What cannot be decided in five seconds of processor time is not right.
    May be called from any thread.

    Raises:
        ModuleNotFoundError: a package is missing; the message names it.
        ProcessError: a process for algebra cannot be started.
        TypeError: the completion is no text, or a gold answer neither a text nor a real number.
        ValueError: the list of accepted answers is empty, or one is nan.
    """
    return reason_for(completion, gold) == "right"


def reason_for(completion: str, gold: Gold) -> Reason:
    """Why a completion is right or not; as ``verify``."""
    require_text(completion)
    golds = texts_of(gold)  # also of a completion without an answer
    require_packages()
    answer = answer_text(completion)
    if answer is None:
        return why_no_answer(completion)
    return compare(answer, golds)


def compare(answer: Answer, gold: Gold) -> Reason:
    """Why an answer, as it stands in a box, is right or not; as ``verify``."""
    comparer, lock = _shared(os.getpid())
    with lock:
        return comparer.compare([(answer, gold)])[0]


@cache
def _shared(process: int) -> tuple["Comparer", Lock]:
    """One comparer for a process: its forks cannot ask its workers."""
    comparer = Comparer(workers=1)

    def end() -> None:
        if os.getpid() == process:
            comparer.close()

    atexit.register(end)
    return comparer, Lock()


class Comparer:
    """Compares answers; a context manager. Processes start when a pair needs algebra.

    ``deadline`` is the processor time of a pair in seconds, from 0.01 to a day. ``workers`` is by
    default the number of cores. Raises ProcessError when a process cannot be started, and
    ModuleNotFoundError where a package is missing. For one thread at a time.
    """

    def __init__(self, *, workers: int | None = None, deadline: float = 5.0) -> None:
        require_packages()
        self._pool = Pool(
            "strictgrade.equality:compare_symbolic",
            deadline=deadline,
            workers=workers,
            warm_up=_WARM_UP,
            memory=MEMORY_BYTES,
        )

    def compare(self, answers: Sequence[tuple[Answer, Gold]]) -> list[Reason]:
        """The reason for each given answer and its gold answer, or its several accepted ones."""
        read = [(text_of(given), accepted(gold)) for given, gold in answers]
        pairs = [(given, gold) for given, golds in read for gold in golds]
        reasons, hard = _decide_by_text(pairs)
        reasons |= self._decide_by_algebra(hard)
        found = []
        for given, golds in read:
            of_golds = {reasons[given, gold] for gold in golds}
            found.append(next(reason for reason in _BEST_FIRST if reason in of_golds))
        return found

    def equal(self, pairs: Sequence[Pair]) -> list[bool]:
        """True for each pair of equal answers, False where that is undecided.

        An answer that does not parse, or that times out when compared with itself, equals only its
        own text; an empty answer equals nothing.
        """
        reasons, hard = _decide_by_text(pairs)
        answers = dict.fromkeys(answer for pair in hard for answer in pair)
        own = self._decide_by_algebra([(answer, answer) for answer in answers])
        # An answer that takes too long with itself does so with any other.
        hopeless = {answer for (answer, _), reason in own.items() if reason == "timed out"}
        reasons |= self._decide_by_algebra([pair for pair in hard if hopeless.isdisjoint(pair)])
        return [reasons.get(pair) == "right" for pair in pairs]

    def close(self) -> None:
        """End all processes at once; a later comparison starts new ones."""
        self._pool.close()

    def __enter__(self) -> "Comparer":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _decide_by_algebra(self, hard: Sequence[Pair]) -> dict[Pair, Reason]:
        """The reason for each of several different pairs."""
        # compare_symbolic never raises: a call without a value was ended.
        results = self._pool.call(hard)
        return {
            pair: "timed out" if result.error else result.value
            for pair, result in zip(hard, results, strict=True)
        }


def accepted(gold: Gold) -> list[str]:
    """The gold answers of which each is right. Raises TypeError and ValueError as ``texts_of``."""
    found: list[str] = []
    for answer in texts_of(gold):
        found.extend(alternatives(answer))
    return found


def answer_text(completion: str, tags: Sequence[ThoughtTags] = ()) -> str | None:
    """The boxed answer after the last closed thought; None without one, or in an open thought."""
    require_text(completion)
    answer = split_thought(completion, tags).answer
    if answer is None:
        return None
    return boxed(answer)


def why_no_answer(
    completion: str, tags: Sequence[ThoughtTags] = (), *, truncated: bool = False
) -> Reason:
    """Why a completion for which ``answer_text`` is None has no answer."""
    if truncated:
        return "truncated"
    if split_thought(completion, tags).answer is None:
        return "unclosed thought"
    return "no box"


def unreadable(gold: str) -> str:
    """Why a gold answer cannot be read, so that other spellings are wrong; "" if it can."""
    if INTEGER.fullmatch(gold):  # parsing takes milliseconds
        return ""
    reading = explain_gold(gold)
    return "" if reading.parses else reading.reason


def _decide_by_text(pairs: Iterable[Pair]) -> tuple[dict[Pair, Reason], list[Pair]]:
    """The reasons of pairs that text decides, and the pairs that need algebra."""
    decided = {}
    for pair in dict.fromkeys(pairs):
        decided[pair] = compare_text(*pair)
    reasons = {pair: reason for pair, reason in decided.items() if reason}
    return reasons, [pair for pair in decided if pair not in reasons]
