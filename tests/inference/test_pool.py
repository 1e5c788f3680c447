"""Tests of the vLLM engine with servers that hang, die, forget or lie."""

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from peft.utils import load_peft_weights
from torch import Tensor

from conftest import DEMO, move
from fake_vllm_server import END, FakeVllmServer
from paint.config.recipe import find_recipe, read_recipe
from paint.config.schema import Config, RolloutConfig
from paint.core.display import Display
from paint.core.storage import digest_of_file
from paint.data.problems import Problem
from paint.estimate.sizing import ServerFlags
from paint.inference import adapter_sync_check
from paint.inference.adapter_sync_check import LogprobMismatchError, check_adapter_sync
from paint.inference.engine import Completion, EngineError, Sampling
from paint.inference.factory import EngineSetup, open_engine
from paint.inference.local import LocalEngine
from paint.inference.vllm import client
from paint.inference.vllm import engine as vllm_engine
from paint.inference.vllm.client import VllmServer
from paint.inference.vllm.engine import VllmEngine
from paint.inference.vllm.process import (
    OwnedProcess,
    free_port,
    inherited_environment,
    server_command,
    server_environment,
)
from paint.models.policy import Policy
from paint.models.weights import load_trained
from paint.training.rollouts import Rollout, ScoredRollout, check_logprob_mismatch
from processes import alive, until

SHORT = Sampling(temperature=1.1, top_p=0.95, top_k=20, max_new_tokens=8)
PROMPTS = [[10 + i, 40 + i, 70 + i] for i in range(24)]
EXPECTED = [(i % 500 + 3, 10 + i, 40 + i, END) for i in range(24)]

Open = Callable[..., VllmEngine]


