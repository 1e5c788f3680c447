"""A process of the sandbox that forks one process for each job: tested code, or tests.

It has imported what most code imports, so that a job starts within milliseconds. It reads nothing
of a job: only its child does. ``codetrial.sandbox`` starts it, hands it the descriptors of
a job, and tells it to end the job.
"""

import contextlib
import gc
import importlib
import json
import os
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from codetrial import candidate, confine, driver

START, END = b"s", b"e"  # a job: with its descriptors; all that it started
ROLES: dict[str, Callable[..., None]] = {"code": candidate.answer_requests, "tests": driver.main}
IMPORTED = (
    *("abc", "array", "bisect", "calendar", "cmath", "collections", "collections.abc", "copy"),
    *("dataclasses", "datetime", "decimal", "enum", "fractions", "functools", "hashlib", "heapq"),
    *("inspect", "itertools", "json", "math", "numbers", "operator", "queue", "random", "re"),
    *("statistics", "string", "sys", "textwrap", "time", "typing", "unicodedata"),
)


def main() -> None:
    """Serve jobs until the other end of the socket, which is file 0, is closed."""
    settings = json.loads(sys.argv[2])
    sys.path.remove(sys.argv[1])  # where this package is, which is imported now
    control = socket.socket(fileno=os.dup(0))
    null = os.open(os.devnull, os.O_RDWR)
    for file in (0, 1, 2):
        os.dup2(null, file)
    os.close(null)
    if settings["way"] == "namespaces":
        confine.enter_namespaces(settings["readable"], settings["limits"]["file_bytes"])
    confine.adopt_orphans()
    confine.hide_memory()
    os.chdir(settings["scratch"])
    for module in IMPORTED:
        importlib.import_module(module)
    gc.collect()
    gc.freeze()  # children share these objects' memory
    control.sendall(b"ready\n")
    _serve(control, settings)


def _serve(control: socket.socket, settings: dict[str, Any]) -> None:
    files_before = set(Path().iterdir())
    child = 0
    while True:
        message, files, _, _ = socket.recv_fds(control, 1, 8)
        if not message:
            break
        if message == START:
            child = _fork(settings, files)
            for file in files:
                os.close(file)
        elif message == END:
            status = confine.end_children(child)
            is_clean = set(Path().iterdir()) == files_before
            control.sendall(json.dumps([status, is_clean]).encode() + b"\n")
            child = 0
    if child:
        confine.end_children(child)


def _fork(settings: dict[str, Any], files: list[int]) -> int:
    """Start a job in a child, and return the child's number."""
    child = os.fork()
    if child:
        return child
    try:
        os.setsid()
        kept = sorted(files)
        for low, high in zip([2, *kept], [*kept, 1 << 16], strict=True):
            os.closerange(low + 1, high)
        _confine(settings)
        ROLES[settings["role"]](*files)
        os._exit(0)
    finally:
        # Not sys.exit: nothing of the zygote is to be cleaned up here.
        os._exit(1)


def _confine(settings: dict[str, Any]) -> None:
    confine.drop_privileges()
    confine.set_limits(**settings["limits"])
    if settings["way"] == "none":
        confine.leave_only(settings["readable"], settings["scratch"])
    confine.refuse_calls(may_fork=settings["limits"]["processes"] > 1)
    with contextlib.suppress(KeyError):
        del os.environ["LD_LIBRARY_PATH"]
