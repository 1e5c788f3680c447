"""Several ranks: `python -m paint.training.torchrun --nproc-per-node 8 train RECIPE ...`.

It runs torchrun, with all of its flags. An error is reported once, and after a signal the current
step may finish.
"""

import logging
import os
import signal
import sys
from collections.abc import Sequence

from paint.core.entry_points import run_as_process

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
                f"paint: rank {rank} was ended by {name}; `paint resume RUN` goes on from the last "
                f"checkpoint",
                file=sys.stderr,
                flush=True,
            )
        return failure.exitcode if failure.exitcode > 0 else 128 - failure.exitcode
    return 0


if __name__ == "__main__":
    sys.exit(run_as_process(main))