@pytest.fixture(autouse=True)
def brisk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stand-ins come back within milliseconds, so nobody waits longer for them."""
    monkeypatch.setattr(client, "PAUSE_SECONDS", 0.02)
    monkeypatch.setattr(vllm_engine, "RETRY_SECONDS", 0.05)


@pytest.fixture
def serve() -> Iterator[Callable[..., FakeVllmServer]]:
    made: list[FakeVllmServer] = []

    def make(**settings: Any) -> FakeVllmServer:
        made.append(FakeVllmServer(**settings))
        return made[-1]

    yield make
    for fake_server in made:
        fake_server.silent = False
        fake_server.stop()


@pytest.fixture
def said(capsys: pytest.CaptureFixture[str]) -> Callable[[], str]:
    return lambda: capsys.readouterr().out


@pytest.fixture
def opened(policy: Policy, tmp_path: Path) -> Iterator[Open]:
    """Opens engines on fake servers, and closes them."""
    engines: list[VllmEngine] = []

    def open_on(
        *servers: FakeVllmServer, timeout: float = 30.0, run: str = "run", **options: Any
    ) -> VllmEngine:
        options = {"batch_size": 4, "server_timeout": 20.0} | options
        settings = RolloutConfig(engine="vllm", **options)
        folder = tmp_path / run / "engine"
        folder.mkdir(parents=True, exist_ok=True)
        clients = [VllmServer(s.url, timeout=timeout) for s in servers]
        engines.append(VllmEngine(policy, clients, folder, Display(), settings))
        engines[-1].connect()
        return engines[-1]

    yield open_on
    for engine in engines:
        engine.close()


def later(seconds: float, act: Callable[[], object]) -> None:
    timer = threading.Timer(seconds, act)
    timer.daemon = True
    timer.start()


def generate(engine: VllmEngine) -> list[tuple[int, ...]]:
    return [c.ids for c in engine.generate(PROMPTS, SHORT, range(len(PROMPTS)))]


def test_vllm_request_contains_all_sampling_parameters(serve: Any, opened: Open) -> None:
    fake_server = serve()
    engine = opened(fake_server)
    assert generate(engine) == EXPECTED
    [name] = fake_server.adapters
    bodies = [body for path, body in fake_server.calls if path == "/v1/completions"]
    sampling = {"max_tokens": 8, "temperature": 1.1, "top_p": 0.95, "top_k": 20, "min_p": 0.0}
    zero = dict.fromkeys(["presence_penalty", "frequency_penalty", "logprobs"], 0)
    end = {"stop_token_ids": engine.policy.end_ids, "return_token_ids": True}
    for i, body in enumerate(sorted(bodies, key=lambda body: body["seed"])):
        asked = {"model": name, "prompt": PROMPTS[i], "add_special_tokens": False, "seed": i}
        assert body == asked | sampling | {"repetition_penalty": 1.0} | zero | end
    [cut] = engine.generate([[5, 6, 7]], Sampling(0.0, 1.0, -1, 2), [0])
    assert (cut.ids, cut.truncated) == ((3, 5), True)


def test_sync_weights_names_are_unique(serve: Any, opened: Open, tmp_path: Path) -> None:
    fake_server = serve(max_loras=9)
    seen = []
    for engine in (opened(fake_server, run="a"), opened(fake_server, run="b")):
        for _ in range(3):
            engine.sync_weights()
            assert engine.adapter is not None
            assert fake_server.adapters[engine.adapter.name] == str(engine.adapter)
            assert list(engine.folder.glob(f"*{engine.run}*")) == [engine.adapter]
            seen.append(engine.adapter.name)
    assert len(set(seen)) == 6
    # Each replaced the one before, and nobody else's.
    assert list(fake_server.adapters) == [seen[2], seen[5]]


@pytest.mark.parametrize(
    ("options", "room", "uid", "where"),
    [
        ({}, 1e9, os.getuid(), "memory"),
        ({}, 1e5, os.getuid(), "run"),  # no room
        ({}, 1e9, -1, "run"),  # somebody else made the folder
        ({"adapter_folder": "given"}, 1e9, os.getuid(), "given"),
        ({"urls": ("http://127.0.0.1:1",)}, 1e9, os.getuid(), "run"),
    ],
)
def test_adapters_of_own_servers_are_in_shared_memory_with_room(
    policy: Policy,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    options: dict[str, Any],
    room: float,
    uid: int,
    where: str,
) -> None:
    for name in ("memory", "run"):
        (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("paint.inference.vllm.engine.MEMORY", tmp_path / "memory")
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=room))
    monkeypatch.setattr("os.getuid", lambda: uid)
    rollout = RolloutConfig(engine="vllm", **options)
    setup = EngineSetup(policy, DEMO, rollout, tmp_path / "run", Display(), 1024, ())

    engines = []
    for _ in range(2):  # a killed run leaves its adapters to the next one
        engine = VllmEngine.from_setup(setup)
        assert not list(engine.folder.glob("*paint-*"))
        engine.servers.clear()
        engine.sync_weights()
        engines.append(engine)
    assert engine.folder.resolve().is_relative_to(tmp_path / where)
    assert (engine.folder.stat().st_mode & 0o077 == 0) == (where == "memory")
    for engine in engines:
        engine.close()
    assert not list(tmp_path.rglob("adapter_model.safetensors"))
    assert engine.folder.exists() == (where != "memory")


def test_sync_weights_shared_adapter_folder_keeps_runs_apart(
    serve: Any, policy: Policy, problems: list[Problem], tmp_path: Path
) -> None:
    shared = tmp_path / "shared"
    rollout = RolloutConfig(engine="vllm", urls=(serve().url,), adapter_folder=str(shared))
    contents = []
    for run in ("a/seed-0", "b/seed-0", "a/seed-0"):
        setup = EngineSetup(policy, DEMO, rollout, tmp_path / run, Display(), 1024, problems)
        # A fake server has no model, but the folder is made.
        with pytest.raises(LogprobMismatchError), open_engine(setup):
            pytest.fail("the adapter sync check passed")
        contents.append(sorted(path.name for path in shared.iterdir()))
    assert [len(names) for names in contents] == [1, 2, 2]
    assert all(name.startswith("seed-0-") for name in contents[2])


def test_sync_weights_sends_trained_values(serve: Any, opened: Open, trained: Policy) -> None:
    fake_server = serve()
    engine = opened(fake_server)
    engine.policy = trained
    engine.sync_weights()
    [path] = fake_server.adapters.values()
    stored = load_peft_weights(path, device="cpu")
    for name, parameter in trained.model.named_parameters():
        if parameter.requires_grad:
            assert torch.equal(stored[name.replace(".default", "")], parameter)


def test_vllm_engine_resume_drops_adapters_of_killed_run(serve: Any, opened: Open) -> None:
    fake_server = serve()
    killed, other = opened(fake_server), opened(fake_server, run="another")
    killed.sync_weights()
    other.sync_weights()
    assert other.adapter is not None
    resumed = opened(fake_server)
    assert list(fake_server.adapters) == [other.adapter.name]
    other.close()
    resumed.sync_weights()
    resumed.require_slots()


def test_pool_sends_rows_to_least_busy_server(serve: Any, opened: Open) -> None:
    slow, fast = serve(seconds=0.3), serve(seconds=0.01)
    assert generate(opened(slow, fast)) == EXPECTED
    counts = [s.paths().count("/v1/completions") for s in (slow, fast)]
    assert sum(counts) == 24
    assert 1 <= counts[0] <= 8  # in_flight 4 at a time, while the fast one does the rest


def test_pool_retries_failure_without_eviction(serve: Any, opened: Open, said: Any) -> None:
    fake_server = serve(hiccups=2)  # a row that meets both still has its third attempt
    assert generate(opened(fake_server)) == EXPECTED
    assert fake_server.hiccups == 0
    assert "left out" not in said()


def test_pool_server_out_of_memory_gets_half_as_many_rows(
    serve: Any, opened: Open, said: Callable[[], str]
) -> None:
    answer, at_once, lock = FakeVllmServer.complete, 0, threading.Lock()

    def complete(server: FakeVllmServer, body: Any) -> tuple[int, Any]:
        nonlocal at_once
        with lock:
            at_once += 1
            rows = at_once
        time.sleep(0.2)  # longer than a loaded machine takes to send all
        response = answer(server, body)
        with lock:
            at_once -= 1
        return response if rows <= 2 else (500, {"error": {"message": "CUDA out of memory."}})

    fake_server = serve()
    fake_server.complete = complete.__get__(fake_server)
    engine = opened(fake_server, batch_size=8)
    assert generate(engine) == EXPECTED
    assert engine.in_flight == 2
    assert len(re.findall("out of memory.*rows at once on each server from now on", said())) == 2


def test_sync_weights_retries_before_eviction(
    serve: Any, opened: Open, said: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "PAUSE_SECONDS", 0.25)
    fake_server = serve()
    engine = opened(fake_server)
    fake_server.stop()
    later(0.2, fake_server.start)
    engine.sync_weights()
    assert engine.adapter is not None
    assert list(fake_server.adapters) == [engine.adapter.name]
    assert "left out" not in said()


def test_pool_evicts_dead_server_and_goes_on(serve: Any, opened: Open, said: Any) -> None:
    dies, lives = serve(seconds=0.2), serve(seconds=0.02)
    engine = opened(dies, lives)
    later(0.1, dies.stop)
    assert generate(engine) == EXPECTED
    assert re.search(rf"{dies.url} is left out \(.*\); 1 of 2 servers go on", said())
    engine.sync_weights()
    assert generate(engine) == EXPECTED


def test_pool_readmits_server_with_current_adapter(serve: Any, opened: Open, said: Any) -> None:
    dies, lives = serve(), serve()
    engine = opened(dies, lives)
    engine.sync_weights()
    dies.stop()
    assert generate(engine) == EXPECTED
    engine.sync_weights()
    dies.start()
    lives.seconds = 0.1
    assert generate(engine) == EXPECTED
    assert f"{dies.url} answers again and has the current adapter" in said()
    assert engine.adapter is not None
    assert list(dies.adapters) == [engine.adapter.name]


def test_pool_evicts_hanging_server_by_health_check(
    serve: Any, opened: Open, said: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vllm_engine, "HEARTBEAT_SECONDS", 0.1)
    monkeypatch.setattr(client, "HEALTH_SECONDS", 0.2)
    hangs, lives = serve(seconds=0.05), serve(seconds=0.05)
    engine = opened(hangs, lives)
    engine.sync_weights()
    later(0.05, lambda: setattr(hangs, "silent", True))
    assert generate(engine) == EXPECTED
    assert f"{hangs.url} is left out (no answer to /health)" in said()


def test_pool_reloads_adapter_after_restart(serve: Any, opened: Open, said: Any) -> None:
    fake_server = serve(forgetful=7)
    assert generate(opened(fake_server)) == EXPECTED
    assert fake_server.paths().count("/v1/load_lora_adapter") >= 2
    assert "left out" not in said()


def test_pool_without_servers_fails_after_server_timeout(serve: Any, opened: Open) -> None:
    fake_server = serve()
    engine = opened(fake_server, server_timeout=0.6)
    engine.sync_weights()
    fake_server.stop()
    began = time.monotonic()
    with pytest.raises(
        EngineError,
        match=rf"no answer for [1-9] s \({fake_server.url}.*paint resume RUN.*server_timeout",
    ):
        generate(engine)
    assert time.monotonic() - began < 10


def test_pool_server_that_always_fails_ends_run_at_once(serve: Any, opened: Open) -> None:
    fake_server = serve(broken=True)
    wanted = r"failed 4 times without completing anything .*EngineCore encountered"
    with pytest.raises(EngineError, match=wanted):
        generate(opened(fake_server, server_timeout=1000.0))


def drip(handler: Any, path: str, *good: object) -> bool:
    """A response that comes a byte at a time."""
    if path != "/v1/completions":
        return False
    handler.send_response(200)
    handler.send_header("Content-Length", "1000000")
    handler.end_headers()
    for _ in range(100):
        time.sleep(0.05)
        handler.wfile.write(b" ")
    return True


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"seconds": 1.0}, r"without an answer in time .*raise rollout\.timeout"),
        ({"send": drip}, r".*no complete answer within 0\.3 s"),
    ],
)
def test_pool_completion_that_always_times_out_ends_run(
    serve: Any, opened: Open, settings: dict[str, Any], message: str
) -> None:
    began = time.monotonic()
    with pytest.raises(EngineError, match=f"asked for 3 times {message}"):
        generate(opened(serve(**settings), timeout=0.3))
    assert time.monotonic() - began < 4


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"max_rank": 1},
            r"up to rank 1, this one has 8 \(model\.lora_rank\).* --max-lora-rank 8",
        ),
        ({"runtime": False}, "VLLM_ALLOW_RUNTIME_LORA_UPDATING=1"),
        ({"lora": False}, "--enable-lora"),
        ({"sleeps": False}, r"cannot sleep .*--enable-sleep-mode .*VLLM_SERVER_DEV_MODE=1"),
    ],
    ids=["rank", "no runtime loading", "no adapters", "no sleep mode"],
)
def test_generate_on_server_that_lacks_flag_names_it(
    serve: Any, opened: Open, settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(EngineError, match=message):
        generate(opened(serve(**settings), colocate="sleeps" in settings))


def test_sync_weights_folder_unreadable_by_server_is_named(
    serve: Any, opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = opened(serve())
    monkeypatch.setattr(vllm_engine, "save_served", lambda *_: None)
    wanted = rf"cannot read {engine.folder}/paint-.*--rollout\.adapter-folder"
    with pytest.raises(EngineError, match=wanted):
        engine.sync_weights()


def test_require_slots_more_adapters_than_slots_is_refused(serve: Any, opened: Open) -> None:
    fake_server = serve(max_loras=1)
    first = opened(fake_server)
    first.sync_weights()
    first.require_slots()
    second = opened(fake_server, run="another")
    second.sync_weights()
    with pytest.raises(EngineError, match=r"serves 2 adapters and holds 1 at once.*--max-loras 2"):
        second.require_slots()
    ahead = opened(serve(max_loras=2), off_policy_steps=2)
    ahead.sync_weights()
    wanted = r"serves 3 adapters and holds 2 .* --max-loras 3.* or lower rollout\.off_policy_steps"
    with pytest.raises(EngineError, match=wanted):
        ahead.require_slots()


def test_submit_runs_steps_concurrently_each_with_its_adapter(
    serve: Any, opened: Open, policy: Policy, tmp_path: Path
) -> None:
    """While the caller goes on, and while what was asked for first is not there yet."""
    fake_server = serve(max_loras=3)
    engine = opened(fake_server, off_policy_steps=2, batch_size=2)
    engine.sync_weights()
    others = [engine.fork(), engine.fork()]
    for step, other in enumerate(others):
        move(policy, step)
        other.sync_weights()
    fake_server.silent = True
    waiting = [other.submit(PROMPTS, SHORT, range(24)) for other in others]
    until(lambda: fake_server.paths().count("/v1/completions") == 2 * 2)
    fake_server.silent = False

    assert [[c.ids for c in wait()] for wait in waiting] == [EXPECTED, EXPECTED]
    assert generate(engine) == EXPECTED
    asked = [body["model"] for path, body in fake_server.calls if path == "/v1/completions"]
    assert sorted(Counter(asked).values()) == [24, 24, 24]
    assert set(asked) == set(fake_server.adapters)
    weights = {
        digest_of_file(Path(p) / "adapter_model.safetensors") for p in fake_server.adapters.values()
    }
    assert len(weights) == 3
    engine.close()
    assert not fake_server.adapters
    assert not list((tmp_path / "run/engine").iterdir())


def test_pool_readmits_server_that_died_unobserved(serve: Any, opened: Open, said: Any) -> None:
    fake_server = serve(max_loras=2, seconds=0.1)
    engine = opened(fake_server, off_policy_steps=1)
    engine.sync_weights()
    beside = engine.fork()
    beside.sync_weights()
    wait = beside.submit(PROMPTS, SHORT, range(24))
    until(lambda: fake_server.paths().count("/v1/completions") > 8)
    fake_server.stop()
    until(lambda: "waiting for it" in said())
    fake_server.start()
    assert [c.ids for c in wait()] == EXPECTED


def test_vllm_engine_close_cancels_pending_completions(serve: Any, opened: Open) -> None:
    fake_server = serve(max_loras=2, seconds=0.2)
    engine = opened(fake_server, off_policy_steps=1, batch_size=1)
    engine.sync_weights()
    beside = engine.fork()
    beside.sync_weights()
    wait = beside.submit(PROMPTS, SHORT, range(24))
    until(lambda: "/v1/completions" in fake_server.paths())
    started = time.monotonic()
    engine.close()
    assert time.monotonic() - started < 2
    assert not fake_server.adapters
    assert fake_server.paths().count("/v1/completions") < 4
    with pytest.raises(CancelledError):
        wait()


def test_generate_completion_over_server_length_is_refused(serve: Any, opened: Open) -> None:
    fake_server = serve(max_tokens=10)
    engine = opened(fake_server, off_policy_steps=1)
    wanted = r"a prompt of 3 tokens and 8 new ones need --max-model-len 11.* has 10"
    with pytest.raises(EngineError, match=wanted):
        generate(engine)
    with pytest.raises(EngineError, match=wanted):
        engine.submit(PROMPTS, SHORT, range(24))()
    assert "/v1/completions" not in fake_server.paths()


def spoiling(**changes: Any) -> Callable[[dict[str, Any]], None]:
    return lambda choice: choice.update(changes)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (spoiling(prompt_token_ids=[1, 2]), "read other token ids"),
        (spoiling(token_ids=[5, 6], logprobs={"token_logprobs": [-1, -1]}), "stopped after 2 of 8"),
        (spoiling(logprobs={"token_logprobs": [-1] * 3}), "4 token ids and 3 log-probs"),
        (spoiling(logprobs={"token_logprobs": [float("nan")] * 4}), "has the log-prob nan"),
        (spoiling(token_ids=[10**9, 10, 40, END]), "the token id 1000000000"),
        (spoiling(token_ids=[5] * 100_000), "100000 token ids and 4"),
        (dict.clear, "KeyError"),
    ],
    ids=["prompt", "length", "log-probs", "nan", "no token", "too many", "nothing"],
)
def test_pool_evicts_server_with_invalid_response_and_completes_step(
    serve: Any, opened: Open, said: Any, spoil: Any, message: str
) -> None:
    liar, honest = serve(spoil=spoil), serve(seconds=0.02)
    completions = opened(liar, honest).generate(PROMPTS, SHORT, range(len(PROMPTS)))
    assert [c.ids for c in completions] == EXPECTED
    assert {c.source for c in completions} == {honest.url}
    out = rf"{liar.url} is left out \(.*not as a vLLM server does: .*{message}"
    assert re.search(out, said())


def test_message_of_server_cannot_steer_terminal(serve: Any, opened: Open) -> None:
    fake_server = serve()
    engine = opened(fake_server)
    fake_server.respond = lambda *_: (500, {"error": {"message": "\x1b[31mred\x07" * 1000}})
    with pytest.raises(EngineError, match=r"\\x1b\[31mred\\x07") as error:
        generate(engine)
    assert str(error.value).isprintable()
    assert len(str(error.value)) < 2000


def test_vllm_engine_other_server_is_refused(serve: Any, opened: Open, policy: Policy) -> None:
    fake_server = serve()
    fake_server.respond = lambda *_: (200, {"hello": "world"})
    with pytest.raises(EngineError, match="answers, but not as a vLLM server does"):
        opened(fake_server)
    fake_server.stop()
    silent = rf"{fake_server.url} did not answer within 1 s \(rollout\.server_timeout\)"
    with pytest.raises(EngineError, match=silent):
        opened(fake_server, server_timeout=0.6)


def test_colocated_server_is_awake_only_to_generate(serve: Any, opened: Open) -> None:
    fake_server = serve()
    engine = opened(fake_server, colocate=True)
    engine.sync_weights()
    assert "/v1/load_lora_adapter" not in fake_server.paths()  # it may be asleep
    fake_server.calls.clear()
    for _ in range(2):
        assert generate(engine) == EXPECTED
        engine.sync_weights()
        assert fake_server.asleep
    engine.close()
    assert not fake_server.asleep  # as it was found
    once = ["/wake_up", "/v1/load_lora_adapter", *["/v1/completions"] * 24, "/sleep?level=1"]
    asked = [path for path in fake_server.paths() if path != "/v1/unload_lora_adapter"]
    assert asked == [*once, *once, "/wake_up"]


def test_sync_weights_full_disk_is_reported(
    serve: Any, opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: Policy, folder: Path) -> None:
        folder.mkdir()
        raise OSError("no space left")

    engine = opened(serve())
    monkeypatch.setattr(vllm_engine, "save_served", full)
    with pytest.raises(EngineError, match=r"not be written to .*no space left; free some space"):
        engine.sync_weights()
    assert not list(engine.folder.iterdir())


# A server and its worker: one process starts another and writes both numbers down. The worker does
# not listen to SIGTERM; a stubborn server does not either, and its worker holds enough memory to be
# still there for a while after SIGKILL.
FAMILY = """
import os, signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
is_stubborn = sys.argv[2] == "stubborn"
size = 2**29 if is_stubborn else 1
holds = f"import time; held = b'x' * {size}; print(flush=True); time.sleep(600)"
worker = subprocess.Popen([sys.executable, "-c", holds], stdout=subprocess.PIPE)
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
@pytest.mark.parametrize("manner", ["obedient", pytest.param("stubborn", marks=pytest.mark.slow)])
def test_owned_server_ends_with_server_or_trainer(tmp_path: Path, end: str, manner: str) -> None:
    pids = tmp_path / "pids"
    family = [sys.executable, "-c", FAMILY, str(pids), manner]

    def family_pids() -> list[int]:
        until(pids.exists, 60)
        return [int(pid) for pid in pids.read_text().split()]

    if end == "stop":
        process = OwnedProcess(family, os.environ, tmp_path / "log")
        process.start()
        parent, worker = family_pids()
        process.stop()
        assert process.dead
    else:
        owner = subprocess.Popen([sys.executable, "-c", TRAINER, str(tmp_path / "log"), *family])
        parent, worker = family_pids()
        os.kill(parent if end == "server dies" else owner.pid, signal.SIGKILL)
        until(lambda: not alive(parent) and not alive(worker))
        owner.kill()
        owner.wait()
    assert not alive(parent)
    assert not alive(worker)


