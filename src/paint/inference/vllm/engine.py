"""The vLLM engine: base + adapter on one or more servers, over HTTP.

The adapter is never merged: every version is written to a folder, loaded on the servers and
requested by that folder's name. vLLM keeps the cached prefixes of (name, path): a name or path
that is used twice answers with what it remembers of the first (vLLM issue 42125). So no version
ever gets the name of another one, of this run or of any other, and no server can answer with an
older version. A completion depends on its prompt, its seed and the adapter, up to the rounding of
whatever else is in the batch.
"""

import asyncio
import shutil
import threading
import time
import uuid
from collections.abc import Coroutine, Sequence
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from paint.core.display import Display
from paint.core.storage import atomic_dir, digest
from paint.inference.engine import (
    Completion,
    EngineError,
    OnCompletion,
    PendingCompletions,
    RemoteEngine,
    Sampling,
)
from paint.inference.factory import EngineSetup
from paint.inference.vllm.client import TokenLimits, Unreachable, VllmServer
from paint.inference.vllm.pool import ServerPool, gather_or_raise
from paint.inference.vllm.process import (
    LOG,
    ServerProcess,
    free_port,
    gpu_environment,
    server_command,
    server_environment,
)
from paint.models.policy import Policy
from paint.models.weights import save_adapter

T = TypeVar("T")


