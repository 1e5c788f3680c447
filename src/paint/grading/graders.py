"""Registry of graders by name: math, exact, choice, code, none, or a function of your own."""

import inspect
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from paint.config.schema import GradingConfig
from paint.core.errors import ConfigError
from paint.core.extensions import (
    NO_OPTIONS,
    bind_options,
    build_options,
    complete_options,
    extension_errors,
    load_object,
    of_type,
    require_call,
)
from paint.core.storage import digest
from paint.grading.contract import Grade, Grader, Item, RowCheck
from paint.grading.functions import AsyncCalls, FunctionGrader, is_async, reward_word, takes_batch
from paint.grading.mathematics import MathGrader
from paint.grading.processes import Pool
from paint.grading.unit_tests import CodeGrader
from strictgrade.choice import chosen_letter, named_letters
from strictgrade.equality import boxed
from strictgrade.thoughts import split_thought

GRADERS = ("math", "exact", "choice", "code", "none")
WITH_ANSWER = ("math", "exact", "choice")  # of the rows, with which they compare
FORMS = {"math": r"\boxed", "code": "```"}
"""What a prompt holds that asks for answers in the form which a grader reads, of those with one."""


def needs_answer(grader: str) -> bool:
    # A function of the user's own may need none.
    return grader in WITH_ANSWER


def open_grader(grading: GradingConfig) -> Grader:
    """Return the grader of the section grading; of several graders, their weighted sum.

    Raises ConfigError if there is no such grader, it is not callable, or its options are refused.
    """
    grading = complete_options(grading, "grading.")
    graders: dict[str, Grader] = {}
    for name, grader in zip(short_names(grading.grader), grading.grader, strict=True):
        graders[name] = find_grader(
            grader,
            deadline=grading.deadline,
            concurrency=grading.concurrency,
            timeout=grading.timeout,
            table=grading.options,
        )
    if len(graders) == 1 and not grading.weights:
        return next(iter(graders.values()))
    return WeightedGrader(graders, grading.weights or [1.0] * len(graders))


def grade_items(grader: Grader, items: Sequence[Item], *, needs_answer: bool) -> list[Grade]:
    """Return the grade of each completion; one that lacks a needed gold answer has no reward."""
    grades = iter(grader.grade([item for item in items if item.gold or not needs_answer]))
    ungraded = Grade(None, "no answer")
    return [next(grades) if item.gold or not needs_answer else ungraded for item in items]


def short_names(graders: Sequence[str]) -> list[str]:
    """Return names of graders in metrics: of module:name the name, if no other grader has it."""
    short = [grader.rpartition(":")[2] for grader in graders]
    named = zip(short, graders, strict=True)
    return [name if short.count(name) == 1 else grader for name, grader in named]


def find_grader(
    grader: str = "math",
    *,
    deadline: float = 5.0,
    workers: int | None = None,
    concurrency: int = 32,
    timeout: float = 60.0,
    table: Mapping[str, Any] = NO_OPTIONS,
) -> Grader:
    """Return the grader of a name of GRADERS, or of a function, "module:name".

    Args:
        deadline: processor seconds that a comparison of two answers, or a call of a function, may
            take, in [0.01, 86400], in one of the ``workers``; None is the number of cores.
        concurrency, timeout: of an async function (paint.grading.functions.AsyncCalls).
        table: the options of the function (``grading.options``).

    Raises ConfigError if there is no such grader, or it is not callable.
    """
    match grader:
        case "math":
            return MathGrader(deadline=deadline, workers=workers)
        case "exact":
            return EachGrader(exact, ["unclosed thought"])
        case "choice":
            return EachGrader(choice, ["no letter"])
        case "code":
            options = build_options(CodeGrader, table, "grading.options", "grading.grader code")
            return CodeGrader(options, workers=workers)
        case "none":
            return EachGrader(ungraded)
    function = load_object(grader, "grading.grader", GRADERS)
    if not callable(function):
        raise ConfigError(
            f"grading.grader is {grader}, an object {of_type(function)}, which is not callable"
        )
    # Workers bind them again; here wrong ones are refused before a completion is sampled.
    place = f"grading.grader {grader}"
    bound = bind_options(function, table, "grading.options", place)
    with extension_errors("grading.grader", grader):
        waits, is_batch = is_async(function), takes_batch(function)
    arguments = ("completions", "rows") if is_batch else ("completion", "row")
    wanted = f"{grader.rpartition(':')[2]}({', '.join(arguments)})"
    require_call(place, bound, wanted, *arguments)
    caller: AsyncCalls | Pool
    if waits:
        caller = AsyncCalls(bound, concurrency=concurrency, timeout=timeout)
    else:
        # By its name: a worker imports the function, and gets it pickled where it cannot.
        caller = Pool(grader, deadline=deadline, workers=workers, table=table)
    return FunctionGrader(caller, takes_batch=is_batch, name=grader)


