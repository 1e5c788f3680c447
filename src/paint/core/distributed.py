"""Collectives of objects and gradients, launch checks, and error reports of several ranks.

There are no gradient hooks and no data-parallel wrapper: every rank holds the complete model, and
gradients are summed over the ranks once per step.
"""

import os
import shlex
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any, TypeVar

import torch
from accelerate import Accelerator, PartialState
from accelerate.utils import InitProcessGroupKwargs
from torch import distributed
from torch.distributed import Store  # type: ignore[attr-defined]

from paint.core.errors import ConfigError, Interrupted, PaintError, PeerExit, reason

T = TypeVar("T")

# 0.27 GB in float32, which the memory plan counts twice.
MESSAGE_NUMBERS = 2**26  # most elements of one gradient message between ranks

WAIT = timedelta(days=1)
"""Timeout of collectives that wait for rank 0, which generates and writes for all."""

AGENT_SECONDS = 60  # seconds that a rank without its peers waits for torchrun's agent to end it


def open_accelerator(folder: Path, trackers: Sequence[str], seconds: float) -> Accelerator:
    """Join the ranks, which wait at most so many seconds for each other's gradients."""
    accelerator = Accelerator(
        log_with=list(trackers) or None,
        project_dir=folder,
        kwargs_handlers=[InitProcessGroupKwargs(timeout=timedelta(seconds=seconds))],
    )
    require_all_ranks(accelerator)
    return accelerator


def require_all_ranks(accelerator: Accelerator) -> None:
    """Raise ConfigError, with the command to use, if torchrun's processes are not connected."""
    # Each would train alone, and all in one folder.
    launched = _launched()
    if launched == accelerator.num_processes:
        return
    if os.environ.get("RANK", "0") != "0":
        raise PeerExit(_status(ConfigError()))  # the first process gives the command
    line = shlex.join(
        ["python", "-m", "paint.training.torchrun", "--nproc-per-node", "2", *sys.argv[1:]]
    )
    raise ConfigError(
        f"{launched} processes were launched, and accelerate sees {accelerator.num_processes}; "
        f"without a GPU launch with `ACCELERATE_USE_CPU=true {line}`"
    )


def require_one_process(verb: str) -> None:
    """Raise ConfigError if a command of one process runs on several ranks."""
    if max(PartialState().num_processes, _launched()) > 1:
        raise ConfigError(
            f"{verb} runs in one process; for several GPUs, start vLLM servers and name them: "
            f"--rollout.urls"
        )


class RankLost(PaintError):
    """Another rank ended without a report, or does not respond."""


@contextmanager
def report_once(folder: Path) -> Iterator[list[int]]:
    """Report the error that ended a run on one rank only; the other ranks exit silently.

    Yields the list in which the run collects its signals. Raises PeerExit where another rank or the
    agent reports, and RankLost where no agent ended this rank.
    """
    # torchrun's agent ends all ranks once one has ended, so a rank that only lost its peers waits
    # for the agent. The first rank with its own error claims the report in torch's store.
    signals: list[int] = []
    is_alone = PartialState().num_processes == 1
    # Taken now: an error may destroy the process group, and its store with it.
    store = None if is_alone else distributed.distributed_c10d._get_default_store()
    try:
        yield signals
    except PeerExit:
        _wait_for_agent(signals)
        raise
    except (Exception, KeyboardInterrupt) as error:
        if store is None:
            raise
        is_lost = _is_of_a_collective(error)
        if is_lost:
            _wait_for_agent(signals)
        if (is_lost and signals) or not _is_first_to_report(store):
            raise PeerExit(_status(error)) from None
        if is_lost:
            raise RankLost(
                f"another rank ended or does not respond ({reason(error)}); resume "
                f"with `paint resume {folder}`"
            ) from error
        raise
    finally:
        # If the group lived until the interpreter ends, gloo's threads could abort it.
        _objects.cache_clear()


def _wait_for_agent(signals: Sequence[int]) -> None:
    if not signals:
        time.sleep(AGENT_SECONDS)


def _is_first_to_report(store: Store) -> bool:
    mine = str(PartialState().process_index)
    try:
        # It sets the key only where nobody has, and returns what is there.
        return store.compare_set("paint reports", "", mine).decode() == mine
    except RuntimeError:  # the process that held the store has ended, and it or the agent reports
        return False


