"""When a call to an endpoint that failed is made again.

A failure that may pass (no connection, no answer in time, HTTP 408, 409, 425, 429 and from 500 on)
is repeated for as long as a call may take. Other refusals of an endpoint, such as 401, are not
repeated. Any other error, such as that of a reply which cannot be read, is repeated a few times.
"""

import random
import time
from collections.abc import Callable
from dataclasses import dataclass

from tenacity import RetryCallState
from tenacity.wait import wait_base

from paint.grading.failures import failure_kind, may_pass, retry_after

SILENT_SECONDS = 5.0
"""Seconds of failures without any answer, from which on an endpoint is said to be down."""


class WaitAsAsked(wait_base):
    """Pauses by another strategy; where the endpoint says how long, at least so long.

    Up to ``jitter`` seconds more, since all calls were told the same.
    """

    def __init__(self, otherwise: wait_base, jitter: float) -> None:
        self._otherwise = otherwise
        self._jitter = jitter

    def __call__(self, retry_state: RetryCallState) -> float:
        asked = retry_after(_error(retry_state))
        if asked is None:
            return self._otherwise(retry_state)
        return asked + random.uniform(0, self._jitter)


@dataclass
class Endpoint:
    """What the calls of a function know of each other: since when none has been answered."""

    timeout: float  # seconds that a call may take
    attempts: int  # of a call with failures of which it is not known whether they pass
    warn: Callable[[BaseException], None]  # that no call is answered, and the last error
    silent_since: float | None = None  # time of the first failure after the last answer


class GiveUp:
    """Whether a call that failed is given up; ``failures`` are the kinds of its failures."""

    def __init__(self, endpoint: Endpoint) -> None:
        self.failures: list[str] = []
        self.too_long = ""  # what the endpoint asked for, where that is beyond the deadline
        self._endpoint = endpoint
        self._began: float | None = None  # of the first failure
        self._unknown = 0

    def __call__(self, retry_state: RetryCallState) -> bool:
        """Called after each failure, when the pause before the next attempt is chosen."""
        error, endpoint, now = _error(retry_state), self._endpoint, time.monotonic()
        self._began = now if self._began is None else self._began
        self.failures.append(failure_kind(error))
        passes = may_pass(error)
        if passes is None:
            self._unknown += 1
            return self._unknown >= endpoint.attempts
        if not passes:
            return True
        if endpoint.silent_since is None:
            endpoint.silent_since = now
        if now - endpoint.silent_since >= SILENT_SECONDS:
            endpoint.warn(error)
        # An endpoint that is down is waited for once, and not by each call in its turn.
        began = min(self._began, endpoint.silent_since)
        is_over = now + retry_state.upcoming_sleep - began > endpoint.timeout
        asked = retry_after(error)
        if asked is not None and asked > endpoint.timeout:
            self.too_long = f"; it asks for {asked:g} s, over grading.timeout"
        return is_over


def _error(retry_state: RetryCallState) -> BaseException:
    assert retry_state.outcome
    error = retry_state.outcome.exception()
    assert error
    return error
