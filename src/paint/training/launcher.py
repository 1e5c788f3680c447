"""Launcher of ``--gpus``: places ranks and servers on the GPUs, starts them and stops them.

The ranks are torchrun's. The first rank starts the servers, one on each GPU that serves
(``rollout.server_gpus``). Here, the GPUs are divided, the ranks are started and watched, and
their signals are passed on. One trainer, or none, is this very process.
"""

import logging
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from paint.config.recipe import flags, read_recipe
from paint.config.run_folder import RunError, foreign_code
from paint.config.schema import ConfigError
from paint.core.errors import Interrupted, PaintError, format_short
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


@dataclass(frozen=True)
class LaunchRequest:
    """Which GPUs of this machine train, and which serve."""

    gpus: int = 0  # of this machine; 0 is this process alone
    split: str | None = None  # how many train and how many serve, as 4+4, or shared

    def __post_init__(self) -> None:
        split = self.split
        if not 0 <= self.gpus <= 9999:
            raise ConfigError(f"--gpus must be in [0, 9999], got {self.gpus}")
        if split is not None and not re.fullmatch(r"\d{1,4}\+\d{1,4}|shared", split, re.ASCII):
            raise ConfigError(
                "--split must be trainers+servers, such as 4+4, or shared, got "
                f"{format_short(split)}"
            )
        if not self.gpus and split is not None:
            raise ConfigError("--split divides GPUs; add --gpus N")


class RanksEnded(PaintError):
    """Ranks that were started have ended with an exit status; their messages are printed."""

    def __init__(self, folder: Path, status: int) -> None:
        super().__init__(f"training in {folder} ended with status {status}; the reason is above")
        self.status = status


@dataclass(frozen=True)
class GpuPlacement:
    """What runs where."""

    trainers: tuple[str, ...]  # the GPU of each rank
    servers: tuple[str, ...]  # the GPUs of each server, as ``rollout.server_gpus``
    shared: bool  # the same GPUs train and serve, in turns
    reason: str  # why, in words

    @property
    def environment(self) -> dict[str, str]:
        """The variables by which the ranks see their GPUs and no others."""
        # Without GPUs, accelerate connects ranks only if it is told to use the CPU.
        if not self.trainers or NO_GPU in self.trainers:
            return {"CUDA_VISIBLE_DEVICES": "", "ACCELERATE_USE_CPU": "true"}
        return {"CUDA_VISIBLE_DEVICES": ",".join(self.trainers)}

    def __str__(self) -> str:
        trained = ", ".join(self.trainers) or "none"
        served = ", ".join(self.servers) or "none"
        return f"train on {trained}; serve on {served} ({self.reason})"


def place_ranks(request: LaunchRequest, run: Resolved, ranks: tuple[int, int]) -> GpuPlacement:
    """Return which GPUs train, from the fewest to the most of ``ranks``, and which serve."""
    gpus, memory = _gpus_of_machine(request)
    size = tensor_parallel_size(run.rollout) or 1
    if memory:
        with suppress(ConfigError):  # a model that is not planned
            size = server_of(make_plan(run, Machine(request.gpus, memory))).gpus
    split = _split(request, run, ranks, size)
    # From the end, as trainers take the first ones. Of a shared split, all serve.
    served = gpus[len(gpus) - split.servers :]
    if len(served) % size:
        raise ConfigError(
            f"{len(served)} GPUs are to serve, and a server takes {size} (the fewest that hold it, "
            f"or --tensor-parallel-size in rollout.server_args); choose a multiple with --split"
        )
    is_cpu = NO_GPU in gpus
    # gpu_environment knows one name for a server without a GPU, and no list of it.
    if is_cpu:
        size = 1
    servers = [",".join(served[i : i + size]) for i in range(0, len(served), size)]
    shared = split.shared and not is_cpu  # on a CPU, servers do not sleep
    return GpuPlacement(tuple(gpus[: split.trainers]), tuple(servers), shared, split.reason)


