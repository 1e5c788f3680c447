"""The engine for real runs: base + adapter on one or more vLLM servers, over HTTP.

The adapter is never merged: every version of it is written to disk, loaded on the servers and asked
for by its own name (paint.engines.adapters). A completion depends on its prompt, its seed and the
adapter, up to the rounding of whatever else is in the batch.
"""

import asyncio
import threading
from collections.abc import Coroutine, Sequence
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from paint.display import Display
from paint.engines.adapters import Adapters, delete, delete_all
from paint.engines.answers import Vocabulary
from paint.engines.fleet import Fleet, together
from paint.engines.protocol import Completion, EngineError, Finished, Sampling, Waiting, collect
from paint.engines.server import Server, Unreachable
from paint.model.policy import Policy

T = TypeVar("T")


class VllmEngine:
    """Generates on vLLM servers what ``LocalEngine`` generates in the training process.

    Args:
        servers: each with the trainer's model and number format.
        folder: where adapters are written, of this run alone; servers must see it under the same
            path.
        in_flight: requests that a server is given at once.
        patience: seconds to wait for a server when there is no other.
        sleeps: servers give their GPU back between rollouts.
        ahead: so many steps will be under way at once, each on an engine ``beside`` this one.

    Attributes:
        adapter: folder of the adapter that the servers have, or get when they wake; None before
            the first ``adopt``.
    """

    def __init__(
        self,
        policy: Policy,
        servers: Sequence[Server],
        folder: Path,
        display: Display,
        *,
        in_flight: int,
        patience: float,
        sleeps: bool = False,
        ahead: int = 0,
    ) -> None:
        self.policy, self.sleeps, self.ahead = policy, sleeps, ahead
        self.fleet = Fleet(servers, display, in_flight=in_flight, patience=patience, wakes=sleeps)
        self.adapters = Adapters(folder)
        self.adapter: Path | None = None
        self.loop: asyncio.Runner | Background = Background() if ahead else asyncio.Runner()
        self.others: list[VllmEngine] = []
        self.closed = False

    def connect(self) -> None:
        """Wait until every server responds, and unload what a killed run of this folder left there.

        Raises:
            EngineError: a server does not respond, or is no vLLM server, or ours ended (with the
                end of its log).
        """
        self.loop.run(self.fleet.connect(self.adapters.folder))

    def adopt(self) -> None:
        """Write the policy's adapter, load it on every server, drop the one before.

        Raises:
            EngineError: a server cannot load it, or the disk cannot take it; the message says what
                to change.
        """
        adapter = self.adapters.write(self.policy)
        before, self.adapter = self.adapter, adapter
        if not self.sleeps:  # a sleeping server loads it when it is woken
            self.loop.run(self.fleet.each(lambda server: server.load(adapter)))
        if before is not None:
            delete(before)

    def stream(
        self,
        prompts: Sequence[Sequence[int]],
        sampling: Sampling,
        seeds: Sequence[int],
        finished: Finished,
    ) -> None:
        """One completion per prompt, each as soon as it is there, however many servers are lost.

        Raises:
            EngineError: no server is left for longer than ``patience``, ours cannot be started
                again, or a prompt leaves no room for ``sampling.max_new_tokens``.
        """
        if self.adapter is None:
            self.adopt()
        self.loop.run(self._complete(prompts, sampling, seeds, finished))

    def generate(
        self, prompts: Sequence[Sequence[int]], sampling: Sampling, seeds: Sequence[int]
    ) -> list[Completion]:
        """One completion per prompt, in the order of the prompts."""
        return collect(self, prompts, sampling, seeds)

    def begin(
        self, prompts: Sequence[Sequence[int]], sampling: Sampling, seeds: Sequence[int]
    ) -> Waiting:
        """As ``generate``, while the caller goes on. Only after ``adopt``, and with ``ahead``."""
        assert isinstance(self.loop, Background)
        completions: dict[int, Completion] = {}
        work = self._complete(prompts, sampling, seeds, completions.__setitem__)
        under_way = self.loop.begin(work)

        def wait() -> list[Completion]:
            under_way.result()
            return [completions[i] for i in range(len(prompts))]

        return wait

    def beside(self) -> "VllmEngine":
        """Another engine on the same servers, with an adapter of its own; it ends with this one."""
        fleet = self.fleet
        other = VllmEngine(
            self.policy,
            [server.beside() for server in fleet.servers],
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
        """Leave the servers as they were found, end ours, delete the adapters; once is enough."""
        if self.closed:
            return

        self.closed = True
        if isinstance(self.loop, Background):
            self.loop.cancel()
        for engine in (*self.others, self):
            self.loop.run(together(engine._leave(server) for server in engine.fleet.servers))
        self.loop.close()
        delete_all(self.adapters.folder)

    async def _complete(
        self,
        prompts: Sequence[Sequence[int]],
        sampling: Sampling,
        seeds: Sequence[int],
        finished: Finished,
    ) -> None:
        """What ``stream`` promises, by the adapter as it is when this is called."""
        adapter = self.adapter
        assert adapter is not None
        self._require_room(max(map(len, prompts), default=0), sampling.max_new_tokens)

        if self.sleeps:
            await self.fleet.each(Server.wake)
        vocabulary = Vocabulary(self.policy.lm_head.out_features, self.policy.end_ids)
        await self.fleet.complete(adapter, prompts, sampling, seeds, vocabulary, finished)
        if self.sleeps:
            await self.fleet.each(Server.sleep)

    async def _leave(self, server: Server) -> None:
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


class Background:
    """An event loop in a thread of its own: what is begun there goes on while the caller computes.

    Else as asyncio.Runner.
    """

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever, name="engine", daemon=True)
        self.thread.start()

    def begin(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Do it beside whatever else is under way."""
        return asyncio.run_coroutine_threadsafe(work, self.loop)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Do it, and wait for what it returns; whatever ends the wait ends the work."""
        future = self.begin(work)
        try:
            return future.result()
        finally:
            future.cancel()

    def cancel(self) -> None:
        """End whatever is under way."""

        async def end() -> None:
            tasks = asyncio.all_tasks() - {asyncio.current_task()}
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

        self.run(end())

    def close(self) -> None:
        """End the loop and its thread."""
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join()
        self.loop.close()
