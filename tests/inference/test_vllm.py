"""Training through a real vLLM 0.32.0 server on the CPU: the same policy, whatever is killed.

One server is shared by all tests but one; where a server of somebody else must die, what dies is an
address of the shared one.
"""

import dataclasses
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx2
import psutil
import pytest
import torch

from conftest import DEMO, move
from paint.config.recipe import find_recipe, from_table, read_recipe, to_table
from paint.config.run_folder import latest_checkpoint, read_metrics
from paint.config.schema import Config
from paint.core.display import Display
from paint.data.problems import Problem
from paint.demo.files import MODEL
from paint.inference.adapter_sync_check import trainer_log_probs
from paint.inference.engine import EngineError, Sampling
from paint.inference.local import LocalEngine
from paint.inference.vllm.client import VllmServer
from paint.inference.vllm.engine import VllmEngine
from paint.models.policy import Policy, load_policy
from paint.models.weights import save_trained
from processes import alive, in_two_processes, train_command, until
from real_vllm import LEAN, SERVER, SMALL, needs_vllm, serving
from runs import adapter, assert_same, kill_and_resume, stored

SAMPLING = Sampling(temperature=1.1, top_p=0.95, top_k=20, max_new_tokens=60)
GREEDY = dataclasses.replace(SAMPLING, temperature=0.0)
Popen = Callable[[list[str]], "subprocess.Popen[str]"]

pytestmark = [pytest.mark.slow, needs_vllm]


@pytest.fixture(scope="session")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of somebody else's server, which takes adapters up to rank 8."""
    flags = ["--enable-lora", "--max-lora-rank", "8", "--max-loras", "3"]
    with serving(MODEL, flags, tmp_path_factory.mktemp("server") / "log") as url:
        yield url


class Address:
    """Another address of a server, which can die: connections are cut, and new ones refused."""

    def __init__(self, url: str) -> None:
        self.server = ("127.0.0.1", int(url.rpartition(":")[2]))
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self.listener.getsockname()[1]}"
        self.sockets = [self.listener]
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self) -> None:
        with suppress(OSError):  # the listener is closed
            while True:
                client, _ = self.listener.accept()
                server = socket.create_connection(self.server)
                self.sockets += [client, server]
                for pair in ((client, server), (server, client)):
                    threading.Thread(target=self.forward, args=pair, daemon=True).start()

    def forward(self, source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):  # either side is closed
            while content := source.recv(65536):
                target.sendall(content)
        with suppress(OSError):
            target.shutdown(socket.SHUT_RDWR)

    def die(self) -> None:
        for each in self.sockets:
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)  # wakes the thread that waits for it
            each.close()


@pytest.fixture
def address(url: str) -> Iterator[Callable[[], Address]]:
    """Makes addresses of the shared server."""
    made: list[Address] = []

    def make() -> Address:
        made.append(Address(url))
        return made[-1]

    yield make
    for each in made:
        each.die()


@pytest.fixture
def engine(url: str, trained: Policy, tmp_path: Path) -> Iterator[VllmEngine]:
    """An engine on the shared server, for an adapter that changes the model's answers."""
    (tmp_path / "engine").mkdir()
    servers = [VllmServer(url, timeout=60.0)]
    engine = VllmEngine(
        trained, servers, tmp_path / "engine", Display(), in_flight=32, patience=30.0
    )
    engine.connect()
    engine.sync_weights()
    yield engine
    engine.close()


def test_vllm_greedy_rollouts_match_local_engine(
    engine: VllmEngine, trained: Policy, problems: list[Problem]
) -> None:
    move(trained, 7, by=0.1)
    engine.sync_weights()
    prompts = [trained.student_prompt(p.problem) for p in problems[:48]]
    remote = engine.generate(prompts, GREEDY, range(48))
    local = LocalEngine(trained, batch_size=48).generate(prompts, GREEDY, range(48))
    assert [(c.ids, c.truncated) for c in remote] == [(c.ids, c.truncated) for c in local]
    of_remote, of_local = (
        torch.tensor([x for c in completions for x in c.log_probs])
        for completions in (remote, local)
    )
    torch.testing.assert_close(of_remote, of_local, rtol=0, atol=1e-4)
    assert len({c.ids for c in local}) > 10
    base = load_policy(DEMO, seed=0)
    plain = LocalEngine(base, batch_size=48).generate(prompts, GREEDY, range(48))
    # The adapter was in it.
    assert sum(a.ids != b.ids for a, b in zip(plain, remote, strict=True)) > 12