class VllmEngine(RemoteEngine):
    """Generates on vLLM servers.

    Args:
        servers: each with the trainer's model and number format.
        folder: where this run's adapters are written; servers must see it under the same
            path.
        in_flight: concurrent requests per server.
        patience: seconds to wait for a server when none is available.
        sleeps: servers give their GPU back between rollouts.
        ahead: steps in flight at once, each on a ``fork`` of this engine.

    Attributes:
        adapter: folder of the adapter that the servers have, or get when they wake; None before
            the first ``sync_weights``.
    """

    def __init__(
        self,
        policy: Policy,
        servers: Sequence[VllmServer],
        folder: Path,
        display: Display,
        *,
        in_flight: int,
        patience: float,
        sleeps: bool = False,
        ahead: int = 0,
    ) -> None:
        self.policy, self.sleeps, self.ahead = policy, sleeps, ahead
        self.fleet = ServerPool(
            servers, display, in_flight=in_flight, patience=patience, wakes=sleeps
        )
        self.adapters = Adapters(folder)
        self.adapter: Path | None = None
        self.loop: asyncio.Runner | Background = Background() if ahead else asyncio.Runner()
        self.others: list[VllmEngine] = []
        self.closed = False

    @classmethod
    def from_setup(cls, setup: EngineSetup) -> "VllmEngine":
        """An engine on the servers at ``rollout.urls``; without any, on servers that it starts:
        one, or one for each of ``rollout.server_gpus``."""
        options = setup.rollout
        folder = adapter_folder(setup.folder, options.adapter_folder)
        servers = [VllmServer(url, timeout=options.timeout) for url in options.urls]
        if not servers:
            # Several, and the ranks beside them, have one log (docs/how-to/several-gpus.md).
            log = setup.folder / LOG if options.server_gpus else folder / "server.log"
            servers = [
                _own_server(setup, log, number, gpus)
                for number, gpus in enumerate(options.server_gpus or ("",))
            ]
            counted = "a vLLM server" if len(servers) == 1 else f"{len(servers)} vLLM servers"
            setup.display.note(f"engine: starting {counted}; the log is {log}")
        return cls(
            setup.policy,
            servers,
            folder,
            setup.display,
            in_flight=options.batch_size,
            patience=options.server_timeout,
            sleeps=options.colocate,
            ahead=options.off_policy_steps,
        )

    def connect(self) -> None:
        """Start owned servers, wait until all respond, unload adapters that a killed run left.

        Raises:
            EngineError: a server does not respond, or is no vLLM server, or ours ended (with the
                end of its log).
        """
        servers, start = self.fleet.servers, time.monotonic()
        for server in servers:
            if server.process is not None:
                server.process.start()
        self.loop.run(self.fleet.connect(self.adapters.folder))
        urls, seconds = ", ".join(server.url for server in servers), time.monotonic() - start
        self.fleet.display.note(f"engine: {urls} ready after {seconds:.0f} s")

    def sync_weights(self) -> None:
        """Write the policy's adapter, load it on every server, drop the previous one.

        Raises:
            EngineError: a server cannot load it, or the disk cannot take it; the message says what
                to change.
        """
        adapter = self.adapters.write(self.policy)
        before, self.adapter = self.adapter, adapter
        if not self.sleeps:  # a sleeping server loads it when it is woken
            self.loop.run(self.fleet.each(lambda server: server.load(adapter)))
        if before is not None:
            shutil.rmtree(before, ignore_errors=True)

    def stream(
        self,
        prompts: Sequence[Sequence[int]],
        sampling: Sampling,
        seeds: Sequence[int],
        finished: OnCompletion,
    ) -> None:
        """Sample one completion per prompt, each passed on as soon as it is complete.

        Raises:
            EngineError: no server is left for longer than ``patience``, ours cannot be started
                again, or a prompt leaves no room for ``sampling.max_new_tokens``.
        """
        if self.adapter is None:
            self.sync_weights()
        self.loop.run(self._complete(prompts, sampling, seeds, finished))

    def submit(
        self, prompts: Sequence[Sequence[int]], sampling: Sampling, seeds: Sequence[int]
    ) -> PendingCompletions:
        """Start ``generate`` in the background; only after ``sync_weights``, and with ``ahead``."""
        assert isinstance(self.loop, Background)
        completions: dict[int, Completion] = {}
        work = self._complete(prompts, sampling, seeds, completions.__setitem__)
        under_way = self.loop.submit(work)

        def wait() -> list[Completion]:
            under_way.result()
            return [completions[i] for i in range(len(prompts))]

        return wait

    def fork(self) -> "VllmEngine":
        """Another engine on the same servers with a separate adapter; it closes with this one."""
        fleet = self.fleet
        other = VllmEngine(
            self.policy,
            [server.fork() for server in fleet.servers],
            self.adapters.folder,
            fleet.display,
            in_flight=fleet.in_flight,
            patience=fleet.patience,
        )
        other.loop, other.fleet.says_count = self.loop, False
        self.others.append(other)
        return other

    def require_slots(self) -> None:
        """Refuse servers with more adapters than they hold at once.

        Raises:
            EngineError: with the flag to set.
        """
        self.loop.run(self.fleet.each(lambda server: server.require_slots(self.ahead)))

    def close(self) -> None:
        """Unload the adapters, end owned servers, delete the files; a second call does nothing."""
        if self.closed:
            return

        self.closed = True
        if isinstance(self.loop, Background):
            self.loop.cancel()
        for engine in (*self.others, self):
            self.loop.run(gather_or_raise(engine._leave(server) for server in engine.fleet.servers))
        self.loop.close()
        delete_adapters(self.adapters.folder)

    async def _complete(
        self,
        prompts: Sequence[Sequence[int]],
        sampling: Sampling,
        seeds: Sequence[int],
        finished: OnCompletion,
    ) -> None:
        """Sample as ``stream`` does, with the adapter at the time of the call."""
        adapter = self.adapter
        assert adapter is not None
        self._require_room(max(map(len, prompts), default=0), sampling.max_new_tokens)

        if self.sleeps:
            await self.fleet.each(VllmServer.wake)
        vocabulary = TokenLimits(self.policy.lm_head.out_features, self.policy.end_ids)

        def ask(server: VllmServer, row: int) -> Coroutine[Any, Any, Completion]:
            return server.complete(adapter, prompts[row], sampling, seeds[row], vocabulary)

        await self.fleet.complete(adapter, len(prompts), ask, finished)
        if self.sleeps:
            await self.fleet.each(VllmServer.sleep)

    async def _leave(self, server: VllmServer) -> None:
        is_foreign = server.process is None
        if is_foreign and server.live:
            with suppress(Unreachable, EngineError):
                if self.sleeps:
                    await server.wake()
            if self.adapter is not None:
                await server.unload(self.adapter.name)
        await server.close()

    def _require_room(self, prompt: int, new: int) -> None:
        limit = min(server.max_tokens for server in self.fleet.servers)
        if prompt + new > limit:  # vLLM would shorten the completion and not say so
            raise EngineError(
                f"a prompt of {prompt} tokens and {new} new ones need --max-model-len "
                f"{prompt + new}, and a server has {limit}"
            )


