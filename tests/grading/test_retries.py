"""Calls of an endpoint that fail: what they are called, when they are repeated, what they took."""

import asyncio
import json
import socket
import time
import urllib.error
from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Any

import httpx2
import pytest
import requests

from paint.core.extensions import spec_of
from paint.grading import functions
from paint.grading.contract import Item
from paint.grading.cost import Cost
from paint.grading.failures import failure_kind, may_pass, retry_after
from paint.grading.graders import find_grader

Row = Mapping[str, Any]


def named(function: Any) -> str:
    return spec_of(function, "judge", __name__)


def items(count: int) -> list[Item]:
    return [Item(str(number), "", row={"id": str(number)}) for number in range(count)]


def refusal(status: int, **headers: str) -> httpx2.HTTPStatusError:
    request = httpx2.Request("POST", "http://judge.example")
    named_headers = {name.replace("_", "-"): value for name, value in headers.items()}
    response = httpx2.Response(status, headers=named_headers, request=request)
    return httpx2.HTTPStatusError(f"HTTP {status}", request=request, response=response)


def of_requests(status: int, **headers: str) -> requests.HTTPError:
    response = requests.Response()
    response.status_code = status
    response.headers.update({name.replace("_", "-"): value for name, value in headers.items()})
    return requests.HTTPError(f"{status} for url", response=response)


class RateLimitError(Exception):
    """As of openai: a status of its own, and the response of httpx."""

    def __init__(self, status: int, **headers: str) -> None:
        super().__init__(f"Error code: {status}")
        self.status_code = status
        self.response = refusal(status, **headers).response


CLIENTS = [refusal, of_requests, RateLimitError]


class APIConnectionError(Exception):
    """As of openai."""


class ServerTimeoutError(Exception):
    """As of aiohttp."""


def raised(error: Exception, cause: Exception) -> Exception:
    """An error that was raised from another one."""
    error.__cause__ = cause
    return error


@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize(
    ("status", "passes"),
    [
        *((status, True) for status in (408, 425, 429, 500, 529)),
        *((status, False) for status in (400, 401, 422)),
    ],
)
def test_failure_kind_status_of_any_client_decides(
    client: Callable[..., Exception], status: int, passes: bool
) -> None:
    error = client(status)
    assert failure_kind(error) == f"HTTP {status}"
    assert may_pass(failure_kind(error)) is passes
    wrapped = raised(RuntimeError("the judge refused"), error)
    assert failure_kind(wrapped) == f"HTTP {status}"


@pytest.mark.parametrize(
    ("error", "kind", "passes"),
    [
        (PermissionError("401 for the key"), "PermissionError", None),
        (FileNotFoundError("no prompt"), "FileNotFoundError", None),
        (ConnectionRefusedError(111, "refused"), "no connection", True),
        (socket.gaierror(-2, "Name or service not known"), "no connection", True),
        (urllib.error.URLError("refused"), "no connection", True),
        (requests.ConnectionError("refused"), "no connection", True),
        (httpx2.ConnectError("All connection attempts failed"), "no connection", True),
        (APIConnectionError("Connection error."), "no connection", True),
        (TimeoutError(), "timed out", True),
        (httpx2.ReadTimeout("late"), "timed out", True),
        (ServerTimeoutError(), "timed out", True),
        (raised(RuntimeError("no judge"), httpx2.ReadTimeout("late")), "timed out", True),
        (json.JSONDecodeError("no", "text", 0), "malformed", None),
        (requests.exceptions.JSONDecodeError("no", "text", 0), "malformed", None),
        (ValueError("the score is 11"), "malformed", None),
        (KeyError("choices"), "malformed", None),
        (FileNotFoundError(2, "none", "rubric.md"), "FileNotFoundError", None),
        (RuntimeError("429"), "RuntimeError", None),
    ],
)
def test_failure_kind_of_other_errors(error: Exception, kind: str, passes: bool | None) -> None:
    assert (failure_kind(error), may_pass(kind)) == (kind, passes)


@pytest.mark.parametrize("client", CLIENTS)
def test_retry_after_is_read_of_any_client(client: Callable[..., Exception]) -> None:
    assert retry_after(client(429)) is None
    assert retry_after(client(429, Retry_After="7")) == 7
    assert retry_after(raised(ValueError("no"), client(503, Retry_After="1.5"))) == 1.5


@pytest.mark.parametrize("value", ["", "soon", "nan", "inf", "1 minute"])
def test_retry_after_that_says_nothing_is_none(value: str) -> None:
    assert retry_after(refusal(429, Retry_After=value)) is None


