"""``paint chat``."""

import signal
import sys
from typing import Annotated

from paint.api import arguments
from paint.api.results import path_of
from paint.core.errors import ConfigError, wrap_errors
from paint.core.settings import within


def chat(
    target: arguments.RunPath,
    *,
    context: bool = False,
    mask_ratio: Annotated[float, *within("[0, 0.99]")] = 0.0,
    temperature: Annotated[float, *within("[0, 1000]")] = 1.0,
    top_p: Annotated[float, *within("[0.001, 1]")] = 0.95,
    max_new_tokens: arguments.Count = 1024,
    seed: arguments.Seed = 0,
) -> bool:
    """Let the base and the trained model answer your problems side by side.

    Type a problem and press enter; an empty line ends it. Each problem is sent alone, in the
    prompt of training. Where input is not a terminal, every line is a problem.

    Example: paint chat demo --max-new-tokens 40

    Args:
        target: A run (its last checkpoint), a checkpoint, an adapter folder, or a model.
        context: Ask for a reference after each problem, and show the base's answer with it, as the
            teacher.
        mask_ratio: Share of the reference that the teacher does not see, in [0, 0.99].
        temperature: Sampling temperature, in [0, 1000]; 0 is greedy.
        top_p: Nucleus sampling: share of probability kept, in [0.001, 1].
        max_new_tokens: Longest answer, in tokens.
        seed: Seed of sampling; every model has the same.

    Returns:
        True after the last problem; false if nobody reads the answers, as in ``... | head``.
    """
    from rich.live import Live
    from rich.table import Table

    from paint.core.display import Terminal
    from paint.evaluation.chat import open_chat
    from paint.inference.engine import Sampling

    opened, console = open_chat(str(path_of(target))), Terminal()
    sampling = Sampling(temperature, top_p, -1, max_new_tokens)
    while problem := _ask("problem"):
        solution = (_ask("reference") or None) if context else None
        with Live(console=console, vertical_overflow="visible") as live:
            for answers in opened.answers(
                problem, sampling, seed, solution=solution, mask_ratio=mask_ratio
            ):
                table = Table(*answers, expand=True)
                table.add_row(*answers.values())
                live.update(table)
        if not console.is_terminal:
            console.print()  # which Live leaves out
        if console.quiet:
            return False
    return True


def status(is_read: bool) -> int:
    """That of a program which a closed pipe has ended, if nobody reads the answers."""
    if is_read:
        return 0
    return 128 + signal.SIGPIPE


def _ask(what: str) -> str:
    """A line of the input; "" at its end."""
    if sys.stdin is None:  # closed before the command began
        return ""
    if sys.stdin.isatty():
        print(f"{what}> ", end="", flush=True)
    with wrap_errors("the input", ConfigError, "write it in UTF-8"):
        return sys.stdin.readline().strip()
