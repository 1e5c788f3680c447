"""A pool of vLLM servers: each row goes to the least busy server; failing servers are evicted.

An evicted server is readmitted when it responds again. A failed row is retried on another server,
or waits for one. Generation fails only if no server is left and none returns in time.
"""

import asyncio
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from paint.core.display import Display
from paint.core.errors import PaintError
from paint.inference.engine import Completion, EngineError, OnCompletion
from paint.inference.vllm.client import ATTEMPTS, TooSlow, Unreachable, VllmServer, attempts

HEARTBEAT_SECONDS = 5.0
"""Time between two health checks of a server that works."""

RETRY_SECONDS = 0.5
"""Time between two attempts to take a server back."""

SAY_SECONDS = 10.0
MAX_FAILURES = 3

T = TypeVar("T")


class ServerPool:
    """The servers of an engine, and which of them are available.

    Args:
        in_flight: concurrent requests per server.
        patience: seconds to wait for a server when none is available.
        wakes: a server that returns may be asleep.

    Attributes:
        says_count: show how many completions are there, as what the step is doing.
    """

    def __init__(
        self,
        servers: Sequence[VllmServer],
        display: Display,
        *,
        in_flight: int,
        patience: float,
        wakes: bool = False,
    ) -> None:
        self.servers, self.display = list(servers), display
        self.in_flight, self.patience, self.wakes = in_flight, patience, wakes
        self.adapter = Path()
        self.says_count = True
        self.changed = asyncio.Condition()
        self.silent_since = time.monotonic()

    async def connect(self, folder: Path) -> None:
        """Wait until every server responds, and unload a killed run's adapters of ``folder``.

        Raises:
            EngineError: a server does not respond, or is no vLLM server, or ours ended (with the
                end of its log).
        """
        await gather_or_raise(self._connect(server, folder) for server in self.servers)

    async def each(self, ask: Callable[[VllmServer], Coroutine[Any, Any, None]]) -> None:
        """Send a request to all live servers; one that fails every attempt is evicted."""

        async def ask_or_leave_out(server: VllmServer) -> None:
            try:
                async for attempt in attempts():
                    with attempt:
                        await ask(server)
            except Unreachable as error:
                self._evict(server, str(error))

        await gather_or_raise(ask_or_leave_out(server) for server in self.servers if server.live)

    async def complete(
        self,
        adapter: Path,
        rows: int,
        ask: Callable[[VllmServer, int], Coroutine[Any, Any, Completion]],
        finished: OnCompletion,
    ) -> None:
        """Sample one completion per row from base + adapter, each passed on when complete.

        Args:
            ask: asks a server for a row's completion.

        Raises:
            EngineError: no server is left, or a row cannot be done anywhere.
        """
        count = 0

        async def complete(index: int) -> None:
            nonlocal count
            finished(index, await self._complete(lambda server: ask(server, index)))
            count += 1
            if self.says_count:
                self.display.phase(f"rollout {count}/{rows}")

        self.adapter = adapter
        self.silent_since = time.monotonic()
        for server in self.servers:
            server.failures = 0

        tending = [asyncio.ensure_future(self._monitor(server)) for server in self.servers]
        work = asyncio.ensure_future(gather_or_raise(complete(index) for index in range(rows)))
        try:
            # Tending never ends by itself: what ends first is the work, or a failure.
            await asyncio.wait([work, *tending], return_when=asyncio.FIRST_COMPLETED)
            for tender in tending:
                if tender.done():
                    tender.result()
            await work
        finally:
            for task in (work, *tending):
                task.cancel()
            await asyncio.gather(work, *tending, return_exceptions=True)

    async def _complete(
        self, ask: Callable[[VllmServer], Coroutine[Any, Any, Completion]]
    ) -> Completion:
        """Sample one completion on the least busy server; retry elsewhere or later on failure."""
        late = 0
        while True:
            server = await self._free_server()
            request = asyncio.create_task(ask(server))
            server.requests.add(request)
            try:
                completion = await request
                server.failures = 0
                return completion
            except TooSlow as error:
                late += 1
                if late == ATTEMPTS:
                    raise EngineError(
                        f"a completion was asked for {late} times without an answer in time "
                        f"({error}); raise rollout.timeout, or look at that server's load"
                    ) from error
            except Unreachable as error:
                self._evict(server, str(error))
            except asyncio.CancelledError:
                # Two cases look the same: the row is cancelled, or only its request is, because
                # its server was left out. The second one goes on elsewhere.
                task = asyncio.current_task()
                if task is None or task.cancelling():
                    raise
            finally:
                server.requests.discard(request)
                async with self.changed:
                    self.changed.notify_all()

    async def _free_server(self) -> VllmServer:
        """Wait for a server with a free slot, and return the least busy one."""
        async with self.changed:
            while True:
                live = [server for server in self.servers if server.live]
                if free := [s for s in live if len(s.requests) < self.in_flight]:
                    return min(free, key=lambda server: len(server.requests))
                await self.changed.wait()

    async def _monitor(self, server: VllmServer) -> None:
        """Evict a server that stops responding; readmit it when it responds again."""
        while True:
            if server.live:
                with suppress(TimeoutError):
                    await asyncio.wait_for(server.left_out.wait(), HEARTBEAT_SECONDS)
                if server.live and not (await server.healthy() or await server.healthy()):
                    self._evict(server, "no answer to /health")
            elif not await self._readmit(server):
                self._raise_if_all_are_lost(server)
                await asyncio.sleep(RETRY_SECONDS)

    def _evict(self, server: VllmServer, reason: str) -> None:
        if not server.live:
            return

        server.left_out.set()
        server.adapter, server.reason = None, reason
        server.failures += 1
        for request in server.requests:
            request.cancel()

        left = [s for s in self.servers if s.live]
        if not left:
            self.silent_since = time.monotonic()
        what_now = f"{len(left)} of {len(self.servers)} servers go on" if left else "waiting for it"
        self.display.note(f"engine: {server.url} is left out ({reason}); {what_now}")

    async def _readmit(self, server: VllmServer) -> bool:
        """Whether an evicted server works again, with the current adapter."""
        if server.failures > MAX_FAILURES:
            return False

        if server.process is not None and server.process.dead:
            self.display.note(f"engine: starting {server.url} again{_log_of(server)}")
            server.process.start()
            try:
                await self._until_healthy(server)
            except EngineError as error:
                if not any(s.live for s in self.servers):
                    raise
                server.failures, server.reason = server.failures + 1, str(error)
                return False
        if not await server.healthy():
            return False
        try:
            if self.wakes:
                await server.wake()
            await server.load(self.adapter)
        except Unreachable:
            return False

        server.left_out.clear()
        self.display.note(f"engine: {server.url} answers again and has the current adapter")
        async with self.changed:
            self.changed.notify_all()
        return True

    def _raise_if_all_are_lost(self, server: VllmServer) -> None:
        """Fail if no server is left and none will return.

        Raises:
            EngineError: with the reason, and how to resume.
        """
        if any(s.live for s in self.servers):
            return

        waited = time.monotonic() - self.silent_since
        all_struck_out = all(s.failures > MAX_FAILURES for s in self.servers)
        if all_struck_out:
            why = f"failed {MAX_FAILURES + 1} times without completing anything"
        elif waited > self.patience:
            why = f"gave no answer for {waited:.0f} s"
        else:
            return
        raise EngineError(
            f"every engine {why} ({server.url}: {server.reason}). Start it again, then `paint "
            "resume RUN` (--urls where its address changed; rollout.server_timeout sets how long "
            f"is waited){_log_of(server)}"
        )

    async def _connect(self, server: VllmServer, folder: Path) -> None:
        await self._until_healthy(server)
        try:
            await server.connect(folder)
        except Unreachable as error:
            raise EngineError(f"{server.url} is healthy, but cannot be used: {error}") from error

    async def _until_healthy(self, server: VllmServer) -> None:
        start = last_note = time.monotonic()
        while not await server.healthy():
            now, process = time.monotonic(), server.process
            if process is not None and process.dead:
                raise EngineError(f"the vLLM server ended before it was ready{_log_of(server)}")
            if now - start > self.patience:
                waited = f"within {self.patience:.0f} s (rollout.server_timeout)"
                raise EngineError(f"{server.url} did not answer {waited}{_log_of(server)}")

            if now - last_note > SAY_SECONDS:
                last_note = now
                line = f": {process.tail(1)[:120]}" if process is not None else ""
                self.display.note(f"engine: waiting for {server.url}, {now - start:.0f} s{line}")
            await asyncio.sleep(0.2)


def _log_of(server: VllmServer) -> str:
    """The end of an owned server's log."""
    process = server.process
    return f"; {process.log} ends with\n{process.tail()}" if process is not None else ""


async def gather_or_raise(work: Iterator[Coroutine[Any, Any, T]]) -> list[T]:
    """Run coroutines concurrently; the first PaintError cancels the others and is raised."""
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(item) for item in work]
    except* PaintError as errors:
        failure = errors.exceptions[0]
    else:
        return [task.result() for task in tasks]
    raise failure
