"""Tests of the vLLM engine with servers that hang, die, forget or send what is wrong."""

import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
import torch
from peft.utils import load_peft_weights

from conftest import move
from fake_vllm_server import END, FakeVllmServer
from paint.config.schema import RolloutConfig
from paint.core.display import Display
from paint.core.storage import digest_of_file
from paint.inference.engine import EngineError, Sampling
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
    monkeypatch.setattr(pool, "PAUSE_SECONDS", 0.05)
    monkeypatch.setattr(client, "HEALTH_SECONDS", 1.0)


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


def in_step(server: FakeVllmServer, event: Callable[[FakeVllmServer], object]) -> None:
    """What happens to a server once it has been asked for completions."""
    until(lambda: "/v1/completions" in server.paths())
    event(server)


def generate(engine: VllmEngine) -> list[tuple[int, ...]]:
    return [c.ids for c in engine.generate(PROMPTS, SHORT, range(len(PROMPTS)))]


def hang(server: FakeVllmServer) -> None:
    server.silent = True


def restart(server: FakeVllmServer) -> None:
    server.stop()
    time.sleep(0.2)
    server.start()


FAULTS: dict[str, tuple[int, dict[str, Any], Any, str]] = {
    "fails twice": (1, {"failures": 2}, None, ""),
    "forgets its adapter": (1, {"forgetful": 7}, None, ""),
    "fails for good": (2, {"failures": 10**6}, None, "its rows go to any server"),
    "dies": (2, {}, FakeVllmServer.stop, "its rows go to any server"),
    "hangs": (2, {}, hang, "no complete answer within 0.3 s (rollout.timeout)"),
    "is restarted": (1, {}, restart, "answers again"),
}
"""Number of servers, settings of the first, what happens to it in the step, and what is printed."""


@pytest.mark.parametrize(("count", "settings", "event", "message"), FAULTS.values(), ids=FAULTS)
def test_pool_with_faulty_server_completes_step(
    serve: Any,
    opened: Open,
    capsys: pytest.CaptureFixture[str],
    count: int,
    settings: dict[str, Any],
    event: Any,
    message: str,
) -> None:
    servers = [serve(seconds=0.05, **settings), *(serve(seconds=0.05) for _ in range(count - 1))]
    # Where no server fails, a machine that stalls must not look like one.
    engine = opened(*servers, timeout=0.3 if message else 2.0)
    if event is not None:
        Thread(target=in_step, args=(servers[0], event), daemon=True).start()
    assert generate(engine) == EXPECTED
    printed = capsys.readouterr().out
    assert (f"{servers[0].url} failed (" in printed) == bool(message)
    assert message in printed
    engine.sync_weights()
    sent = servers[0].paths().count("/v1/completions")
    assert generate(engine) == EXPECTED
    if event is hang:  # it does not get rows again
        assert servers[0].paths().count("/v1/completions") == sent


OTHER = {"prompt_token_ids": [1]}
CUT = {"token_ids": [5], "logprobs": {"token_logprobs": [-1]}}
NULL = {"token_ids": [5] * 8, "logprobs": {"token_logprobs": [None] * 8}}
REFUSALS: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "no sleep mode": ({"sleeps": False}, {"colocate": True}, "--enable-sleep-mode"),
    "context length": ({"max_tokens": 10}, {}, "need --max-model-len 11.* has 10"),
    "always fails": ({"failures": 10**6}, {}, "3 failures without a completion"),
    "times out": ({"seconds": 0.5}, {"timeout": 0.1}, "no complete answer within 0.1 s"),
    "other prompt": ({"changes": OTHER}, {}, "it read other token ids than it was sent"),
    "cut": ({"changes": CUT}, {}, "stopped after 1 of 8 tokens"),
    "null": ({"changes": NULL}, {}, "NoneType"),
}
"""Settings of a server that no run can use, options of the engine, and what the error contains."""


@pytest.mark.parametrize(("settings", "options", "message"), REFUSALS.values(), ids=REFUSALS)
def test_generate_on_unusable_server_is_refused(
    serve: Any, opened: Open, settings: dict[str, Any], options: dict[str, Any], message: str
) -> None:
    fake_server = serve(**settings)
    with pytest.raises(EngineError, match=message):
        generate(opened(fake_server, **options))