class Scripted:
    """An async grader whose calls raise what a script says, each completion its own; then 1."""

    def __init__(self, script: Callable[[str, int], Exception | None]) -> None:
        self.script = script
        self.times: dict[str, list[float]] = {}

    async def __call__(self, completion: str, row: Row) -> float:
        await asyncio.sleep(0)
        times = self.times.setdefault(completion, [])
        times.append(time.monotonic())
        error = self.script(completion, len(times))
        if error:
            raise error
        return 1.0

    @property
    def calls(self) -> int:
        return sum(map(len, self.times.values()))


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(functions, "FIRST_PAUSE_SECONDS", 0.002)


def test_calls_wait_as_long_as_the_endpoint_asks(quick: None) -> None:
    judge = Scripted(lambda _, call: refusal(429, Retry_After="0.2") if call < 4 else None)
    with find_grader(named(judge), timeout=20) as grader:
        grades = grader.grade(items(3))
        cost = grader.take_cost()
    assert [grade.reward for grade in grades] == [1, 1, 1]
    assert (cost.answers, cost.calls, cost.failed) == (3, 12, {"HTTP 429": 9})
    pauses = [b - a for times in judge.times.values() for a, b in pairwise(times)]
    assert min(pauses) >= 0.2


def test_calls_longer_asked_for_than_the_deadline_are_given_up(quick: None) -> None:
    judge = Scripted(lambda *_: refusal(429, Retry_After="300"))
    with find_grader(named(judge), timeout=20) as grader:
        [grade] = grader.grade(items(1))
    assert judge.calls == 1
    assert grade.reason == "HTTPStatusError: HTTP 429; it asks for 300 s, over grading.timeout"


@pytest.mark.parametrize(
    ("error", "calls"),
    [(refusal(401), 1), (refusal(404), 1), (ValueError("a score of 11"), 3), (RuntimeError(), 3)],
)
def test_calls_that_cannot_pass_are_few(quick: None, error: Exception, calls: int) -> None:
    judge = Scripted(lambda *_: error)
    with find_grader(named(judge), timeout=20) as grader:
        assert grader.grade(items(1))[0].failed
        assert grader.take_cost().failed == {failure_kind(error): calls}
    assert judge.calls == calls


def test_endpoint_that_is_down_is_waited_for_once(quick: None) -> None:
    is_down = [True]
    judge = Scripted(lambda *_: ConnectionRefusedError("refused") if is_down[0] else None)
    began = time.monotonic()
    with find_grader(named(judge), timeout=0.5, concurrency=2) as grader:
        # Ten rounds of two calls, of which the first alone waits; and so it is afterwards.
        assert all(grade.failed for grade in grader.grade(items(20)))
        first = judge.calls
        assert all(grade.failed for grade in grader.grade(items(20)))
        assert judge.calls - first <= 25
        assert time.monotonic() - began < 3
        is_down[0] = False
        assert [grade.reward for grade in grader.grade(items(20))] == [1] * 20
        # It was answered, so the next failure is waited for again.
        judge.script = lambda _, call: refusal(503) if call < 5 else None
        judge.times.clear()
        assert [grade.reward for grade in grader.grade(items(20))] == [1] * 20


# --- what the calls took -------------------------------------------------------------------------


async def asks(completion: str, row: Row) -> float:
    """The first reply of each completion cannot be read."""
    ASKED.append(completion)
    if ASKED.count(completion) == 1:
        raise ValueError("no JSON")
    return 0.5


async def asks_for_all(completions: list[str], rows: list[Row]) -> list[float]:
    return [0.5] * len(completions)


def computes(completion: str, row: Row) -> float:
    if completion == "1":
        raise ValueError("no JSON")
    return 0.5


ASKED: list[str] = []


def test_cost_counts_all_calls_those_that_failed_too(quick: None) -> None:
    ASKED.clear()
    costs = []
    for function in (asks, asks_for_all, computes):
        with find_grader(spec_of(function), workers=1) as grader:
            grader.grade(items(3))
            costs.append(grader.take_cost())
    found = [(c.answers, c.calls, c.failed) for c in costs]
    assert found == [(3, 6, {"malformed": 3}), (3, 1, {}), (2, 3, {"malformed": 1})]


COST = Cost(72, 97, 73.72, {"malformed": 13, "HTTP 429": 12})


def test_cost_as_metrics_and_back_is_the_same() -> None:
    metrics = (COST + Cost(failed={"timed out": 1})).metrics()
    assert metrics == {
        "grader_answers": 72,
        "grader_calls": 97,
        "grader_seconds": 73.72,
        "grader_failed_calls/HTTP_429": 12,
        "grader_failed_calls/malformed": 13,
        "grader_failed_calls/timed_out": 1,
    }
    assert Cost.of(json.loads(json.dumps(metrics))) == COST + Cost(failed={"timed out": 1})
    assert Cost().metrics() == {}
    assert Cost.of({"loss": 1.0}) == Cost()
