"""Two processes at once: the result is that of one, or an error."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from paint.cli import main
from processes import in_two_processes

pytestmark = pytest.mark.slow

TRAIN = "train demo-paint --train.steps 2 --train.batch-size 2 --rollout.max-new-tokens 40 "
TRAIN += "--model.lora-rank 2 --log.folder {at} --log.name run"
EVAL = "eval {at}/run --benchmarks demo --limit 3 --samples 2 --no-thinking --output-dir {at}/evals"
RESULTS = {
    TRAIN: "run/checkpoints/step-000002/adapter/adapter_model.safetensors",
    EVAL: "evals/run/summary.json",
}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    at = tmp_path_factory.mktemp("trained")
    assert main(TRAIN.format(at=at).split()) == 0
    return at / "run"


@pytest.mark.parametrize("command", RESULTS, ids=["train", "eval"])
def test_concurrent_processes_give_result_of_one(
    command: str, trained: Path, tmp_path: Path
) -> None:
    results = []
    for count in (1, 2):
        at = tmp_path / str(count)
        if command == EVAL:
            shutil.copytree(trained, at / "run")
        line = [sys.executable, "-m", "paint.cli", *command.format(at=at).split()]
        processes = [
            subprocess.Popen(line, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
            for _ in range(count)
        ]
        ends = [(process.communicate(timeout=300)[1], process.returncode) for process in processes]
        assert 0 in [code for _, code in ends], ends
        for error, code in ends:
            is_refused = "another process is at work" in error or "already holds a run" in error
            assert code == 0 or (code == 2 and is_refused), error
        results.append((at / RESULTS[command]).read_bytes())
    assert results[0] == results[1]


def test_concurrent_ranks_refuse_locked_folder_together(trained: Path, tmp_path: Path) -> None:
    shutil.copytree(trained, tmp_path / "run")
    holder = f"""
import time
from pathlib import Path
from paint.core.storage import lock_folder
with lock_folder(Path({str(tmp_path / "run")!r})):
    print("held", flush=True)
    time.sleep(120)
"""
    holding = subprocess.Popen([sys.executable, "-c", holder], stdout=subprocess.PIPE, text=True)
    assert holding.stdout is not None
    with holding.stdout:
        assert holding.stdout.readline() == "held\n"
        line = [sys.executable, "-m", "paint.cli", "resume", str(tmp_path / "run")]
        ranks = in_two_processes([*line, "--steps", "3"])
        result = subprocess.run(ranks, capture_output=True, text=True, timeout=120)
        holding.kill()
        holding.wait()
    assert result.returncode != 0
    refusals = result.stderr.count(f"another process is at work there (process {holding.pid} on")
    assert refusals == 1, result.stderr
