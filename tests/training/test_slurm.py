"""launch/slurm.sbatch with fakes of srun and scontrol: stop, resubmission, the rest of the steps.

A node is a name of this machine. What serves is the demo's model, which answers as vLLM does.
"""

import os
import random
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from test_launcher import all_gone, family

from paint.config.run_folder import read_metrics
from processes import MODEL_SERVER, MODULES, until
from runs import last_checkpoint

ROOT = Path(__file__).parents[2]

# One process a node; a signal goes to all of them, and the status is the worst of theirs.
SRUN = """#!/bin/bash
while [[ $1 == --* ]]; do
    [[ $1 == --nodelist=* ]] && IFS=, read -ra nodes <<< "${1#*=}"
    shift
done
pids=()
for node in "${nodes[@]}"; do "$@" & pids+=($!); done
trap 'kill -TERM "${pids[@]}"' TERM
worst=0
for pid in "${pids[@]}"; do
    while kill -0 "$pid" 2>/dev/null; do wait "$pid"; status=$?; done
    ((status > worst)) && worst=$status
done
exit $worst
"""
SCONTROL = """#!/bin/bash
case $1 in
    show) tr , '\\n' <<< "$3" ;;
    requeue) echo "$2" >> "$REQUEUED" ;;
esac
"""


def second_of_free_ports() -> int:
    """A port that is free, as the one before it is: there the ranks meet.

    Below those that the system deals out to whoever connects.
    """
    while True:
        port = random.randrange(20_000, 30_000)
        with socket.socket() as first, socket.socket() as second, suppress(OSError):
            first.bind(("", port - 1))
            second.bind(("", port))
            return port


Submit = Callable[..., "subprocess.Popen[str]"]

pytestmark = pytest.mark.slow


@pytest.fixture
def submit(tmp_path: Path) -> Iterator[Submit]:
    """Runs the script as Slurm does, on nodes by these names."""
    for name, text in {"srun": SRUN, "scontrol": SCONTROL}.items():
        (tmp_path / "bin").mkdir(exist_ok=True)
        (tmp_path / "bin" / name).write_text(text)
        (tmp_path / "bin" / name).chmod(0o755)
    started: list[subprocess.Popen[str]] = []

    def run(nodes: str, name: str, *arguments: str, **variables: str) -> "subprocess.Popen[str]":
        environment = os.environ | {
            "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}",
            "PYTHONPATH": MODULES,
            "OMP_NUM_THREADS": "1",
            "SLURM_JOB_ID": "17",
            "SLURM_JOB_NODELIST": nodes,
            "REQUEUED": str(tmp_path / "requeued"),
            "RUNS": str(tmp_path / "runs"),
            "NAME": name,
            "GPUS": "1",
            "PYTHON": sys.executable,
            "PORT": str(second_of_free_ports()),
        }
        line = ["bash", str(ROOT / "launch/slurm.sbatch"), "demo-paint", *arguments]
        line += ["--train.steps", "6", "--train.checkpoint-every", "2", "--train.batch-size", "8"]
        process = subprocess.Popen(
            line,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=environment | variables,
            process_group=0,
        )
        started.append(process)
        return process

    yield run
    for process in started:
        with suppress(ProcessLookupError):  # its children hold the pipe that is read
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


@pytest.mark.parametrize(
    ("nodes", "number"),
    [("localhost", signal.SIGUSR1), ("localhost,127.0.0.1", signal.SIGTERM)],
    ids=["one node, its time over", "two nodes, preempted"],
)
def test_slurm_job_stopped_and_resubmitted_goes_on_to_its_end(
    submit: Submit, tmp_path: Path, nodes: str, number: int
) -> None:
    arguments = ["--rollout.server", MODEL_SERVER]
    if "," not in nodes:
        arguments = ["--rollout.engine", "local"]
    run = tmp_path / "runs/broken"

    job = submit(nodes, "broken", *arguments)
    until(lambda: job.poll() is not None or len(read_metrics(run)) >= 3, 250)
    assert job.poll() is None, job.communicate()
    processes = family(job.pid)
    job.send_signal(number)
    output, _ = job.communicate(timeout=120)
    assert job.returncode == 128 + signal.SIGTERM, output
    assert output.count("stopped by SIGTERM, all is saved") == 1
    until(lambda: all_gone(processes))
    done = len(read_metrics(run))
    assert 3 <= done < 6
    is_requeued = (tmp_path / "requeued").exists()
    assert is_requeued == (number == signal.SIGUSR1)  # a preempted one is requeued by Slurm

    job = submit(nodes, "broken", *arguments, SLURM_RESTART_COUNT="1")
    output, _ = job.communicate(timeout=280)
    assert job.returncode == 0, output
    assert f"resuming after step {done}" in output
    assert last_checkpoint(run) == "step-000006"
    assert [row["step"] for row in read_metrics(run)] == list(range(1, 7))
