"""What concerns several ranks: who works for all, what all agree on, how gradients add up.

Left out on purpose: gradient hooks and wrappers for data parallelism. Every rank holds the whole
model, and gradients are summed over the ranks once a step.
"""

import os
import shlex
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from functools import cache
from pathlib import Path
from threading import Event, Thread
from typing import Any, TypeVar

import torch
from accelerate import Accelerator, PartialState
from torch import distributed
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from paint.config import ConfigError
from paint.errors import EndedElsewhere, PaintError, Stopped

T = TypeVar("T")

MESSAGE_NUMBERS = 2**26
"""Numbers that one message between ranks holds, at most."""

WAIT = timedelta(days=7)
"""What ranks wait for one that works for all; that one has ended, they meet at once."""

BEAT_SECONDS = 1.0
"""How often a rank shows that it is there, and looks at the others."""

LOST_BEATS = 60
"""So many beats without a sign of it, and a rank is lost. Beats, so that no rank is lost where all
are suspended together."""

END_SECONDS = 10
"""What is left to a rank for ending by itself once another has ended."""

TELL_SECONDS = 5
"""What is left to the rank that says why all end, before another one ends."""

SAVE_SECONDS = 600
"""How long a rank that failed stays for the first one to save what is whole."""

_COUNTS = ("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS")
"""Where launchers say how many processes they started; the first that is there counts."""

_IGNORED = {
    "ACCELERATE_USE_FSDP": "FSDP",
    "ACCELERATE_USE_DEEPSPEED": "DeepSpeed",
    "ACCELERATE_USE_MEGATRON_LM": "Megatron-LM",
    "ACCELERATE_USE_PARALLELISM_CONFIG": "parallelism_config",
}


def require_plain_launch() -> None:
    """Refuse what accelerate was told and would not be done here, before anything is started.

    Raises:
        ConfigError: with the command that works.
    """
    told = [name for key, name in _IGNORED.items() if _said(key) in ("true", "1")]
    for key, name in (("MIXED_PRECISION", "mixed precision"), ("DYNAMO_BACKEND", "dynamo")):
        if _said(f"ACCELERATE_{key}") not in ("", "no"):
            told.append(f"{name} {_said(f'ACCELERATE_{key}')}")
    if told and os.environ.get("RANK", "0") != "0":
        raise EndedElsewhere(_status(ConfigError()))
    if told:
        raise ConfigError(
            f"accelerate was told to use {' and '.join(told)}, which would be ignored: every rank "
            f"holds the whole model, in model.dtype; launch with `{_launch_line('GPUS')}`"
        )

    # Only its launcher sets both, and for several processes it then starts them by itself.
    is_alone = "ACCELERATE_MIXED_PRECISION" in os.environ and "MASTER_ADDR" in os.environ
    if is_alone and not os.environ.keys() & set(_COUNTS):
        raise ConfigError(
            f"accelerate was asked for several processes and has started one, as it does without "
            f"GPUs; launch with `ACCELERATE_USE_CPU=true {_launch_line('2')}`"
        )


def require_all_ranks(accelerator: Accelerator) -> None:
    """Refuse launched processes that do not know of each other.

    Each would train alone, and all in one folder.

    Raises:
        ConfigError: with the command that launches them together.
    """
    variable, launched = _launched()
    if launched == accelerator.num_processes:
        return
    if variable == "WORLD_SIZE":
        raise ConfigError(
            f"{launched} processes were launched, and accelerate sees {accelerator.num_processes}; "
            f"without a GPU launch with `ACCELERATE_USE_CPU=true {_launch_line('2')}`"
        )
    nodes = "--nnodes N --rdzv-backend c10d --rdzv-endpoint FIRST_NODE:29500"
    raise ConfigError(
        f"{launched} processes were launched ({variable}), and none knows of the others; start one "
        f"on each machine, which starts its ranks: `srun --ntasks-per-node 1 "
        f"{_launch_line('GPUS', nodes)}` (if this is one process all the same: `unset {variable}`)"
    )


def require_one_process(verb: str) -> None:
    """Refuse several ranks for what one process does.

    Raises:
        ConfigError: with the way to use many GPUs all the same.
    """
    if max(PartialState().num_processes, _launched()[1]) > 1:
        raise ConfigError(
            f"{verb} is one process; for many GPUs, start vLLM servers and name them: "
            f"--rollout.urls"
        )


class RankLost(PaintError):
    """Another rank ended without a word, or no longer responds."""


