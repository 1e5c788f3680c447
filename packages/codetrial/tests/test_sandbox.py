"""The library by itself: a job, its events, and what is said where no process can be started."""

import contextlib
import subprocess
import sys
from typing import Any

import pytest

from codetrial import sandbox
from codetrial.sandbox import Limits, SandboxError, Sandboxes, find_way

ADD = "```python\ndef add(a, b):\n    return a + b if a < 5 else 0\n```"
JOB = {"answer": ADD, "problem": "", "entry_point": ""}


def test_job_reports_each_assertion() -> None:
    tests = "assert add(1, 2) == 3\nassert add(7, 2) == 9"
    with contextlib.closing(Sandboxes(Limits(seconds=1), count=1)) as sandboxes:
        passing, failing = sandboxes.run(
            [JOB | {"tests": tests.partition("\n")[0]}, JOB | {"tests": tests}]
        )
    assert [event[0] for event in passing.events] == ["tests", "reached", "passed", "end"]
    failed = [event for event in failing.events if event[0] == "failed"]
    assert failed == [["failed", 1, "wrong value", "The code gave 0."]]
    assert failing.events[-1] == ["end", 1]


def test_sandbox_that_cannot_be_started_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise OSError("no more processes")

    way = find_way()
    monkeypatch.setattr(subprocess, "Popen", fail)
    with pytest.raises(SandboxError, match="cannot be started: no more processes"):
        Sandboxes(Limits(), count=1, way=way).run([JOB | {"tests": "assert add(1, 2) == 3"}])


def test_library_imports_no_other_package() -> None:
    code = (
        "import sys\n"
        f"sys.path.insert(0, {str(sandbox._PACKAGE.parent)!r})\n"
        "import codetrial.sandbox\n"
        "names = {name.partition('.')[0] for name in sys.modules}\n"
        "print(*sorted(names - sys.stdlib_module_names - {'__main__', 'codetrial'}))"
    )
    run = subprocess.run([sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True)
    assert run.stdout.split() == [], run.stderr
    assert run.returncode == 0, run.stderr
