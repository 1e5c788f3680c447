"""Entry point of ``paint``: parses a command, calls its function, and reports errors.

Modules that import torch, which takes seconds, are imported where a function needs them, so that
--help and errors in flags are fast.
"""

import errno
import io
import json
import logging
import os
import signal
import sys
import traceback
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from paint.cli import parser
from paint.cli.help import print_commands
from paint.commands import load_commands
from paint.config.recipe import shipped_recipes
from paint.core.credentials import redact
from paint.core.display import LOGGER, shown_on_terminal
from paint.core.entry_points import run_as_process
from paint.core.errors import (
    ConfigError,
    Interrupted,
    PaintError,
    PeerExit,
    did_you_mean,
    format_short,
    is_out_of_memory,
    is_output_unread,
    reason,
    sanitize_for_terminal,
)
from paint.core.trust import begin_call
from paint.core.versions import __version__
from paint.training.launcher import RanksEnded

COMMANDS = load_commands()

LESS_MEMORY = (
    "lower train.micro_batch_tokens, rollout.batch_size or rollout.max_new_tokens (`paint plan` "
    "estimates), or raise the limit (ulimit -v); `paint resume` goes on from what is saved"
)


ABOUT = f"""On-policy self-distillation with a partly masked solution.

`paint COMMAND --help` explains a command; `paint config RECIPE` shows the settings of a recipe.

Recipes: take demo-paint first; on a GPU paint-qwen3-1.7b; for another model paint. All of them:
{", ".join(shipped_recipes())}"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command, by default the process's; errors are one message on stderr.

    Returns:
        0; 1 from `paint data validate` and `paint doctor`; 2 for what the user can fix; 70 for an
        unexpected error, whose traceback is printed; 128 + n where signal n ended the work.
    """
    if arguments is None:
        return run_as_process(lambda: main(sys.argv[1:]))
    sys.stdout = sys.stdout or io.StringIO()  # None where the shell closed it
    sys.stderr = sys.stderr or io.StringIO()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # for locales without Unicode

    _spin_briefly()
    # Where it is installed, peft imports it, and it warns of a missing kernel for CPUs.
    logging.getLogger("bitsandbytes").setLevel(logging.ERROR)
    line = list(arguments)
    first_words = {name.partition(" ")[0] for name in COMMANDS}
    name = f"paint {line[0]}" if line and line[0] in first_words else "paint"
    try:
        with shown_on_terminal(), begin_call():
            status = _run(line)
        sys.stdout.flush()  # so that a closed stdout raises inside main()
        return status
    except (RanksEnded, PeerExit) as ended:  # other ranks have printed the reason
        return ended.status
    except PaintError as error:
        return _end(f"{name}: {error}", 2)
    except Interrupted as stopped:
        return _end(str(stopped), 128 + stopped.signal_number)
    except KeyboardInterrupt:
        command = parser.find_command(line, COMMANDS)
        hint = "; the same command continues" if command and command.continues else ""
        return _end(f"{name}: interrupted{hint}", 130)
    except Exception as error:
        if isinstance(error, BrokenPipeError) and is_output_unread():
            return 128 + signal.SIGPIPE
        if is_out_of_memory(error):
            return _end(f"{name}: {reason(error)}; {LESS_MEMORY}", 2)
        is_full = isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)
        if isinstance(error, OSError) and (error.filename or is_full):
            place = error.filename or "the output"
            hint = "check its name, its permissions and the free space"
            return _end(f"{name}: {place}: {reason(error)}; {hint}", 2)
        print(redact("".join(traceback.format_exception(error))), end="", file=sys.stderr)
        message = f"{reason(error)} ({type(error).__name__}, which paint did not expect)"
        return _end(f"{name}: {message}; please report it with the lines above", 70)


def _run(line: Sequence[str]) -> int:
    if line in (["-V"], ["--version"]):
        print(f"paint {__version__}")
        return 0
    command = parser.find_command(line, COMMANDS)
    if command is None:
        if line and not parser.HELP & set(line):
            hint = did_you_mean(line[0], COMMANDS) or did_you_mean(" ".join(line[:2]), COMMANDS)
            hint = hint or f"; there are {', '.join(COMMANDS)}"
            raise ConfigError(f"{format_short(line[0])} is no command{hint}")
        print_commands(COMMANDS, ABOUT)
        return 0
    if parser.HELP & set(line):
        parser.explain(command, line)
        return 0
    parsed = parser.read_line(command, line)
    if parsed.parameters.get(parser.VERBOSE):
        LOGGER.setLevel(logging.DEBUG)  # shown_on_terminal sets it back
    result = _call(parsed)
    if command.report is not None:
        from paint.core.display import Terminal

        if parsed.parameters.get(parser.JSON):
            Terminal().print(_json(result))
        else:
            Terminal().print(command.report(result))
    return 0 if command.status is None else command.status(result)


def _call(parsed: parser.Line) -> Any:
    """Call the command; raise PaintError where code from outside of paint called sys.exit."""
    try:
        return parsed.call()
    except SystemExit as ended:
        # No command does. The status, often 0, would pass for that of a command that has ended.
        last = traceback.extract_tb(ended.__traceback__)[-1]
        raise PaintError(
            f"{last.filename} line {last.lineno} called sys.exit({ended}); let it raise an error "
            f"that says what is wrong"
        ) from ended


def _json(result: Any) -> str:
    if hasattr(result, "to_dict"):
        rows = result.to_dict("records")
        # Missing values are NaN, which is not equal to itself.
        result = [{key: value for key, value in row.items() if value == value} for row in rows]
    # Times of a DataFrame.
    return json.dumps(result, indent=2, default=lambda value: value.isoformat())


def _end(message: str, status: int) -> int:
    with suppress(OSError):
        print(sanitize_for_terminal(redact(message)), file=sys.stderr, flush=True)
    return status


def _spin_briefly() -> None:
    """Let OpenMP's waiting threads spin briefly and then sleep, unless the user configures it."""
    # By default they spin for long, and where a core is shared, for a thread that cannot run
    # meanwhile. If they slept at once, a step of the demo would take twice as long on idle cores
    # (docs/dev/log.md). OpenMP reads this when torch is imported, and never again.
    if not os.environ.keys() & {"OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME"}:
        os.environ["GOMP_SPINCOUNT"] = "10000"
