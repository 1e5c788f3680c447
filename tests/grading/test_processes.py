"""The processes that call a grader: what they import, what they are given, and how they end."""

import base64
import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from paint.core.errors import PaintError
from paint.core.extensions import spec_of
from paint.grading.contract import Grade, Item
from paint.grading.graders import find_grader
from paint.grading.processes import Pool
from processes import descendants

in_proc = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="reads /proc")

MODULE = """
from pathlib import Path
from paint.grading.contract import Grade

with Path(__file__).with_suffix(".imports").open("a") as file:
    file.write("imported\\n")


def grade(completion, row):
    return float(completion)


def reads_input(completion, row):
    import sys
    return Grade(1.0, repr(sys.stdin.readline()))
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A module of a user's own that notes each of its imports in a file."""
    path = tmp_path / "noted_grader.py"
    path.write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, path.stem, raising=False)
    return path


def numbers(count: int) -> list[Item]:
    return [Item(str(number), "", row={"id": str(number)}) for number in range(count)]


def test_workers_import_the_graders_module_once_for_all(module: Path) -> None:
    with find_grader(f"{module.stem}:grade", workers=3) as grader:
        assert [grade.reward for grade in grader.grade(numbers(12))] == list(range(12))
        assert len(grader._caller.workers) == 3  # type: ignore[attr-defined]
    imports = module.with_suffix(".imports").read_text().splitlines()
    assert imports == ["imported"] * 2  # here, and in the process that forks the workers


def test_grader_that_reads_standard_input_takes_no_call_from_others(module: Path) -> None:
    with find_grader(f"{module.stem}:reads_input", workers=1) as grader:
        assert [grade.reason for grade in grader.grade(numbers(4))] == ["''"] * 4


def cell(text: str) -> Any:
    """The function ``grade`` of a notebook."""
    names: dict[str, Any] = {"__name__": "__main__"}
    exec(text, names)
    return names["grade"]


@in_proc
def test_command_lines_hold_no_globals_and_no_options_of_a_grader(module: Path) -> None:
    secret = "sk-GLOBALSECRET"
    function = cell(f"KEY = {secret!r}\ndef grade(completion, row): return KEY == completion")
    with find_grader(spec_of(function)) as grader:
        [grade] = grader.grade([Item(secret, "")])
        assert grade == Grade(1.0, "right")
        lines = command_lines()
    pool = Pool(f"{module.stem}:grade", deadline=5, table={"key": "sk-OPTSECRET"})
    try:
        pool.call([("1", {})])
        lines += command_lines()
    finally:
        pool.close()
    assert len(lines) == 4  # two processes that import, each with a worker
    for line in lines:
        assert "strictgrade.processes" in line
        assert "SECRET" not in line
        assert base64.b64encode(secret.encode()).decode()[:12] not in line
        assert len(line) < 300


def command_lines() -> list[str]:
    return [Path(f"/proc/{pid}/cmdline").read_text() for pid in descendants(os.getpid())]


@in_proc
def test_worker_that_is_killed_from_outside_is_reported(module: Path) -> None:
    with find_grader(f"{module.stem}:grade", workers=1) as grader:
        grader.grade(numbers(1))
        _, worker = descendants(os.getpid())
        os.kill(worker, signal.SIGKILL)
        with pytest.raises(PaintError, match="ended from outside, as by a system that is short of"):
            grader.grade(numbers(1))
        # The next call has new processes.
        assert [grade.reward for grade in grader.grade(numbers(2))] == [0, 1]
