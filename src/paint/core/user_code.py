"""Calls of code of the user's: graders, tools, environments, callbacks, contexts, divergences.

Python code may end otherwise than by an Exception: by sys.exit, a cancellation or an interrupt of
its own, by StopIteration, which a future cannot hold, or by a group of these. Calls go through this
module, after which they have returned something or raised an Exception.
"""

import asyncio
import inspect
import os
import sysconfig
import threading
import traceback
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from paint.core.credentials import hide_values, redact
from paint.core.errors import (
    MAX_REASON_CHARACTERS,
    READ_CHARACTERS,
    Interrupted,
    PaintError,
    PeerExit,
    cut,
    error_text,
    innermost,
    reason,
    replace_surrogates,
)
from strictgrade.processes import REASON_CHARACTERS

GRACE_SECONDS = 1.0
"""Seconds that a coroutine has to end after it was cancelled; it is not waited for longer."""


class UserCodeError(RuntimeError):
    """Code of the user's ended otherwise than by an Exception, such as "SystemExit: 1"."""


def describe_error(error: BaseException) -> str:
    """Say why a call failed, in at most REASON_CHARACTERS: type and text of the error.

    Of a group it is the first error that is no group.
    """
    found, others = innermost(error)
    text = error_text(found)
    if not isinstance(found, UserCodeError):
        text = f"{type(found).__name__}: {text}"
    if not isinstance(found, Exception):
        text = text.removesuffix(": ")
    if others:
        text = f"{text} (and {others} more)"
    # Values first, so that the cut leaves no half of one.
    text = redact(hide_values(text)[:READ_CHARACTERS])[:REASON_CHARACTERS]
    return replace_surrogates(text)  # a model may read it


# A class: a generator of contextlib would lose where a GeneratorExit was raised.
class user_code:
    """Raise UserCodeError where the block ends otherwise than by an Exception.

    KeyboardInterrupt passes in the main thread, where Python raises it for Ctrl-C. Not for a block
    with a yield or an await, which others may end.
    """

    _process = 0

    def __enter__(self) -> None:
        self._process = os.getpid()

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if os.getpid() != self._process:  # a child that the code forked must not go on as this one
            os._exit(0 if error is None else 1)
        if error is not None:
            _raise_ours(error)


def _raise_ours(error: BaseException) -> None:
    interrupts = (KeyboardInterrupt,)
    if threading.current_thread() is threading.main_thread():
        if isinstance(error, interrupts):
            return
        if isinstance(error, BaseExceptionGroup) and error.subgroup(interrupts):
            raise KeyboardInterrupt from error
    if isinstance(error, Exception) and not isinstance(error, StopIteration):
        return
    found, _ = innermost(error)
    text = f"{type(found).__name__}: {error_text(found)}"
    raise UserCodeError(text.removesuffix(": ")) from error


class user_errors(user_code):
    """Raise a ``kind``, with place, reason and line of the user's code, where the block fails.

    PaintErrors of commands that the code calls pass unchanged.
    """

    def __init__(self, place: str, kind: type[PaintError], hint: str) -> None:
        self._place, self._kind, self._hint = place, kind, hint

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        try:
            super().__exit__(kind, error, trace)
        except UserCodeError as ours:
            error = ours
        if error is None or isinstance(error, PaintError | Interrupted | PeerExit):
            return
        if not isinstance(error, Exception):  # Ctrl-C
            return
        found, _ = innermost(error)
        # Its text begins with the type already.
        why = error_text(found) if isinstance(found, UserCodeError) else reason(found)
        message = f"{self._place}: {cut(why, MAX_REASON_CHARACTERS)}{line_of(error)}; {self._hint}"
        raise self._kind(message) from error


