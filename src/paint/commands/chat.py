"""``paint chat``."""

import signal
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

from paint.commands.api import arguments
from paint.commands.api.configure import with_sections
from paint.commands.api.results import path_of
from paint.config.recipe import executables_of, to_table
from paint.config.run_folder import read_run, run_of
from paint.config.schema import Config, ConversationConfig
from paint.core.errors import ConfigError, wrap_errors
from paint.core.settings import within
from paint.core.trust import require_trusted, trust_records


def chat(
    target: arguments.RunPath,
    *,
    context: bool = False,
    mask_ratio: Annotated[float, *within("[0, 0.99]")] = 0.0,
    temperature: Annotated[float, *within("[0, 1000]")] = 1.0,
    top_p: Annotated[float, *within("[0.001, 1]")] = 0.95,
    max_new_tokens: arguments.Count = 1024,
    seed: arguments.Seed = 0,
    tools: Sequence[Any] | None = None,
    environment: str | type | None = None,
    trust: arguments.Trust = False,
) -> bool:
    """Let the base and the trained model answer your problems side by side.

    Type a problem and press enter; an empty line ends it. Each problem is sent alone, in the
    prompt of training. Where input is not a terminal, every line is a problem. Tools and
    environment of a run's `conversation` answer the turns, as in training, and what they say is
    shown.

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
        tools: Functions that the models may call, each as module:function; in Python also
            functions. Default: those of the run.
        environment: Class that answers turns without calls, as module:Class; in Python also a
            class. Default: that of the run.

    Returns:
        True after the last problem; false if nobody reads the answers, as in ``... | head``.
    """
    from rich.live import Live
    from rich.table import Table

    from paint.core.display import Terminal
    from paint.evaluation.chat import open_chat
    from paint.inference.engine import Sampling

    if trust:
        trust_records()
    path = path_of(target)
    opened, console = open_chat(str(path), _conversation(path, tools, environment)), Terminal()
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


def _conversation(
    target: Path, tools: Sequence[Any] | None, environment: str | type | None
) -> ConversationConfig:
    """What answers the turns: that of the target's run, with what is named in its place."""
    run = run_of(target)
    own = read_run(run).conversation if run else ConversationConfig()
    given: dict[str, Any] = {}
    if tools is not None:
        given["tools"] = list(tools)
    if environment is not None:
        own = replace(own, options=ConversationConfig().options)
        given["environment"] = environment
    config = with_sections(Config(conversation=own), {"conversation": given})
    code = executables_of({"conversation": to_table(config)["conversation"]})
    require_trusted(code, "name tools and environment with --tools and --environment")
    return config.conversation


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