DIES = [sys.executable, "-c", "print('CUDA out of memory'); raise SystemExit(1)"]


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (["no-such-vllm", "serve"], "no-such-vllm cannot be started"),
        (DIES, "CUDA out of memory\n.*status 1"),
    ],
    ids=["no command", "dies"],
)
def test_owned_server_failed_start_shows_log_tail(
    policy: Policy, tmp_path: Path, command: list[str], message: str
) -> None:
    process = OwnedProcess(command, os.environ, tmp_path / "server.log")
    served = VllmServer(f"http://127.0.0.1:{free_port()}", timeout=5.0, process=process)
    engine = VllmEngine(policy, [served], tmp_path, Display(), RolloutConfig(engine="vllm"))
    wanted = f"ended before it was ready; .*server.log ends with\n(?s:.*){message}"
    with pytest.raises(EngineError, match=wanted):
        engine.connect()
    engine.close()


def test_server_process_tail_is_sanitized_and_bounded(tmp_path: Path) -> None:
    process = OwnedProcess(["vllm"], {}, tmp_path / "log")
    assert process.tail() == "(No such file or directory)"
    process.log.write_bytes(b"x" * 10**6 + b"\n\x1b[31mred\x1b[0m\x07 \xff end\n\n")
    assert process.tail(1) == "red\\x07 \ufffd end"
    assert len(process.tail()) < 20_100


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
    monkeypatch.setenv("VLLM_SERVER_DEV_MODE", "0")
    rollout = Config().rollout
    for sleep, mode in ((False, "0"), (True, "1")):
        variables = server_environment(replace(rollout, colocate=sleep))
        environment = inherited_environment(["vllm"]) | variables
        assert environment["VLLM_ALLOW_RUNTIME_LORA_UPDATING"] == "1"
        assert environment["VLLM_SERVER_DEV_MODE"] == mode
        assert environment["PATH"] == os.environ["PATH"]
        assert not trainers & set(environment)


