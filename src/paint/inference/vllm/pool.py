"""The vLLM engine: base + adapter on one or more servers, over HTTP.

The adapter is never merged: every version is written to a folder, and servers load it under that
folder's name with the first completion that they are asked for. vLLM answers for a name or path
that is used twice with what it cached of the first (vLLM issue 42125), so no version of any run has
the name of another one. A completion depends on its prompt, its seed and the adapter, up to
rounding.
"""

import asyncio
import shutil
import time
import uuid
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

from paint.config.schema import RolloutConfig
from paint.core.background import Background
from paint.core.display import Display
from paint.core.errors import PaintError, wrap_errors
from paint.core.trust import Executable, require_trusted
from paint.inference.engine import (
    Completion,
    EngineError,
    OnCompletion,
    PendingCompletions,
    Prompts,
    RemoteEngine,
    Sampling,
    ServerStartError,
)
from paint.inference.factory import EngineSetup
from paint.inference.vllm.client import Unreachable, VllmServer
from paint.inference.vllm.process import (
    OwnedProcess,
    free_port,
    gpu_environment,
    inherited_environment,
    server_command,
    server_environment,
)
from paint.models.policy import Policy
from paint.models.weights import save_served
from paint.resolve.structure import position_limit

FAILURES = 3  # failures of a server without a completion in between, after which it is left out
PAUSE_SECONDS = 1.0  # before a server that failed is asked again
NOTE_SECONDS = 10.0  # between two notes on a server that does not answer yet


