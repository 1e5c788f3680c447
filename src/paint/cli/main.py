"""Entry point of ``paint``: parses a command, runs it, and reports errors.

tyro makes the parser of each verb from its dataclass. Modules that import torch, which takes
seconds, are imported in ``run``, so that --help and errors in flags are fast.
"""

import errno
import inspect
import io
import logging
import os
import signal
import sys
from collections.abc import Sequence
from contextlib import nullcontext, redirect_stderr, suppress
from dataclasses import fields
from itertools import takewhile
from typing import Annotated, Any, Union, get_args

import tyro
from tyro.conf import subcommand

from paint import __version__
from paint.cli.ablate import Ablate, Table
from paint.cli.advise import Advise
from paint.cli.bake import Bake
from paint.cli.chat import Chat
from paint.cli.compare import Compare
from paint.cli.data import OpenThoughts, Validate
from paint.cli.demo import Demo
from paint.cli.doctor import Doctor
from paint.cli.evaluate import Evaluate
from paint.cli.export import Export
from paint.cli.grade import Grade
from paint.cli.plan import Plan
from paint.cli.resume import Resume
from paint.cli.runs import Runs
from paint.cli.serve import Serve
from paint.cli.show import Show
from paint.cli.train import Train
from paint.config.recipe import find_recipe, read_recipe, shipped_recipes
from paint.core.errors import (
    ConfigError,
    Interrupted,
    PaintError,
    PeerExit,
    crash_report,
    format_value,
    has_control_characters,
    is_output_unread,
    reason,
    sanitize_for_terminal,
)
from paint.training.launcher import with_gpus

VERBS: dict[str, Any] = {
    "train": Train,
    "plan": Plan,
    "resume": Resume,
    "serve": Serve,
    "eval": Evaluate,
    "grade": Grade,
    "show": Show,
    "export": Export,
    "chat": Chat,
    "data": {"openthoughts": OpenThoughts, "validate": Validate},
    "advise": Advise,
    "bake": Bake,
    "demo": Demo,
    "compare": Compare,
    "ablate": Ablate,
    "runs": Runs,
    "doctor": Doctor,
}

DATA = "Make or validate training data (docs/how-to/own-data.md)."

ABOUT = f"""On-policy self-distillation with a partly masked solution.

`paint VERB --help` explains a verb. Recipes that come with paint: {", ".join(shipped_recipes())}.

`paint --tyro-write-completion bash FILE` writes completion for bash (zsh, fish and tcsh, too)."""

RESUMABLE = ("eval", "data", "advise", "bake", "demo", "compare", "ablate")
"""Verbs that continue after an interruption when given the same command."""


RECIPES: dict[Any, tuple[str, int]] = {Validate: ("paint", 1), Bake: ("bake", 2)}
"""Default recipes, each with the number of arguments before it."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; errors are one message on stderr.

    Returns:
        0; 1 from `paint data validate` and `paint doctor`; 2 for what the user can fix; 70 for an
        unexpected error, whose traceback is kept in a file; 128 + n where signal n ended the work.
    """
    sys.stdout = sys.stdout or io.StringIO()  # None where the shell closed it
    sys.stderr = sys.stderr or io.StringIO()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # for locales without Unicode

    _spin_briefly()
    # Where it is installed, peft imports it, and it warns of a missing kernel for CPUs.
    logging.getLogger("bitsandbytes").setLevel(logging.ERROR)
    line = list(sys.argv[1:] if arguments is None else arguments)
    name = f"paint {line[0]}" if line and line[0] in VERBS else "paint"
    try:
        status = _run(line)
        sys.stdout.flush()  # so that a closed stdout raises inside main()
        return status
    except PaintError as error:
        return _end(f"{name}: {error}", 2)
    except Interrupted as stopped:
        return _end(str(stopped), 128 + stopped.signal_number)
    except PeerExit as ended:  # another rank reports the reason
        return ended.status
    except KeyboardInterrupt:
        is_resumable = bool(line) and line[0] in RESUMABLE
        hint = "; the same command continues where it stopped" if is_resumable else ""
        return _end(f"{name}: interrupted{hint}", 130)
    except Exception as error:
        if isinstance(error, BrokenPipeError) and is_output_unread():
            return 128 + signal.SIGPIPE
        if isinstance(error, OSError) and error.filename is not None:
            hint = "check its name, its permissions and the free space"
            return _end(f"{name}: {error.filename}: {reason(error)}; {hint}", 2)
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            return _end(f"{name}: {reason(error)}, writing the output or its files", 2)
        return _end(f"{name}: {crash_report(error, line)}", 70)