def with_servers(run: Resolved, placement: GpuPlacement) -> Resolved:
    """Return the run with the servers of a placement; without any, the ranks generate."""
    rollout = run.rollout
    if not placement.servers:
        engine = resolved_engine(rollout.engine, bool(rollout.urls))
        return run.changed("rollout", engine=engine)
    return run.changed(
        "rollout",
        engine=server_engine(rollout.engine),
        server_gpus=placement.servers,
        colocate=placement.shared,
    )


def _placed(
    request: LaunchRequest, run: Resolved, ranks: tuple[int, int]
) -> tuple[Resolved, GpuPlacement]:
    """Place a run, and return it with its servers. Raises ConfigError where none can be used."""
    placement = place_ranks(request, run, ranks)
    if placement.servers and not run.engine.is_remote:
        raise ConfigError(
            f"rollout.engine {run.rollout.engine} generates in the training process and uses no "
            f"servers; leave out --split, or set rollout.engine vllm"
        )
    LOGGER.info("gpus: %s", placement)
    return with_servers(run, placement), placement


@contextmanager
def on_gpus(request: LaunchRequest, run: Resolved, *, ranks: int) -> Iterator[Resolved]:
    """Yield the run for one process that trains on ``ranks`` GPUs, with servers on the others.

    Without --gpus it is unchanged.
    """
    if not request.gpus:
        yield run
        return
    placed, placement = _placed(request, enable_servers(run), (ranks, ranks))
    with _visible_gpus(placement):
        yield placed


def run_training(
    run: Resolved,
    folder: Path,
    request: LaunchRequest,
    recipe: Path | None,
    callbacks: Sequence[Callback],
    *,
    note: str = "",
    confirm: bool = True,
) -> None:
    """Train by a recipe in this process, or on the GPUs of a request; without one, resume.

    ``note`` and ``confirm`` are those of the trainer, in this process. Raises RanksEnded for ranks
    that were started, and failed.
    """
    require_trainable(run)
    rows = check_sources(run.config, run.needed_fields)
    if callbacks and request.gpus > 1:
        raise ConfigError("callbacks are called in one process; leave gpus out, or pass none")

    def train_here(run: Resolved) -> None:
        # Here, since it imports torch, which takes seconds: errors in settings are reported before.
        from paint.training import trainer

        trainer.train(
            run,
            folder,
            rows=rows,
            resume=recipe is None,
            callbacks=callbacks,
            note=note,
            confirm=confirm,
        )

    if not request.gpus:
        with _interruption_named(folder):
            train_here(run)
    elif status := train_on(request, run, folder, recipe, train_here):
        raise RanksEnded(folder, status)


@contextmanager
def _interruption_named(folder: Path) -> Iterator[None]:
    """Say how to go on after a Ctrl-C outside of the steps, as while a model is loaded."""
    try:
        yield
    except KeyboardInterrupt:
        hint = "the same command begins again"
        if (folder / "run.json").exists():
            hint = f"resume with `paint resume {folder}`"
        raise Interrupted(f"interrupted; {hint}", signal.SIGINT) from None


def train_on(
    request: LaunchRequest,
    run: Resolved,
    folder: Path,
    recipe: Path | None,
    train: Callable[[Resolved], None],
) -> int:
    """Train on the GPUs of a request, and return the exit status; one rank is ``train`` here."""
    # A resumed run keeps the engine that run.json has.
    begun = run if recipe is None else enable_servers(run)
    run, placement = _placed(request, begun, (1, request.gpus))
    if recipe is None:
        _require_same_engine(begun, placement, folder)
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
        task += ["--server-gpus", *placement.servers] if placement.servers else []
        task += ["--urls", *config.rollout.urls] if config.rollout.urls else []
    if LOGGER.isEnabledFor(logging.DEBUG):  # the ranks are commands of their own
        task.append("--verbose")
    count = len(placement.trainers)
    # --standalone takes a free port, so that two trainings fit on one machine.
    several = ["paint.training.torchrun", "--standalone", "--nproc-per-node", str(count)]
    command = [sys.executable, "-m", *(several if count > 1 else ["paint.cli"]), *task]

    if count > 1:
        return _run_ranks(command, placement.environment)
    with _visible_gpus(placement):
        train(run)
    return 0


