"""The engine for real runs: base + adapter on one or more vLLM servers, over HTTP.

The adapter is never merged: every version of it is written to disk, loaded under a name that was never used before, and
asked for by that name, so no server can answer with an older one. A completion depends on its prompt, its seed and the
adapter, up to the rounding of whatever else is in the batch.
"""

import asyncio
import shlex
import shutil
import socket
import time
import uuid
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import torch
from accelerate import PartialState
from accelerate.utils import broadcast_object_list, gather_object

from paint.config import Config
from paint.data import lab_file
from paint.display import Display
from paint.fleet import Fleet, together
from paint.policy import Policy, save_adapter
from paint.rollout import Completion, Sampling
from paint.server import RANKS, EngineError, Server, ServerProcess, free_port

T = TypeVar("T")


class VllmEngine:
    """Generates on vLLM servers what ``LocalEngine`` generates in the training process.

    With several ranks, all of them call ``adopt`` and ``generate`` together: the first writes, every one asks.

    Args:
        servers: each with the trainer's model and number format.
        folder: where adapters are written, of this run alone; servers must see it under the same path.
        in_flight: requests that a server is given at once.
        patience: seconds to wait for a server when there is no other.
        sleeps: servers give their GPU back between rollouts.
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
        self.policy, self.folder, self.sleeps = policy, folder.absolute(), sleeps
        self.fleet = Fleet(servers, display, in_flight=in_flight, patience=patience, wakes=sleeps)
        # Servers outlive runs, and remember prefixes by name: no other run may have used ours.
        self.run = _agree(uuid.uuid4().hex[:12])
        self.version = 0
        self.adapter: Path | None = None
        self.loop = asyncio.Runner()
        self.closed = False

    def connect(self) -> None:
        """Wait until every server answers, and drop what an earlier, killed run left there from the same folder.

        Raises:
            EngineError: one does not, or is no vLLM server, or ours ended (with the end of its log).
        """
        self.loop.run(self.fleet.connect(self.folder))
        PartialState().wait_for_everyone()  # nobody drops what another has loaded

    def adopt(self) -> None:
        """Write the policy's adapter, load it on every server under a new name, drop the one before.

        Raises:
            EngineError: a server cannot load it, or the disk cannot take it; the message says what to change.
        """
        ranks = PartialState()
        self.version += 1
        adapter = self.folder / f"paint-{self.run}-{self.version:06d}"
        if ranks.is_main_process:
            _write(self.policy, adapter)
        ranks.wait_for_everyone()
        before, self.adapter = self.adapter, adapter
        if not self.sleeps:  # a sleeping server loads it when it is woken
            self.loop.run(self.fleet.each(lambda server: server.use(adapter)))
        ranks.wait_for_everyone()
        if before is not None and ranks.is_main_process:
            shutil.rmtree(before, ignore_errors=True)

    def generate(self, prompts: Sequence[Sequence[int]], sampling: Sampling, seeds: Sequence[int]) -> list[Completion]:
        """One completion a prompt, in order, however many servers are lost on the way.

        Raises:
            EngineError: no server is left for longer than ``patience``, ours cannot be started again, or a prompt
                leaves no room for ``sampling.max_new_tokens``.
        """
        if self.adapter is None:
            self.adopt()
        assert self.adapter is not None
        self._require_room(max(map(len, prompts), default=0), sampling.max_new_tokens)
        if self.sleeps:
            self._on_the_first_rank(Server.wake)
        work = self.fleet.complete(self.adapter, prompts, sampling, seeds, self.policy.end_ids)
        completions = self.loop.run(work)
        if self.sleeps:
            PartialState().wait_for_everyone()  # others may still be generating
            self._on_the_first_rank(Server.sleep)
        return completions

    def require_slots(self) -> None:
        """Refuse servers with more adapters than they hold at once. Raises EngineError with the flag to set."""
        self.loop.run(self.fleet.each(Server.require_slots))

    def close(self) -> None:
        """Leave the servers as they were found, end the one that is ours, delete the adapters; once is enough."""
        if self.closed:
            return
        self.closed = True
        self.loop.run(together(self._leave(server) for server in self.fleet.servers))
        self.loop.close()
        if PartialState().is_main_process:
            _delete_adapters(self.folder)

    async def _leave(self, server: Server) -> None:
        if server.process is None and server.live and PartialState().is_main_process:
            await server.drop(self.adapter)
        await server.close()

    def _on_the_first_rank(self, verb: Callable[[Server], Coroutine[Any, Any, None]]) -> None:
        if PartialState().is_main_process:
            if torch.cuda.is_available():
                torch.cuda.empty_cache()  # the servers need the memory that we merely keep
            self.loop.run(self.fleet.each(verb))
        PartialState().wait_for_everyone()

    def _require_room(self, prompt: int, new: int) -> None:
        limit = min(server.max_tokens for server in self.fleet.servers)
        if prompt + new > limit:  # vLLM would shorten the completion and not say so
            raise EngineError(
                f"a prompt of {prompt} tokens and {new} new ones need --max-model-len {prompt + new}, and a server "
                f"has {limit}"
            )


@contextmanager
def open_vllm(policy: Policy, config: Config, folder: Path, display: Display) -> Iterator[VllmEngine]:
    """The engine that ``config.rollout`` asks for: the servers at ``urls``, or one that is started and owned.

    Whatever ends the block ends the server, too.

    Raises:
        EngineError: a server cannot be reached or started.
    """
    options = config.rollout
    folder = Path(options.adapter_folder) / folder.name if options.adapter_folder else folder / "engine"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if PartialState().is_main_process:
            _delete_adapters(folder)
    except OSError as error:
        raise EngineError(f"{folder} cannot be made: {error}; choose another with --rollout.adapter-folder") from error
    servers = [Server(url, timeout=options.timeout) for url in options.urls]
    if not servers:
        servers = [start_server(policy, config, folder, display)]
    engine = VllmEngine(
        policy,
        servers,
        folder,
        display,
        in_flight=options.batch_size,
        patience=options.patience,
        sleeps=options.sleep,
    )
    try:
        began = time.monotonic()
        engine.connect()
        display.note(f"engine: {', '.join(s.url for s in servers)} ready after {time.monotonic() - began:.0f} s")
        yield engine
    finally:
        engine.close()


def start_server(policy: Policy, config: Config, folder: Path, display: Display) -> Server:
    """Start a server on this machine; the first rank owns it, and all of them use it.

    Raises:
        EngineError: there are ranks on other machines, which could not reach it.
    """
    if len({*gather_object([socket.gethostname()])}) > 1:
        raise EngineError("ranks on several machines need servers that all reach: start them, and set --rollout.urls")
    port, process = _agree(free_port()), None
    if PartialState().is_main_process:
        environment = {"VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1"}
        if config.rollout.sleep:
            environment["VLLM_SERVER_DEV_MODE"] = "1"
        process = ServerProcess(server_command(policy, config, port), environment, folder / "server.log")
        display.note(f"engine: starting a vLLM server; its log is {process.log}")
        process.start()
    return Server(f"http://127.0.0.1:{port}", timeout=config.rollout.timeout, process=process)


def server_command(policy: Policy, config: Config, port: int) -> list[str]:
    """The command line of the server that we own; ``rollout.server_args`` come last, so they win."""
    options = config.rollout
    model = str(lab_file("")) if config.model.path == "lab" else config.model.path
    start = shlex.split(options.server)
    # ``vllm serve MODEL``, but ``python -m vllm.entrypoints.openai.api_server --model MODEL``.
    named = [model] if start[-1] == "serve" else ["--model", model]
    length = config.data.max_prompt_tokens + options.max_new_tokens
    positions = getattr(policy.model.config, "max_position_embeddings", None)
    settings = {
        "--host": "127.0.0.1",
        "--port": port,
        "--dtype": config.model.dtype,
        "--max-model-len": min(length, positions or length),
        "--max-lora-rank": next((rank for rank in RANKS if rank >= config.model.lora_rank), config.model.lora_rank),
        "--max-loras": 1,
    }
    flags = [str(part) for setting in settings.items() for part in setting]
    flags += ["--enable-lora", *(["--enable-sleep-mode"] if options.sleep else [])]
    return [*start, *named, *flags, *shlex.split(options.server_args)]


def _write(policy: Policy, folder: Path) -> None:
    """Write the adapter so that the folder, once it has its name, is whole."""
    partial = folder.with_name(f".{folder.name}.partial")
    try:
        save_adapter(policy, partial)
        partial.rename(folder)
    except OSError as error:
        shutil.rmtree(partial, ignore_errors=True)
        raise EngineError(
            f"the adapter could not be written to {folder}: {error}; free some space, or choose another folder with "
            f"--rollout.adapter-folder"
        ) from error


def _delete_adapters(folder: Path) -> None:
    """Those of this run, and of the same run before it was killed."""
    for path in folder.glob("*paint-*"):
        shutil.rmtree(path, ignore_errors=True)


def _agree(value: T) -> T:
    """The main rank's value, on every rank."""
    shared = [value]
    broadcast_object_list(shared)
    return shared[0]
