"""The vLLM engine: base + adapter on one or more servers, over HTTP.

The adapter is never merged: every version is written to a folder, loaded on the servers and
requested by that folder's name. vLLM answers for a name or path that is used twice with what it
cached of the first (vLLM issue 42125), so no version of any run has the name of another one. A
completion depends on its prompt, its seed and the adapter, up to rounding.

Each row is sent to the least busy server. A failing server is evicted, and readmitted when it
responds again; its rows are retried on another one, or wait for one.
"""

import asyncio
import os
import shutil
import time
import uuid
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from paint.config.schema import RolloutConfig
from paint.core.background import Background
from paint.core.display import Display
from paint.core.errors import PaintError
from paint.core.storage import digest
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
from paint.inference.vllm.client import (
    ATTEMPTS,
    TokenLimits,
    TooSlow,
    Unreachable,
    VllmServer,
    attempts,
)
from paint.inference.vllm.process import (
    LOG,
    OwnedProcess,
    free_port,
    gpu_environment,
    inherited_environment,
    server_command,
    server_environment,
)
from paint.models.policy import Policy
from paint.models.structure import position_limit
from paint.models.weights import save_served

HEARTBEAT_SECONDS = 5.0  # time between two health checks of a server that works
RETRY_SECONDS = 0.5  # time between two attempts to take a server back
MEMORY = Path("/dev/shm")  # shared memory of a machine with Linux