def _is_of_a_collective(error: BaseException) -> bool:
    words = ("gloo", "nccl", "connection closed by peer")
    # Where code from outside of the package met it, the error that names that code has it as cause.
    causes = [error, error.__cause__]
    texts = [str(cause).lower() for cause in causes if isinstance(cause, RuntimeError)]
    return any(word in text for text in texts for word in words)


def _status(error: BaseException) -> int:
    if isinstance(error, Interrupted):
        return 128 + error.signal_number
    if isinstance(error, KeyboardInterrupt):
        return 130
    if isinstance(error, PaintError):
        return 2
    return 70


def run_on_rank0(work: Callable[[], T]) -> T:
    """Run ``work`` on rank 0 and return its result on every rank."""
    outcome: list[Any] = [None]
    if PartialState().is_main_process:
        try:
            outcome = [work()]
        except PaintError as error:
            outcome = [error]

    if PartialState().num_processes > 1:
        distributed.broadcast_object_list(outcome, group=_objects())
    if isinstance(outcome[0], PaintError):
        if PartialState().is_main_process:
            raise outcome[0]
        raise PeerExit(_status(outcome[0]))
    result: T = outcome[0]
    return result


def all_gather_objects(rows: Sequence[T]) -> list[T]:
    """Gather the rows of all ranks on every rank, in rank order."""
    if PartialState().num_processes == 1:
        return list(rows)
    parts: list[Any] = [None] * PartialState().num_processes
    distributed.all_gather_object(parts, list(rows), group=_objects())
    return list(chain.from_iterable(parts))


def all_gather_slice(rows: Sequence[T]) -> tuple[list[T], slice]:
    """Gather the rows of all ranks on every rank, and which of them are this rank's."""
    counts = all_gather_objects([len(rows)])
    start = sum(counts[: PartialState().process_index])
    return all_gather_objects(rows), slice(start, start + len(rows))


def gather_on_rank0(rows: Sequence[T]) -> list[T]:
    """Gather the rows of all ranks on rank 0, in rank order; other ranks get their own rows."""
    if PartialState().num_processes == 1:
        return list(rows)
    parts: list[Any] | None = None
    if PartialState().is_main_process:
        parts = [None] * PartialState().num_processes
    distributed.gather_object(list(rows), parts, dst=0, group=_objects())
    return list(rows) if parts is None else list(chain.from_iterable(parts))


def barrier() -> None:
    """Wait for all ranks, with the long timeout of WAIT."""
    if PartialState().num_processes > 1:
        distributed.barrier(group=_objects())


def any_rank_signal(signals: Sequence[int]) -> int:
    """Return a signal that any rank received, or 0, so that all stop after the same step."""
    return max(all_gather_objects([max(signals, default=0)]))


def sum_gradients(accelerator: Accelerator, parameters: Sequence[torch.nn.Parameter]) -> None:
    """Sum every gradient over the ranks in place, many gradients in one message."""
    if accelerator.num_processes == 1:
        return

    for group in _message_groups(parameters):
        grads = []
        for parameter in group:
            # A rank whose rows do not reach a parameter has no gradient of it, and others may.
            if parameter.grad is None:
                grads.append(torch.zeros_like(parameter))
            else:
                grads.append(parameter.grad)
        flat = accelerator.reduce(torch.cat([grad.flatten() for grad in grads]), "sum")
        for parameter, part in zip(group, flat.split([p.numel() for p in group]), strict=True):
            parameter.grad = part.view_as(parameter)


def _message_groups(parameters: Sequence[torch.nn.Parameter]) -> Iterator[list[torch.nn.Parameter]]:
    """Group neighbors up to MESSAGE_NUMBERS elements, or one larger parameter."""
    # A message is copied twice, so its size is limited.
    group: list[torch.nn.Parameter] = []
    for parameter in parameters:
        if group and sum(p.numel() for p in group) + parameter.numel() > MESSAGE_NUMBERS:
            yield group
            group = []
        group.append(parameter)
    yield group


@cache
def _objects() -> Any:
    # The gradients' group has a short timeout, since no rank waits there for long work of another.
    try:
        return distributed.new_group(backend="gloo", timeout=WAIT)
    except RuntimeError as error:
        raise PaintError(
            f"the ranks cannot connect ({reason(error)}): gloo uses the address of the host name; "
            f"name the network interface of each machine, as in GLOO_SOCKET_IFNAME=eth0 "
            f"NCCL_SOCKET_IFNAME=eth0"
        ) from error


def _launched() -> int:
    return int(os.environ.get("WORLD_SIZE", "1"))
