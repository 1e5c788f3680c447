"""``paint chat``."""

import signal
import sys
from dataclasses import dataclass
from typing import Annotated

from tyro.conf import Positional, arg

from paint.cli.options import Count, Seed, bounded
from paint.core.errors import ConfigError, wrap_errors


@dataclass(frozen=True)
class Chat:
    """Let the base and the trained model answer your problems side by side.

    Type a problem and press enter; an empty line ends it. Each problem is asked alone, in the
    prompt of training. Where input is not a terminal, every line is a problem.

    Example: paint chat demo --max-new-tokens 40
    """

    target: Annotated[Positional[str], arg(metavar="TARGET")]
    """A run (its last checkpoint), a checkpoint, an adapter folder, or a model."""
    context: bool = False
    """Ask for a reference after each problem, and show what the base says with it, as the
    teacher."""
    mask_ratio: Annotated[float, bounded(float, 0, 0.99)] = 0.0
    """Share of the reference that the teacher does not see, in [0, 0.99]."""
    temperature: Annotated[float, bounded(float, 0, 1000)] = 1.0
    """Sampling temperature, in [0, 1000]; 0 is greedy."""
    top_p: Annotated[float, bounded(float, 0.001, 1)] = 0.95
    """Nucleus sampling: share of probability kept, in [0.001, 1]."""
    max_new_tokens: Count = 1024
    """Longest answer, in tokens."""
    seed: Seed = 0
    """Seed of sampling; everybody has the same."""

    def run(self) -> int:
        from rich.live import Live
        from rich.table import Table

        from paint.core.display import Terminal
        from paint.evaluation.chat import open_chat
        from paint.inference.engine import Sampling

        chat, console = open_chat(self.target), Terminal()
        sampling = Sampling(self.temperature, self.top_p, -1, self.max_new_tokens)
        while problem := _ask("problem"):
            solution = (_ask("reference") or None) if self.context else None
            with Live(console=console, vertical_overflow="visible") as live:
                for answers in chat.answers(
                    problem, sampling, self.seed, solution=solution, mask_ratio=self.mask_ratio
                ):
                    table = Table(*answers, expand=True)
                    table.add_row(*answers.values())
                    live.update(table)
            if not console.is_terminal:
                console.print()  # which Live leaves out
            if console.is_unread:  # as in `paint chat ... | head`
                return 128 + signal.SIGPIPE
        return 0


def _ask(what: str) -> str:
    """A line of the input; "" at its end."""
    if sys.stdin is None:  # closed before the command began
        return ""
    if sys.stdin.isatty():
        print(f"{what}> ", end="", flush=True)
    with wrap_errors("the input", ConfigError, "write it in UTF-8"):
        return sys.stdin.readline().strip()