SAY_SECONDS = 10.0
MAX_FAILURES = 3


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
        self.options, self.in_flight = options, options.batch_size
        self.folder = folder.absolute()
        # Servers outlive runs, and remember names: no other run may have used ours.
        self.run, self.version = uuid.uuid4().hex[:12], 0
        self.adapter: Path | None = None  # its folder; the servers have it, or get it at waking
        self.loop = loop or Background("engine")
        self.changed = asyncio.Condition()
        self.silent_since = time.monotonic()
        self.others: list[VllmEngine] = []
        self.reports_count, self.closed = loop is None, False

    @classmethod
    def from_setup(cls, setup: EngineSetup) -> "VllmEngine":
        """An engine on the servers at ``rollout.urls``, or on its own servers."""
        options = setup.rollout
        folder = adapters = adapter_folder(setup.folder)
        servers = []
        for url in options.urls:
            servers.append(VllmServer(url, timeout=options.timeout))
        if not servers:
            # Several, and the ranks next to them, have one log (docs/how-to/several-gpus.md).
            log = setup.folder / LOG if options.server_gpus else folder / "server.log"
            servers = []
            for number, gpus in enumerate(options.server_gpus or ("",)):
                servers.append(_own_server(setup, log, number, gpus))
            counted = "a vLLM server" if len(servers) == 1 else f"{len(servers)} vLLM servers"
            setup.display.note(f"engine: starting {counted}; the log is {log}")
            versions = 2 + options.off_policy_steps
            adapters = memory_folder(setup.folder, versions, setup.policy) or folder
        return cls(setup.policy, servers, adapters, setup.display, options)

    def connect(self) -> None:
        """Start owned servers, wait until all respond, unload adapters that a killed run left."""
        start = time.monotonic()
        for server in self.servers:
            if server.process is not None:
                server.process.start()
        self.loop.run(_gather(self._connect(server) for server in self.servers))
        urls, seconds = ", ".join(s.url for s in self.servers), time.monotonic() - start
        self.display.note(f"engine: {urls} ready after {seconds:.0f} s")

    def sync_weights(self) -> None:
        """Write the policy's adapter, load it on every server, drop the previous one."""
        self.version += 1
        adapter = self.folder / f"paint-{self.run}-{self.version:06d}"
        try:
            save_served(self.policy, adapter)
        except (OSError, SafetensorError) as error:
            shutil.rmtree(adapter, ignore_errors=True)
            raise EngineError(
                f"the adapter could not be written to {adapter}: {error}; free some space, or "
                f"choose another folder with --log.folder"
            ) from error

        before, self.adapter = self.adapter, adapter
        if not self.options.colocate:  # a sleeping server loads it when it is woken
            self.loop.run(self._each(lambda server: server.load(adapter)))
        if before is not None:
            shutil.rmtree(before, ignore_errors=True)

    def stream(
        self, prompts: Prompts, sampling: Sampling, seeds: Sequence[int], finished: OnCompletion
    ) -> None:
        """Sample one completion per prompt, each passed on as soon as it is complete."""
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
            ordered: list[Completion] = []
            for i in range(len(prompts)):
                ordered.append(completions[i])
            return ordered

        return wait

    def fork(self) -> "VllmEngine":
        """Another engine on the same servers with a separate adapter; it closes with this one."""
        servers = []
        for server in self.servers:
            servers.append(server.fork())
        shared = self.folder, self.display, self.options, self.loop
        self.others.append(VllmEngine(self.policy, servers, *shared))
        return self.others[-1]

    def require_slots(self) -> None:
        """Refuse servers with more adapters than they hold at once."""
        ahead = self.options.off_policy_steps
        self.loop.run(self._each(lambda server: server.require_slots(ahead)))

    def close(self) -> None:
        """Unload the adapters, end owned servers, delete the files; a second call does nothing."""
        if self.closed:
            return

        self.closed = True
        self.loop.cancel()
        for engine in (*self.others, self):
            self.loop.run(_gather(engine._leave(server) for server in engine.servers))
        self.loop.close()
        delete_adapters(self.folder)
        if self.folder.parent == MEMORY:
            shutil.rmtree(self.folder, ignore_errors=True)

    async def _connect(self, server: VllmServer) -> None:
        await self._until_healthy(server)
        try:
            await server.connect(self.folder)
        except Unreachable as error:
            raise EngineError(f"{server.url} is healthy, but cannot be used: {error}") from error

    async def _until_healthy(self, server: VllmServer) -> None:
        start = last_note = time.monotonic()
        patience = self.options.server_timeout
        while not await server.healthy():
            now, process = time.monotonic(), server.process
            if process is not None and process.dead:
                raise ServerStartError(
                    f"the vLLM server ended before it was ready{_log_of(server)}"
                )
            if now - start > patience:
                waited = f"within {patience:.0f} s (rollout.server_timeout)"
                raise ServerStartError(f"{server.url} did not answer {waited}{_log_of(server)}")

            if now - last_note > SAY_SECONDS:
                last_note = now
                line = f": {process.tail(1)[:120]}" if process is not None else ""
                self.display.note(f"engine: waiting for {server.url}, {now - start:.0f} s{line}")
            await asyncio.sleep(0.2)

    async def _each(self, ask: Callable[[VllmServer], Coroutine[Any, Any, None]]) -> None:
        """Send a request to all live servers; one that fails every attempt is evicted."""

        async def ask_or_evict(server: VllmServer) -> None:
            try:
                async for attempt in attempts():
                    with attempt:
                        await ask(server)
            except Unreachable as error:
                self._evict(server, str(error))

        await _gather(ask_or_evict(server) for server in self.servers if server.live)

    async def _generate(
        self, prompts: Prompts, sampling: Sampling, seeds: Sequence[int], finished: OnCompletion
    ) -> None:
        """Sample as ``stream`` does, with the adapter at the time of the call."""
        adapter, count = self.adapter, 0
        assert adapter is not None
        longest, new = max(map(len, prompts), default=0), sampling.max_new_tokens
        limit = min(server.max_tokens for server in self.servers)
        if longest + new > limit:  # vLLM would shorten the completion and not say so
            raise EngineError(
                f"a prompt of {longest} tokens and {new} new ones need --max-model-len "
                f"{longest + new}, and a server has {limit}"
            )
        vocabulary = TokenLimits(self.policy.lm_head.out_features, self.policy.end_ids)

        async def complete(row: int) -> None:
            nonlocal count
            request = (adapter, prompts[row], sampling, seeds[row], vocabulary)
            finished(row, await self._complete(lambda server: server.complete(*request)))
            count += 1
            if self.reports_count:
                self.display.phase(f"rollout {count}/{len(prompts)}")

        if self.options.colocate:
            await self._each(VllmServer.wake)
        self.silent_since = time.monotonic()
        for server in self.servers:
            server.failures = 0
        monitors = []
        for s in self.servers:
            monitors.append(asyncio.ensure_future(self._monitor(s, adapter)))
        work = asyncio.ensure_future(_gather(complete(row) for row in range(len(prompts))))
        try:
            # A monitor never ends by itself: what ends first is the work, or a failure.
            await asyncio.wait([work, *monitors], return_when=asyncio.FIRST_COMPLETED)
            for monitor in monitors:
                if monitor.done():
                    monitor.result()
            await work
        finally:
            for task in (work, *monitors):
                task.cancel()
            await asyncio.gather(work, *monitors, return_exceptions=True)
        if self.options.colocate:
            await self._each(VllmServer.sleep)

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
                # its server was evicted. The second one continues elsewhere.
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
                free = []
                for s in live:
                    if len(s.requests) < self.in_flight:
                        free.append(s)
                if free:
                    return min(free, key=lambda server: len(server.requests))
                await self.changed.wait()

    async def _monitor(self, server: VllmServer, adapter: Path) -> None:
        """Evict a server that stops responding; readmit it when it responds again."""
        while True:
            if server.live:
                with suppress(TimeoutError):
                    await asyncio.wait_for(server.evicted.wait(), HEARTBEAT_SECONDS)
                if server.live and not (await server.healthy() or await server.healthy()):
                    self._evict(server, "no answer to /health")
            elif not await self._readmit(server, adapter):
                self._raise_if_all_are_lost(server)
                await asyncio.sleep(RETRY_SECONDS)

    def _evict(self, server: VllmServer, reason: str) -> None:
        if not server.live:
            return

        server.evicted.set()
        server.adapter, server.reason = None, reason
        server.failures += 1
        for request in server.requests:
            request.cancel()

        left = sum(s.live for s in self.servers)
        if not left:
            self.silent_since = time.monotonic()
        what_now = f"{left} of {len(self.servers)} servers go on" if left else "waiting for it"
        if "out of memory" in f"{reason}{_log_of(server)}" and self.in_flight > 1:
            self.in_flight //= 2
            what_now += f", {self.in_flight} rows at once on each server from now on"
        self.display.warn(f"engine: {server.url} is left out ({reason}); {what_now}")

    async def _readmit(self, server: VllmServer, adapter: Path) -> bool:
        """Whether an evicted server works again, with the adapter."""
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
            if self.options.colocate:
                await server.wake()
            await server.load(adapter)
        except Unreachable:
            return False

        server.evicted.clear()
        self.display.note(f"engine: {server.url} answers again and has the current adapter")
        async with self.changed:
            self.changed.notify_all()
        return True

    def _raise_if_all_are_lost(self, server: VllmServer) -> None:
        """Raise EngineError, with how to resume, if no server is left and none will return."""
        waited = time.monotonic() - self.silent_since
        if any(s.live for s in self.servers):
            return
        if all(s.failures > MAX_FAILURES for s in self.servers):
            why = f"failed {MAX_FAILURES + 1} times without completing anything"
        elif waited > self.options.server_timeout:
            why = f"gave no answer for {waited:.0f} s"
        else:
            return
        raise EngineError(
            f"every engine {why} ({server.url}: {server.reason}). Start it again, then `paint "
            "resume RUN` (--urls where its address changed; rollout.server_timeout sets how long "
            f"is waited){_log_of(server)}"
        )

    async def _leave(self, server: VllmServer) -> None:
        if server.process is None and server.live:
            with suppress(Unreachable, EngineError):
                if self.options.colocate:
                    await server.wake()
            if self.adapter is not None:
                await server.unload(self.adapter.name)
        await server.close()


