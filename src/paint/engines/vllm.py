"""The engine for real runs: base + adapter on one or more vLLM servers, over HTTP.

The adapter is never merged: every version of it is written to disk, loaded on the servers and asked
for by its own name (paint.engines.adapters). A completion depends on its prompt, its seed and the
adapter, up to the rounding of whatever else is in the batch.
"""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from paint.display import Display
from paint.engines.adapters import Adapters, delete, delete_all
from paint.engines.answers import Vocabulary
from paint.engines.fleet import Fleet, together
from paint.engines.protocol import Completion, EngineError, Finished, Sampling, collect
from paint.engines.server import Server, Unreachable
from paint.model.policy import Policy


class VllmEngine:
    """Generates on vLLM servers what ``LocalEngine`` generates in the training process.

    Args:
        servers: each with the trainer's model and number format.
        folder: where adapters are written, of this run alone; servers must see it under the same
            path.
        in_flight: requests that a server is given at once.
        patience: seconds to wait for a server when there is no other.
        sleeps: servers give their GPU back between rollouts.

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
    ) -> None:
        self.policy, self.sleeps = policy, sleeps
        self.fleet = Fleet(servers, display, in_flight=in_flight, patience=patience, wakes=sleeps)
        self.adapters = Adapters(folder)
        self.adapter: Path | None = None
        self.loop = asyncio.Runner()
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
        assert self.adapter is not None
        self._require_room(max(map(len, prompts), default=0), sampling.max_new_tokens)

        if self.sleeps:
            self.loop.run(self.fleet.each(Server.wake))
        vocabulary = Vocabulary(self.policy.lm_head.out_features, self.policy.end_ids)
        self.loop.run(
            self.fleet.complete(self.adapter, prompts, sampling, seeds, vocabulary, finished)
        )
        if self.sleeps:
            self.loop.run(self.fleet.each(Server.sleep))

    def generate(
        self, prompts: Sequence[Sequence[int]], sampling: Sampling, seeds: Sequence[int]
    ) -> list[Completion]:
        """One completion per prompt, in the order of the prompts."""
        return collect(self, prompts, sampling, seeds)

    def require_slots(self) -> None:
        """Refuse servers with more adapters than they hold at once.

        Raises:
            EngineError: with the flag to set.
        """
        self.loop.run(self.fleet.each(Server.require_slots))

    def close(self) -> None:
        """Leave the servers as they were found, end ours, delete the adapters; once is enough."""
        if self.closed:
            return

        self.closed = True
        self.loop.run(together(self._leave(server) for server in self.fleet.servers))
        self.loop.close()
        delete_all(self.adapters.folder)

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