def code_digest(grader: str) -> str:
    """Return a digest of the code of a grader of the user's own, and of its module."""
    if grader in GRADERS:
        return digest("")[:16]
    function = load_object(grader, "grading.grader", GRADERS)
    module = sys.modules.get(grader.partition(":")[0])
    text = ""
    # A judge's prompt is often a constant beside its function. An object, such as a partial
    # function, has no source but that of the module that makes it.
    parts: list[Any] = [function, inspect.getmodule(function), module]
    with extension_errors("grading.grader", grader):
        for part in parts:
            with suppress(OSError, TypeError):
                text += inspect.getsource(part)
        if isinstance(function, partial):
            text += json.dumps([function.args, function.keywords], default=str)
    return digest(text)[:16]


class EachGrader(Grader):
    """Grades by a function of one completion that is fast and cannot fail, in this process."""

    def __init__(self, function: Callable[[Item], Grade], unanswered: Sequence[str] = ()) -> None:
        self.function, self.unanswered = function, unanswered

    def grade(self, items: Sequence[Item]) -> list[Grade]:
        return list(map(self.function, items))


class WeightedGrader(Grader):
    """Grades by several graders: the reward is the weighted sum of theirs (as in TRL's GRPO).

    Grades without a reward do not count in the sum, and there is none where one grader has failed.
    ``graders`` are by the name that metrics have; the first that gives a reward decides what is
    right.
    """

    def __init__(self, graders: Mapping[str, Grader], weights: Sequence[float]) -> None:
        self._graders = graders
        self._weights = weights

    def grade(self, items: Sequence[Item]) -> list[Grade]:
        columns = [grader.grade(items) for grader in self._graders.values()]
        rows = zip(*columns, strict=True)
        return [self._sum(dict(zip(self._graders, row, strict=True))) for row in rows]

    def _sum(self, parts: Mapping[str, Grade]) -> Grade:
        weighted = zip(self._weights, parts.values(), strict=True)
        rewards = [weight * p.reward for weight, p in weighted if p.reward is not None]
        failed = {name: part for name, part in parts.items() if part.failed}
        reasons = [f"{name}: {part.reason}" for name, part in (failed or parts).items()]
        feedback = [part.feedback for part in parts.values() if part.feedback]
        answers = [part.answer for part in parts.values() if part.answer is not None]
        metrics: dict[str, float] = {}
        for part in parts.values():
            metrics |= part.metrics
        return Grade(
            sum(rewards) if rewards else None,
            "; ".join(reasons),
            failed=bool(failed),
            feedback="\n\n".join(feedback),
            parts=parts,
            answer=answers[0] if answers else None,
            metrics=metrics,
        )

    def equal(self, pairs: Sequence[tuple[str, str]]) -> list[bool]:
        columns = [grader.equal(pairs) for grader in self._graders.values()]
        return [any(row) for row in zip(*columns, strict=True)]

    def unreadable(self, gold: str) -> str:
        return next(filter(None, (g.unreadable(gold) for g in self._graders.values())), "")

    def warning(self) -> str:
        return "; ".join(filter(None, (g.warning() for g in self._graders.values())))

    def check_rows(self, rows: Sequence[Mapping[str, Any]]) -> list[RowCheck]:
        columns = [grader.check_rows(rows) for grader in self._graders.values()]
        checks: list[RowCheck] = []
        for row in zip(*columns, strict=True):
            faults, notes = ([c.fault for c in row if c.fault], [c.note for c in row if c.note])
            checks.append(RowCheck("; ".join(faults), "; ".join(notes)))
        return checks

    def close(self) -> None:
        for grader in self._graders.values():
            grader.close()

    def __enter__(self) -> "WeightedGrader":
        for grader in self._graders.values():
            grader.__enter__()
        return self


def ungraded(_: Item) -> Grade:
    return Grade(None, reward_word(None))


def exact(item: Item) -> Grade:
    """Return reward 1 where the last box, or the complete text without one, is a gold answer."""
    written = split_thought(item.text, item.tags).answer
    if written is None:
        return Grade(0.0, "unclosed thought")
    answer = boxed(written) or written
    return _compared(answer.strip() in map(str.strip, _golds(item)))


def choice(item: Item) -> Grade:
    """Return reward 1 where the chosen letter is a gold one (strictgrade.choice)."""
    letters = []
    for gold in _golds(item):
        named = named_letters(gold)
        if len(named) != 1:  # the data are wrong, and not the completion
            return Grade(None, f"the gold answer {gold!r} is no letter"[:200], failed=True)
        letters.append(named)

    chosen = chosen_letter(item.text, item.tags)
    if chosen is None:
        return Grade(0.0, "no letter")
    return _compared(chosen in letters)


def _golds(item: Item) -> Sequence[str]:
    return [item.gold] if isinstance(item.gold, str) else item.gold


def _compared(is_equal: bool) -> Grade:
    return Grade(float(is_equal), reward_word(float(is_equal)))