def test_inherited_environment_has_folder_of_named_server_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PATH", "/usr/bin")
    for command, path in (("/x/bin/vllm", "/x/bin:/usr/bin"), ("vllm", "/usr/bin")):
        assert inherited_environment([command, "serve"])["PATH"] == path


def test_adapter_sync_check_covers_every_server_without_averaging(
    trained: Policy, prompts: list[list[int]], serve: Any, opened: Open
) -> None:
    servers = [serve(seconds=0.05) for _ in range(5)]
    engine = opened(*servers)
    engine.generate(PROMPTS[:20], SHORT, range(20))
    counts = [s.paths().count("/v1/completions") for s in servers]
    assert counts == [4] * 5

    class OneOfTwo(LocalEngine):
        def generate(self, prompts: Any, sampling: Sampling, seeds: Any) -> list[Completion]:
            first, *rest = super().generate(prompts, sampling, seeds)
            log_probs = tuple(log_prob - 0.04 for log_prob in first.log_probs)
            return [replace(first, source="http://b", log_probs=log_probs), *rest]

    one_of_two = OneOfTwo(trained, batch_size=8)
    with pytest.raises(LogprobMismatchError, match=r"engine and trainer differ by 0\.04 nats"):
        check_adapter_sync(trained, one_of_two, prompts * 2, SAMPLING, 0.02)


