"""Runs a command, and ends it with all its descendants when the parent process is gone.

    python -I watchdog.py PARENT GRACE COMMAND ...

This process adopts what the command's processes leave behind (a server's workers keep its GPU's
memory), and ends all of them as soon as the command has ended, the parent has, or a signal asks
for it. SIGTERM and SIGINT are passed on, and the command has GRACE seconds to end by itself; a
second signal ends it at once. The exit status is the command's.
"""

import ctypes
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress

import psutil

ORPHAN_GRACE = 5.0  # seconds that the command has when the parent is gone
KILL_SECONDS = 15.0  # for what was killed to end: a process stays until its memory is freed
SET_CHILD_SUBREAPER = 36  # Linux's prctl: orphans among our descendants become our children
NOT_STARTED = 127


def main(parent: int, grace: float, command: list[str]) -> int:
    """Run the command until it ends or must end; its exit status."""
    signals: list[int] = []
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, _: signals.append(number))
    with suppress(OSError, AttributeError):  # no such call: its group is ended all the same
        ctypes.CDLL(None).prctl(SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    try:
        child = subprocess.Popen(command)
    except OSError as error:
        print(f"{command[0]} cannot be started: {error}", file=sys.stderr)
        return NOT_STARTED

    # When the parent ends, the kernel gives this process another one.
    while child.poll() is None and not signals and os.getppid() == parent:
        time.sleep(0.1)
    if child.returncode is None:
        _signal_group(signals.pop(0) if signals else signal.SIGTERM)
        signalled = time.monotonic()
        while child.poll() is None and not signals:
            allowed = grace if os.getppid() == parent else min(grace, ORPHAN_GRACE)
            if time.monotonic() - signalled > allowed:
                break
            time.sleep(0.05)

    _kill_descendants()
    status = int(child.wait())
    return status if status >= 0 else 128 - status  # as shells report an end by a signal


def _signal_group(number: int) -> None:
    # The group includes this process.
    handler = signal.signal(number, signal.SIG_IGN)
    os.killpg(0, number)
    signal.signal(number, handler)


def _kill_descendants() -> None:
    deadline = time.monotonic() + KILL_SECONDS
    while time.monotonic() < deadline:
        alive = []
        for process in psutil.Process().children(recursive=True):
            with suppress(psutil.Error):  # it has ended meanwhile
                if process.status() != psutil.STATUS_ZOMBIE:
                    alive.append(process)
                    process.kill()
        if not alive:
            return
        time.sleep(0.02)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), float(sys.argv[2]), sys.argv[3:]))