def test_vllm_log_probs_are_before_temperature_top_k_and_top_p(
    engine: VllmEngine, trained: Policy, problems: list[Problem]
) -> None:
    prompts = [trained.student_prompt(p.problem) for p in problems[:16]]
    sampling = Sampling(temperature=2.0, top_p=0.9, top_k=5, max_new_tokens=30)
    completions = engine.generate(prompts, sampling, range(16))
    log_probs = torch.tensor([x for c in completions for x in c.log_probs])
    expected = trainer_log_probs(trained, prompts, completions)
    torch.testing.assert_close(log_probs, expected, rtol=0, atol=1e-4)
    assert engine.generate(prompts, sampling, range(16)) == completions
    others = engine.generate(prompts, sampling, range(100, 116))
    assert [c.ids for c in others] != [c.ids for c in completions]


def test_vllm_prefix_cache_is_not_reused_across_adapters(
    engine: VllmEngine, url: str, trained: Policy, problems: list[Problem], tmp_path: Path
) -> None:
    """A prompt of several hundred tokens after every change; and what a name used twice does."""
    prompt = [i for p in problems[:24] for i in trained.student_prompt(p.problem)]
    assert len(prompt) > 400

    def gap(ids: list[int], log_probs: list[float]) -> float:
        hidden = trained.hidden_states([prompt], [ids])
        logits = trained.lm_head(hidden).detach().log_softmax(-1)
        trainer = logits.gather(1, torch.tensor(ids)[:, None])[:, 0]
        return float((torch.tensor(log_probs) - trainer).abs().max())

    for seed in (11, 12, 13):
        move(trained, seed, by=0.1)
        engine.sync_weights()
        for _ in range(2):  # the second time the prefix is cached
            [completion] = engine.generate([prompt], GREEDY, [0])
            assert gap(list(completion.ids), list(completion.log_probs)) < 1e-3

    name, folder = "used-twice", tmp_path / "used-twice"
    gaps = []
    for seed in (14, 15):
        move(trained, seed, by=0.1)
        shutil.rmtree(folder, ignore_errors=True)
        save_trained(trained, folder)
        httpx2.post(
            f"{url}/v1/load_lora_adapter", json={"lora_name": name, "lora_path": str(folder)}
        ).raise_for_status()
        body = {"model": name, "prompt": prompt, "max_tokens": 20, "temperature": 0, "logprobs": 0}
        body["return_token_ids"] = True
        response = httpx2.post(f"{url}/v1/completions", json=body, timeout=60)
        [choice] = response.json()["choices"]
        gaps.append(gap(choice["token_ids"], choice["logprobs"]["token_logprobs"]))
        httpx2.post(f"{url}/v1/unload_lora_adapter", json={"lora_name": name}).raise_for_status()
    assert gaps[0] < 1e-3
    assert gaps[1] > 0.05  # vLLM issue 42125, in the version that we run


def test_sync_weights_rank_above_server_limit_is_refused_with_flag(
    url: str, tmp_path: Path
) -> None:
    policy = load_policy(dataclasses.replace(DEMO, lora_rank=12), seed=0)
    engine = VllmEngine(
        policy, [VllmServer(url, timeout=60.0)], tmp_path, Display(), in_flight=4, patience=30.0
    )
    engine.connect()
    with pytest.raises(
        EngineError, match=r"up to rank 8, this one has 12 .*start it with --max-lora-rank 16"
    ):
        engine.sync_weights()
    engine.close()


def recipe(**rollout: Any) -> Config:
    """The demo's recipe through vLLM, with a bound on the gap that float32 allows."""
    table = to_table(read_recipe(find_recipe("demo-paint")))
    table["rollout"] |= {"engine": "vllm", "max_logprob_mismatch": 1e-4} | rollout
    table["model"] |= {"lora_rank": 8, "lora_alpha": 16}
    return from_table(table)


@pytest.fixture
def popen() -> Iterator[Popen]:
    """Starts commands whose output is read, and ends those that a failing test leaves behind."""
    started = []

    def start(line: list[str]) -> "subprocess.Popen[str]":
        pipe, output = subprocess.PIPE, subprocess.STDOUT
        env = os.environ | SMALL
        started.append(subprocess.Popen(line, stdout=pipe, stderr=output, text=True, env=env))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.communicate()


def command_line(pid: int) -> str:
    return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")


def of_server(folder: Path) -> list[int]:
    """The processes of a run's own server: all in the group of the one that has its port."""
    port = (folder / "engine/server.log").read_text().split("--port ")[1].split()[0]
    groups: dict[int, list[int]] = {}
    of_port = set()
    for process in psutil.process_iter():
        with suppress(psutil.Error, ProcessLookupError, FileNotFoundError):  # others come and go
            groups.setdefault(os.getpgid(process.pid), []).append(process.pid)
            if f"--port {port}" in command_line(process.pid):
                of_port.add(os.getpgid(process.pid))
    return [pid for group in of_port for pid in groups[group]]