def line_of(error: BaseException) -> str:
    """Say where an error was raised in the user's code, as " (FILE line N)"; "" if unknown."""
    outer = error.__cause__ if isinstance(error, UserCodeError) and error.__cause__ else error
    found, _ = innermost(outer)
    if isinstance(found, SyntaxError) and found.filename:
        return f" ({found.filename} line {found.lineno})"
    # An error of a group need not have been raised.
    calls = own_calls(traceback.extract_tb(found.__traceback__ or outer.__traceback__))
    return f" ({calls[-1].filename} line {calls[-1].lineno})" if calls else ""


def own_calls(calls: Iterable[traceback.FrameSummary]) -> list[traceback.FrameSummary]:
    """Return the calls outside of libraries and of this package, the innermost last."""
    kinds = ("stdlib", "platstdlib", "purelib", "platlib")
    package = str(Path(__file__).parents[1])
    others = (*(sysconfig.get_path(kind) for kind in kinds), package, "<frozen")
    return [call for call in calls if not call.filename.startswith(others)]


async def call_user_code(function: Callable[..., Any], *arguments: Any, seconds: float) -> Any:
    """Return what a sync or async function returns within so many seconds.

    A function without async runs in a thread; an awaitable that it returns is awaited. Raises
    TimeoutError, UserCodeError, or the function's own Exception.
    """
    task = asyncio.ensure_future(_guarded(function, *arguments))
    # What it raises when nobody waits any more is nobody's concern.
    task.add_done_callback(lambda task: task.cancelled() or task.exception())
    try:
        done, _ = await asyncio.wait([task], timeout=seconds)
    except asyncio.CancelledError:
        task.cancel()
        raise
    if not done:
        task.cancel()
        await asyncio.wait([task], timeout=GRACE_SECONDS)
        if not task.done() or task.cancelled():
            raise TimeoutError(f"no result within {seconds:g} s")
    if task.cancelled():  # by the function itself
        raise UserCodeError("CancelledError")
    try:
        return task.result()
    except TimeoutError as error:
        if error_text(error):
            raise
        # Of an inner asyncio.timeout, which says nothing.
        raise TimeoutError(f"no result within {seconds:g} s") from None


async def _guarded(function: Callable[..., Any], *arguments: Any) -> Any:
    task, process = asyncio.current_task(), os.getpid()
    try:
        found: Any
        if inspect.iscoroutinefunction(function):
            found = function(*arguments)
        else:
            found, error = await asyncio.wrap_future(_start(function, *arguments))
            if error is not None:
                raise error
        return await found if inspect.isawaitable(found) else found
    except asyncio.CancelledError:  # by whom, the other task knows
        raise
    except GeneratorExit as error:
        if not _is_running(task):  # Python closes a coroutine that is left
            raise
        raise UserCodeError("GeneratorExit") from error
    except BaseException as error:
        _raise_ours(error)
        raise
    finally:
        if os.getpid() != process:  # as in ``user_code``
            os._exit(1)


def _is_running(task: "asyncio.Task[Any] | None") -> bool:
    try:
        return asyncio.current_task() is task
    except RuntimeError:  # no event loop runs here
        return False


def call_in_thread(function: Callable[[], Any], seconds: float) -> Any:
    """Return what a function returns within so many seconds. Raises as ``call_user_code``."""
    try:
        found, error = _start(function).result(seconds)
    except TimeoutError:
        raise TimeoutError(f"no result within {seconds:g} s") from None
    if error is not None:
        raise error
    return found


def _start(function: Callable[..., Any], *arguments: Any) -> "Future[tuple[Any, Exception | None]]":
    """Call a function in a thread that ends with the process; the result is its outcome."""
    future: Future[tuple[Any, Exception | None]] = Future()
    future.set_running_or_notify_cancel()

    def work() -> None:
        try:
            with user_code():
                outcome = function(*arguments), None
        # Not as the future's own error, of which asyncio changes the type.
        except Exception as error:
            future.set_result((None, error))
        else:
            future.set_result(outcome)

    threading.Thread(target=work, name="user code", daemon=True).start()
    return future
