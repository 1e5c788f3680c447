"""Launcher of several ranks: `python -m paint.launch --nproc-per-node 8 train RECIPE ...`.

It runs torchrun, with all of its flags. An error is reported once, and after a signal the current
step may finish.
"""

import argparse
import logging
import os
import shlex
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from paint.config.recipe import find_recipe, read_recipe

GPUS = "PAINT_GPUS"
"""The environment variable that tells ranks of --gpus, for their advice."""

SHUTDOWN_SECONDS = 3600
"""Seconds that a step may take to finish after a signal; TORCH_ELASTIC_SHUTDOWN_TIMEOUT wins."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Launch one verb on several ranks.

    The exit status is that of the rank that ended first, or 128 + n where signal n ended the work.
    """
    from torch.distributed import run as torchrun
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

    os.environ.setdefault("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", str(SHUTDOWN_SECONDS))
    # Its warnings are pages of C++ frames, in every rank that loses another one.
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    # A restarted group would read the addresses of the group before from a store that both share.
    os.environ.setdefault("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "1")
    # Ranks run ``python -m``, which would import modules from the working directory first.
    os.environ["PYTHONSAFEPATH"] = "1"
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    options = torchrun.parse_args(arguments)
    line = [options.training_script, *options.training_script_args]
    options.module, options.training_script, options.training_script_args = True, "paint.cli", line
    # torchrun logs each rank's exit; its error is reported once.
    elastic = logging.getLogger("torch.distributed.elastic")
    elastic.propagate = False
    elastic.addHandler(logging.NullHandler())  # without a handler, warnings go to stderr

    try:
        torchrun.run(options)
    except SignalException as stopped:
        return 128 + int(stopped.sigval)
    except ChildFailedError as failed:
        rank, failure = failed.get_first_failure()
        if failure.exitcode < 0:
            name = signal.Signals(-failure.exitcode).name
            print(
                f"paint: rank {rank} was ended by {name}; resume from the last checkpoint with "
                f"`{resume_command(arguments[: -len(line)], line)}`",
                file=sys.stderr,
                flush=True,
            )
        if failure.exitcode > 0:
            return failure.exitcode
        return 128 - failure.exitcode
    return 0


def resume_command(launcher_flags: Sequence[str], line: Sequence[str]) -> str:
    """The command that resumes a run on the same ranks; NAME is a name that was not given."""
    folder, task = "", list(line)
    match line:
        case ["resume", folder, *_]:
            pass
        case ["train", recipe, *settings]:
            log = read_recipe(find_recipe(recipe)).log
            parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
            parser.add_argument("--log.folder", dest="folder", default=log.folder)
            parser.add_argument("--log.name", dest="name", default=log.name or "NAME")
            known, _ = parser.parse_known_args(settings)
            folder = str(Path(known.folder, known.name))
            task = ["resume", folder]
    if folder and GPUS in os.environ:
        return shlex.join(["paint", "resume", folder, "--gpus", os.environ[GPUS]])
    return shlex.join(["python", "-m", "paint.launch", *launcher_flags, *task])


if __name__ == "__main__":
    sys.exit(main())