def _own_server(setup: EngineSetup, log: Path, number: int, gpus: str) -> VllmServer:
    options, port, longest = setup.rollout, free_port(), setup.max_tokens
    limit = position_limit(setup.policy.base.config)
    command = server_command(
        setup.model,
        options,
        port,
        max_model_len=int(min(longest, limit)),
        gpus=gpus,
        sizes=setup.server_flags,
    )
    variables = server_environment(options) | gpu_environment(gpus)
    environment = inherited_environment(command) | variables
    name = f"server {number}" if options.server_gpus else ""
    process = OwnedProcess(command, environment, log, name=name)
    return VllmServer(f"http://127.0.0.1:{port}", timeout=options.timeout, process=process)


def adapter_folder(run_folder: Path) -> Path:
    """Make the folder for a run's adapters; delete old ones."""
    folder = run_folder / "engine"
    folder.mkdir(parents=True, exist_ok=True)
    delete_adapters(folder)
    return folder


def memory_folder(run_folder: Path, versions: int, policy: Policy) -> Path | None:
    """Make a folder for a run's adapters in shared memory; None without room for all versions."""
    size = sum(value.nbytes for value in policy.trainable)
    folder = MEMORY / f"paint-{run_folder.name}-{digest(str(run_folder.resolve()))[:8]}"
    try:
        if shutil.disk_usage(MEMORY).free < versions * size:
            return None
        folder.mkdir(mode=0o700, exist_ok=True)
        is_ours = folder.lstat().st_uid == os.getuid()  # everybody may make folders there
    except OSError:
        return None
    if is_ours:
        delete_adapters(folder)
    if is_ours:
        return folder
    return None


def delete_adapters(folder: Path) -> None:
    """Delete every version in a run's folder, unfinished ones included."""
    for path in folder.glob("*paint-*"):
        shutil.rmtree(path, ignore_errors=True)


def _log_of(server: VllmServer) -> str:
    process = server.process
    if process is not None:
        return f"; {process.log} ends with\n{process.tail()}"
    return ""


async def _gather(work: Iterator[Coroutine[Any, Any, None]]) -> None:
    """Run coroutines concurrently; the first PaintError cancels the others and is raised."""
    failure: PaintError | ExceptionGroup[PaintError]
    try:
        async with asyncio.TaskGroup() as group:
            for item in work:
                group.create_task(item)
        return
    except* PaintError as errors:
        failure = errors.exceptions[0]
    raise failure
