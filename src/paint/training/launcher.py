"""Launcher of ``--gpus``: places ranks and servers on the GPUs, starts the ranks and stops them.

The first rank starts the servers (``rollout.server_gpus``). One trainer, or none, is this process.
"""

import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from paint.config.recipe import flags, read_recipe
from paint.config.run_folder import foreign_code
from paint.config.schema import ConfigError
from paint.core.errors import Interrupted, PaintError
from paint.data.sources import check_sources
from paint.inference.vllm.process import NO_GPU, OwnedProcess
from paint.resolve.check import Resolved, enable_servers, require_trainable
from paint.resolve.engines import resolved_engine, server_engine
from paint.resolve.plan import (
    Machine,
    Split,
    choose_split,
    make_plan,
    server_of,
    tensor_parallel_size,
)
from paint.training.callbacks import Callback
from paint.training.torchrun import SHUTDOWN_SECONDS

LOGGER = logging.getLogger(__name__)

COUNT = """
import torch
for number in range(torch.cuda.device_count()):
    print(torch.cuda.get_device_properties(number).total_memory)
"""
"""Prints the bytes of every GPU that it sees."""


class RanksEnded(PaintError):
    """Ranks that were started have ended with an exit status; their messages are printed."""

    def __init__(self, folder: Path, status: int) -> None:
        super().__init__(f"training in {folder} ended with status {status}; the reason is above")
        self.status = status


def place_ranks(run: Resolved, gpus: int, most: int) -> tuple[list[str], Resolved]:
    """Return which of a machine's GPUs train, at most so many, and the run with servers on others.

    Servers named by ``rollout.server_gpus`` stay where they are, and the other GPUs train. Without
    servers, the ranks generate.
    """
    names, memory = _gpus_of_machine(gpus)
    rollout = run.rollout
    if rollout.server_gpus:
        trainers = list(names)
        for gpu in ",".join(rollout.server_gpus).split(","):
            if gpu in trainers and not rollout.colocate:
                trainers.remove(gpu)
        if most and not trainers:
            raise ConfigError("rollout.server_gpus leaves none of the GPUs of --gpus to train")
        named = rollout.server_gpus, rollout.colocate, "rollout.server_gpus"
        return _placed(run, trainers[:most], *named)
    size = tensor_parallel_size(rollout) or 1
    if memory:
        with suppress(ConfigError):  # a model that is not planned
            size = server_of(make_plan(run, Machine(gpus, memory))).gpus
    split = choose_split(run, gpus, server=size) if most == gpus else _beside(run, gpus, most, size)
    # Trainers take the first GPUs, and servers the last. In a shared split all of them serve.
    served = names[len(names) - split.servers :]
    is_cpu = NO_GPU in names
    # gpu_environment knows one name for a server without a GPU, and no list of it.
    if is_cpu:
        size = 1
    servers = tuple(",".join(served[i : i + size]) for i in range(0, len(served), size))
    shared = split.shared and not is_cpu  # on a CPU, servers do not sleep
    return _placed(run, names[: split.trainers], servers, shared, split.reason)


def _placed(
    run: Resolved, trainers: list[str], servers: tuple[str, ...], shared: bool, reason: str
) -> tuple[list[str], Resolved]:
    train, serve = ", ".join(trainers) or "none", ", ".join(servers) or "none"
    LOGGER.info("gpus: train on %s; serve on %s (%s)", train, serve, reason)
    if servers:
        engine = server_engine(run.rollout.engine)
        changes = {"engine": engine, "server_gpus": servers, "colocate": shared}
        return trainers, run.changed("rollout", **changes)
    engine = resolved_engine(run.rollout.engine, bool(run.rollout.urls))
    return trainers, run.changed("rollout", engine=engine)


def visible(trainers: Sequence[str]) -> dict[str, str]:
    """Return the variables by which ranks see the GPUs that train and no others."""
    # Without GPUs, accelerate connects ranks only if it is told to use the CPU.
    if not trainers or NO_GPU in trainers:
        return {"CUDA_VISIBLE_DEVICES": "", "ACCELERATE_USE_CPU": "true"}
    return {"CUDA_VISIBLE_DEVICES": ",".join(trainers)}


def _beside(run: Resolved, gpus: int, most: int, size: int) -> Split:
    """Return the split of one process that trains, or of none, with servers on the other GPUs."""
    if not most and not run.engine.is_remote:
        raise ConfigError(
            f"rollout.engine {run.rollout.engine} generates in this process and uses no servers; "
            f"leave out --gpus, or set rollout.engine vllm"
        )
    if not run.engine.is_remote:
        return Split(most, 0, False, f'one process; rollout.engine is "{run.rollout.engine}"')
    # GPUs that make no complete server stay idle.
    serving = (gpus - most) // size * size
    if serving:
        return Split(most, serving, False, "one process, and as many servers as the others hold")
    return Split(most, gpus, True, "one process, and its server next to it")


@contextmanager
def on_gpus(gpus: int, run: Resolved, *, ranks: int) -> Iterator[Resolved]:
    """Yield the run for one process that trains on ``ranks`` GPUs, with servers on the others."""
    if not gpus:
        yield run
        return
    trainers, run = place_ranks(enable_servers(run), gpus, ranks)
    with _visible_gpus(trainers):
        yield run


