"""A process of a command: its exit status, and what still happens at its end."""

import subprocess
import sys

import pytest

PROGRAM = """
import atexit, sys, threading, time
from paint.core.entry_points import run_as_process

def command():
    atexit.register(print, "a handler")
    threading.Thread(target=lambda: (time.sleep(0.2), print("a thread"))).start()
    print("the command")
    {end}

class Kept:
    def __del__(self):
        print("freed")

kept = Kept()
sys.exit(run_as_process(command))
"""
"""Whose objects are freed at its end, if at all."""


@pytest.mark.parametrize(
    ("end", "status", "last"),
    [
        ("return 0", 0, []),
        ("return 130", 130, []),
        ("raise ValueError('unexpected')", 1, ["freed"]),  # ends as Python does
    ],
)
def test_run_as_process_ends_by_status_after_threads_and_handlers(
    end: str, status: int, last: list[str]
) -> None:
    program = PROGRAM.format(end=end)
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert ended.returncode == status
    # Through a pipe, what is printed is buffered to the end.
    assert ended.stdout.split("\n")[:-1] == ["the command", "a thread", "a handler", *last]
    assert ("ValueError: unexpected" in ended.stderr) == bool(last)
