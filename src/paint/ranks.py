"""What concerns several ranks: who works for all, what all agree on, how gradients add up.

Left out on purpose: gradient hooks and wrappers for data parallelism. Every rank holds the whole
model, and gradients are summed over the ranks once a step.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import torch
from accelerate import Accelerator, PartialState
from accelerate.utils import broadcast_object_list

from paint.config import ConfigError
from paint.errors import PaintError

T = TypeVar("T")

MESSAGE_NUMBERS = 2**26
"""Numbers that one message between ranks holds, at most."""


def require_all_ranks(accelerator: Accelerator) -> None:
    """Refuse launched processes that do not know of each other.

    Each would train alone, and all in one folder.

    Raises:
        ConfigError: with the commands that launch them together.
    """
    launched = int(os.environ.get("WORLD_SIZE", "1"))
    if launched != accelerator.num_processes:
        raise ConfigError(
            f"{launched} processes were launched, and accelerate sees {accelerator.num_processes}; "
            f"launch with `accelerate launch`, or without a GPU with torchrun and "
            f"ACCELERATE_USE_CPU=true"
        )


def require_one_process(verb: str) -> None:
    """Refuse several ranks for what one process does.

    Raises:
        ConfigError: with the way to use many GPUs all the same.
    """
    if max(PartialState().num_processes, int(os.environ.get("WORLD_SIZE", "1"))) > 1:
        raise ConfigError(
            f"{verb} is one process; for many GPUs, start vLLM servers and name them: "
            f"--rollout.urls"
        )


def on_first_rank(work: Callable[[], T]) -> T:
    """What the first rank's ``work`` returns, or the PaintError that it raises, on every rank."""
    outcome: list[Any] = [None]
    if PartialState().is_main_process:
        try:
            outcome = [work()]
        except PaintError as error:
            outcome = [error]

    broadcast_object_list(outcome)
    if isinstance(outcome[0], PaintError):
        raise outcome[0]
    result: T = outcome[0]
    return result


def agreed_signal(accelerator: Accelerator, signals: Sequence[int]) -> int:
    """The signal that any rank got, so that all of them stop after the same step; 0 for none."""
    mine = torch.tensor([max(signals, default=0)], device=accelerator.device)
    return int(accelerator.gather(mine).max().item())


def is_same_everywhere(accelerator: Accelerator, number: int) -> bool:
    """Whether all ranks have the same number."""
    numbers = accelerator.gather(torch.tensor([number], device=accelerator.device))
    return bool(numbers.min() == numbers.max())


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