def run_training(
    run: Resolved,
    folder: Path,
    gpus: int,
    recipe: Path | None,
    callbacks: Sequence[Callback],
    *,
    note: str = "",
) -> None:
    """Train by a recipe in this process, or on several GPUs; without a recipe, resume.

    ``note`` is that of the trainer, in this process. Raises RanksEnded for ranks that were started,
    and failed.
    """
    require_trainable(run)
    rows = check_sources(run.config, run.needed_fields)
    if callbacks and gpus > 1:
        raise ConfigError("callbacks are called in one process; leave gpus out, or pass none")

    def train_here(run: Resolved) -> None:
        # Here, since it imports torch, which takes seconds: errors in settings are reported before.
        from paint.training import trainer

        trainer.train(run, folder, rows=rows, resume=recipe is None, callbacks=callbacks, note=note)

    if not gpus:
        try:
            train_here(run)
        except KeyboardInterrupt:  # outside of the steps, as while a model is loaded
            hint = "the same command begins again"
            if (folder / "run.json").exists():
                hint = f"resume with `paint resume {folder}`"
            raise Interrupted(f"interrupted; {hint}", signal.SIGINT) from None
    elif status := train_on(gpus, run, folder, recipe, train_here):
        raise RanksEnded(folder, status)


def train_on(
    gpus: int, run: Resolved, folder: Path, recipe: Path | None, train: Callable[[Resolved], None]
) -> int:
    """Train on so many GPUs, and return the exit status; one rank is ``train`` in this process."""
    # A resumed run keeps the engine that run.json has.
    begun = run if recipe is None else enable_servers(run)
    trainers, run = place_ranks(begun, gpus, gpus)
    if len(trainers) <= 1:
        with _visible_gpus(trainers):
            train(run)
        return 0

    config = run.config
    if recipe is not None:
        # Ranks are commands of their own: the recipe, and what differs from it.
        task = ["train", str(recipe), *flags(config, read_recipe(recipe))]
    else:
        # They read run.json, so they need what may differ from it (CHANGEABLE_ON_RESUME).
        task = ["resume", str(folder), "--steps", str(config.train.steps)]
        task += ["--model.path", config.model.path, "--data.path", *config.data.paths]
        task += ["--max-logprob-mismatch", str(config.rollout.max_logprob_mismatch)]
        task += ["--trust"] if foreign_code(folder) else []  # which this process has asked for
        task += ["--server-gpus", *config.rollout.server_gpus] if config.rollout.server_gpus else []
        task += ["--urls", *config.rollout.urls] if config.rollout.urls else []
    if LOGGER.isEnabledFor(logging.DEBUG):
        task.append("--verbose")
    command = [sys.executable, "-m", "paint.training.torchrun"]
    # --standalone takes a free port, so that two trainings fit on one machine.
    command += ["--standalone", "--nproc-per-node", str(len(trainers)), *task]
    return _run_ranks(command, visible(trainers))


def _run_ranks(command: Sequence[str], pins: dict[str, str]) -> int:
    # ``python -m`` would import modules from the working directory first.
    environment = dict(os.environ) | {"PYTHONSAFEPATH": "1"} | pins
    # Longer than torchrun's agent, which this ends, gives its ranks to finish their step.
    grace = SHUTDOWN_SECONDS + 60.0
    ranks = OwnedProcess(command, environment, None, grace=grace)
    with _signals() as signals:
        ranks.start()
        try:
            sent = 0
            while not ranks.dead:
                # Each signal once: a second one ends the ranks at once (OwnedProcess.tell).
                while sent < len(signals):
                    ranks.tell(signals[sent])
                    sent += 1
                time.sleep(0.1)
        finally:
            ranks.stop()
    # A signal that came after the last step changed nothing.
    if signals and ranks.status:
        return 128 + signals[0]
    return ranks.status or 0


@contextmanager
def _signals() -> Iterator[list[int]]:
    """Collect SIGINT and SIGTERM, however many, instead of dying from them."""
    signals: list[int] = []
    numbers = (signal.SIGINT, signal.SIGTERM)
    handlers = {n: signal.signal(n, lambda number, _: signals.append(number)) for n in numbers}
    try:
        yield signals
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


@contextmanager
def _visible_gpus(trainers: Sequence[str]) -> Iterator[None]:
    """Show the trainers' GPUs alone within the block; enter it before torch initialises CUDA."""
    before = dict(os.environ)
    # CUDA reads the variable once, when torch initialises it.
    os.environ.update(visible(trainers))
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def _gpus_of_machine(gpus: int) -> tuple[list[str], float]:
    """Return the names of the GPUs, and bytes of the smallest; NO_GPU and 0 without any."""
    # In another process: one that has initialised CUDA cannot be pinned any more.
    # -P: without it, a file torch.py in the working directory would be imported.
    line = [sys.executable, "-P", "-c", COUNT]
    found = subprocess.run(line, capture_output=True, text=True).stdout
    sizes = [float(size) for size in found.split()]
    if not sizes:
        return [NO_GPU] * gpus, 0.0
    if len(sizes) < gpus:
        raise ConfigError(f"--gpus {gpus} asks for more GPUs than the {len(sizes)} that are here")
    # torch numbers the GPUs that it sees from 0. The variable has their names, such as 4,5.
    named = os.environ.get("CUDA_VISIBLE_DEVICES") or ",".join(map(str, range(len(sizes))))
    names = [name.strip() for name in named.split(",")]
    return names[:gpus], min(sizes[:gpus])
