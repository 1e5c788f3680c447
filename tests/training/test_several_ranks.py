"""Several ranks: failures, kills and signals end all of them with one message."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from paint.config.run_folder import read_metrics
from paint.config.schema import Config
from paint.inference.vllm.process import free_port
from paint.training import run_log
from processes import in_two_processes, started, train_command
from runs import changed, last_checkpoint, resume_command, small_run, stored, wait_for

SMALL = small_run(20, limit=100, steps=3, batch_size=4, micro_batch_size=2, checkpoint_every=100)

# What a rank does in its third step, instead of training: {in_step}.
AT_THE_THIRD = """
import os, sys, time
from pathlib import Path
import torch
from accelerate import PartialState
from paint import cli
from paint.core.errors import PaintError
from paint.resolve.algorithm import Distillation

def step(self, setup, batch, index, clock):
    rank = PartialState().process_index
    if index == 2:
        {in_step}
    return take_step(self, setup, batch, index, clock)

take_step, Distillation.step = Distillation.step, step
sys.exit(cli.main())
"""


def small(**options: int) -> Config:
    return changed("demo-paint", SMALL, {"train": options})


def launched(line: list[str], *more: str, **environment: str) -> subprocess.Popen[str]:
    """A command on two ranks by our launcher, with more of its flags."""
    flags = ["--nproc-per-node", "2", "--master-port", str(free_port()), *more]
    command = [sys.executable, "-m", "paint.training.torchrun", *flags, *line[3:]]
    return started(command, ACCELERATE_USE_CPU="true", **environment)


def by_torchrun(folder: Path, in_step: str) -> subprocess.Popen[str]:
    """Two ranks by torchrun, which do something in their third step."""
    script = folder.with_suffix(".py")
    script.write_text(AT_THE_THIRD.replace("{in_step}", in_step))
    line = train_command(small(), folder)
    return started(in_two_processes([sys.executable, str(script), *line[3:]]))


def kill_the_second(process: subprocess.Popen[str], folder: Path, steps: int) -> None:
    """Kill rank 1 of a launched run once its folder has the metrics of so many steps."""
    wait_for(lambda: len(read_metrics(folder)) >= steps, process, 300)
    [second] = [p for p in psutil.Process(process.pid).children() if p.environ()["RANK"] == "1"]
    second.kill()


@pytest.mark.slow
def test_ranks_one_killed_ends_all_and_restarted_ones_go_on(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    process = launched(train_command(small(steps=12, checkpoint_every=2), folder))
    kill_the_second(process, folder, steps=3)
    output, _ = process.communicate(timeout=300)
    assert process.returncode == 128 + signal.SIGKILL, output
    assert output.splitlines()[-1].startswith("paint: rank 1 was ended by SIGKILL; "), output
    assert "Traceback" not in output
    killed_after = len(read_metrics(folder))

    process = launched(resume_command(folder), "--standalone", "--max-restarts", "1")
    kill_the_second(process, folder, steps=killed_after + 2)
    output, _ = process.communicate(timeout=300)
    assert process.returncode == 0, output
    assert output.count("resuming after step") == 2, output
    assert last_checkpoint(folder) == "step-000012"


@pytest.mark.slow
def test_ranks_failing_rank_ends_all_and_reports(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    in_step = "if rank == 1: raise PaintError('row 7 is not finite')"
    process = by_torchrun(folder, in_step)
    output, _ = process.communicate(timeout=300)
    assert output.count("paint train: row 7 is not finite\n") == 1, output
    assert "did not expect" not in output
    assert re.search(r"rank +: 1 .*\n +exitcode +: 2 ", output)  # as torchrun reports it
    assert last_checkpoint(folder) == "step-000002"


@pytest.mark.slow
def test_ranks_diverging_weights_are_refused_and_not_saved(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    in_step = "torch.nn.init.normal_(setup.policy.trainable[0]) if rank == 1 else None"
    output, _ = by_torchrun(folder, in_step).communicate(timeout=300)
    assert output.count("after step 3, the weights of rank 1 differ from those of rank 0") == 1
    assert "did not expect" not in output
    assert not list((folder / "checkpoints").iterdir())


JUDGE = """
import os

async def grade(completion, row):
    return {"reward": 0.5, "reason": f"process {os.getpid()}"}
"""


@pytest.mark.slow
def test_ranks_each_grades_its_own_completions(tmp_path: Path) -> None:
    (tmp_path / "rank_judge.py").write_text(JUDGE)
    grading = {"grader": "rank_judge:grade", "timeout": 2.0}
    config = changed("demo-grpo", SMALL, {"train": {"steps": 1}, "grading": grading})
    config = config.changed("rollout", samples_per_problem=2)
    path = os.pathsep.join([str(tmp_path), *filter(None, sys.path)])
    process = launched(train_command(config, tmp_path / "run"), PYTHONPATH=path)
    output, _ = process.communicate(timeout=300)
    assert process.returncode == 0, output
    reasons = [row["reason"] for row in stored(tmp_path / "run")]
    assert reasons[0] == reasons[1] != reasons[2] == reasons[3]


def test_stop_signals_second_signal_ends_at_once() -> None:
    signals: list[int] = []
    with run_log.stop_signals(signals):
        signal.raise_signal(signal.SIGINT)
        assert signals == [signal.SIGINT]
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