@pytest.fixture
def prompts(trained: Policy, problems: list[Problem]) -> list[list[int]]:
    return [trained.student_prompt(p.problem) for p in problems[:4]]


SAMPLING = Sampling(temperature=1.1, top_p=0.95, top_k=20, max_new_tokens=12)


class Stale(LocalEngine):
    """An engine that loads the first ``keeps`` adapters it is given, and then keeps the last."""

    def __init__(self, policy: Policy, folder: Path, keeps: int) -> None:
        super().__init__(policy, batch_size=4)
        self.folder, self.left = folder, keeps

    def sync_weights(self) -> None:
        if self.left > 0:
            self.left -= 1
            self.policy.model.save_pretrained(self.folder)

    def generate(self, prompts: Any, sampling: Sampling, seeds: Any) -> list[Completion]:
        current = [p.detach().clone() for p in self.policy.trainable]
        load_trained(self.policy, self.folder)
        try:
            return super().generate(prompts, sampling, seeds)
        finally:
            with torch.no_grad():
                for parameter, value in zip(self.policy.trainable, current, strict=True):
                    parameter.copy_(value)


def test_adapter_sync_check_passes_matching_engine_and_restores_adapter(
    trained: Policy, prompts: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """All rows are scored six times without the search, which scores one row at a time."""
    scored: list[int] = []
    score = adapter_sync_check.trainer_log_probs

    def count(policy: Policy, prompts: Any, completions: list[Completion]) -> Tensor:
        scored.append(len(completions))
        return score(policy, prompts, completions)

    monkeypatch.setattr(adapter_sync_check, "trainer_log_probs", count)
    before = [p.detach().clone() for p in trained.trainable]
    engine = LocalEngine(trained, batch_size=4)
    gaps = check_adapter_sync(trained, engine, prompts, SAMPLING, 1e-3)
    assert max(gaps["before"], gaps["perturbed"], gaps["restored"]) < 1e-4
    assert gaps["moved"] > 0.1
    assert all(torch.equal(a, b) for a, b in zip(before, trained.trainable, strict=True))
    assert scored.count(1) > 3
    assert scored.count(4) <= 8


@pytest.mark.parametrize(
    ("keeps", "bound"), [(1, 1e-3), (1, 0.05), (1, float("inf")), (2, 1e-3), (2, 0.05)]
)
def test_adapter_sync_check_finds_engine_with_stale_adapter(
    trained: Policy, prompts: list[list[int]], tmp_path: Path, keeps: int, bound: float
) -> None:
    before = [p.detach().clone() for p in trained.trainable]
    message = ("does not serve the adapter that it was sent", "answers from an older version")
    with pytest.raises(LogprobMismatchError, match=message[keeps - 1]):
        check_adapter_sync(trained, Stale(trained, tmp_path, keeps), prompts, SAMPLING, bound)
    assert all(torch.equal(a, b) for a, b in zip(before, trained.trainable, strict=True))


def test_adapter_sync_check_finds_engine_with_other_initial_policy(
    trained: Policy, prompts: list[list[int]], tmp_path: Path
) -> None:
    engine = Stale(trained, tmp_path, keeps=1)
    engine.sync_weights()
    with torch.no_grad():
        for parameter in trained.trainable:
            parameter.mul_(0.5)
    differs = r"before the first step, engine and trainer differ by .*model\.path"
    with pytest.raises(LogprobMismatchError, match=differs):
        check_adapter_sync(trained, engine, prompts, SAMPLING, 1e-3)


def test_require_agreement_mismatch_is_refused_with_hint() -> None:
    completion = Completion((5, 6), (-1.0, -1.5), truncated=False)
    rollout = Rollout(0, Problem("p", "s", "7", "1"), [], completion, "")
    scored = [ScoredRollout(rollout, {"student_log_prob": [-1.0, -1.1]})]
    check_logprob_mismatch(scored, 0.21, 7)
    wanted = r"step 7: .* by 0\.2 nats .*mismatch 0\.19; nothing was updated.*--dtype"
    with pytest.raises(LogprobMismatchError, match=wanted):
        check_logprob_mismatch(scored, 0.19, 7)
    broken = [ScoredRollout(rollout, {"student_log_prob": [float("nan"), -1.1]})]
    with pytest.raises(LogprobMismatchError):
        check_logprob_mismatch(broken, 1e9, 7)