def test_pool_without_servers_fails_after_server_timeout(serve: Any, opened: Open) -> None:
    fake_server = serve()
    engine = opened(fake_server, server_timeout=0.3)
    fake_server.stop()
    silent = rf"{fake_server.url} did not answer within 0 s \(rollout\.server_timeout\)"
    with pytest.raises(EngineError, match=f"no server is left; .*{silent}.*paint resume RUN"):
        generate(engine)
    with pytest.raises(EngineError, match=silent):
        opened(fake_server, server_timeout=0.3)


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


def test_pool_sends_rows_to_free_servers_and_few_to_all(serve: Any, opened: Open) -> None:
    """So that the adapter sync check reaches every server."""
    servers = [serve(seconds=0.3), *(serve(seconds=0.01) for _ in range(2))]
    engine = opened(*servers)
    engine.generate(PROMPTS[:9], SHORT, range(9))
    assert [s.paths().count("/v1/completions") for s in servers] == [3, 3, 3]
    assert generate(engine) == EXPECTED
    assert servers[0].paths().count("/v1/completions") <= 3 + 4


def test_sync_weights_names_are_unique_and_replace_their_own(serve: Any, opened: Open) -> None:
    fake_server = serve()
    seen = []
    for engine in (opened(fake_server, run="a"), opened(fake_server, run="b")):
        for _ in range(3):
            engine.sync_weights()
            engine.generate(PROMPTS[:1], SHORT, [0])
            assert engine.adapter is not None
            assert fake_server.adapters[engine.adapter.name] == str(engine.adapter)
            assert list(engine.folder.glob(f"*{engine.run}*")) == [engine.adapter]
            seen.append(engine.adapter.name)
    assert len(set(seen)) == 6
    assert list(fake_server.adapters) == [seen[2], seen[5]]


def test_sync_weights_writes_trained_values(serve: Any, opened: Open, trained: Policy) -> None:
    engine = opened(serve())
    engine.policy = trained
    engine.sync_weights()
    stored = load_peft_weights(engine.adapter, device="cpu")
    for name, parameter in trained.model.named_parameters():
        if parameter.requires_grad:
            assert torch.equal(stored[name.replace(".default", "")], parameter)


def test_submit_runs_steps_concurrently_each_with_its_adapter(
    serve: Any, opened: Open, policy: Policy, tmp_path: Path
) -> None:
    """While the caller goes on, and while what was asked for first is not there yet."""
    fake_server = serve()
    engine = opened(fake_server, off_policy_steps=2, batch_size=2)
    engine.sync_weights()
    others = [engine.fork(), engine.fork()]
    for step, other in enumerate(others):
        move(policy, step)
        other.sync_weights()
    fake_server.seconds = 0.02
    waiting = [other.submit(PROMPTS, SHORT, range(24)) for other in others]
    until(lambda: fake_server.paths().count("/v1/completions") > 4)

    assert generate(engine) == EXPECTED
    assert [[c.ids for c in wait()] for wait in waiting] == [EXPECTED, EXPECTED]
    asked = [body["model"] for path, body in fake_server.calls if path == "/v1/completions"]
    assert sorted(Counter(asked).values()) == [24, 24, 24]
    weights = {
        digest_of_file(Path(p) / "adapter_model.safetensors") for p in fake_server.adapters.values()
    }
    assert len(weights) == 3
    engine.close()
    assert not fake_server.adapters
    assert not list((tmp_path / "run/engine").iterdir())


def test_vllm_engine_close_cancels_pending_completions(serve: Any, opened: Open) -> None:
    fake_server = serve(seconds=0.2)
    engine = opened(fake_server, off_policy_steps=1, batch_size=1)
    beside = engine.fork()
    beside.sync_weights()
    wait = beside.submit(PROMPTS, SHORT, range(24))
    until(lambda: "/v1/completions" in fake_server.paths())
    engine.close()
    assert not fake_server.adapters
    assert fake_server.paths().count("/v1/completions") < 4
    with pytest.raises(CancelledError):
        wait()


def test_colocated_server_is_awake_only_to_generate(serve: Any, opened: Open) -> None:
    fake_server = serve()
    engine = opened(fake_server, colocate=True)
    for _ in range(2):
        engine.sync_weights()
        assert generate(engine) == EXPECTED
        assert fake_server.asleep
    engine.close()
    assert not fake_server.asleep  # as it was found
    once = ["/wake_up", "/v1/load_lora_adapter", *["/v1/completions"] * 24, "/sleep?level=1"]
    ignored = ("/v1/unload_lora_adapter", "/v1/models")
    asked = [path for path in fake_server.paths() if path not in ignored]
    assert asked == [*once, *once, "/wake_up"]
