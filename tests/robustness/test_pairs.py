"""What paint wrote, damaged; and two processes at once: the result is that of one, or an error."""

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from worlds import CHECKPOINT, TRAIN, VERBS, Verb, make_world, restore, run_figures, run_paint

from processes import in_two_processes

pytestmark = pytest.mark.slow

# Experiments are shared in tests/lab/test_runner.py; advice stores and locks as evaluations do.
NAMES = ("eval", "grade")
PAIRS = [
    Verb("train", "", TRAIN, lambda at: run_figures(at, 2)),
    *(verb for verb in VERBS if verb.name in NAMES),
]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All that paint writes, once."""
    return make_world(tmp_path_factory.mktemp("trial") / "world")


def cut(content: bytes) -> bytes:
    return content[: len(content) // 2]


def flipped(content: bytes) -> bytes:
    """The same with one bit of its middle flipped."""
    at = len(content) // 2
    return content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :]


@pytest.mark.parametrize(
    ("name", "pattern", "change"),
    [
        ("resume", f"{CHECKPOINT}/adapter/*.safetensors", flipped),
        ("resume", f"{CHECKPOINT}/optimizer.pt", cut),
        ("grade", "evals/*/*/*/completions.jsonl", flipped),
        ("grade a run", "run/run/validation/*/*/completions.jsonl", cut),
        ("eval", f"{CHECKPOINT}/adapter/*.safetensors", cut),
    ],
)
def test_damaged_file_is_refused_by_its_name(
    world: Path, tmp_path: Path, name: str, pattern: str, change: Callable[[bytes], bytes]
) -> None:
    [verb] = [verb for verb in VERBS if verb.name == name]
    restore(world, tmp_path / "at", verb)
    file = max((tmp_path / "at").glob(pattern))
    damaged = change(file.read_bytes())
    file.write_bytes(damaged)
    status, said = run_paint(verb.command, world, tmp_path / "at")
    assert status == 2, said
    assert str(file) in said or str(file.parent) in said
    assert file.read_bytes() == damaged


@pytest.mark.parametrize("verb", PAIRS, ids=lambda verb: verb.name.replace(" ", "-"))
def test_concurrent_processes_give_result_of_one(world: Path, tmp_path: Path, verb: Verb) -> None:
    at = tmp_path / "at"
    restore(world, at, verb)
    status, said = run_paint(verb.command, world, at)
    assert status == 0, said
    expected = verb.figures(at)

    restore(world, at, verb)
    words = verb.command.format(home=world, at=at).split()
    command = [sys.executable, "-m", "paint.cli", *words]
    both = [
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    ends = [(process.communicate(timeout=300)[1], process.returncode) for process in both]
    assert 0 in [code for _, code in ends], ends
    for error, code in ends:
        assert code == 0 or (
            code == 2 and ("another process is at work" in error or "already holds a run" in error)
        ), error
        assert "Traceback" not in error
    assert verb.figures(at) == expected

    # What both left can be gone on with.
    if verb.name != "train":
        status, said = run_paint(verb.command, world, at)
        assert (status, verb.figures(at)) == (0, expected), said


def test_concurrent_ranks_refuse_locked_folder_together(world: Path, tmp_path: Path) -> None:
    shutil.copytree(world / "run", tmp_path / "run")
    holder = f"""
import time
from pathlib import Path
from paint.core.storage import lock_folder
with lock_folder(Path({str(tmp_path / "run/run")!r})):
    print("held", flush=True)
    time.sleep(120)
"""
    holding = subprocess.Popen([sys.executable, "-c", holder], stdout=subprocess.PIPE, text=True)
    assert holding.stdout is not None
    with holding.stdout:
        assert holding.stdout.readline() == "held\n"
        line = [sys.executable, "-m", "paint.cli", "resume", str(tmp_path / "run/run")]
        ranks = in_two_processes([*line, "--steps", "3"])
        result = subprocess.run(ranks, capture_output=True, text=True, timeout=120)
        holding.kill()
        holding.wait()
    assert result.returncode != 0
    refusals = result.stderr.count(f"another process is at work there (process {holding.pid} on")
    assert refusals == 1, result.stderr
