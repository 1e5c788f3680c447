"""A grader of code: the share of a row's unit tests that the completion's last code block passes.

    paint train RECIPE --data.path code.jsonl --data.answer-field tests \
        --grading.grader examples.grade_code:grade

A row's `tests` are assertions, one a line. Each runs in a process of its own with limits of time,
memory and written bytes, and without environment variables. That is no sandbox: the code can read
files and use the network, so train in a container without secrets.
"""

import contextlib
import os
import re
import resource
import secrets
import signal
import subprocess
import sys
from collections.abc import Mapping
from tempfile import TemporaryDirectory, TemporaryFile
from typing import Any

from paint.grading.contract import Grade
from paint.grading.thoughts import split_thought

CPU_SECONDS, WALL_SECONDS, MEMORY_BYTES, FILE_BYTES = 2, 4, 1 << 30, 1 << 20
BLOCK = re.compile(r"^```(?:python|py)?[ ]*\n(.*?)^```", re.MULTILINE | re.DOTALL)


def grade(completion: str, row: Mapping[str, Any]) -> Grade:
    blocks = BLOCK.findall(split_thought(completion).answer or "")
    if not blocks:
        return Grade(0.0, "no code block")
    tests = [line for line in row["answer"].splitlines() if line.strip()]
    passed = sum(run_test(blocks[-1], test)[0] for test in tests)
    return Grade(passed / len(tests), f"{passed} of {len(tests)} tests passed")


def run_test(code: str, test: str) -> tuple[bool, str]:
    # Whether it passes, and stderr. Code that ends the process before does not print the token.
    token = secrets.token_hex(8)
    command = [sys.executable, "-I", "-c", f"{code}\n{test}\nprint('\\n' + {token!r})"]
    with TemporaryDirectory() as folder, TemporaryFile() as out, TemporaryFile() as errors:
        process = subprocess.Popen(
            command, cwd=folder, env={}, stdin=subprocess.DEVNULL, stdout=out,
            stderr=errors, start_new_session=True, preexec_fn=set_limits,
        )  # fmt: skip
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(WALL_SECONDS)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # and what it started
        process.wait()
        out.seek(0)
        errors.seek(0)
        passed = out.read().endswith(f"\n{token}\n".encode())
        return passed, errors.read().decode(errors="replace")


def set_limits() -> None:
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_SECONDS, CPU_SECONDS))
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_FSIZE, (FILE_BYTES, FILE_BYTES))
