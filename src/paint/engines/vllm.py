"""The engine for real runs: base + adapter on one or more vLLM servers, over HTTP.

The adapter is never merged: every version of it is written to disk, loaded under a name that was never used before, and
asked for by that name, so no server can answer with an older one. A completion depends on its prompt, its seed and the
adapter, up to the rounding of whatever else is in the batch.
"""

import asyncio
import shlex
import shutil
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from hashlib import sha256
from pathlib import Path

import torch
from accelerate import PartialState
from accelerate.utils import gather_object

from paint import config as cfg
from paint.display import Display
from paint.engines.canary import canary
from paint.engines.fleet import Fleet, together
from paint.engines.protocol import Completion, Engine, Finished, Sampling, collect
from paint.engines.server import RANKS, EngineError, Server, ServerProcess, Unreachable, free_port
from paint.lab.files import model_path
from paint.model.policy import Policy
from paint.model.weights import save_adapter
from paint.ranks import on_first_rank


class VllmEngine:
    """Generates on vLLM servers what ``LocalEngine`` generates in the training process.

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
        self.run = uuid.uuid4().hex[:12]
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

    def adopt(self) -> None:
        """Write the policy's adapter, load it on every server under a new name, drop the one before.

        Raises:
            EngineError: a server cannot load it, or the disk cannot take it; the message says what to change.
        """
        self.version += 1
        adapter = self.folder / f"paint-{self.run}-{self.version:06d}"
        _write(self.policy, adapter)
        before, self.adapter = self.adapter, adapter
        if not self.sleeps:  # a sleeping server loads it when it is woken
            self.loop.run(self.fleet.each(lambda server: server.use(adapter)))
        if before is not None:
            shutil.rmtree(before, ignore_errors=True)

    def stream(
        self, prompts: Sequence[Sequence[int]], sampling: Sampling, seeds: Sequence[int], finished: Finished
    ) -> None:
        """One completion a prompt, each as soon as it is there, however many servers are lost on the way.

        Raises:
            EngineError: no server is left for longer than ``patience``, ours cannot be started again, or a prompt
                leaves no room for ``sampling.max_new_tokens``.
        """
        if self.adapter is None:
            self.adopt()
        assert self.adapter is not None
        self._require_room(max(map(len, prompts), default=0), sampling.max_new_tokens)
        if self.sleeps:
            self.loop.run(self.fleet.each(Server.wake))
        self.loop.run(self.fleet.complete(self.adapter, prompts, sampling, seeds, self.policy.end_ids, finished))
        if self.sleeps:
            self.loop.run(self.fleet.each(Server.sleep))

    def generate(self, prompts: Sequence[Sequence[int]], sampling: Sampling, seeds: Sequence[int]) -> list[Completion]:
        """The same as a list, in the order of the prompts."""
        return collect(self, prompts, sampling, seeds)

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
        _delete_adapters(self.folder)

    async def _leave(self, server: Server) -> None:
        if server.process is None and server.live:
            with suppress(Unreachable, EngineError):
                if self.sleeps:
                    await server.wake()
            if self.adapter is not None:
                await server.drop(self.adapter.name)
        await server.close()

    def _require_room(self, prompt: int, new: int) -> None:
        limit = min(server.max_tokens for server in self.fleet.servers)
        if prompt + new > limit:  # vLLM would shorten the completion and not say so
            raise EngineError(
                f"a prompt of {prompt} tokens and {new} new ones need --max-model-len {prompt + new}, and a server "
                f"has {limit}"
            )


class FirstRankEngine:
    """The rows of all ranks, generated by the first rank's engine: its servers have one client, however many ranks.

    All ranks call each method together; what the first one raises is raised on all.
    """

    def __init__(self, engine: Engine | None, *, frees_memory: bool) -> None:
        self.engine, self.frees_memory = engine, frees_memory

    def adopt(self) -> None:
        """The first rank's, which is every rank's."""

        def work() -> None:
            assert self.engine is not None
            self.engine.adopt()

        on_first_rank(work)

    def stream(
        self, prompts: Sequence[Sequence[int]], sampling: Sampling, seeds: Sequence[int], finished: Finished
    ) -> None:
        """This rank's completions, as soon as those of all ranks are there; with one rank, each at once."""
        if PartialState().num_processes == 1:
            assert self.engine is not None
            self.engine.stream(prompts, sampling, seeds, finished)
            return
        for row, completion in enumerate(self.generate(prompts, sampling, seeds)):
            finished(row, completion)

    def generate(self, prompts: Sequence[Sequence[int]], sampling: Sampling, seeds: Sequence[int]) -> list[Completion]:
        """This rank's completions, in order."""
        if self.frees_memory and torch.cuda.is_available():
            torch.cuda.empty_cache()  # servers on the same GPUs need the memory that we merely keep
        counts = gather_object([len(prompts)])
        rows = gather_object(list(zip(prompts, seeds, strict=True)))

        def work() -> list[Completion]:
            assert self.engine is not None
            return self.engine.generate([prompt for prompt, _ in rows], sampling, [seed for _, seed in rows])

        start = sum(counts[: PartialState().process_index])
        return on_first_rank(work)[start : start + len(prompts)]


