"""Tests of vLLM's process: its command, its environment, and its end with either side."""

import os
import signal
import subprocess
import sys
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from paint.config.recipe import find_recipe, read_recipe
from paint.config.schema import Config
from paint.inference.vllm.process import (
    OwnedProcess,
    inherited_environment,
    server_command,
    server_environment,
)
from paint.resolve.plan import ServerFlags
from processes import alive, until

# A server and its worker: one process starts another and writes both numbers down. The worker does
# not listen to SIGTERM; a stubborn server does not either, and its worker holds enough memory to be
# still there for a while after SIGKILL. A leaving worker has a session of its own.
FAMILY = """
import os, signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
is_stubborn = sys.argv[2] == "stubborn"
size = 2**29 if is_stubborn else 1
holds = f"import time; held = b'x' * {size}; print(flush=True); time.sleep(600)"
worker = subprocess.Popen([sys.executable, "-c", holds], stdout=subprocess.PIPE,
                          start_new_session=sys.argv[2] == "leaving")
worker.stdout.readline()
if not is_stubborn:
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
open(sys.argv[1] + ".partial", "w").write(f"{os.getpid()} {worker.pid}")
os.rename(sys.argv[1] + ".partial", sys.argv[1])
time.sleep(600)
"""

TRAINER = """
import os, sys, time
from pathlib import Path
from paint.inference.vllm.process import OwnedProcess
OwnedProcess(sys.argv[2:], os.environ, Path(sys.argv[1])).start()
time.sleep(600)
"""


@pytest.mark.skipif(not Path("/proc").exists(), reason="looks at processes through /proc")
@pytest.mark.parametrize("end", ["stop", "server dies", "trainer is killed"])
@pytest.mark.parametrize(
    "manner", ["obedient", "leaving", pytest.param("stubborn", marks=pytest.mark.slow)]
)
def test_owned_server_ends_with_server_or_trainer(tmp_path: Path, end: str, manner: str) -> None:
    pids = tmp_path / "pids"
    family = [sys.executable, "-c", FAMILY, str(pids), manner]

    def family_pids() -> list[int]:
        until(pids.exists, 60)
        return [int(pid) for pid in pids.read_text().split()]

    if end == "trainer is killed":
        owner = subprocess.Popen([sys.executable, "-c", TRAINER, str(tmp_path / "log"), *family])
        parent, worker = family_pids()
        owner.kill()
        owner.wait()
        until(lambda: not alive(parent) and not alive(worker))
    else:
        process = OwnedProcess(family, os.environ, tmp_path / "log")
        process.start()
        parent, worker = family_pids()
        if end == "stop":
            process.stop()
        else:
            os.kill(parent, signal.SIGKILL)
            until(lambda: process.dead and not alive(worker))
            assert process.status == 128 + signal.SIGKILL
        assert process.dead
    assert not alive(parent)
    assert not alive(worker)


def test_server_command_has_model_adapter_and_user_arguments() -> None:
    """``vllm serve`` takes the model without a flag; the user's arguments come last and win."""
    config = read_recipe(find_recipe("paint-qwen3-1.7b"))
    given = replace(config.rollout, server="env A=1 vllm serve")
    given = replace(given, server_args="--dtype half -x 'a b'")
    rollout = replace(given, colocate=True)
    model = replace(config.model, lora_rank=40)
    line = server_command(model, rollout, 8123, max_model_len=1024)
    assert line[:5] == ["env", "A=1", "vllm", "serve", config.model.path]
    flags = dict(zip(line[5:21:2], line[6:21:2], strict=True))
    assert flags == {
        "--host": "127.0.0.1",
        "--port": "8123",
        "--dtype": "bfloat16",
        "--max-model-len": "1024",
        "--max-lora-rank": "64",
        "--max-loras": "1",
        "--max-num-seqs": "32",
        "--hf-overrides": '{"head_dtype": "float32"}',
    }
    assert line[21:] == ["--enable-lora", "--enable-sleep-mode", "--dtype", "half", "-x", "a b"]


def test_server_command_sizes_are_given_or_those_of_all_rows() -> None:
    config = read_recipe(find_recipe("paint-qwen3-1.7b"))
    ahead = replace(config.rollout, batch_size=16, off_policy_steps=2)
    line = server_command(config.model, ahead, 1, max_model_len=9216, sizes=ServerFlags(0.85, 40))
    flags = dict(pairwise(line))
    assert (flags["--gpu-memory-utilization"], flags["--max-num-seqs"]) == ("0.85", "40")
    model = replace(config.model, dtype="float32")
    line = server_command(model, ahead, 1, max_model_len=9216)
    assert not {"--hf-overrides", "--gpu-memory-utilization"} & set(line)
    flags = dict(pairwise(line))
    assert (flags["--max-loras"], flags["--max-num-seqs"]) == ("3", "48")


def test_server_environment_sets_dev_mode_and_drops_trainer_variables(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    trainers = {"LOCAL_RANK", "MASTER_PORT", "TORCHELASTIC_MAX_RESTARTS", "PYTHONPATH"}
    trainers |= {"OMP_NUM_THREADS", "TORCH_NCCL_ASYNC_ERROR_HANDLING"}
    for name in trainers:
        monkeypatch.setenv(name, "1")
    monkeypatch.setenv("PATH", "/usr/bin")
    assert not trainers & set(inherited_environment(["vllm"]))
    # The folder of a named server comes first.
    for command, path in (("/x/bin/vllm", "/x/bin:/usr/bin"), ("vllm", "/usr/bin")):
        assert inherited_environment([command, "serve"])["PATH"] == path
    for sleep in (False, True):
        variables = server_environment(replace(Config().rollout, colocate=sleep))
        assert variables["VLLM_ALLOW_RUNTIME_LORA_UPDATING"] == "1"
        assert ("VLLM_SERVER_DEV_MODE" in variables) == sleep
