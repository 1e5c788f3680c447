"""Code of the user's that ends in any way: what each kind of code does to the run.

One table: ways to end, kinds of code, and both of sync and async. No cell may hang, and none may
raise anything but an error of the package.
"""

import asyncio
import concurrent.futures
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import product
from typing import Any
from unittest import mock

import pytest
import torch

import paint
from paint.config.schema import ContextConfig, ConversationConfig, TrainConfig
from paint.core import background, user_code
from paint.core.background import Background
from paint.core.errors import PaintError
from paint.core.extensions import spec_of
from paint.data.contexts import Contexts
from paint.data.problems import Problem
from paint.grading import functions
from paint.grading.contract import Grader, Item
from paint.grading.graders import find_grader
from paint.inference.episodes import Episodes
from paint.objective.divergences import find_divergence
from paint.objective.loss import require_slope
from paint.resolve.algorithm import Algorithm, find_algorithm
from paint.training.callbacks import Callback, tell_callbacks

SECONDS = 0.3
"""Within which a call has to end."""


class WithoutTextError(Exception):
    def __str__(self) -> str:
        raise SystemExit(9)

    __repr__ = __str__


class Odd:
    """An object of which nothing can be asked."""

    def _fail(self, *_: Any) -> Any:
        raise WithoutTextError

    __str__ = __repr__ = __len__ = __iter__ = __eq__ = __bool__ = __float__ = __getattr__ = _fail
    __hash__ = object.__hash__


def cancelled_future() -> None:
    future: concurrent.futures.Future[None] = concurrent.futures.Future()
    future.cancel()
    future.result()


def hang() -> None:
    """In a process of its own it computes, as there is a limit of processor time; else it waits."""
    if threading.current_thread() is not threading.main_thread():
        time.sleep(20)
    end = time.monotonic() + 20
    while time.monotonic() < end:
        pass


def raises(error: BaseException) -> Callable[[], Any]:
    def end() -> Any:
        raise error

    return end


WAYS: dict[str, tuple[Callable[[], Any], str]] = {
    "exception": (raises(ValueError("wrong")), "wrong"),
    "exit 0": (raises(SystemExit(0)), "SystemExit: 0"),
    "exit 1": (raises(SystemExit(1)), "SystemExit: 1"),
    "interrupt": (raises(KeyboardInterrupt()), "KeyboardInterrupt"),
    "cancelled": (raises(asyncio.CancelledError()), "CancelledError"),
    "cancelled future": (cancelled_future, "CancelledError"),
    "stop": (lambda: next(iter([])), "StopIteration"),
    "generator exit": (raises(GeneratorExit()), "GeneratorExit"),
    "group": (raises(ExceptionGroup("of", [ExceptionGroup("of", [ValueError("inner")])])), "inner"),
    "base group": (raises(BaseExceptionGroup("of", [SystemExit(2)])), "SystemExit: 2"),
    "exception without text": (raises(WithoutTextError()), "WithoutTextError"),
    "warning": (raises(UserWarning("beware")), "beware"),
    "odd result": (Odd, ""),
    "hang": (hang, ""),
}


async def cancels_a_task() -> None:
    task = asyncio.create_task(asyncio.sleep(9))
    task.cancel()
    await task


async def cancels_itself() -> None:
    task = asyncio.current_task()
    assert task
    task.cancel()
    await asyncio.sleep(9)


async def task_that_exits() -> None:
    async def leave() -> None:
        sys.exit(4)

    await asyncio.create_task(leave())


async def group_of_tasks() -> None:
    async def fail() -> None:
        raise ConnectionError("refused")

    async with asyncio.TaskGroup() as group:
        group.create_task(fail())


async def stops_the_loop() -> None:
    asyncio.get_running_loop().stop()
    await asyncio.sleep(0.01)
    raise ValueError("went on")


async def refuses_to_end() -> None:
    for _ in range(100):
        try:
            await asyncio.sleep(0.2)
        except asyncio.CancelledError:
            continue


async def waits() -> None:
    await asyncio.sleep(30)


ASYNC_WAYS: dict[str, tuple[Callable[[], Any], str]] = {
    "cancelled task": (cancels_a_task, "CancelledError"),
    "own task cancelled": (cancels_itself, "CancelledError"),
    "task that exits": (task_that_exits, "SystemExit: 4"),
    "group of tasks": (group_of_tasks, "ConnectionError: refused"),
    "stopped loop": (stops_the_loop, "went on"),
    "waits": (waits, "no result within"),
    "refuses to end": (refuses_to_end, "no result within"),
}
ALL = WAYS | ASYNC_WAYS
ASYNC = [*(way for way in WAYS if way != "hang"), *ASYNC_WAYS]
# A coroutine that computes cannot be ended (docs/how-to/turns-and-tools.md).
IN_MAIN = [way for way in WAYS if way not in ("hang", "interrupt")]
IN_QUICK_TESTS = ("exit 1", "cancelled", "stop", "exception without text")


