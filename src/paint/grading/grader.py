r"""Is the final answer of a completion the gold answer, and if not, why?

    completion -> box after the thought (strict), box anywhere (lenient)
    box, gold answer -> integers -> text -> algebra -> verdict

A verdict is for analysis and evaluation only: it never drives the method (paper: section
'Overlap-Adaptive Partial Solution Conditioning'). When two answers are equal is the business of
paint.grading.equality.

Where that takes algebra, which may take for ever, each pair of answers gets a process of its own,
forked from one that has imported sympy, and the kernel ends it when its processor time is up.
A verdict therefore depends on nothing but the pair: neither on the number of workers, nor on other
work of the machine, nor on earlier pairs.

Left out: answers without a box, and systems without fork (Windows).
"""

import contextlib
import gc
import json
import os
import selectors
import signal
import subprocess
import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import IO, NoReturn

from paint.errors import PaintError
from paint.grading.equality import Reason, alternatives, at_sight, boxed, by_algebra

Pair = tuple[str, str]  # the given answer and the gold one
Gold = str | Sequence[str]  # a gold answer, or several of which each is right

DEADLINES = (0.01, 86_400.0)  # seconds, least and most
# Wall time for each second of the deadline: a pair that waits instead of computing ends too.
WALL_SECONDS = 20
MEMORY_BYTES = 4 << 30
MOST_TIMEOUTS = 12  # while the equal answers to one problem are found