class VllmEngine(RemoteEngine):
    """Generates on vLLM servers. Errors are EngineErrors, with the server and the fix."""

    def __init__(
        self,
        policy: Policy,
        servers: Sequence[VllmServer],  # each with the trainer's model and number format
        folder: Path,  # of this run's adapters; servers must see it under the same path
        display: Display,
        options: RolloutConfig,
        loop: Background | None = None,  # of the engine that this one is a fork of
    ) -> None:
        self.policy, self.servers, self.display = policy, list(servers), display
        self.options, self.folder = options, folder.absolute()
        # Servers outlive runs, and remember names: no other run may have used ours.
        self.run, self.version = uuid.uuid4().hex[:12], 0
        self.adapter: Path | None = None  # the folder of the current version
        self.loop = loop or Background("engine")
        self.forks: list[VllmEngine] = []
        self.reports_count, self.closed = loop is None, False

    @classmethod
    def from_setup(cls, setup: EngineSetup) -> "VllmEngine":
        options = setup.rollout
        folder = setup.folder / "engine"
        folder.mkdir(parents=True, exist_ok=True)
        delete_adapters(folder)  # of a killed run
        require_trusted([Executable("rollout.urls", url) for url in options.urls])
        servers = [VllmServer(url, timeout=options.timeout) for url in options.urls]
        if not servers:
            for number, gpus in enumerate(options.server_gpus or ("",)):
                log = folder / f"server-{number}.log"
                servers.append(_own_server(setup, log, gpus))
                setup.display.note(f"engine: starting a vLLM server; its log is {log}")
        return cls(setup.policy, servers, folder, setup.display, options)

    def connect(self) -> None:
        start = time.monotonic()
        for server in self.servers:
            if server.process is not None:
                server.process.start()
        self.loop.run(_gather(self._connect(server) for server in self.servers))
        urls, seconds = ", ".join(s.url for s in self.servers), time.monotonic() - start
        self.display.note(f"engine: {urls} ready after {seconds:.0f} s")

    def sync_weights(self) -> None:
        self.version += 1
        adapter = self.folder / f"paint-{self.run}-{self.version:06d}"
        advice = "free some space, or choose another folder with --log.folder"
        with wrap_errors(adapter, EngineError, advice):
            save_served(self.policy, adapter)
        before, self.adapter = self.adapter, adapter
        if before is not None:
            shutil.rmtree(before, ignore_errors=True)

    def stream(
        self, prompts: Prompts, sampling: Sampling, seeds: Sequence[int], finished: OnCompletion
    ) -> None:
        if self.adapter is None:
            self.sync_weights()
        self.loop.run(self._generate(prompts, sampling, seeds, finished))

    def submit(
        self, prompts: Prompts, sampling: Sampling, seeds: Sequence[int]
    ) -> PendingCompletions:
        """Start ``generate`` in the background; only after ``sync_weights``."""
        completions: dict[int, Completion] = {}
        work = self._generate(prompts, sampling, seeds, completions.__setitem__)
        under_way = self.loop.submit(work)

        def wait() -> list[Completion]:
            under_way.result()
            return [completions[i] for i in range(len(prompts))]

        return wait

    def fork(self) -> "VllmEngine":
        servers = [server.fork() for server in self.servers]
        shared = self.folder, self.display, self.options, self.loop
        self.forks.append(VllmEngine(self.policy, servers, *shared))
        return self.forks[-1]

    def close(self) -> None:
        if self.closed:
            return
        self.closed = True
        # Before the servers end: _recover would start them again for what is under way.
        self.loop.cancel()
        for engine in (*self.forks, self):
            self.loop.run(_gather(engine._leave(server) for server in engine.servers))
        self.loop.close()
        delete_adapters(self.folder)

    async def _connect(self, server: VllmServer) -> None:
        await self._until_healthy(server)
        await server.connect()

    async def _until_healthy(self, server: VllmServer) -> None:
        start = last_note = time.monotonic()
        patience = self.options.server_timeout
        while not await server.healthy():
            now, process = time.monotonic(), server.process
            if process is not None and process.dead:
                raise ServerStartError(
                    f"the vLLM server ended before it was ready, with status "
                    f"{process.status}; rollout.engine local needs none{_log_of(server)}"
                )
            if now - start > patience:
                waited = f"within {patience:.0f} s (rollout.server_timeout)"
                raise ServerStartError(f"{server.url} did not answer {waited}{_log_of(server)}")

            if now - last_note > NOTE_SECONDS:
                last_note = now
                line = f": {process.tail(1)[:120]}" if process is not None else ""
                self.display.note(f"engine: waiting for {server.url}, {now - start:.0f} s{line}")
            await asyncio.sleep(0.2)

    async def _generate(
        self, prompts: Prompts, sampling: Sampling, seeds: Sequence[int], finished: OnCompletion
    ) -> None:
        """Sample as ``stream`` does, with the adapter at the time of the call.

        Each server takes the next row as soon as it has completed one, ``rollout.batch_size`` at a
        time. The rows of a server that fails go back to all.
        """
        adapter, end_ids, count = self.adapter, self.policy.end_ids, 0
        assert adapter is not None
        longest, new = max(map(len, prompts), default=0), sampling.max_new_tokens
        limit = min(server.max_tokens for server in self.servers)
        if longest + new > limit:  # vLLM would shorten the completion and not say so
            raise EngineError(
                f"a prompt of {longest} tokens and {new} new ones need --max-model-len "
                f"{longest + new}, and a server has {limit}"
            )
        rows: asyncio.Queue[int] = asyncio.Queue()
        for row in range(len(prompts)):
            rows.put_nowait(row)
        # A server takes no more than its share at first, so that few rows reach every server.
        at_once = min(self.options.batch_size, -(-len(prompts) // len(self.servers)))

        async def take_rows(server: VllmServer) -> None:
            nonlocal count
            while True:
                row = await rows.get()
                try:
                    completion = await server.complete(
                        adapter, prompts[row], sampling, seeds[row], end_ids
                    )
                    server.failures = 0
                    finished(row, completion)
                    count += 1
                    if self.reports_count:
                        self.display.portion(count / len(prompts))
                except BaseException:  # another row's failure cancels this one
                    rows.put_nowait(row)
                    raise
                finally:
                    rows.task_done()

        serving = []
        async with _task_group() as group:
            for server in self.servers:
                # One that was left out of the step before is tried again.
                server.failures = 0
                work = self._serve(server, at_once, partial(take_rows, server))
                serving.append(group.create_task(work))
            await rows.join()
            # They wait for further rows, which do not come.
            for task in serving:
                task.cancel()
        if self.options.colocate:
            for server in self.servers:
                with suppress(Unreachable):  # it has ended, and left its memory
                    await server.sleep()

    async def _serve(
        self, server: VllmServer, at_once: int, worker: Callable[[], Coroutine[Any, Any, None]]
    ) -> None:
        """Keep so many requests under way on a server, until cancelled or until it is lost."""
        while server.failures < FAILURES:
            try:
                # One that was lost in an earlier step would keep its first rows until the timeout.
                if not await server.healthy():
                    raise Unreachable("no answer to /health")
                if self.options.colocate:
                    await server.wake()
                await _gather(worker() for _ in range(at_once))
            except Unreachable as error:
                await self._recover(server, error)

    async def _recover(self, server: VllmServer, error: Unreachable) -> None:
        """Wait until a server that failed is healthy; raise EngineError if the last one is lost."""
        server.failures += 1
        self.display.warn(f"engine: {server.url} failed ({error}); its rows go to any server")
        try:
            if server.failures == FAILURES:
                raise EngineError(f"{FAILURES} failures without a completion, the last: {error}")
            # Before the pause: the other servers may end the step in less, and cancel this.
            if server.process is not None and server.process.dead:
                self.display.note(f"engine: starting {server.url} again{_log_of(server)}")
                server.process.start()
            await asyncio.sleep(PAUSE_SECONDS)
            await self._until_healthy(server)
        except EngineError as lost:
            server.failures = FAILURES
            if all(other.failures == FAILURES for other in self.servers):
                raise EngineError(
                    f"no server is left; {server.url}: {lost}. Start it again, then `paint resume "
                    f"RUN` (--urls where its address changed){_log_of(server)}"
                ) from lost
            self.display.warn(f"engine: {server.url} is left out of this step ({lost})")
        else:
            self.display.note(f"engine: {server.url} answers again")

    async def _leave(self, server: VllmServer) -> None:
        if server.process is None:
            with suppress(EngineError):
                if self.options.colocate:
                    await server.wake()  # as it was found
                if server.adapter is not None:
                    await server.unload(server.adapter.name)
        await server.close()


def _own_server(setup: EngineSetup, log: Path, gpus: str) -> VllmServer:
    options, port = setup.rollout, free_port()
    limit = position_limit(setup.policy.base.config)
    command = server_command(
        setup.model,
        options,
        port,
        max_model_len=int(min(setup.max_tokens, limit)),
        gpus=gpus,
        sizes=setup.server_flags,
    )
    variables = server_environment(options) | gpu_environment(gpus)
    process = OwnedProcess(command, inherited_environment(command) | variables, log)
    return VllmServer(f"http://127.0.0.1:{port}", timeout=options.timeout, process=process)


def delete_adapters(folder: Path) -> None:
    for path in folder.glob("*paint-*"):  # with a prefix where one is unfinished
        shutil.rmtree(path, ignore_errors=True)


def _log_of(server: VllmServer) -> str:
    process = server.process
    return f"; {process.log} ends with\n{process.tail()}" if process else ""


@asynccontextmanager
async def _task_group() -> AsyncIterator[asyncio.TaskGroup]:
    """Open a group of tasks, whose first PaintError cancels the others and is raised."""
    try:
        async with asyncio.TaskGroup() as group:
            yield group
        return
    except* PaintError as errors:
        failure = errors.exceptions[0]
    # Here: what is raised within except* becomes a group again.
    raise failure


async def _gather(work: Iterator[Coroutine[Any, Any, None]]) -> None:
    async with _task_group() as group:
        for item in work:
            group.create_task(item)
