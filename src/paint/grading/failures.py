"""Why a call to an endpoint failed, and whether that may pass.

Errors of all clients are read alike (httpx, openai, anthropic, requests, urllib, aiohttp), by what
they have: a status, and the headers of a response.
"""

import math
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from paint.core.errors import innermost
from paint.core.user_code import UserCodeError, user_code

PASSING = (408, 409, 425, 429)
"""Statuses under 500 that may pass: timeout, conflict, too early, too many requests."""

TIMED_OUT, NO_CONNECTION, MALFORMED = "timed out", "no connection", "malformed"

# By name: no client need be installed.
_CONNECTION_ERRORS = {
    *("ConnectionError", "ClientConnectionError", "APIConnectionError", "NetworkError"),
    *("TransportError", "URLError", "HTTPException", "SSLError", "gaierror"),
}


def failure_kind(error: BaseException) -> str:
    """Return the kind of an error: HTTP and its status, timed out, no connection, malformed, or its
    type. The errors that it was raised from count, too.
    """
    chain = list(_chain(error))
    statuses = filter(None, map(_status, chain))
    for status in statuses:
        return f"HTTP {status}"
    for kind in filter(None, map(_transport_kind, chain)):
        return kind
    # Of json, pydantic and the grader's own check; a missing key or choice of the reply.
    found, _ = innermost(error)
    if isinstance(found, UserCodeError) and found.__cause__:
        found, _ = innermost(found.__cause__)  # such as SystemExit
    return MALFORMED if isinstance(found, ValueError | LookupError) else type(found).__name__


def may_pass(kind: str) -> bool | None:
    """Return whether a failure of this kind may pass by itself; None where that is not known."""
    if kind.startswith("HTTP "):
        status = int(kind.removeprefix("HTTP "))
        return status in PASSING or status >= 500
    return True if kind in (TIMED_OUT, NO_CONNECTION) else None


def retry_after(error: BaseException) -> float | None:
    """Return the seconds that an endpoint asks to wait by the header Retry-After; None without."""
    for each in _chain(error):
        for holder in (_read(each, "response"), each):
            headers: Any = _read(holder, "headers")
            if hasattr(headers, "get"):
                with suppress(TypeError, ValueError):  # no number; a date is not read
                    seconds = float(headers.get("retry-after") or headers.get("Retry-After"))
                    return max(seconds, 0.0) if math.isfinite(seconds) else None
    return None


def _chain(error: BaseException) -> Iterator[BaseException]:
    """Yield an error, and those that it was raised from or while they were handled; of groups."""
    seen: set[int] = set()
    waiting = [error]
    while waiting:
        found = waiting.pop(0)
        if id(found) in seen:
            continue
        seen.add(id(found))
        yield found
        if isinstance(found, BaseExceptionGroup):  # as of a TaskGroup
            waiting += found.exceptions
        further = found.__cause__ or (None if found.__suppress_context__ else found.__context__)
        if further is not None:
            waiting.append(further)


def _read(holder: Any, name: str) -> Any:
    """An attribute of an error of the user's; None where it has none, or reading it fails."""
    try:
        with user_code():
            return getattr(holder, name, None)
    except Exception:
        return None


def _status(error: BaseException) -> int | None:
    for holder in (_read(error, "response"), error):
        for name in ("status_code", "status", "code"):
            value = _read(holder, name)
            if isinstance(value, int) and 400 <= value < 600:
                return int(value)
    return None


def _transport_kind(error: BaseException) -> str:
    names = {kind.__name__ for kind in type(error).__mro__}
    if isinstance(error, TimeoutError) or any("Timeout" in name for name in names):
        return TIMED_OUT
    # asyncio raises OSError itself. Its other classes are of files, processes and refused keys.
    is_network = type(error) is OSError and error.filename is None
    return NO_CONNECTION if is_network or names & _CONNECTION_ERRORS else ""