def finish(line: list[str], **environment: str) -> None:
    """Run a command that succeeds."""
    whole = os.environ | SMALL | environment
    result = subprocess.run(line, capture_output=True, text=True, env=whole)
    assert result.returncode == 0, result.stdout + result.stderr


def require_no_adapters(url: str) -> None:
    models = httpx2.get(f"{url}/v1/models").json()["data"]
    assert not [model["id"] for model in models if "paint-" in model["id"]]


def test_train_demo_with_owned_server_killed_midway_completes(popen: Popen, tmp_path: Path) -> None:
    """SIGKILL at step 4; every step has all its completions, of the trained policy."""
    folder = tmp_path / "run"
    config = recipe(server=SERVER, server_args=LEAN)
    config = dataclasses.replace(config, train=dataclasses.replace(config.train, steps=8))
    process = popen(train_command(config, folder))
    until(lambda: process.poll() is not None or len(read_metrics(folder)) >= 4, 240)
    assert process.poll() is None, process.communicate()
    served = of_server(folder)
    [main] = [
        pid
        for pid in served
        if "api_server" in (line := command_line(pid)) and "watchdog" not in line
    ]
    words = command_line(main).split()
    url = f"http://127.0.0.1:{words[words.index('--port') + 1]}"
    stranger = {"lora_name": "mine", "lora_path": str(tmp_path)}
    assert httpx2.post(f"{url}/v1/load_lora_adapter", json=stranger).status_code == 401
    os.kill(main, signal.SIGKILL)
    output, _ = process.communicate(timeout=300)
    assert process.returncode == 0, output
    assert "engine: a changed adapter moved its log-probs by" in output
    assert "is left out" in output
    assert "answers again and has the current adapter" in output
    metrics = read_metrics(folder)
    assert [row["step"] for row in metrics] == list(range(1, 9))
    assert [len(stored(folder, step)) for step in range(1, 9)] == [32] * 8
    assert max(row["logprob_mismatch_mean"] for row in metrics) < 1e-4
    assert sorted(row["seconds_sync"] for row in metrics)[4] < 0.2
    assert not list((folder / "engine").glob("*paint-*"))
    until(lambda: not [pid for pid in served if alive(pid)], 20)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_owned_server_ends_with_trainer_on_any_signal(
    popen: Popen, tmp_path: Path, number: signal.Signals
) -> None:
    """With SIGKILL a real server and its engine core; the other signals reach the trainer alone."""
    is_real = number == signal.SIGKILL
    server = SERVER if is_real else f"{sys.executable} -c 'import time; time.sleep(600)'"
    sign = "Initializing a V1 LLM engine" if is_real else "--enforce-eager"

    folder = tmp_path / "run"
    process = popen(train_command(recipe(server=server, server_args=LEAN), folder))
    log = folder / "engine/server.log"
    until(lambda: log.exists() and sign in log.read_text(), 120)
    served = until(lambda: len(pids := of_server(folder)) >= (3 if is_real else 2) and pids)

    process.send_signal(number)
    output, _ = process.communicate(timeout=60)
    until(lambda: not [pid for pid in served if alive(pid)], 30)
    assert process.returncode == (130 if number == signal.SIGINT else -number), output


def test_train_survives_foreign_servers_killed_and_resumes_at_new_address(
    popen: Popen, url: str, address: Callable[[], Address], tmp_path: Path
) -> None:
    """The only server dies: the run ends with a checkpoint. One of two dies: no step is cut."""
    folder, only, third = tmp_path / "run", address(), address()
    config = recipe(urls=[only.url], server_timeout=3.0)
    train = dataclasses.replace(config.train, steps=12, checkpoint_every=100)
    config = dataclasses.replace(config, train=train)
    process = popen(train_command(config, folder))
    until(lambda: process.poll() is not None or len(read_metrics(folder)) >= 2, 120)
    assert process.poll() is None, process.communicate()

    only.die()
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 2, output
    done = len(read_metrics(folder))
    assert "every engine gave no answer for" in output
    assert "paint resume" in output
    checkpoint = latest_checkpoint(folder)
    assert checkpoint is not None
    assert checkpoint.name == f"step-{done:06d}"

    resume = [sys.executable, "-m", "paint.cli", "resume", str(folder), "--urls", url, third.url]
    process = popen(resume)
    until(lambda: process.poll() is not None or len(read_metrics(folder)) >= done + 2, 120)
    assert process.poll() is None, process.communicate()
    third.die()
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 0, output
    assert f"{third.url} is left out" in output
    assert "1 of 2 servers go on" in output
    assert [len(stored(folder, step)) for step in range(1, 13)] == [32] * 12
    assert max(row["logprob_mismatch_mean"] for row in read_metrics(folder)) < 1e-4


