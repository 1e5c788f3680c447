"""Tests of the vLLM engine with servers that hang, die, forget or send what is wrong."""

import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from peft.utils import load_peft_weights

from conftest import DEMO, move
from fake_vllm_server import END, FakeVllmServer
from paint.config.schema import RolloutConfig
from paint.core.display import Display
from paint.core.storage import digest_of_file
from paint.inference.engine import EngineError, Sampling
from paint.inference.factory import EngineSetup
from paint.inference.vllm import client, pool
from paint.inference.vllm.client import VllmServer
from paint.inference.vllm.pool import VllmEngine
from paint.models.policy import Policy
from processes import until

SHORT = Sampling(temperature=1.1, top_p=0.95, top_k=20, max_new_tokens=8)
PROMPTS = [[10 + i, 40 + i, 70 + i] for i in range(24)]
EXPECTED = [(i % 500 + 3, 10 + i, 40 + i, END) for i in range(24)]

Open = Callable[..., VllmEngine]


@pytest.fixture(autouse=True)
def brisk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stand-ins come back within milliseconds, so nobody waits longer for them."""
    monkeypatch.setattr(client, "PAUSE_SECONDS", 0.02)
    monkeypatch.setattr(pool, "RETRY_SECONDS", 0.05)


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
def printed(capsys: pytest.CaptureFixture[str]) -> Callable[[], str]:
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


def spoiling(**changes: Any) -> dict[str, Any]:
    """Settings of a server whose completions have these values."""
    return {"spoil": lambda choice: choice.update(changes)}


def hang(server: FakeVllmServer) -> None:
    server.silent = True


INVALID = "not as a vLLM server does: "
FAULTS: dict[str, tuple[dict[str, Any], str]] = {
    # A row that meets both failures still has its third attempt.
    "fails twice": ({"hiccups": 2}, ""),
    "restarts without adapters": ({"forgetful": 7}, ""),
    "dies": ({"after": FakeVllmServer.stop}, "; 1 of 2 servers go on"),
    "hangs": ({"after": hang}, "(no answer to /health)"),
    "other prompt": (spoiling(prompt_token_ids=[1]), f"{INVALID}it read other token ids"),
    "cut": (spoiling(token_ids=[5], logprobs={"token_logprobs": [-1]}), "stopped after 1 of 8"),
    "log-prob missing": (
        spoiling(logprobs={"token_logprobs": [-1]}),
        "4 token ids and 1 log-probs",
    ),
    "nan": (spoiling(logprobs={"token_logprobs": [float("nan")] * 4}), "has the log-prob nan"),
    "no token": (spoiling(token_ids=[10**9, 10, 40, END]), "the token id 1000000000"),
    "too many tokens": (spoiling(token_ids=[5] * 100_000), "100000 token ids and 4"),
    "empty": ({"spoil": dict.clear}, f"{INVALID}KeyError"),
}
"""Settings of a faulty server, and with what it is left out of the step; empty where it stays."""


@pytest.mark.parametrize(("settings", "evicted"), FAULTS.values(), ids=FAULTS)
def test_pool_with_faulty_server_completes_step(
    serve: Any,
    opened: Open,
    printed: Any,
    monkeypatch: pytest.MonkeyPatch,
    settings: dict[str, Any],
    evicted: str,
) -> None:
    faulty = serve(seconds=0.05 if "after" in settings else 0.0, **settings)
    servers = [faulty, serve(seconds=0.05)] if evicted else [faulty]
    engine = opened(*servers)
    engine.sync_weights()
    if "after" in settings:
        monkeypatch.setattr(pool, "HEARTBEAT_SECONDS", 0.1)
        monkeypatch.setattr(client, "HEALTH_SECONDS", 0.2)
        later(0.05, lambda: settings["after"](faulty))
    completions = engine.generate(PROMPTS, SHORT, range(len(PROMPTS)))
    assert [c.ids for c in completions] == EXPECTED
    text = printed()
    assert (f"{faulty.url} is left out (" in text) == bool(evicted)
    assert evicted in text
    if "hiccups" in settings:
        assert faulty.hiccups == 0
    if "forgetful" in settings:  # it was given the adapter again
        assert faulty.paths().count("/v1/load_lora_adapter") == 2
    if evicted and "spoil" in settings:
        assert {c.source for c in completions} == {servers[1].url}
    engine.sync_weights()
    assert generate(engine) == EXPECTED


def test_pool_readmits_server_with_current_adapter(serve: Any, opened: Open, printed: Any) -> None:
    dies, lives = serve(), serve()
    engine = opened(dies, lives)
    engine.sync_weights()
    dies.stop()
    assert generate(engine) == EXPECTED
    engine.sync_weights()
    dies.start()
    lives.seconds = 0.1
    assert generate(engine) == EXPECTED
    assert f"{dies.url} answers again and has the current adapter" in printed()
    assert engine.adapter is not None
    assert list(dies.adapters) == [engine.adapter.name]


def test_pool_readmits_server_that_died_unobserved(serve: Any, opened: Open, printed: Any) -> None:
    fake_server = serve(max_loras=2, seconds=0.1)
    engine = opened(fake_server, off_policy_steps=1)
    engine.sync_weights()
    beside = engine.fork()
    beside.sync_weights()
    wait = beside.submit(PROMPTS, SHORT, range(24))
    until(lambda: fake_server.paths().count("/v1/completions") > 8)
    fake_server.stop()
    until(lambda: "waiting for it" in printed())
    fake_server.start()
    assert [c.ids for c in wait()] == EXPECTED


def test_sync_weights_retries_before_eviction(
    serve: Any, opened: Open, printed: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "PAUSE_SECONDS", 0.25)
    fake_server = serve()
    engine = opened(fake_server)
    fake_server.stop()
    later(0.2, fake_server.start)
    engine.sync_weights()
    assert engine.adapter is not None
    assert list(fake_server.adapters) == [engine.adapter.name]
    assert "left out" not in printed()


def test_pool_server_out_of_memory_gets_half_as_many_rows(
    serve: Any, opened: Open, printed: Callable[[], str]
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
    text = printed()
    assert text.count("out of memory") == 2
    assert text.count("rows at once on each server from now on") == 2


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


RANK = r"up to rank 1, this one has 8 \(model\.lora_rank\).* --max-lora-rank 8"
SLEEP = r"cannot sleep .*--enable-sleep-mode .*VLLM_SERVER_DEV_MODE=1"
LENGTH = r"a prompt of 3 tokens and 8 new ones need --max-model-len 11.* has 10"
ALWAYS = r"failed 4 times without completing anything .*EngineCore encountered"
STEERING: tuple[int, Any] = (500, {"error": {"message": "\x1b[31mred\x07" * 1000}})
RED = ["\u202ered", 10, 40, END]
STEERED = r'failed 4 times .*the token id "\\u202ered"'
SLOW = r"asked for 3 times without an answer in time .*raise rollout\.timeout"
REFUSALS: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "rank": ({"max_rank": 1}, {}, RANK),
    "no runtime loading": ({"runtime": False}, {}, "VLLM_ALLOW_RUNTIME_LORA_UPDATING=1"),
    "no adapters": ({"lora": False}, {}, "--enable-lora"),
    "no sleep mode": ({"sleeps": False}, {"colocate": True}, SLEEP),
    "context length": ({"max_tokens": 10}, {}, LENGTH),
    "always fails": ({"broken": True}, {"server_timeout": 1000.0}, ALWAYS),
    "steers the terminal": ({"complete": lambda _: STEERING}, {}, r"\\x1b\[31mred\\x07"),
    "times out": ({"seconds": 1.0}, {"timeout": 0.3}, SLOW),
    "drips": ({"send": drip}, {"timeout": 0.3}, r"3 times .*no complete answer within 0\.3 s"),
    "steers by a token": (spoiling(token_ids=RED), {"server_timeout": 1000.0}, STEERED),
    "no vLLM": ({"respond": lambda *_: (200, {})}, {}, "answers, but not as a vLLM server does"),
}
"""Settings of a server that no run can use, options of the engine, and what the error contains."""


@pytest.mark.parametrize(("settings", "options", "message"), REFUSALS.values(), ids=REFUSALS)
def test_generate_on_unusable_server_is_refused(
    serve: Any, opened: Open, settings: dict[str, Any], options: dict[str, Any], message: str
) -> None:
    fake_server, began = serve(**settings), time.monotonic()
    with pytest.raises(EngineError, match=message) as error:
        generate(opened(fake_server, **options))
    assert time.monotonic() - began < 4
    assert str(error.value).isprintable()
    assert len(str(error.value)) < 2000


def test_submit_completion_over_server_length_is_refused(serve: Any, opened: Open) -> None:
    fake_server = serve(max_tokens=10)
    engine = opened(fake_server, off_policy_steps=1)
    engine.sync_weights()
    wait = engine.submit(PROMPTS, SHORT, range(24))
    with pytest.raises(EngineError, match=r"--max-model-len 11.* has 10"):
        wait()
    assert "/v1/completions" not in fake_server.paths()


def test_pool_without_servers_fails_after_server_timeout(serve: Any, opened: Open) -> None:
    fake_server = serve()
    engine = opened(fake_server, server_timeout=0.6)
    engine.sync_weights()
    fake_server.stop()
    wanted = rf"no answer for [1-9] s \({fake_server.url}.*paint resume RUN.*server_timeout"
    with pytest.raises(EngineError, match=wanted):
        generate(engine)
    silent = rf"{fake_server.url} did not answer within 1 s \(rollout\.server_timeout\)"
    with pytest.raises(EngineError, match=silent):
        opened(fake_server, server_timeout=0.6)


def save_nothing(_: Policy, folder: Path) -> None: ...


def fill_disk(_: Policy, folder: Path) -> None:
    folder.mkdir()
    raise OSError("no space left")


@pytest.mark.parametrize(
    ("save", "message"),
    [
        (save_nothing, r"cannot read {}/paint-.*--log\.folder"),
        (fill_disk, "not be written to .*no space left; free some space"),
    ],
)
def test_sync_weights_adapter_that_is_not_there_is_named(
    serve: Any, opened: Open, monkeypatch: pytest.MonkeyPatch, save: Any, message: str
) -> None:
    engine = opened(serve())
    monkeypatch.setattr(pool, "save_served", save)
    with pytest.raises(EngineError, match=message.format(engine.folder)):
        engine.sync_weights()
    assert not list(engine.folder.iterdir())


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


def test_pool_sends_rows_to_least_busy_server(serve: Any, opened: Open) -> None:
    slow, fast = serve(seconds=0.3), serve(seconds=0.01)
    assert generate(opened(slow, fast)) == EXPECTED
    counts = [s.paths().count("/v1/completions") for s in (slow, fast)]
    assert sum(counts) == 24
    assert 1 <= counts[0] <= 8  # in_flight 4 at a time, while the fast one does the rest


def test_pool_of_equal_servers_shares_rows(serve: Any, opened: Open) -> None:
    """So that the adapter sync check reaches all of them."""
    servers = [serve(seconds=0.05) for _ in range(5)]
    opened(*servers).generate(PROMPTS[:20], SHORT, range(20))
    assert [s.paths().count("/v1/completions") for s in servers] == [4] * 5


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
    monkeypatch.setattr("paint.inference.vllm.pool.MEMORY", tmp_path / "memory")
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
