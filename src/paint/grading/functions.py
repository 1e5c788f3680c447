"""Custom graders: functions that compute or wait, of one completion or of many.

    def grade(completion, row)            computes: each call in a separate process
    def grade(completions, rows)          computes: one call for many, in a process
    async def grade(completion, row)      waits: many calls at once, in this process
    async def grade(completions, rows)    waits: one call for many

What computes is limited in processor time and may crash (paint.grading.processes). What waits, for
an endpoint that judges, is limited in wall time, and repeated where it fails. Nothing ends an async
function that blocks its event loop: it must await.
"""

import asyncio
import inspect
import json
import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from tenacity import AsyncRetrying, stop_after_attempt, stop_after_delay, wait_random_exponential

from paint.config.metric_records import record_of
from paint.core.background import Background
from paint.core.credentials import hide_values, redact
from paint.core.errors import format_short, replace_surrogates
from paint.core.user_code import call_user_code, describe_error, user_code
from paint.grading.contract import Grade, Grader, Item
from paint.grading.processes import UNREADABLE, Pool, to_plain
from strictgrade.processes import REASON_CHARACTERS, Arguments, Returned

# Between the attempts of a call that waits. A pause is random, up to a bound which doubles.
FIRST_PAUSE_SECONDS = 1.0
LONGEST_PAUSE_SECONDS = 10.0

ATTEMPTS = 5
"""Most calls of a function that waits, for one result."""


class AsyncCalls:
    """Calls of an async function in an event loop of this process, ``concurrency`` at once.

    A call may take ``timeout`` seconds. One that fails is made again until ``timeout`` seconds have
    passed since it was first made, ATTEMPTS times at most in all.
    """

    def __init__(self, function: Callable[..., Any], *, concurrency: int, timeout: float) -> None:
        self._function = function
        self._concurrency = concurrency
        self._timeout = timeout
        # One loop for all calls: the function's client may keep connections, which belong to it.
        self._background: Background | None = None

    def call(self, calls: Sequence[Arguments]) -> list[Returned]:
        if self._background is None:
            self._background = Background("grading")
        return self._background.run(self._call_all(calls))

    def close(self) -> None:
        if self._background is not None:
            self._background.cancel()
            self._background.close()
            self._background = None

    async def _call_all(self, calls: Sequence[Arguments]) -> list[Returned]:
        slots = asyncio.Semaphore(self._concurrency)

        async def one(arguments: Arguments) -> Returned:
            # One slot for all attempts and pauses, so an endpoint that fails gets fewer calls.
            async with slots:
                return await self._call(arguments)

        return await asyncio.gather(*map(one, calls))

    async def _call(self, arguments: Arguments) -> Returned:
        retrying = AsyncRetrying(
            stop=stop_after_attempt(ATTEMPTS) | stop_after_delay(self._timeout),
            wait=wait_random_exponential(FIRST_PAUSE_SECONDS, max=LONGEST_PAUSE_SECONDS),
            reraise=True,  # the function's own error, not tenacity's RetryError
        )
        try:
            value: Any = await retrying(
                call_user_code, self._called, arguments, seconds=self._timeout
            )
            # Through JSON, as from a process: all functions give the same types.
            with user_code():
                return Returned(json.loads(json.dumps(value, default=to_plain)))
        except Exception as failure:
            return Returned(error=describe_error(failure))

    async def _called(self, arguments: Arguments) -> Any:
        # An object's async __call__ is no coroutine function; this is one.
        return await self._function(*arguments)


class FunctionGrader(Grader):
    """Grades by the calls of a custom function, of one completion each or of many.

    ``name`` is what messages call the function.
    """

    def __init__(self, caller: Pool | AsyncCalls, *, takes_batch: bool, name: str) -> None:
        self._caller = caller
        self._takes_batch = takes_batch
        self._name = name

    def grade(self, items: Sequence[Item]) -> list[Grade]:
        if not items:
            return []
        if self._takes_batch:
            results = self._call_for_all(items)
        else:
            calls = [(item.text, dict(item.row)) for item in items]
            results = self._caller.call(calls)
        grades: list[Grade] = []
        for item, result in zip(items, results, strict=True):
            grades.append(to_grade(result, f"{self._name}, row {item.row.get('id', '')}"))
        return grades

    def _call_for_all(self, items: Sequence[Item]) -> list[Returned]:
        texts = [item.text for item in items]
        rows = [dict(item.row) for item in items]
        [result] = self._caller.call([(texts, rows)])
        if not result.error:
            try:
                return [Returned(value) for value in read_batch(result.value, len(items))]
            except ValueError as error:
                result = Returned(error=f"{self._name}: returned {error}"[:REASON_CHARACTERS])
        # Each completion has the error of the call.
        return [result] * len(items)

    def close(self) -> None:
        self._caller.close()

    def __enter__(self) -> "FunctionGrader":
        # What the function's module imports may take long: meanwhile a model is loaded.
        if isinstance(self._caller, Pool):
            self._caller.start()
        return self


