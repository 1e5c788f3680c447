"""Collectives, launch checks and error reports of several ranks."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from accelerate import Accelerator

from paint.config.schema import ConfigError
from paint.core.distributed import require_all_ranks, require_one_process
from paint.core.errors import PeerExit
from paint.inference.vllm.process import free_port
from processes import in_two_processes


def two_ranks(script: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a script on two ranks, without a model."""
    path = folder / "ranks.py"
    path.write_text(script)
    line, env = in_two_processes([sys.executable, str(path)]), os.environ | {"OMP_NUM_THREADS": "1"}
    return subprocess.run(line, capture_output=True, text=True, timeout=120, env=env)


WAITING = """
import time
from datetime import timedelta
from pathlib import Path
from accelerate import Accelerator
from accelerate.utils import InitProcessGroupKwargs
from paint.core.distributed import (
    all_gather_objects, any_rank_signal, barrier, gather_on_rank0, report_once, run_on_rank0,
)

accelerator = Accelerator(kwargs_handlers=[InitProcessGroupKwargs(timeout=timedelta(seconds=2))])
rank = accelerator.process_index
with report_once(Path("runs/a")):
    waves = run_on_rank0(lambda: time.sleep(5) or "waves")
    if rank == 1:
        time.sleep(5)
    barrier()
    mine = [10 * rank, 10 * rank + 1]
    setting = [
        waves, all_gather_objects(mine), gather_on_rank0(mine), any_rank_signal([15] * rank),
    ]
    print(f"rank {rank}: {setting}\\n", end="", flush=True)
    # As training ends: gloo's threads may abort a process whose group outlives its script.
    accelerator.end_training()
"""


@pytest.mark.slow
def test_object_collectives_outlast_gradient_timeout(tmp_path: Path) -> None:
    result = two_ranks(WAITING, tmp_path)
    assert result.returncode == 0, result.stderr
    all_rows = [0, 1, 10, 11]
    for rank, on_first in enumerate([all_rows, [10, 11]]):
        setting = ["waves", all_rows, on_first, 15]
        assert f"rank {rank}: {setting}" in result.stdout


LOST = """
import os
from pathlib import Path
from accelerate import Accelerator
from paint.core import distributed

rank = Accelerator().process_index
distributed.AGENT_SECONDS = 1
try:
    with distributed.report_once(Path("runs/a")):
        distributed.barrier()
        if rank == 1:
            os._exit(3)
        distributed.barrier()
except distributed.RankLost as lost:
    print(lost)
"""


@pytest.mark.slow
def test_report_once_without_agent_reports_lost_peer() -> None:
    shared = {"ACCELERATE_USE_CPU": "true", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1"}
    shared |= {"MASTER_PORT": str(free_port())}
    line = [sys.executable, "-c", LOST]
    ranks = [shared | {"RANK": rank, "LOCAL_RANK": rank} for rank in "01"]
    pipe = subprocess.PIPE
    both = [subprocess.Popen(line, stdout=pipe, text=True, env=os.environ | r) for r in ranks]
    outputs = [process.communicate(timeout=120)[0] for process in both]
    assert [process.returncode for process in both] == [0, 3]
    assert outputs[0].startswith("another rank ended or does not respond (")
    assert outputs[0].endswith("; resume with `paint resume runs/a`\n")


def test_require_all_ranks_unconnected_processes_are_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    accelerator = Accelerator(cpu=True)
    monkeypatch.setattr("sys.argv", ["paint", "train", "my recipe.toml"])
    monkeypatch.setenv("WORLD_SIZE", "1")
    require_all_ranks(accelerator)
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ConfigError, match=r"2 processes .*accelerate sees 1.* 'my recipe.toml'`"):
        require_all_ranks(accelerator)
    with pytest.raises(ConfigError, match="eval runs in one process"):
        require_one_process("eval")
    monkeypatch.setenv("RANK", "1")
    with pytest.raises(PeerExit):  # the first one gives the command, once
        require_all_ranks(accelerator)
