"""The engine that a config asks for: in this process, or on vLLM servers that passed the canary.

Where no servers are named, they are started: one, or one for each of ``rollout.server_gpus``.
"""

import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

from paint import config as cfg
from paint.data.problems import Problem
from paint.display import Display
from paint.engines import adapters
from paint.engines.canary import canary
from paint.engines.first_rank import FirstRankEngine, SharedEngine
from paint.engines.launch import (
    LOG,
    ServerProcess,
    free_port,
    server_command,
    server_environment,
    visible_gpus,
)
from paint.engines.local import LocalEngine, MergedEngine
from paint.engines.protocol import Engine, Sampling, sampling_of
from paint.engines.server import Server
from paint.engines.vllm import VllmEngine
from paint.model.policy import Policy
from paint.model.sharding import is_sharded
from paint.ranks import on_first_rank

CANARY_TOKENS = 64


@contextmanager
def open_engine(
    policy: Policy,
    model: cfg.Model,
    rollout: cfg.Rollout,
    folder: Path,
    display: Display,
    *,
    problems: Sequence[Problem],
    max_tokens: int,
) -> Iterator[Engine]:
    """The engine that ``rollout`` asks for; a server has served the adapter that it was given.

    Args:
        model: what the policy was loaded from, which a server loads, too.
        folder: where our server's log goes, and adapters on their way to the servers.
        problems: some that will be asked; servers prove themselves on them.
        max_tokens: the longest prompt and completion together.

    Raises:
        EngineError, EngineGap: the engine cannot be used, or is not the policy.
    """
    if rollout.engine != "vllm":
        local_engine = MergedEngine if rollout.engine == "merged" else LocalEngine
        yield local_engine(policy, batch_size=rollout.batch_size, display=display)
        return

    # All rows are asked for at once and go to the least busy server: four for each reach every one.
    count = 4 * max(len(rollout.urls), len(rollout.server_gpus), 1)
    prompts = [policy.student_prompt(problems[i % len(problems)].problem) for i in range(count)]
    sampling = sampling_of(rollout)
    sampling = replace(sampling, max_new_tokens=min(CANARY_TOKENS, sampling.max_new_tokens))
    with open_vllm(
        policy, model, rollout, folder, display, prompts, sampling, max_tokens=max_tokens
    ) as engine:
        yield engine


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
    """The engine on the servers at ``options.urls``, or on those that are started and owned.

    It has passed the canary with these prompts. Whatever ends the block ends our server, too.

    Raises:
        EngineError: a server cannot be reached or started, or lacks room for the adapter.
        EngineGap: it does not serve the adapters that it is given.
    """
    with ExitStack() as stack:
        engine: VllmEngine | None = None

        def start() -> None:
            nonlocal engine
            engine = stack.enter_context(
                _connected(policy, model, options, folder, display, max_tokens)
            )

        def prove(asked: Engine) -> None:
            gaps = canary(policy, asked, prompts, sampling, options.max_engine_gap)
            display.note(
                f"engine: a changed adapter moved its log-probs by {gaps['moved']:.3g} nats, "
                f"within {gaps['perturbed']:.2g} of the trainer's; restored, they agree within "
                f"{gaps['restored']:.2g}"
            )

        on_first_rank(start)
        if is_sharded(policy.base):  # no rank can score alone
            prove(SharedEngine(engine, frees_memory=options.sleep))
        else:
            on_first_rank(lambda: prove(engine) if engine else None)
        on_first_rank(lambda: engine.require_slots() if engine else None)
        yield FirstRankEngine(engine, frees_memory=options.sleep)


@contextmanager
def _connected(
    policy: Policy,
    model: cfg.Model,
    options: cfg.Rollout,
    folder: Path,
    display: Display,
    max_tokens: int,
) -> Iterator[VllmEngine]:
    """An engine on servers that respond."""
    run_folder, folder = folder, adapters.open_folder(folder, options.adapter_folder)
    servers = [Server(url, timeout=options.timeout) for url in options.urls]
    if not servers:
        # Several, and the ranks beside them, have one log (docs/launch.md).
        log = run_folder / LOG if options.server_gpus else folder / "server.log"
        positions = getattr(policy.model.config, "max_position_embeddings", None)
        for number, gpus in enumerate(options.server_gpus or ("",)):
            port = free_port()
            command = server_command(
                model, options, port, max_tokens=max_tokens, positions=positions, gpus=gpus
            )
            environment = server_environment(options) | visible_gpus(gpus)
            name = f"server {number}" if options.server_gpus else ""
            process = ServerProcess(command, environment, log, name=name)
            url = f"http://127.0.0.1:{port}"
            servers.append(Server(url, timeout=options.timeout, process=process))
        display.note(f"engine: starting {_counted(servers)}; the log is {log}")

    engine = VllmEngine(
        policy,
        servers,
        folder,
        display,
        in_flight=options.batch_size,
        patience=options.patience,
        sleeps=options.sleep,
        ahead=options.ahead,
    )
    try:
        start = time.monotonic()
        for server in servers:
            if server.process is not None:
                server.process.start()
        engine.connect()
        urls, seconds = ", ".join(server.url for server in servers), time.monotonic() - start
        display.note(f"engine: {urls} ready after {seconds:.0f} s")
        yield engine
    finally:
        engine.close()


def _counted(servers: Sequence[Server]) -> str:
    return "a vLLM server" if len(servers) == 1 else f"{len(servers)} vLLM servers"
