"""--gpus: who gets which GPU, what is started, and that nothing is left of it, however it ends."""

import re
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from paint.cli import main
from paint.config.recipe import find_recipe, read_recipe
from paint.config.run_folder import read_metrics
from paint.config.schema import Config, ConfigError
from paint.inference.vllm.process import gpu_environment
from paint.resolve.check import check_config, enable_servers
from paint.training.launcher import place_ranks, visible
from processes import MODEL_SERVER, alive, until
from runs import adapter, assert_same

DEMO = read_recipe(find_recipe("demo-paint"))
Machine = Callable[[int], None]
Start = Callable[[list[str]], "subprocess.Popen[str]"]
PAINT = [sys.executable, "-P", "-m", "paint.cli"]


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    """Makes this a machine with so many GPUs, which no variable names."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)

    def make(count: int) -> None:
        answer = subprocess.CompletedProcess([], 0, "80e9\n" * count, "")
        monkeypatch.setattr("paint.training.launcher.subprocess.run", lambda *_, **__: answer)

    return make


def vllm(**rollout: Any) -> Config:
    return DEMO.changed("rollout", engine="vllm", **rollout)


TWO_GPUS = "--tensor-parallel-size 2"
SFT = DEMO.changed("train", method="sft")
UNKNOWN = vllm().changed("model", path="owner/none")


@pytest.mark.parametrize(
    ("count", "gpus", "config", "most", "trainers", "servers"),
    [
        (8, 8, vllm(), 8, "0 1 2 3", "4 5 6 7"),
        (8, 8, UNKNOWN, 8, "0 1 2 3", "4 5 6 7"),
        (8, 8, vllm(server_gpus=("3,4", "5,6")), 8, "0 1 2 7", "3,4 5,6"),
        (8, 4, vllm(server_gpus=("4", "5")), 4, "0 1 2 3", "4 5"),
        (2, 2, vllm(server_gpus=("0", "1"), colocate=True), 2, "0 1", "0 1"),
        (2, 2, vllm(colocate=True), 2, "0 1", "0 1"),
        (4, 4, vllm(server_args=TWO_GPUS), 4, "0 1", "2,3"),
        (1, 1, SFT, 1, "0", ""),
        (8, 8, SFT, 8, "0 1 2 3 4 5 6 7", ""),
        (8, 8, vllm(), 0, "", "0 1 2 3 4 5 6 7"),  # paint eval
        (8, 8, vllm(), 1, "0", "1 2 3 4 5 6 7"),  # an experiment
        (0, 4, vllm(), 4, "cpu cpu", "cpu cpu"),
        (0, 3, vllm(server_gpus=("cpu",)), 3, "cpu cpu", "cpu"),
        (0, 1, vllm(), 1, "cpu", "cpu"),
    ],
)
def test_place_divides_gpus_into_trainers_and_servers(
    machine: Machine, count: int, gpus: int, config: Config, most: int, trainers: str, servers: str
) -> None:
    machine(count)
    training, run = place_ranks(check_config(config), gpus, most)
    rollout = run.rollout
    assert (" ".join(training), " ".join(rollout.server_gpus)) == (trainers, servers)
    assert rollout.colocate == config.rollout.colocate  # on a CPU, vLLM does not sleep
    on_cpu = {"CUDA_VISIBLE_DEVICES": "", "ACCELERATE_USE_CPU": "true"}
    seen = {"CUDA_VISIBLE_DEVICES": trainers.replace(" ", ",")}
    assert visible(training) == (seen if count and trainers else on_cpu)
    assert rollout.engine == ("vllm" if servers else "local")  # auto is what generates


LOCAL = DEMO.changed("rollout", engine="local")


@pytest.mark.parametrize("most", [2, 1])
def test_local_engine_starts_no_server_beside_it(machine: Machine, most: int) -> None:
    machine(2)
    _, run = place_ranks(enable_servers(check_config(LOCAL)), 2, most)
    assert run.rollout.server_gpus == ()
    assert run.rollout.engine == "local"


def test_place_uses_visible_devices(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    machine(3)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5,GPU-1f,7")
    trainers, run = place_ranks(check_config(vllm()), 2, 2)
    assert (trainers, run.rollout.server_gpus) == (["5"], ("GPU-1f",))
    assert gpu_environment("cpu") == {"CUDA_VISIBLE_DEVICES": ""}
    assert gpu_environment("4,5") == {"CUDA_VISIBLE_DEVICES": "4,5"}
    assert gpu_environment("") == {}


def test_place_more_gpus_than_there_are_or_none_to_train_is_refused(machine: Machine) -> None:
    machine(4)
    with pytest.raises(ConfigError, match="asks for more GPUs than the 4 that are here"):
        place_ranks(check_config(vllm()), 8, 8)
    with pytest.raises(ConfigError, match="leaves none of the GPUs"):
        place_ranks(check_config(vllm(server_gpus=("0,1",))), 2, 2)


def test_place_large_model_uses_enough_gpus_per_server(machine: Machine) -> None:
    machine(8)
    llama = replace(DEMO.model, path="meta-llama/Llama-3.3-70B-Instruct", dtype="bfloat16")
    large = replace(vllm(), model=llama)
    for most, servers in ((0, ("0,1,2,3", "4,5,6,7")), (1, ("4,5,6,7",))):
        _, run = place_ranks(check_config(large), 8, most)
        assert run.rollout.server_gpus == servers
    shared = replace(large, model=replace(llama, shard=True, gradient_checkpointing=True))
    trainers, run = place_ranks(check_config(shared), 8, 8)
    assert (trainers, run.rollout.server_gpus) == (["0", "1", "2", "3"], ("4,5,6,7",))


def test_owned_server_spreads_over_its_gpus(tmp_path: Path) -> None:
    line = ["train", "demo-paint", "--log.folder", str(tmp_path), "--log.name", "run"]
    line += ["--rollout.engine", "vllm", "--rollout.server", "false serve"]
    assert main([*line, "--rollout.server-gpus", "4,5", "6"]) == 2
    first, second = ((tmp_path / f"run/engine/server-{n}.log").read_text() for n in range(2))
    assert "--tensor-parallel-size 2 " in first
    assert "--tensor-parallel-size" not in second


def test_enable_servers_config_that_cannot_use_them_is_unchanged() -> None:
    full = DEMO.changed("model", train_mode="full")
    for config in (SFT, full, vllm(urls=("http://a:1",))):
        assert enable_servers(check_config(config)).config == config
    auto = DEMO.changed("rollout", engine="auto")
    assert enable_servers(check_config(auto)).rollout.engine == "vllm"


def test_plan_prints_the_command_of_each_server_of_the_machine(
    capsys: pytest.CaptureFixture[str],
) -> None:
    line = ["plan", "demo-paint", "--data.limit", "8", "--gpus", "4", "--servers"]
    line += ["--rollout.engine"]
    assert main([*line, "vllm", f"--rollout.server-args={TWO_GPUS}"]) == 0
    servers = [one.split() for one in capsys.readouterr().out.splitlines() if "vllm serve" in one]
    assert [server[0] for server in servers] == [
        "CUDA_VISIBLE_DEVICES=0,1",
        "CUDA_VISIBLE_DEVICES=2,3",
    ]
    assert [server[server.index("--port") + 1] for server in servers] == ["8000", "8001"]
    assert all(server[server.index("--max-model-len") + 1] == "1024" for server in servers)
    assert main([*line, "local"]) == 0
    assert "vllm serve" not in capsys.readouterr().out


def family(pid: int) -> list[psutil.Process]:
    """The process and all that it has started."""
    root = psutil.Process(pid)
    return [root, *root.children(recursive=True)]


def command_line(process: psutil.Process) -> str:
    with suppress(psutil.Error):
        return " ".join(process.cmdline())
    return ""


def ranks_of(processes: list[psutil.Process]) -> list[psutil.Process]:
    """The ranks among them, the first one first."""
    found = []
    for process in processes:
        with suppress(psutil.Error):
            if "RANK" in (variables := process.environ()) and "paint.cli" in command_line(process):
                found.append((int(variables["RANK"]), process))
    return [process for _, process in sorted(found, key=lambda pair: pair[0])]


def all_gone(processes: list[psutil.Process]) -> bool:
    return not any(alive(process.pid) for process in processes)


def at_step(process: "subprocess.Popen[str]", run: Path, step: int) -> list[psutil.Process]:
    """Wait for a step, and return all that runs then."""
    until(lambda: process.poll() is not None or len(read_metrics(run)) >= step, 200)
    assert process.poll() is None, process.communicate()
    return family(process.pid)


def servers_of(processes: list[psutil.Process]) -> list[psutil.Process]:
    """Those of them that answer requests; not their watchdogs."""
    started = " ".join(MODEL_SERVER.split()[2:])  # env has become the server
    return [process for process in processes if command_line(process).startswith(started)]


def train_line(folder: Path, name: str, split: str, *more: str) -> list[str]:
    trainers, servers = map(int, split.split("+"))
    line = ["train", "demo-paint", "--gpus", str(trainers + servers)]
    if not servers:
        line += ["--rollout.engine", "local"]
    line += ["--log.folder", str(folder), "--log.name", name, "--train.batch-size", "8"]
    return [*PAINT, *line, "--train.checkpoint-every", "3", *more]


@pytest.mark.slow
def test_train_two_ranks_killed_is_bitwise_equal(start: Start, tmp_path: Path) -> None:
    """SIGKILL of the launcher; the run is resumed. test_several_ranks.py kills a rank."""
    run, line = tmp_path / "broken", train_line(tmp_path, "broken", "2+0", "--train.steps", "8")
    resumed = [*PAINT, "resume", str(run), "--gpus", "2"]

    process = start(line)
    processes = at_step(process, run, 4)
    process.kill()
    until(lambda: all_gone(processes), 60)

    whole = train_line(tmp_path, "whole", "2+0", "--train.steps", "8")
    for line in (resumed, whole):
        process = start(line)
        output, _ = process.communicate(timeout=280)
        assert process.returncode == 0, output
    assert_same(adapter(run), adapter(tmp_path / "whole"))


@pytest.mark.slow
def test_train_two_ranks_and_two_servers_killed_resumes(start: Start, tmp_path: Path) -> None:
    """SIGKILL of a server, a rank and the launcher; the run is resumed."""
    run = tmp_path / "run"
    more = ["--rollout.server", MODEL_SERVER, "--train.steps", "400", "--rollout.engine", "auto"]
    more += ["--rollout.max-logprob-mismatch", "1e-4", "--rollout.max-new-tokens", "16"]
    line = train_line(tmp_path, "run", "2+2", *more)

    process = start(line)
    processes = at_step(process, run, 2)
    [first, _] = servers_of(processes)
    first.kill()
    logs = [run / f"engine/server-{n}.log" for n in range(2)]
    starts = re.compile(r"^\$ ", re.MULTILINE)
    # Either of them is started again.
    until(lambda: sum(len(starts.findall(log.read_text())) for log in logs) == 3, 120)
    later = at_step(process, run, len(read_metrics(run)) + 2)
    ranks_of(later)[0].kill()
    output, _ = process.communicate(timeout=200)
    assert process.returncode == 128 + signal.SIGKILL, output
    assert "its rows go to any server" in output
    assert "frame #" not in output  # of torch's C++
    assert output.splitlines()[-1].startswith("paint: rank 0 was ended by SIGKILL")
    until(lambda: all_gone([*processes, *later]), 30)

    process = start([*PAINT, "resume", str(run), "--gpus", "4"])
    until(lambda: len(servers_of(family(process.pid))) == 2, 60)  # on their way
    processes = family(process.pid)
    process.kill()
    until(lambda: all_gone(processes), 30)
    metrics = read_metrics(run)
    assert max(row["logprob_mismatch_mean"] for row in metrics) < 1e-4
    assert [row["step"] for row in metrics] == list(range(1, len(metrics) + 1))