def _own_server(setup: EngineSetup, log: Path, number: int, gpus: str) -> VllmServer:
    """An owned server on a free port."""
    options, port = setup.rollout, free_port()
    command = server_command(
        setup.model,
        options,
        port,
        max_tokens=setup.max_tokens,
        positions=getattr(setup.policy.model.config, "max_position_embeddings", None),
        gpus=gpus,
    )
    environment = server_environment(options) | gpu_environment(gpus)
    name = f"server {number}" if options.server_gpus else ""
    process = ServerProcess(command, environment, log, name=name)
    return VllmServer(f"http://127.0.0.1:{port}", timeout=options.timeout, process=process)


class Adapters:
    """Writes the versions of a run's adapter, each under a new name.

    Args:
        folder: of this run alone; servers must see it under the same path.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder.absolute()
        # Servers outlive runs, and remember names: no other run may have used ours.
        self.run = uuid.uuid4().hex[:12]
        self.version = 0

    def write(self, policy: Policy) -> Path:
        """Write the policy's adapter as the next version, atomically.

        Raises:
            EngineError: the disk cannot take it; the message says what to change.
        """
        self.version += 1
        folder = self.folder / f"paint-{self.run}-{self.version:06d}"
        try:
            with atomic_dir(folder) as partial:
                save_adapter(policy, partial)
        except OSError as error:
            raise EngineError(
                f"the adapter could not be written to {folder}: {error}; free some space, or "
                f"choose another folder with --rollout.adapter-folder"
            ) from error
        return folder


def adapter_folder(run_folder: Path, shared: str | None) -> Path:
    """Make the folder for a run's adapters: in the run folder, or in ``shared``.

    Adapters that the same run left there before a kill are deleted.

    Raises:
        EngineError: it cannot be made.
    """
    folder = run_folder / "engine"
    if shared:
        # Many runs are called seed-0, and each deletes what it finds in its folder.
        folder = Path(shared) / f"{run_folder.name}-{digest(str(run_folder.resolve()))[:8]}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise EngineError(
            f"{folder} cannot be made: {error}; choose another with --rollout.adapter-folder"
        ) from error
    delete_adapters(folder)
    return folder


def delete_adapters(folder: Path) -> None:
    """Delete every version in a run's folder, unfinished ones included."""
    for path in folder.glob("*paint-*"):
        shutil.rmtree(path, ignore_errors=True)


class Background:
    """An event loop in a background thread: its work continues while the caller computes.

    Else as asyncio.Runner.
    """

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever, name="engine", daemon=True)
        self.thread.start()

    def submit(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Start a coroutine in the background."""
        return asyncio.run_coroutine_threadsafe(work, self.loop)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine and wait for its result; an interrupted wait cancels it."""
        future = self.submit(work)
        try:
            return future.result()
        finally:
            future.cancel()

    def cancel(self) -> None:
        """Cancel everything in flight."""

        async def end() -> None:
            tasks = asyncio.all_tasks() - {asyncio.current_task()}
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

        self.run(end())

    def close(self) -> None:
        """Stop the loop and its thread."""
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join()
        self.loop.close()