@contextmanager
def open_vllm(
    policy: Policy,
    model: cfg.Model,
    options: cfg.Rollout,
    folder: Path,
    display: Display,
    prompts: Sequence[Sequence[int]],
    sampling: Sampling,
    *,
    max_tokens: int,
) -> Iterator[Engine]:
    """The engine that ``options`` ask for: the servers at ``urls``, or one that is started and owned.

    It has passed the canary with these prompts. Whatever ends the block ends the server, too.

    Raises:
        EngineError: a server cannot be reached or started, or lacks room for the adapter.
        EngineGap: it does not serve the adapters that it is given.
    """
    with ExitStack() as stack:
        engine: VllmEngine | None = None

        def start() -> None:
            nonlocal engine
            engine = stack.enter_context(_servers(policy, model, options, folder, display, max_tokens))
            found = canary(policy, engine, prompts, sampling, options.max_engine_gap)
            engine.require_slots()
            display.note(
                f"engine: a changed adapter moved its log-probs by {found['moved']:.3g} nats, within "
                f"{found['perturbed']:.2g} of the trainer's; restored, they agree within {found['restored']:.2g}"
            )

        on_first_rank(start)
        yield FirstRankEngine(engine, frees_memory=options.sleep)


@contextmanager
def _servers(
    policy: Policy, model: cfg.Model, options: cfg.Rollout, folder: Path, display: Display, max_tokens: int
) -> Iterator[VllmEngine]:
    """An engine on servers that answer."""
    # Many runs are called seed-0, and each deletes what it finds.
    own = f"{folder.name}-{sha256(str(folder.resolve()).encode()).hexdigest()[:8]}"
    folder = Path(options.adapter_folder) / own if options.adapter_folder else folder / "engine"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise EngineError(f"{folder} cannot be made: {error}; choose another with --rollout.adapter-folder") from error
    _delete_adapters(folder)
    servers = [Server(url, timeout=options.timeout) for url in options.urls]
    if not servers:
        port = free_port()
        # A sleeping server is woken through an endpoint that vLLM has in its development mode only.
        environment = {"VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1"} | (
            {"VLLM_SERVER_DEV_MODE": "1"} if options.sleep else {}
        )
        process = ServerProcess(server_command(policy, model, options, port, max_tokens=max_tokens), environment, folder / "server.log")
        display.note(f"engine: starting a vLLM server; its log is {process.log}")
        process.start()
        servers = [Server(f"http://127.0.0.1:{port}", timeout=options.timeout, process=process)]
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


def server_command(
    policy: Policy, model: cfg.Model, options: cfg.Rollout, port: int, *, max_tokens: int
) -> list[str]:
    """The command line of the server that we own; ``rollout.server_args`` come last, so they win."""
    path = model_path(model.path)
    start = shlex.split(options.server)
    # ``vllm serve MODEL``, but ``python -m vllm.entrypoints.openai.api_server --model MODEL``.
    named = [path] if start[-1] == "serve" else ["--model", path]
    positions = getattr(policy.model.config, "max_position_embeddings", None)
    settings = {
        "--host": "127.0.0.1",
        "--port": port,
        "--dtype": model.dtype,
        "--max-model-len": min(max_tokens, positions or max_tokens),
        "--max-lora-rank": next((rank for rank in RANKS if rank >= model.lora_rank), model.lora_rank),
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