def cells(*lists: Iterable[Any]) -> list[Any]:
    """The product of lists, the last of which are ways; most of them are for the slow tests."""
    return [
        pytest.param(*cell, marks=[] if cell[-1] in IN_QUICK_TESTS else pytest.mark.slow)
        for cell in product(*lists)
    ]


def end(way: str) -> Any:
    return ALL[way][0]()


async def end_async(way: str) -> Any:
    await asyncio.sleep(0)
    found = end(way)
    return await found if way in ASYNC_WAYS else found


@pytest.fixture(autouse=True)
def no_hang(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No test takes long, and no thread ends with an error."""
    monkeypatch.setattr(user_code, "GRACE_SECONDS", 0.3)
    monkeypatch.setattr(background, "END_SECONDS", 0.3)

    def stop(*_: Any) -> None:
        raise AssertionError("it hangs")

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, 20)
    yield
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


def grade_one(completion: str, row: Mapping[str, Any]) -> Any:
    return end(completion)


def grade_all(completions: list[str], rows: list[Mapping[str, Any]]) -> Any:
    return end(completions[0])


async def ask_one(completion: str, row: Mapping[str, Any]) -> Any:
    return await end_async(completion)


async def ask_all(completions: list[str], rows: list[Mapping[str, Any]]) -> Any:
    return await end_async(completions[0])


@pytest.fixture(scope="module", params=[grade_one, grade_all, ask_one, ask_all])
def graded(request: pytest.FixtureRequest) -> Iterator[tuple[Grader, bool]]:
    function = request.param
    opened = find_grader(spec_of(function), deadline=SECONDS, timeout=SECONDS, workers=1)
    with mock.patch.object(functions, "ATTEMPTS", 1), opened as grader:
        yield grader, function in (ask_one, ask_all)


@pytest.mark.parametrize("way", cells(ALL))
def test_grader_that_ends_in_any_way_has_failed(graded: tuple[Grader, bool], way: str) -> None:
    grader, is_async = graded
    if way not in (ASYNC if is_async else WAYS):
        pytest.skip("no way to end of this kind")
    [grade] = grader.grade([Item(way, "")])
    assert (grade.reward, grade.failed, grade.correct) == (None, True, False)
    assert ALL[way][1] in grade.reason


class Sync:
    """An environment that ends at a place."""

    def __init__(self, place: str, way: str) -> None:
        self.place, self.way = place, way

    def _at(self, place: str) -> Any:
        return end(self.way) if self.place == place else None

    def reset(self, row: Mapping[str, Any], seed: int) -> Any:
        return self._at("reset")

    def step(self, messages: Any, completion: str) -> Any:
        return self._at("step")

    def close(self) -> Any:
        return self._at("close")

    @property
    def reward(self) -> Any:
        return self._at("reward") if self.place == "reward" else 1.0

    @property
    def feedback(self) -> Any:
        return self._at("feedback") if self.place == "feedback" else ""


class Async(Sync):
    """The same as coroutines."""

    async def _awaited(self, place: str) -> Any:
        return await end_async(self.way) if self.place == place else None

    async def reset(self, row: Mapping[str, Any], seed: int) -> Any:
        return await self._awaited("reset")

    async def step(self, messages: Any, completion: str) -> Any:
        return await self._awaited("step")

    async def close(self) -> Any:
        return await self._awaited("close")


CELLS = cells([Sync], ("reset", "step", "close", "reward", "feedback"), WAYS)
CELLS += cells([Async], ("reset", "step", "close"), ASYNC)


@pytest.mark.parametrize(("kind", "place", "way"), CELLS)
def test_environment_that_ends_in_any_way_ends_its_conversation(
    kind: type[Sync], place: str, way: str
) -> None:
    def make() -> Sync:
        return kind(place, way)

    make.step = make.reset = None  # type: ignore[attr-defined]
    spec = spec_of(make, "environment", "table")
    settings = ConversationConfig(environment=spec, timeout=SECONDS)
    with Episodes(settings) as episodes:
        [(episode, _)] = episodes.open([{"problem": "p"}], [1])
        if not episode.error:
            episodes.step([(episode, [{"role": "user", "content": "p"}], "c")])
        episodes.end([episode])
        grade = episode.grade
    if place == "close" and way == "odd result":  # nobody reads it
        assert grade is not None
        assert grade.reward == 1.0
        return
    assert grade is not None
    assert (grade.reward, grade.failed) == (None, True)
    assert ALL[way][1] in grade.reason


def tool(way: str) -> Any:
    """A tool."""
    return end(way)


async def async_tool(way: str) -> Any:
    """A tool."""
    return await end_async(way)


def later_tool(way: str) -> Any:
    """A tool."""
    return async_tool(way)


@pytest.mark.parametrize("function", [tool, async_tool, later_tool])
def test_tool_that_ends_in_any_way_is_told_as_an_error(function: Callable[..., Any]) -> None:
    ways = WAYS if function is tool else ASYNC
    settings = ConversationConfig(tools=(spec_of(function),), timeout=SECONDS)
    with Episodes(settings) as episodes:
        opened = episodes.open([{}] * len(ways), [0] * len(ways))
        # All at once: none may end another one.
        calls = [
            (episode, function.__name__, {"way": way})
            for (episode, _), way in zip(opened, ways, strict=True)
        ]
        results = dict(zip(ways, episodes.call(calls), strict=True))
        assert [episode.grade for episode, _ in opened] == [None] * len(ways)
    for way, result in results.items():
        assert result.failed, way
        assert result.text.startswith("Error: "), way
        assert ALL[way][1] in result.text, way


def by_callback(way: str) -> Any:
    class Ends(Callback):
        def on_step(self, step: int, metrics: Any, rollouts: Any) -> Any:
            return end(way)

    return tell_callbacks([Ends()], "on_step", 1, {}, [])


def by_context(way: str) -> Any:
    def source(row: Any, rows: Any, seed: int) -> Any:
        return end(way)

    config = ContextConfig(source=(spec_of(source, "source", "table"),))
    return Contexts(config, []).references(Problem("p", "", "", "a"), 0)


def by_divergence(way: str) -> Any:
    own = paint.Divergence("own", term=lambda *_: end(way), slope=lambda *p: p[2])
    divergence = find_divergence(spec_of(own, "own", "table"))
    require_slope(divergence)
    return divergence.evaluate(torch.zeros(2), torch.zeros(2))


def by_method(way: str) -> Any:
    class Own(Algorithm):
        def __init__(self) -> None:
            end(way)

        def step(self, *_: Any) -> None:
            return None

    return find_algorithm(TrainConfig(method=spec_of(Own, "Own", "table")))


IN_COMMAND: dict[str, Callable[[str], Any]] = {
    "callback at a step": by_callback,
    "context": by_context,
    "term": by_divergence,
    "method": by_method,
}


@pytest.mark.parametrize(("kind", "way"), cells(IN_COMMAND, IN_MAIN))
def test_code_that_ends_in_any_way_ends_the_command_by_its_name(kind: str, way: str) -> None:
    if (kind, way) == ("method", "odd result"):
        pytest.skip("nobody reads it")
    with pytest.raises(PaintError) as refused:
        IN_COMMAND[kind](way)
    said = str(refused.value)
    assert ALL[way][1] in said
    assert any(name in said for name in ("Ends", "table:source", "table:own", "table:Own", "own"))
    assert way == "odd result" or f"{__file__} line " in said


@pytest.mark.parametrize("kind", IN_COMMAND)
def test_ctrl_c_in_the_main_thread_ends_the_command(kind: str) -> None:
    with pytest.raises(KeyboardInterrupt):
        IN_COMMAND[kind]("interrupt")


def test_background_goes_on_where_a_task_or_the_loop_ends() -> None:
    loop = Background("test")
    try:
        loop.loop.call_soon_threadsafe(sys.exit, 1)
        loop.loop.call_soon_threadsafe(loop.loop.stop)
        loop.run(asyncio.sleep(0.01))
        # Nobody waits for it.
        loop.submit(task_that_exits())
        loop.run(asyncio.sleep(0.05))
        assert loop.thread.is_alive()
    finally:
        loop.cancel()
        loop.close()
    assert not loop.thread.is_alive()


def test_cancelled_wait_cancels_the_users_coroutine() -> None:
    ended: list[str] = []

    async def judge() -> None:
        try:
            await asyncio.sleep(30)
        finally:
            ended.append("cleaned up")

    async def ask() -> None:
        task = asyncio.create_task(user_code.call_user_code(judge, seconds=30))
        await asyncio.sleep(0.05)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.sleep(0.05)

    asyncio.run(ask())
    assert ended == ["cleaned up"]


FORKS = """
import os
from paint.config.schema import ConversationConfig
from paint.core.extensions import spec_of
from paint.inference.episodes import Episodes

def fork():
    child = os.fork()
    if child:
        os.waitpid(child, 0)
    return "parent" if child else "child"

async def async_fork():
    return fork()

tools = (spec_of(fork, "fork", "table"), spec_of(async_fork, "async_fork", "table"))
with Episodes(ConversationConfig(tools=tools)) as episodes:
    [(episode, _)] = episodes.open([{}], [0])
    for name in ("fork", "async_fork"):
        print([result.text for result in episodes.call([(episode, name, {})])])
"""


def test_child_that_a_tool_forks_ends_with_the_tool() -> None:
    line = [sys.executable, "-c", FORKS]
    found = subprocess.run(line, capture_output=True, text=True, timeout=60)
    assert (found.stdout, found.stderr) == ("['parent']\n" * 2, "")
