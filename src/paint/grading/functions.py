"""Custom graders: functions that compute or wait, of one completion or of many.

    def grade(completion, row)            computes: each call in a separate process
    def grade(completions, rows)          computes: one call for many, in a process
    async def grade(completion, row)      waits: many calls at once, in this process
    async def grade(completions, rows)    waits: one call for many

What computes is limited in processor time and may crash (paint.grading.processes). What waits, for
an endpoint that judges, is limited in wall time and repeated where it fails.
"""

import asyncio
import inspect
import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tenacity import AsyncRetrying, stop_after_attempt, wait_exponential

from paint.core.background import Background
from paint.core.credentials import hide_values, redact
from paint.grading.contract import Cost, Grade, Grader, Item
from paint.grading.processes import Arguments, CallResult, Pool, describe_error, to_plain

# Between the attempts of a call that waits; each pause is twice as long as the one before.
FIRST_PAUSE_SECONDS = 1.0
LONGEST_PAUSE_SECONDS = 60.0


class AsyncCalls:
    """Calls of an async function in an event loop of this process, ``concurrency`` at once.

    A call that raises, or takes over ``timeout`` seconds, is made ``attempts`` times at most.
    """

    def __init__(
        self, function: Callable[..., Any], *, concurrency: int, timeout: float, attempts: int
    ) -> None:
        self._function = function
        self._concurrency = concurrency
        self._timeout = timeout
        self._attempts = attempts
        # One loop for all calls: the function's client may keep connections, which belong to it.
        self._background: Background | None = None

    def call(self, calls: Sequence[Arguments]) -> list[CallResult]:
        if self._background is None:
            self._background = Background("grading")
        return self._background.run(self._call_all(calls))

    def close(self) -> None:
        if self._background is not None:
            self._background.cancel()
            self._background.close()
            self._background = None

    async def _call_all(self, calls: Sequence[Arguments]) -> list[CallResult]:
        slots = asyncio.Semaphore(self._concurrency)
        return await asyncio.gather(*(self._call(slots, arguments) for arguments in calls))

    async def _call(self, slots: asyncio.Semaphore, arguments: Arguments) -> CallResult:
        """The result of a call, which is repeated while it fails."""
        pause = wait_exponential(multiplier=FIRST_PAUSE_SECONDS, max=LONGEST_PAUSE_SECONDS)
        # reraise: the function's own error, not tenacity's RetryError.
        retrying = AsyncRetrying(stop=stop_after_attempt(self._attempts), wait=pause, reraise=True)
        value: Any = None
        error = ""
        # One slot for all attempts and pauses, so an endpoint that fails gets fewer calls.
        async with slots:
            # In the slot: the wait for one is no cost of the call.
            began = time.monotonic()
            try:
                value = await retrying(self._attempt, arguments)
            except Exception as failure:
                error = describe_error(failure)
            seconds = time.monotonic() - began
        return CallResult(value, error, seconds, retrying.statistics["attempt_number"])

    async def _attempt(self, arguments: Arguments) -> Any:
        """What the function returns, as JSON takes it."""
        try:
            value = await asyncio.wait_for(self._called(arguments), self._timeout)
        except TimeoutError as error:
            # A timeout of the function's own client has a text, that of wait_for has none.
            raise TimeoutError(str(error) or f"no result within {self._timeout:g} s") from None
        # Through JSON, as from a process: all functions give the same types.
        return json.loads(json.dumps(value, default=to_plain))

    async def _called(self, arguments: Arguments) -> Any:
        try:
            return await self._function(*arguments)
        except SystemExit as error:  # it would end the event loop, and be waited for in vain
            raise RuntimeError(f"it called sys.exit({error})") from None


class FunctionGrader(Grader):
    """Grades by the calls of a custom function, of one completion each or of many."""

    def __init__(self, caller: Pool | AsyncCalls, *, takes_batch: bool) -> None:
        self._caller = caller
        self._takes_batch = takes_batch
        self._cost = Cost()

    def grade(self, items: Sequence[Item]) -> list[Grade]:
        if not items:
            return []
        if self._takes_batch:
            return self._grade_batch(items)
        results = self._call([(item.text, dict(item.row)) for item in items])
        return [to_grade(result) for result in results]

    def _grade_batch(self, items: Sequence[Item]) -> list[Grade]:
        texts = [item.text for item in items]
        rows = [dict(item.row) for item in items]
        [result] = self._call([(texts, rows)])
        # One call for all: its error is that of each.
        if result.error:
            return [to_grade(result)] * len(items)
        if not isinstance(result.value, list) or len(result.value) != len(items):
            error = f"returned {result.value!r}, not a list of {len(items)} rewards"[:200]
            return [to_grade(CallResult(error=error))] * len(items)
        grades: list[Grade] = []
        for value in result.value:
            grades.append(to_grade(CallResult(value)))
        return grades

    def _call(self, calls: Sequence[Arguments]) -> list[CallResult]:
        results = self._caller.call(calls)
        for result in results:
            self._cost += Cost(result.attempts, result.seconds)
        return results

    def take_cost(self) -> Cost:
        cost, self._cost = self._cost, Cost()
        return cost

    def close(self) -> None:
        self._caller.close()

    def __enter__(self) -> "FunctionGrader":
        # What the function's module imports may take long: meanwhile a model is loaded.
        if isinstance(self._caller, Pool):
            self._caller.start()
        return self


def is_async(function: Callable[..., Any]) -> bool:
    """True for a function, or an object with a ``__call__``, that is declared by ``async def``."""
    # iscoroutinefunction is false for an object whose __call__ is async.
    call = getattr(function, "__call__", None)  # noqa: B004
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(call)


def takes_batch(function: Callable[..., Any]) -> bool:
    """True for a function whose first parameter is named ``completions``."""
    try:
        parameters = list(inspect.signature(function).parameters)
    except ValueError:  # a function of C that declares none
        return False
    return parameters[:1] == ["completions"]


def to_grade(result: CallResult) -> Grade:
    """The grade of a call's result, which is decoded from JSON."""
    if result.error:
        return Grade(0.0, result.error, failed=True)
    value, reason, feedback = result.value, "", ""
    if isinstance(value, Mapping) and "reward" in value:
        reason = redact(str(value.get("reason", "")))
        # The teacher reads it: addresses stay whole.
        feedback = hide_values(str(value.get("feedback", "")))
        value = value["reward"]
    if not isinstance(value, bool | int | float) or not _is_finite(value):
        return Grade(0.0, f"returned {value!r}, which is not a reward"[:200], failed=True)
    return Grade(float(value), reason or reward_word(value), feedback=feedback)


def reward_word(reward: float) -> str:
    """The reason of a grade that has no other."""
    if reward == 1:
        return "right"
    if reward == 0:
        return "wrong"
    return "partial"


def _is_finite(value: float) -> bool:
    try:
        return math.isfinite(value)
    except OverflowError:  # an integer beyond the floats
        return False