def test_train_two_processes_through_server_matches_one(url: str, tmp_path: Path) -> None:
    config = recipe(urls=[url])
    config = dataclasses.replace(
        config, train=dataclasses.replace(config.train, steps=2, batch_size=8)
    )
    line = in_two_processes(train_command(config, tmp_path / "two"))
    finish(line, MASTER_PORT="29517")
    finish(train_command(config, tmp_path / "one"))
    one, two = (read_metrics(tmp_path / name) for name in ("one", "two"))
    assert [row["loss"] for row in two] == pytest.approx([row["loss"] for row in one], rel=1e-4)
    ids = [[row["completion_ids"] for row in stored(tmp_path / n, 2)] for n in ("one", "two")]
    assert ids[0] == ids[1]
    require_no_adapters(url)


def test_train_off_policy_killed_and_resumed_is_bitwise_equal(url: str, tmp_path: Path) -> None:
    """Several adapters on one server at once; a checkpoint keeps those that are behind."""
    config = recipe(urls=[url], off_policy_steps=2)
    train = dataclasses.replace(config.train, steps=5, batch_size=8, checkpoint_every=2)
    config = dataclasses.replace(config, train=train)
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    finish(train_command(config, whole))
    kill_and_resume(config, killed, lambda: len(read_metrics(killed)) >= 3)

    assert_same(adapter(whole), adapter(killed))
    for step in range(1, 6):
        ids = [[row["completion_ids"] for row in stored(f, step)] for f in (whole, killed)]
        assert ids[0] == ids[1]
    metrics = read_metrics(whole)
    assert max(row["logprob_mismatch_mean"] for row in metrics) < 1e-4
    assert metrics[0]["off_policy_kl"] < 1e-7 < min(row["off_policy_kl"] for row in metrics[1:])
    require_no_adapters(url)


def test_rank0_failure_ends_all_ranks_with_message(tmp_path: Path) -> None:
    line = in_two_processes(train_command(recipe(server="no-such-vllm serve"), tmp_path / "run"))
    environment = os.environ | SMALL | {"MASTER_PORT": "29518"}
    result = subprocess.run(line, capture_output=True, text=True, env=environment, timeout=120)
    assert result.returncode != 0
    assert "no-such-vllm cannot be started" in result.stderr


def test_eval_through_server_killed_and_resumed_gives_same_metrics(
    popen: Popen, url: str, trained: Policy, tmp_path: Path
) -> None:
    save_trained(trained, tmp_path / "mine")

    def command(folder: str, *more: str) -> list[str]:
        flags = f"--folder {tmp_path / folder} --benchmarks demo --limit 10 --no-thinking"
        flags += f" --dtype float32 --rollout.max-new-tokens 96 {' '.join(more)}"
        line = ["eval", "demo", str(tmp_path / "mine"), *flags.split()]
        return [sys.executable, "-m", "paint.cli", *line]

    def samples(folder: str, policy: str) -> list[dict[str, Any]]:
        path = tmp_path / folder / "demo" / policy / "demo" / "completions.jsonl"
        rows = [json.loads(line) for line in path.read_text().splitlines()]
        return sorted(rows, key=lambda row: (row["problem"], row["sample"]))

    served = ["--rollout.engine", "vllm", "--rollout.urls", url, "--rollout.batch-size", "8"]
    stored = tmp_path / "killed/demo/mine/demo/completions.jsonl"
    process = popen(command("killed", *served))
    until(lambda: stored.exists() and stored.read_bytes().count(b"\n") > 20, 300)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert 20 < stored.read_bytes().count(b"\n") < 120
    for line in (command("killed", *served), command("whole", *served), command("local")):
        finish(line)
    killed, whole, local = (
        json.loads((tmp_path / n / "demo/summary.json").read_text())
        for n in ("killed", "whole", "local")
    )
    assert killed == whole
    assert samples("killed", "mine") == samples("whole", "mine")
    assert {row["source"] for row in samples("whole", "base")} == {url}
    # The engines draw from one distribution with different random numbers: only noise differs.
    for policy in ("base", "mine"):
        one, other = (s["figures"][policy]["demo"]["avg_at_k"]["mean"] for s in (whole, local))
        assert one == pytest.approx(other, abs=0.12), policy
    before = (tmp_path / "whole/demo/summary.json").read_text()
    finish([sys.executable, "-m", "paint.cli", "grade", str(tmp_path / "whole/demo")])
    assert (tmp_path / "whole/demo/summary.json").read_text() == before