_WARM_UP = (  # sympy loads some modules late; with these pairs it does so before the first fork
    (r"\frac{x+1}{2}", "0.5 + 0.5x"),
    (r"\{1, 2\pi\}", r"(1, 2\sqrt{3}]"),
    ("x<3", "y = x^2"),
    (r"\frac{1}{7}", "x+1"),
    (r"\sqrt{2}", r"\frac{3}{5}"),
)
# Exit codes that no accident leaves behind.
_CODES: dict[int, Reason] = {10: "right", 11: "wrong", 12: "unparsable gold"}


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether one answer is right, and why not."""

    correct: bool
    answer: str | None  # what was compared: the content of the box; None without one
    reason: Reason  # "right" exactly when correct


@dataclass(frozen=True, slots=True)
class Grade:
    """The two readings of a completion."""

    strict: Verdict  # the last box after the last closed think block
    lenient: Verdict  # the last box anywhere


@dataclass(frozen=True, slots=True)
class Item:
    """A completion as the model wrote it, think tags included, and its gold answer."""

    text: str
    gold: Gold  # of several accepted answers, each is right
    truncated: bool = False  # cut at its token limit


class Grader:
    """Grades completions; a context manager, whose workers start when a pair first needs algebra.

    ``deadline`` is the processor time of a pair in seconds, from 0.01 to a day. ``workers`` is by
    default the number of cores. Raises PaintError when a worker cannot be started. For one thread
    at a time.
    """

    def __init__(self, *, workers: int | None = None, deadline: float = 5.0) -> None:
        if (workers is not None and workers < 1) or not DEADLINES[0] <= deadline <= DEADLINES[1]:
            raise ValueError(f"{workers} workers with a deadline of {deadline} s")
        self._most_workers = workers or _cores()
        self._deadline = deadline
        self._workers: list[_Worker] = []

    def grade(self, items: Sequence[Item]) -> list[Grade]:
        """The grades in the order of the items."""
        answers = [(answer_text(item.text), boxed(item.text)) for item in items]
        reasons = self._reasons(
            (given, gold)
            for item, strict_and_lenient in zip(items, answers, strict=True)
            for given in strict_and_lenient
            if given is not None
            for gold in accepted(item.gold)
        )

        return [
            Grade(
                strict=_verdict(item, strict, reasons, is_strict=True),
                lenient=_verdict(item, lenient, reasons, is_strict=False),
            )
            for item, (strict, lenient) in zip(items, answers, strict=True)
        ]

    def equal(self, pairs: Sequence[Pair]) -> list[bool]:
        """Whether two answers are equal.

        False where that is undecidable: an answer that does not parse equals nothing but its own
        text, and an empty answer not even that. So does one that costs its deadline alone.

        All pairs share a budget, so they are those of one problem: after MOST_TIMEOUTS deadlines,
        what still takes algebra is undecided.
        """
        reasons = _at_sight(pairs)
        hard = [pair for pair in dict.fromkeys(pairs) if pair not in reasons]
        answers = dict.fromkeys(answer for pair in hard for answer in pair)
        waiting = iter([*((answer, answer) for answer in answers), *hard])
        hopeless: set[str] = set()
        timeouts = 0

        while batch := list(islice(waiting, MOST_TIMEOUTS - timeouts)):
            asked = [pair for pair in batch if hopeless.isdisjoint(pair)]
            for pair, reason in self._compare(asked).items():
                reasons.setdefault(pair, reason)  # an answer equals its own text, whatever it costs
                if reason == "timed out":
                    timeouts += 1
                    hopeless |= {pair[0]} if pair[0] == pair[1] else set()

        return [reasons.get(pair) == "right" for pair in pairs]

    def close(self) -> None:
        """End all workers at once, whatever they do; a later grading starts new ones."""
        while self._workers:
            self._workers.pop().kill()

    def __enter__(self) -> "Grader":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _reasons(self, pairs: Iterable[Pair]) -> dict[Pair, Reason]:
        """The reason for each pair."""
        pairs = list(dict.fromkeys(pairs))
        reasons = _at_sight(pairs)
        return reasons | self._compare([pair for pair in pairs if pair not in reasons])

    def _compare(self, hard: Collection[Pair]) -> dict[Pair, Reason]:
        """The reason for each of several different pairs, by algebra."""
        reasons: dict[Pair, Reason] = {}
        try:
            while len(self._workers) < min(self._most_workers, len(hard)):
                self._workers.append(_Worker(self._deadline))

            with selectors.DefaultSelector() as selector:
                waiting = iter(hard)
                for worker, pair in zip(self._workers, waiting, strict=False):
                    selector.register(worker.ask(pair), selectors.EVENT_READ, worker)

                while selector.get_map():
                    for key, _ in selector.select():
                        pair, reason = key.data.answer()
                        reasons[pair] = reason
                        if following := next(waiting, None):
                            key.data.ask(following)
                        else:
                            selector.unregister(key.fileobj)

        except BaseException:
            # A worker's late answer would be taken for that of a later pair.
            self.close()
            raise

        return reasons


class _Worker:
    """A process with sympy; it compares one pair at a time, each in a child of its own."""

    def __init__(self, deadline: float) -> None:
        self._pair: Pair = ("", "")
        path = os.pathsep.join(filter(None, sys.path))
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-W", "ignore", "-m", "paint.grading.grader", str(deadline)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                bufsize=0,
                process_group=0,  # Ctrl-C reaches this process only, which then ends the worker
                env=os.environ | {"PYTHONHASHSEED": "0", "PYTHONPATH": path},
            )
        except OSError as error:  # no such program, or no room for another process
            raise PaintError(
                f"A process that compares answers cannot be started: {error}."
            ) from None

    def ask(self, pair: Pair) -> IO[bytes]:
        """Hand a pair to the worker. The pipe that is returned is readable once it has answered."""
        assert self._process.stdin
        assert self._process.stdout
        self._pair = pair
        unsent = json.dumps(pair).encode() + b"\n"
        with contextlib.suppress(BrokenPipeError):  # a worker that has ended: answer() says so
            while unsent:  # a signal may cut a write short
                unsent = unsent[self._process.stdin.write(unsent) :]
        return self._process.stdout

    def answer(self) -> tuple[Pair, Reason]:
        """The pair that the worker was asked about, and its reason; waits for it."""
        assert self._process.stdout
        code = self._process.stdout.read(1)
        if not code:
            status = self._process.wait()
            raise PaintError(f"A process that compares answers ended with status {status}.")
        return self._pair, _CODES.get(code[0], "timed out")

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)  # with the child that compares
        self._process.__exit__(None, None, None)  # closes the pipes and waits


def accepted(gold: Gold) -> list[str]:
    """The gold answers of which each is right.

    Raises ValueError where there is none.
    """
    answers = [gold] if isinstance(gold, str) else list(gold)
    if not answers:
        raise ValueError("a list of accepted answers is empty")
    return [each for answer in answers for each in alternatives(answer)]


def is_correct(completion: str, answer: Gold) -> bool:
    """The strict verdict of a Grader, in this process and without a deadline.

    For tests and single questions only. Raises on no text, but an expression such as 9^{9^{9}} can
    keep it busy for ever.
    """
    given = answer_text(completion)
    if given is None:
        return False
    return any(
        (at_sight(given, gold) or by_algebra(given, gold)) == "right" for gold in accepted(answer)
    )


def answer_text(completion: str) -> str | None:
    """The boxed answer after the last closed think block.

    None without a boxed answer, or with a think block left open. A completion without think tags is
    searched as a whole. Where the prompt's template opens the think block, the caller must put the
    opening tag in front; otherwise an answer in a cut-off thought counts.
    """
    final = _after_thought(completion)
    return None if "<think>" in final else boxed(final)


def _after_thought(completion: str) -> str:
    return completion.rpartition("</think>")[2]


def _at_sight(pairs: Iterable[Pair]) -> dict[Pair, Reason]:
    """The reasons that take no algebra."""
    decided = {pair: at_sight(*pair) for pair in dict.fromkeys(pairs)}
    return {pair: reason for pair, reason in decided.items() if reason}


def _best(reasons: Sequence[Reason]) -> Reason:
    """One reason for several accepted answers: unparsable only where all of them are."""
    order: tuple[Reason, ...] = ("right", "timed out", "wrong", "unparsable gold")
    return min(reasons, key=order.index)


def _verdict(
    item: Item, given: str | None, reasons: Mapping[Pair, Reason], *, is_strict: bool
) -> Verdict:
    reason: Reason = "no box"
    if given is not None:
        reason = _best([reasons[given, gold] for gold in accepted(item.gold)])
    elif item.truncated:
        reason = "truncated"
    elif is_strict and "<think>" in _after_thought(item.text):
        reason = "unclosed thought"
    return Verdict(reason == "right", given, reason)


def _cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _work(deadline: float) -> None:
    """The life of a worker: read a pair a line, write a byte for its reason, end with the input."""
    import resource

    answers = os.dup(1)
    os.dup2(2, 1)  # a library that prints must not write among the answers

    # A stricter limit may be in force, and a system may have none.
    with contextlib.suppress(ValueError, OSError):
        hard_limit = resource.getrlimit(resource.RLIMIT_AS)[1]
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, hard_limit))

    # The asker may ignore or block signals, and children inherit that. Here timers must be deadly,
    # and children must stay to be waited for.
    for number in (signal.SIGPROF, signal.SIGALRM, signal.SIGCHLD):
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())

    for pair in _WARM_UP:
        by_algebra(*pair)
    gc.freeze()  # a child shares these objects' memory as long as no collection touches them

    for line in sys.stdin.buffer:
        child = os.fork()
        if not child:
            _answer_and_exit(line, deadline)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        with contextlib.suppress(BrokenPipeError):
            os.write(answers, bytes([code if code in _CODES else 0]))


def _answer_and_exit(pair: bytes, deadline: float) -> NoReturn:
    """Compare the pair in this child, and leave the reason as the exit code."""
    code = 0
    try:
        signal.setitimer(signal.ITIMER_PROF, deadline)
        signal.setitimer(signal.ITIMER_REAL, deadline * WALL_SECONDS)
        reason = by_algebra(*json.loads(pair))
        code = next(code for code, meaning in _CODES.items() if meaning == reason)
    finally:
        os._exit(code)


if __name__ == "__main__":
    _work(float(sys.argv[1]))