def _run_ranks(command: Sequence[str], pins: dict[str, str]) -> int:
    """Start the ranks and pass signals on; return the exit status."""
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
def _visible_gpus(placement: GpuPlacement) -> Iterator[None]:
    """Show the trainers' GPUs alone within the block; enter it before torch initialises CUDA."""
    before = dict(os.environ)
    # CUDA reads the variable once, when torch initialises it.
    os.environ.update(placement.environment)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def _require_same_engine(run: Resolved, placement: GpuPlacement, folder: Path) -> None:
    """Raise RunError where servers appear or are gone; the message names the split to resume."""
    rollout, split = run.rollout, "TRAINERS+0"
    if run.owns_servers:
        split = "shared" if rollout.colocate else "TRAINERS+SERVERS"
    has_servers = bool(placement.servers)
    if has_servers != run.owns_servers or placement.shared != (split == "shared"):
        raise RunError(
            f"{folder} was started with rollout.engine {rollout.engine} and rollout.colocate "
            f"{rollout.colocate}; go on with --split {split}"
        )


def _split(request: LaunchRequest, run: Resolved, ranks: tuple[int, int], size: int) -> Split:
    """Return how many GPUs train, and how many serve, of which each server takes ``size``."""
    fewest, most = ranks
    gpus = request.gpus
    if request.split is None:
        if most == gpus:
            return choose_split(run, gpus, server=size)
        if most and not run.engine.is_remote:
            return Split(most, 0, False, f'one process; rollout.engine is "{run.rollout.engine}"')
        # GPUs that make no complete server stay idle.
        serving = (gpus - most) // size * size
        if serving:
            return Split(
                most, serving, False, "one process, and as many servers as the others hold"
            )
        return Split(most, gpus, True, "one process, and its server next to it")
    if request.split == "shared":
        return Split(min(gpus, most), gpus, True, "--split")

    trainers, servers = map(int, request.split.split("+"))
    if trainers + servers != gpus:
        raise ConfigError(
            f"--split {request.split} divides {trainers + servers} GPUs, and --gpus are {gpus}"
        )
    if not fewest <= trainers <= most:
        allowed = f"{fewest}" if fewest == most else f"{fewest} to {most}"
        raise ConfigError(
            f"--split {request.split} has {trainers} trainers, and there are {allowed}"
        )
    return Split(trainers, servers, False, "--split")


def _gpus_of_machine(request: LaunchRequest) -> tuple[list[str], float]:
    """Return the names of the GPUs, and bytes of the smallest; NO_GPU and 0 without any."""
    # In another process: one that has initialised CUDA cannot be pinned any more.
    # -P: without it, a file torch.py in the working directory would be imported.
    line = [sys.executable, "-P", "-c", COUNT]
    found = subprocess.run(line, capture_output=True, text=True).stdout
    sizes = [float(size) for size in found.split()]
    if not sizes:
        return [NO_GPU] * request.gpus, 0.0
    if len(sizes) < request.gpus:
        raise ConfigError(
            f"--gpus {request.gpus} asks for more GPUs than the {len(sizes)} that are here"
        )
    # torch numbers the GPUs that it sees from 0. The variable has their names, such as 4,5.
    named = os.environ.get("CUDA_VISIBLE_DEVICES") or ",".join(map(str, range(len(sizes))))
    names = [name.strip() for name in named.split(",")]
    return names[: request.gpus], min(sizes[: request.gpus])
