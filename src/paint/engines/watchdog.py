"""Runs a command, and ends it with all its children when whoever started this is gone.

    python -I -S watchdog.py PARENT COMMAND ...

A server that outlives its trainer keeps its GPU's memory, and one whose first process is killed
leaves workers behind. So the command runs in this process's group, and the whole group ends as soon
as the command has ended, the parent has (however it did: SIGKILL cannot be caught), or SIGTERM asks
for it.

Left out on purpose: everything outside the standard library, so that the watchdog starts at once
and imports nothing that a user, an environment variable or a working directory could put in its
way.
"""

import os
import signal
import subprocess
import sys
import time

GRACE_SECONDS = 5.0


def main(parent: int, command: list[str]) -> None:
    """Run the command until it ends or must end; never returns, as it ends its own group."""
    if os.getpgrp() != os.getpid():
        os.setsid()  # the group that is ended below must be this command's alone
    signals: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: signals.append(number))

    try:
        child = subprocess.Popen(command, stdin=subprocess.DEVNULL)
    except OSError as error:
        print(f"{command[0]} cannot be started: {error}", flush=True)
        return
    while child.poll() is None and not signals and os.getppid() == parent:
        time.sleep(0.1)
    if child.returncode is not None:
        print(f"the command ended with status {child.returncode}", flush=True)

    os.killpg(0, signal.SIGTERM)
    deadline = time.monotonic() + GRACE_SECONDS
    while child.poll() is None and time.monotonic() < deadline:
        time.sleep(0.05)
    os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