def _run(line: Sequence[str]) -> int:
    if line in (["-V"], ["--version"]):
        print(f"paint {__version__}")
        return 0
    try:
        command = parse(line)
    except SystemExit as ended:  # of tyro, after help or its own message
        return ended.code if isinstance(ended.code, int) else 0
    status: int = command.run()
    return status


def parse(line: Sequence[str]) -> Any:
    """Parse a command line; a recipe's values are the defaults of its settings.

    Raises:
        SystemExit: after help or completion with 0, after an error, which is printed, with 2.
        ConfigError: a control character, the argument --, or a recipe that cannot be read or stands
            after the flags.
    """
    for argument in line:
        if has_control_characters(argument):
            raise ConfigError(f"the argument {format_value(argument)} holds control characters")

    # Parse with the named verb only, so that tyro's messages do not list the other verbs.
    depth, verbs = 0, VERBS
    while depth < len(line) and isinstance(verbs, dict) and line[depth] in verbs:
        verbs, depth = verbs[line[depth]], depth + 1
    kind = _union(verbs) if isinstance(verbs, dict) else verbs
    words = list(line[depth:])
    if kind in RECIPES:  # where the recipe is left out
        name, before = RECIPES[kind]
        given = list(takewhile(lambda word: not word.startswith("-"), words))
        if len(given) == before:
            words.insert(before, name)
    default = None if isinstance(verbs, dict) else _default(verbs, words)
    if {"-h", "--help"} & set(words) or not line:
        words = ["--help"]  # tyro's help lacks the positional arguments that were given

    if depth and "--" in words:
        raise ConfigError("the argument -- would hide the settings after it; leave it out")

    said = io.StringIO()
    try:
        # tyro's messages repeat arguments as they are, marks that change the direction included.
        is_plain = words == list(map(sanitize_for_terminal, words))
        with nullcontext() if is_plain else redirect_stderr(said):
            command = tyro.cli(
                kind,
                prog=" ".join(["paint", *line[:depth]]),
                description=(DATA if depth else ABOUT) if verbs is not kind else _description(kind),
                args=words,
                default=tyro.MISSING_NONPROP if default is None else default,
            )
    finally:
        sys.stderr.write(sanitize_for_terminal(said.getvalue()))
    if hasattr(command, "recipe") and default is None:
        raise ConfigError(
            f"the recipe {command.recipe} stands after the flags, whose defaults it sets; write "
            f"`paint {line[0]} {command.recipe}` first"
        )
    return command


def _default(verb: type[Any], words: Sequence[str]) -> Any:
    """Return the verb with the values of the recipe or run before its flags, or None without."""
    if verb is Evaluate:
        return Evaluate.defaults(words)
    names = [field.name for field in fields(verb)]
    if "recipe" not in names:
        return None
    count = names.index("recipe") + 1
    first = words[:count]
    if len(first) < count or any(word.startswith("-") for word in first):
        return None
    if verb is Ablate and first[0] not in get_args(Table):
        return None
    return verb(*first, read_recipe(find_recipe(first[-1])))


def _union(verbs: dict[str, Any]) -> Any:
    """Build tyro's union of subcommands, each with the first line of its help."""
    options = []
    for name, verb in verbs.items():
        kind = _union(verb) if isinstance(verb, dict) else verb
        summary = DATA if isinstance(verb, dict) else _description(verb).partition("\n")[0]
        options.append(Annotated[kind, subcommand(name, description=summary)])
    return Union[tuple(options)]  # noqa: UP007


def _description(verb: Any) -> str:
    """Return a verb's docstring with one line per paragraph; tyro wraps the lines."""
    paragraphs = (inspect.getdoc(verb) or "").split("\n\n")
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)


def _end(message: str, status: int) -> int:
    """Print the final message on stderr and return the status."""
    with suppress(OSError):
        print(sanitize_for_terminal(with_gpus(message)), file=sys.stderr, flush=True)
    return status


def _spin_briefly() -> None:
    """Let OpenMP's waiting threads spin briefly and then sleep, unless the user configures it."""
    # By default they spin for long, and where a core is shared, for a thread that cannot run
    # meanwhile. If they slept at once, a step of the demo would take twice as long on idle cores
    # (docs/dev/log.md). OpenMP reads this when torch is imported, and never again.
    if not os.environ.keys() & {"OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME"}:
        os.environ["GOMP_SPINCOUNT"] = "10000"