def is_async(function: Callable[..., Any]) -> bool:
    """Return whether a function, or an object's ``__call__``, is declared by ``async def``."""
    # iscoroutinefunction is false for an object whose __call__ is async.
    call = getattr(function, "__call__", None)  # noqa: B004
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(call)


def takes_batch(function: Callable[..., Any]) -> bool:
    """Return whether a function's first parameter is named ``completions``."""
    try:
        parameters = list(inspect.signature(function).parameters)
    except (TypeError, ValueError):  # one of C that declares none, or a wrong declaration
        return False
    return parameters[:1] == ["completions"]


def to_grade(result: Returned, place: str) -> Grade:
    """Return the grade of a call's result; ``place`` begins the message on what is no grade."""
    if result.error:
        return Grade(None, result.error, failed=True)
    try:
        return read_grade(result.value)
    except ValueError as error:
        return Grade(None, f"{place}: returned {error}"[:REASON_CHARACTERS], failed=True)


def read_batch(value: Any, count: int) -> list[Any]:
    """Return what a function of many completions returned, one value each.

    None says nothing of any. Raises ValueError for anything but ``count`` values.
    """
    if value is None:
        return [None] * count
    if isinstance(value, list) and len(value) == count:
        return value
    if count == 1 and isinstance(value, bool | int | float):  # an array of one number
        return [value]
    raise _refused(value, f"not a list of {count} rewards")


def read_grade(value: Any) -> Grade:
    """Return the grade in a value: a Grade, a dict with its fields, a number, a bool or None.

    Raises ValueError for anything else.
    """
    fields = {"reward": value}
    if isinstance(value, dict) and UNREADABLE not in value:
        if "reward" not in value:
            raise _refused(value, "a dict without reward")
        fields = value
    reason = redact(_text(fields.get("reason")))
    # The teacher reads it: addresses stay whole.
    feedback = hide_values(_text(fields.get("feedback")))
    if fields.get("failed"):
        return Grade(None, reason or "the grader says that it failed", failed=True)
    reward, answer = _number(fields["reward"]), fields.get("answer")
    return Grade(
        reward,
        reason or reward_word(reward),
        feedback=feedback,
        answer=None if answer is None else hide_values(_text(answer)),
        metrics=_metrics(fields.get("metrics") or {}),
    )


def _metrics(value: Any) -> dict[str, float]:
    if not isinstance(value, dict):
        raise _refused(value, "which is no dict of metrics")
    metrics = {}
    for name, one in value.items():
        if record_of(str(name)) is not None:
            raise ValueError(f"a metric {name}, which is the name of one of the package")
        number = _number(one)
        if number is not None:
            metrics[str(name)] = number
    return metrics


def _text(value: Any) -> str:
    """A text, or several as lines; "" where nothing is said."""
    lines = value if isinstance(value, list) else [value]
    # A model reads the text, and files keep it.
    return replace_surrogates("\n".join(str(line) for line in lines if line is not None))


def _number(value: Any) -> float | None:
    if value is None:
        return None
    with suppress(OverflowError):  # of an integer beyond the floats
        if isinstance(value, bool | int | float) and math.isfinite(value):
            return float(value)
    raise _refused(value, "which is not a reward")


def _refused(value: Any, fault: str) -> ValueError:
    if isinstance(value, dict) and UNREADABLE in value:
        return ValueError(f"a value of type {value[UNREADABLE]}, {fault}{value['hint']}")
    return ValueError(f"{format_short(value)}, {fault}")


def reward_word(reward: float | None) -> str:
    if reward is None:
        return "not graded"
    if reward == 1:
        return "right"
    if reward == 0:
        return "wrong"
    return "partial"
