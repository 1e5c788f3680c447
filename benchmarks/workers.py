"""Worker processes of a benchmark, one per implementation, so that none warms another's memory.

    first = {"peak_bytes": ...} or {"error": ...}; then one figure for each question

What a contender prints besides goes to stderr: its answers are the only lines of its stdout.
"""

import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import cached_property, partial
from pathlib import Path
from typing import Any, TextIO

import torch


class Worker:
    """One contender, as the benchmark sees it."""

    def __init__(self, script: str, order: Any) -> None:
        self.process = subprocess.Popen(
            [sys.executable, script, "worker", json.dumps(order)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    @cached_property
    def first(self) -> dict[str, Any]:
        """Of a first run: {"peak_bytes"} or {"error"}; waits for it."""
        answer: dict[str, Any] = self.answer()
        return answer

    def __call__(self, question: str) -> Any:
        """What one more run takes; {"error"} if it failed or died."""
        assert self.process.stdin is not None
        with suppress(BrokenPipeError):  # it has died: the answer says so
            print(question, file=self.process.stdin, flush=True)
        return self.answer()

    def answer(self) -> Any:
        """The worker's next line."""
        assert self.process.stdout is not None
        return json.loads(self.process.stdout.readline() or '{"error": "ended without a word"}')

    def close(self) -> None:
        """End the worker."""
        self.process.communicate()


def chosen(names: Iterable[str], only: Sequence[str]) -> list[str]:
    """The names, or of these the ones of --only, in their own order.

    Raises:
        SystemExit: --only names one that is not among them.
    """
    names = list(names)
    if unknown := [name for name in only if name not in names]:
        sys.exit(
            f"--only {', '.join(map(repr, unknown))}: there is none of that name here; choose from "
            f"{', '.join(map(repr, names))}"
        )
    return [name for name in names if not only or name in only]


def answers_alone() -> TextIO:
    """Stdout for the answers alone; what libraries print goes to stderr from here on."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    return answers


def serve(
    answers: TextIO,
    build: Callable[[], Callable[[], Any]],
    **questions: Callable[[Callable[[], Any]], Any],
) -> None:
    """The worker's part: the peak of a first run, then an answer for each line that it reads.

    Args:
        build: makes what is run; what it leaves in memory is not the run's.
        questions: what is done with it for a line of that name; a run that fails is an {"error"}.
    """

    def answer(ask: Callable[[], Any]) -> Any:
        try:
            found = ask()
        except (RuntimeError, MemoryError, ImportError) as error:
            found = {"error": (str(error).splitlines() or [type(error).__name__])[0]}
        print(json.dumps(found), file=answers, flush=True)
        return found

    made: list[Callable[[], Any]] = []

    def first() -> dict[str, Any]:
        made.append(build())
        return {"peak_bytes": peak_of(made[0])}

    if "error" not in answer(first):
        for question in sys.stdin:
            answer(partial(questions[question.strip()], made[0]))


def seconds_of(run: Callable[[], Any]) -> float:
    """What a run takes, the device's work included."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    start = time.perf_counter()
    run()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter() - start


def cpu_seconds_of(run: Callable[[], Any]) -> float:
    """What a run takes of the processors, whatever else the machine does meanwhile."""
    start = time.process_time()
    run()
    return time.process_time() - start


def peak_of(run: Callable[[], Any]) -> int:
    """Most bytes beside what is there already at any time of a run; on a CPU, of resident memory.

    On a GPU of a second run: the first one compiles, which takes memory of its own.
    """
    if torch.cuda.is_available():
        run()
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        run()
        return torch.cuda.max_memory_allocated() - before

    # Fail where memory does not suffice, rather than let the system end whom it likes.
    most = int(0.8 * memory("MemTotal", "/proc/meminfo"))
    resource.setrlimit(resource.RLIMIT_DATA, (most, most))
    with suppress(OSError):  # a peak from before must not hide this one
        Path("/proc/self/clear_refs").write_text("5")
    before = memory("VmRSS")
    run()
    return memory("VmHWM") - before


def memory(name: str, source: str = "/proc/self/status") -> int:
    """One of Linux's figures, in bytes."""
    line = next(
        line for line in Path(source).read_text().splitlines() if line.startswith(f"{name}:")
    )
    return int(line.split()[1]) * 1024