class Peers:
    """The other ranks of a run: when one of them is gone, all end, and one alone says why.

    A collective cannot fail by itself where a rank hangs, its machine is gone, or the library
    waits on. So each rank tells in a store that it is there, from a thread of its own.

    Attributes:
        folder: of the run.
        save: keeps the last whole step, on the first rank; False where that has to be tried again.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.save: Callable[[], bool] = lambda: True
        self.rank, self.count = PartialState().process_index, PartialState().num_processes
        self.lost, self.ended = "", ""
        self.over = Event()
        self.threads: list[Thread] = []
        if self.count == 1:
            return

        host = os.environ["MASTER_ADDR"]
        if self.rank == 0:
            self.store = TCPStore(host, 0, is_master=True, wait_for_workers=False)
        port = on_first_rank(lambda: self.store.port)
        if self.rank != 0:
            self.store = TCPStore(host, port, is_master=False)
        self.unanswered = 0
        watches = [self._watch] if self.rank == 0 else [self._watch, self._watch_first]
        self.threads = [Thread(target=watch, daemon=True) for watch in watches]
        for thread in self.threads:
            thread.start()

    def is_first_to_end(self, status: int) -> bool:
        """Whether no other rank has said before that it ends; what is whole is then saved."""
        mine = f"{self.rank} {status}"
        if self.ended:
            return False
        if self.rank == 0:
            self.over.set()  # what is whole is saved, and what is not, is not
        try:
            if self.store.compare_set("ended", "", mine).decode() != mine:
                return False
        except RuntimeError:  # the first rank is gone, and its store
            return False
        if self.rank == 0:
            time.sleep(2 * BEAT_SECONDS)  # the others learn of it before the store is gone
        else:
            # Its end would fail the first rank's collective, or have it killed.
            with suppress(RuntimeError):
                until = time.monotonic() + SAVE_SECONDS
                while not self.store.check(["saved"]) and time.monotonic() < until:
                    time.sleep(0.1)
        return True

    def leave(self) -> None:
        """End in order; the first rank, which has the store, leaves last."""
        if self.rank != 0:
            self.store.set(f"left {self.rank}", "")
        while self.rank == 0 and not self.store.check([f"left {i}" for i in range(1, self.count)]):
            time.sleep(0.1)

    def stay(self) -> None:
        """Let the rank that says why do so: torchrun ends all others with the first that ends."""
        self.over.set()
        time.sleep(TELL_SECONDS)

    def close(self) -> None:
        """Look no longer at the others."""
        self.over.set()
        for thread in self.threads:
            thread.join(END_SECONDS)

    def status(self) -> int:
        """With what the rank that ended first ends."""
        with suppress(RuntimeError):
            ended = self.ended or self.store.get("ended").decode()
            return int(ended.split()[1])
        return _status(RankLost())

    def lost_by(self, what: str, kept: str = "what was whole is saved") -> str:
        """What happened, what may have caused it, and how to go on."""
        return (
            f"{what}: it was killed, ran out of memory, or its machine is gone; {kept}, go on with "
            f"`paint resume {self.folder}`"
        )

    def _watch(self) -> None:
        beats, silent = [0] * self.count, [0] * self.count
        while not self.over.wait(BEAT_SECONDS):
            try:
                self.store.add(f"beat {self.rank}", 1)
                for rank in range(self.count) if self.rank == 0 else ():
                    beat = self.store.add(f"beat {rank}", 0)
                    is_fine = beat != beats[rank] or self.store.check([f"left {rank}"])
                    silent[rank] = 0 if is_fine else silent[rank] + 1
                    beats[rank] = beat
                has_ended = self.store.check(["ended"])
                self.ended = self.store.get("ended").decode() if has_ended else ""
                self.unanswered = 0
            except RuntimeError:
                self._end_soon()  # the first rank is gone, and its store
                return
            if max(silent) >= LOST_BEATS and not has_ended:
                self.lost = f"rank {silent.index(max(silent))} no longer responds"
                has_ended = True
            if has_ended and self.rank == 0:
                self._save_and_end()
                return
            if self.ended.startswith("0 "):
                self._end_soon()
                return

    def _watch_first(self) -> None:
        """End where the store no longer answers: a first rank that hangs closes nothing."""
        while not self.over.wait(BEAT_SECONDS):
            self.unanswered += 1
            if self.unanswered >= LOST_BEATS:
                if self.rank == 1:
                    _tell(self.lost_by("rank 0 no longer responds", kept="checkpoints are whole"))
                os._exit(_status(RankLost()))

    def _save_and_end(self) -> None:
        for _ in range(LOST_BEATS):
            if self.save() or self.over.wait(BEAT_SECONDS):
                break
        self.store.set("saved", "")
        if self.over.wait(END_SECONDS):
            return
        if self.lost and self.is_first_to_end(_status(RankLost())):
            _tell(self.lost_by(self.lost))
        os._exit(self.status())

    def _end_soon(self) -> None:
        """End this process, unless its main thread gets to do it."""
        if not self.over.wait(END_SECONDS):
            os._exit(self.status())


@contextmanager
def together(folder: Path) -> Iterator[Peers]:
    """Within this block, the end of one rank is that of all, and one alone says why.

    Args:
        folder: of the run, with which to go on.

    Raises:
        EndedElsewhere: another rank says why. RankLost: one cannot.
    """
    peers = Peers(folder)
    try:
        yield peers
        if peers.count > 1:
            peers.leave()
    except EndedElsewhere:
        peers.stay()
        raise
    except (Exception, KeyboardInterrupt) as error:
        if peers.count == 1:
            raise
        # torchrun's, to all others once one has ended: it would end this one before it says why.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        is_known_to_all = isinstance(error, Stopped)
        if is_known_to_all and peers.rank != 0:
            peers.stay()
            raise EndedElsewhere(_status(error)) from None
        if not peers.is_first_to_end(_status(error)):
            status = peers.status()
            peers.stay()
            raise EndedElsewhere(status) from None
        if _is_of_a_collective(error):
            what = peers.lost or "another rank ended without a word"
            raise RankLost(peers.lost_by(what)) from error
        raise
    finally:
        peers.close()
        _objects.cache_clear()  # kept to the end of the interpreter, gloo's threads may abort it


def _tell(message: str) -> None:
    print(f"paint: {message}", file=sys.stderr, flush=True)


def _is_of_a_collective(error: BaseException) -> bool:
    """Whether an error is how a library tells that another rank cannot be reached."""
    words = ("gloo", "nccl", "connection closed by peer")
    return isinstance(error, RuntimeError) and any(word in str(error).lower() for word in words)


def _status(error: BaseException) -> int:
    """The exit status that the command line gives for an error."""
    match error:
        case Stopped():
            return 128 + error.signal_number
        case KeyboardInterrupt():
            return 130
        case PaintError():
            return 2
    return 70


def on_first_rank(work: Callable[[], T]) -> T:
    """What the first rank's ``work`` returns, on every rank.

    Raises:
        PaintError: on the first rank, as ``work`` did. EndedElsewhere: on the others, then.
    """
    outcome: list[Any] = [None]
    if PartialState().is_main_process:
        try:
            outcome = [work()]
        except PaintError as error:
            outcome = [error]

    if PartialState().num_processes > 1:
        distributed.broadcast_object_list(outcome, group=_objects())
    if isinstance(outcome[0], PaintError):
        is_first = PartialState().is_main_process
        raise outcome[0] if is_first else EndedElsewhere(_status(outcome[0]))
    result: T = outcome[0]
    return result


def gathered(rows: Sequence[T]) -> list[T]:
    """The rows of all ranks, on every rank, in the order of the ranks."""
    if PartialState().num_processes == 1:
        return list(rows)
    parts: list[Any] = [None] * PartialState().num_processes
    distributed.all_gather_object(parts, list(rows), group=_objects())
    return [row for part in parts for row in part]


def gathered_on_first(rows: Sequence[T]) -> list[T]:
    """The rows of all ranks on the first, in the order of the ranks; on the others their own."""
    if PartialState().num_processes == 1:
        return list(rows)
    is_first = PartialState().is_main_process
    parts: list[Any] | None = [None] * PartialState().num_processes if is_first else None
    distributed.gather_object(list(rows), parts, dst=0, group=_objects())
    return list(rows) if parts is None else [row for part in parts for row in part]


def meet() -> None:
    """Wait for all ranks, however long one works: collectives on the device have a short limit."""
    if PartialState().num_processes > 1:
        distributed.barrier(group=_objects())


def agreed_signal(signals: Sequence[int]) -> int:
    """The signal that any rank got, so that all of them stop after the same step; 0 for none."""
    return max(gathered([max(signals, default=0)]))


def is_same_everywhere(value: object) -> bool:
    """Whether all ranks have the same value."""
    values = gathered([value])
    return all(other == values[0] for other in values)


def sum_gradients(accelerator: Accelerator, parameters: Sequence[torch.nn.Parameter]) -> None:
    """Replace every gradient by its sum over the ranks, many gradients in one message."""
    if accelerator.num_processes == 1:
        return

    for group in _message_groups(parameters):
        grads = [p.grad if p.grad is not None else torch.zeros_like(p) for p in group]
        flat = accelerator.reduce(torch.cat([grad.flatten() for grad in grads]), "sum")
        for parameter, part in zip(group, flat.split([p.numel() for p in group]), strict=True):
            parameter.grad = part.view_as(parameter)


def _message_groups(
    parameters: Sequence[torch.nn.Parameter],
) -> Iterator[list[torch.nn.Parameter]]:
    """Neighbours of MESSAGE_NUMBERS numbers together, or a larger parameter by itself.

    A message is copied twice, which bounds its size.
    """
    group: list[torch.nn.Parameter] = []
    for parameter in parameters:
        if group and sum(p.numel() for p in group) + parameter.numel() > MESSAGE_NUMBERS:
            yield group
            group = []
        group.append(parameter)
    yield group


@cache
def _objects() -> Any:
    """The group in which ranks tell each other objects, and wait: gloo, with a limit of its own.

    The group of the gradients has a short one, since there no rank waits for another's long work.
    """
    return distributed.new_group(backend="gloo", timeout=WAIT)


def _launched(environment: Mapping[str, str] = os.environ) -> tuple[str, int]:
    """How many processes a launcher says that it started, and the variable that says so."""
    for name in _COUNTS:
        if environment.get(name, "").isdigit():
            return name, int(environment[name])
    return "", 1


def _said(variable: str) -> str:
    return os.environ.get(variable, "").lower()


def _launch_line(processes: str, more: str = "") -> str:
    """The command that launches what this process does in several ranks."""
    line = ["python", "-m", "paint.launch", "--nproc-per-node", processes, *more.split()]
    return shlex.join([*line, *sys.argv[1:]])
