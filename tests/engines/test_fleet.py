"""The vLLM engine against servers that hang, die, forget and come back; the canary against lies."""

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import CancelledError
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from peft.utils import load_peft_weights

from conftest import LAB, move
from paint.config import Config
from paint.data.problems import Problem
from paint.display import Display
from paint.engines import fleet, server, vllm
from paint.engines.canary import EngineGap, canary
from paint.engines.launch import ServerProcess, free_port, server_command, server_environment
from paint.engines.local import LocalEngine, MergedEngine
from paint.engines.open import EngineSetup, open_remote
from paint.engines.protocol import Completion, EngineError, Sampling
from paint.engines.server import Server
from paint.engines.vllm import VllmEngine
from paint.files import digest_of_file
from paint.model.policy import Policy
from paint.model.weights import load_adapter
from paint.recipe import find_recipe, read_recipe
from paint.training.rollouts import Rollout, Scored, require_agreement
from processes import alive, until
from stand_in import END, StandIn

SHORT = Sampling(temperature=1.1, top_p=0.95, top_k=20, max_new_tokens=8)
PROMPTS = [[10 + i, 40 + i, 70 + i] for i in range(24)]
EXPECTED = [(i % 500 + 3, 10 + i, 40 + i, END) for i in range(24)]

Open = Callable[..., VllmEngine]


@pytest.fixture(autouse=True)
def brisk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stand-ins come back within milliseconds, so nobody waits longer for them."""
    monkeypatch.setattr(server, "PAUSE_SECONDS", 0.02)
    monkeypatch.setattr(fleet, "RETRY_SECONDS", 0.05)


@pytest.fixture
def stand_ins() -> Iterator[Callable[..., StandIn]]:
    made: list[StandIn] = []

    def make(**settings: Any) -> StandIn:
        made.append(StandIn(**settings))
        return made[-1]

    yield make
    for stand_in in made:
        stand_in.silent = False
        stand_in.stop()


@pytest.fixture
def said(capsys: pytest.CaptureFixture[str]) -> Callable[[], str]:
    return lambda: capsys.readouterr().out


@pytest.fixture
def opened(policy: Policy, tmp_path: Path) -> Iterator[Open]:
    """Opens engines on stand-ins, and closes them."""
    engines: list[VllmEngine] = []

    def open_on(
        *servers: StandIn, timeout: float = 30.0, run: str = "run", **options: Any
    ) -> VllmEngine:
        options = {"in_flight": 4, "patience": 20.0} | options
        folder = tmp_path / run / "engine"
        folder.mkdir(parents=True, exist_ok=True)
        made = VllmEngine(
            policy, [Server(s.url, timeout=timeout) for s in servers], folder, Display(), **options
        )
        engines.append(made)
        made.connect()
        return made

    yield open_on
    for engine in engines:
        engine.close()


def later(seconds: float, act: Callable[[], object]) -> None:
    timer = threading.Timer(seconds, act)
    timer.daemon = True
    timer.start()


def generate(engine: VllmEngine) -> list[tuple[int, ...]]:
    return [c.ids for c in engine.generate(PROMPTS, SHORT, range(len(PROMPTS)))]


def test_a_request_says_all_that_shapes_the_distribution(stand_ins: Any, opened: Open) -> None:
    stand_in = stand_ins()
    engine = opened(stand_in)
    assert generate(engine) == EXPECTED
    [name] = stand_in.adapters
    bodies = sorted(
        (body for path, body in stand_in.calls if path == "/v1/completions"),
        key=lambda b: b["seed"],
    )
    for i, body in enumerate(bodies):
        assert body == {
            "model": name,
            "prompt": PROMPTS[i],
            "add_special_tokens": False,
            "seed": i,
            "max_tokens": 8,
            "temperature": 1.1,
            "top_p": 0.95,
            "top_k": 20,
            "min_p": 0.0,
            "repetition_penalty": 1.0,
            "presence_penalty": 0.0,
            "frequency_penalty": 0.0,
            "stop_token_ids": engine.policy.end_ids,
            "logprobs": 0,
            "return_token_ids": True,
        }
    [cut] = engine.generate([[5, 6, 7]], Sampling(0.0, 1.0, -1, 2), [0])
    assert (cut.ids, cut.truncated) == ((3, 5), True)


def test_every_version_of_an_adapter_has_a_name_of_its_own_also_across_runs(
    stand_ins: Any, opened: Open, tmp_path: Path
) -> None:
    stand_in = stand_ins(max_loras=9)
    seen = []
    for engine in (opened(stand_in, run="a"), opened(stand_in, run="b")):
        for _ in range(3):
            engine.adopt()
            assert engine.adapter is not None
            assert stand_in.adapters[engine.adapter.name] == str(engine.adapter)
            assert sorted(
                p.name for p in engine.adapters.folder.glob(f"*{engine.adapters.run}*")
            ) == [engine.adapter.name]
            seen.append(engine.adapter.name)
    assert len(set(seen)) == 6
    assert list(stand_in.adapters) == [
        seen[2],
        seen[5],
    ]  # each replaced the one before, and nobody else's


def test_runs_of_one_name_keep_their_adapters_apart_in_a_folder_for_all(
    stand_ins: Any, policy: Policy, tmp_path: Path
) -> None:
    shared = tmp_path / "shared"
    rollout = replace(
        Config().rollout, engine="vllm", urls=(stand_ins().url,), adapter_folder=str(shared)
    )
    contents = []
    for run in ("a/seed-0", "b/seed-0", "a/seed-0"):
        setup = EngineSetup(policy, LAB, rollout, tmp_path / run, Display(), 1024)
        engine = open_remote(VllmEngine.from_setup, setup, PROMPTS[:2], SHORT)
        with pytest.raises(EngineGap), engine:  # a stand-in has no model, but the folder is made
            pytest.fail("the canary passed")
        contents.append(sorted(path.name for path in shared.iterdir()))
    assert [len(names) for names in contents] == [1, 2, 2]
    assert all(name.startswith("seed-0-") for name in contents[2])


def test_what_is_loaded_is_the_adapter_that_was_trained(
    stand_ins: Any, opened: Open, trained: Policy
) -> None:
    stand_in = stand_ins()
    engine = opened(stand_in)
    engine.policy = trained
    engine.adopt()
    [path] = stand_in.adapters.values()
    stored = load_peft_weights(path, device="cpu")
    for name, parameter in trained.model.named_parameters():
        if parameter.requires_grad:
            assert torch.equal(stored[name.replace(".default", "")], parameter)


def test_an_engine_leaves_the_servers_as_it_found_them(stand_ins: Any, opened: Open) -> None:
    stand_in = stand_ins()
    engine = opened(stand_in)
    generate(engine)
    engine.close()
    assert stand_in.adapters == {}
    assert not list(engine.adapters.folder.glob("*paint-*"))


def test_what_a_killed_run_left_on_a_server_is_dropped_when_it_goes_on(
    stand_ins: Any, opened: Open
) -> None:
    stand_in = stand_ins()
    killed, other = opened(stand_in), opened(stand_in, run="another")
    killed.adopt()
    other.adopt()
    assert other.adapter is not None
    resumed = opened(stand_in)
    assert list(stand_in.adapters) == [other.adapter.name]
    other.close()
    resumed.adopt()
    resumed.require_slots()


def test_rows_go_to_the_server_with_the_fewest_under_way(stand_ins: Any, opened: Open) -> None:
    slow, fast = stand_ins(seconds=0.3), stand_ins(seconds=0.01)
    assert generate(opened(slow, fast)) == EXPECTED
    counts = [s.paths().count("/v1/completions") for s in (slow, fast)]
    assert sum(counts) == 24
    assert 1 <= counts[0] <= 8  # in_flight 4 at a time, while the fast one does the rest


def test_a_hiccup_is_tried_again_and_not_worth_a_word(
    stand_ins: Any, opened: Open, said: Any
) -> None:
    stand_in = stand_ins(hiccups=2)  # a row that meets both still has its third attempt
    assert generate(opened(stand_in)) == EXPECTED
    assert stand_in.hiccups == 0
    assert "left out" not in said()


def test_an_adapter_is_offered_again_before_a_server_is_left_out(
    stand_ins: Any, opened: Open, said: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "PAUSE_SECONDS", 0.25)
    stand_in = stand_ins()
    engine = opened(stand_in)
    stand_in.stop()
    later(0.2, stand_in.start)
    engine.adopt()
    assert engine.adapter is not None
    assert list(stand_in.adapters) == [engine.adapter.name]
    assert "left out" not in said()


def test_a_server_that_dies_is_left_out_and_the_step_is_whole(
    stand_ins: Any, opened: Open, said: Any
) -> None:
    dies, lives = stand_ins(seconds=0.2), stand_ins(seconds=0.02)
    engine = opened(dies, lives)
    later(0.1, dies.stop)
    assert generate(engine) == EXPECTED
    assert re.search(rf"{dies.url} is left out \(.*\); 1 of 2 servers go on", said())
    engine.adopt()
    assert generate(engine) == EXPECTED


def test_a_server_that_answers_again_is_taken_back_with_the_current_adapter(
    stand_ins: Any, opened: Open, said: Any
) -> None:
    dies, lives = stand_ins(), stand_ins()
    engine = opened(dies, lives)
    engine.adopt()
    dies.stop()
    assert generate(engine) == EXPECTED
    engine.adopt()
    dies.start()
    lives.seconds = 0.1
    assert generate(engine) == EXPECTED
    assert f"{dies.url} answers again and has the current adapter" in said()
    assert engine.adapter is not None
    assert list(dies.adapters) == [engine.adapter.name]


def test_the_only_server_is_waited_for(stand_ins: Any, opened: Open, said: Any) -> None:
    stand_in = stand_ins(seconds=0.05)
    engine = opened(stand_in)
    later(0.1, stand_in.stop)
    later(0.5, stand_in.start)
    assert generate(engine) == EXPECTED
    assert "waiting for it" in said()


def test_a_server_that_hangs_is_left_out_by_its_silence(
    stand_ins: Any, opened: Open, said: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fleet, "HEARTBEAT_SECONDS", 0.1)
    monkeypatch.setattr(server, "HEALTH_SECONDS", 0.2)
    hangs, lives = stand_ins(seconds=0.05), stand_ins(seconds=0.05)
    engine = opened(hangs, lives)
    engine.adopt()
    later(0.05, lambda: setattr(hangs, "silent", True))
    assert generate(engine) == EXPECTED
    assert f"{hangs.url} is left out (no answer to /health)" in said()


def test_a_server_that_was_restarted_behind_the_same_address_gets_the_adapter_again(
    stand_ins: Any, opened: Open, said: Any
) -> None:
    stand_in = stand_ins(forgetful=7)
    assert generate(opened(stand_in)) == EXPECTED
    assert stand_in.paths().count("/v1/load_lora_adapter") >= 2
    assert "left out" not in said()


def test_without_any_server_the_engine_gives_up_after_its_patience(
    stand_ins: Any, opened: Open
) -> None:
    stand_in = stand_ins()
    engine = opened(stand_in, patience=0.6)
    engine.adopt()
    stand_in.stop()
    began = time.monotonic()
    with pytest.raises(
        EngineError,
        match=rf"gave no answer for [1-9] s \({stand_in.url}.*paint resume RUN.*rollout\.patience",
    ):
        generate(engine)
    assert time.monotonic() - began < 10


def test_a_server_that_only_ever_fails_ends_the_run_without_waiting(
    stand_ins: Any, opened: Open
) -> None:
    stand_in = stand_ins(broken=True)
    with pytest.raises(
        EngineError, match=r"failed 4 times without completing anything .*EngineCore encountered"
    ):
        generate(opened(stand_in, patience=1000.0))


def test_a_completion_that_is_always_too_slow_ends_the_run(stand_ins: Any, opened: Open) -> None:
    with pytest.raises(
        EngineError, match=r"asked for 3 times without an answer in time .*raise rollout\.timeout"
    ):
        generate(opened(stand_ins(seconds=1.0), timeout=0.1))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"max_rank": 1},
            r"up to rank 1, this one has 8 \(model\.lora_rank\); start it with --max-lora-rank 8",
        ),
        ({"runtime": False}, "VLLM_ALLOW_RUNTIME_LORA_UPDATING=1"),
        ({"lora": False}, "--enable-lora"),
    ],
    ids=["rank", "no runtime loading", "no adapters"],
)
def test_a_server_that_cannot_take_the_adapter_is_refused_with_the_flag_to_set(
    stand_ins: Any, opened: Open, settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(EngineError, match=message):
        opened(stand_ins(**settings)).adopt()


def test_a_folder_that_the_server_cannot_read_is_named(
    stand_ins: Any, opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = opened(stand_ins())
    monkeypatch.setattr(vllm, "save_adapter", lambda *_: None)
    with pytest.raises(
        EngineError,
        match=rf"cannot read {engine.adapters.folder}/paint-.*--rollout\.adapter-folder",
    ):
        engine.adopt()


def test_a_server_with_more_adapters_than_slots_is_refused(stand_ins: Any, opened: Open) -> None:
    stand_in = stand_ins(max_loras=1)
    first = opened(stand_in)
    first.adopt()
    first.require_slots()
    second = opened(stand_in, run="another")
    second.adopt()
    with pytest.raises(EngineError, match=r"serves 2 adapters and holds 1 at once.*--max-loras 2"):
        second.require_slots()


def test_every_step_under_way_needs_a_slot_of_its_own(stand_ins: Any, opened: Open) -> None:
    ahead = opened(stand_ins(max_loras=2), ahead=2)
    ahead.adopt()
    wanted = r"serves 3 adapters and holds 2 .* --max-loras 3.* or lower rollout\.ahead"
    with pytest.raises(EngineError, match=wanted):
        ahead.require_slots()


def test_steps_are_under_way_at_once_each_by_its_own_adapter(
    stand_ins: Any, opened: Open, policy: Policy, tmp_path: Path
) -> None:
    """While the caller goes on, and while what was asked for first is not there yet."""
    stand_in = stand_ins(max_loras=3)
    engine = opened(stand_in, ahead=2, in_flight=2)
    engine.adopt()
    others = [engine.beside(), engine.beside()]
    for step, other in enumerate(others):
        move(policy, step)
        other.adopt()
    stand_in.silent = True
    waiting = [other.begin(PROMPTS, SHORT, range(24)) for other in others]
    until(lambda: stand_in.paths().count("/v1/completions") == 2 * 2)
    stand_in.silent = False

    assert [[c.ids for c in wait()] for wait in waiting] == [EXPECTED, EXPECTED]
    assert generate(engine) == EXPECTED
    asked = [body["model"] for path, body in stand_in.calls if path == "/v1/completions"]
    assert sorted(Counter(asked).values()) == [24, 24, 24]
    assert set(asked) == set(stand_in.adapters)
    weights = {
        digest_of_file(Path(p) / "adapter_model.safetensors") for p in stand_in.adapters.values()
    }
    assert len(weights) == 3
    engine.close()
    assert not stand_in.adapters
    assert not list((tmp_path / "run/engine").iterdir())


def test_a_server_that_dies_while_nobody_waits_is_taken_back(
    stand_ins: Any, opened: Open, said: Any
) -> None:
    stand_in = stand_ins(max_loras=2, seconds=0.1)
    engine = opened(stand_in, ahead=1)
    engine.adopt()
    beside = engine.beside()
    beside.adopt()
    wait = beside.begin(PROMPTS, SHORT, range(24))
    until(lambda: stand_in.paths().count("/v1/completions") > 8)
    stand_in.stop()
    until(lambda: "is left out" in said())
    stand_in.start()
    assert [c.ids for c in wait()] == EXPECTED


def test_what_nobody_waits_for_any_longer_ends_with_the_engine(
    stand_ins: Any, opened: Open
) -> None:
    stand_in = stand_ins(max_loras=2, seconds=0.2)
    engine = opened(stand_in, ahead=1, in_flight=1)
    engine.adopt()
    beside = engine.beside()
    beside.adopt()
    wait = beside.begin(PROMPTS, SHORT, range(24))
    until(lambda: "/v1/completions" in stand_in.paths())
    started = time.monotonic()
    engine.close()
    assert time.monotonic() - started < 2
    assert not stand_in.adapters
    assert stand_in.paths().count("/v1/completions") < 4
    with pytest.raises(CancelledError):
        wait()


def test_what_is_refused_ahead_is_said_to_who_waits(stand_ins: Any, opened: Open) -> None:
    engine = opened(stand_ins(max_tokens=20), ahead=1)
    engine.adopt()
    with pytest.raises(EngineError, match="a server has 20"):
        engine.begin([[5] * 30], SHORT, [0])()


def test_a_completion_that_would_be_cut_by_the_server_is_refused(
    stand_ins: Any, opened: Open
) -> None:
    stand_in = stand_ins(max_tokens=10)
    with pytest.raises(
        EngineError, match=r"a prompt of 3 tokens and 8 new ones need --max-model-len 11.* has 10"
    ):
        generate(opened(stand_in))
    assert "/v1/completions" not in stand_in.paths()


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda choice: choice.update(prompt_token_ids=[1, 2]), "read other token ids"),
        (
            lambda choice: choice.update(token_ids=[5, 6], logprobs={"token_logprobs": [-1, -1]}),
            "stopped after 2 of 8",
        ),
        (lambda choice: choice["logprobs"]["token_logprobs"].pop(), "4 token ids and 3 log-probs"),
        (lambda choice: choice["logprobs"].update(token_logprobs=[float("nan")] * 4), "not finite"),
    ],
    ids=["prompt", "length", "log-probs", "nan"],
)
def test_a_completion_that_does_not_fit_the_request_is_never_trained_on(
    stand_ins: Any, opened: Open, spoil: Callable[[dict[str, Any]], object], message: str
) -> None:
    with pytest.raises(EngineError, match=message):
        generate(opened(stand_ins(spoil=spoil)))


@pytest.mark.parametrize(
    "lie",
    [
        lambda choice: choice["token_ids"].append(10**9),
        lambda choice: choice.update(token_ids=[5] * 100_000),
        lambda choice: choice.clear(),
    ],
    ids=["no token", "too many", "nothing"],
)
def test_a_server_that_lies_is_left_out_like_one_that_fails_and_the_step_is_whole(
    stand_ins: Any, opened: Open, said: Any, lie: Callable[[dict[str, Any]], object]
) -> None:
    liar, honest = stand_ins(spoil=lie), stand_ins(seconds=0.02)
    engine = opened(liar, honest)
    completions = engine.generate(PROMPTS, SHORT, range(len(PROMPTS)))
    assert [c.ids for c in completions] == EXPECTED
    assert {c.source for c in completions} == {honest.url}
    assert re.search(rf"{liar.url} is left out \(.*not as a vLLM server does", said())


def test_a_response_that_comes_little_by_little_is_not_waited_for(
    stand_ins: Any, opened: Open
) -> None:
    def drip(handler: Any, path: str, *good: object) -> bool:
        if path != "/v1/completions":
            return False
        handler.send_response(200)
        handler.send_header("Content-Length", "1000000")
        handler.end_headers()
        for _ in range(100):
            time.sleep(0.05)
            handler.wfile.write(b" ")
        return True

    began = time.monotonic()
    with pytest.raises(EngineError, match=r"asked for 3 times .*no whole answer within 0\.3 s"):
        generate(opened(stand_ins(send=drip), timeout=0.3))
    assert time.monotonic() - began < 4


def test_an_address_where_no_vllm_server_is_is_refused(
    stand_ins: Any, opened: Open, policy: Policy
) -> None:
    stand_in = stand_ins()
    stand_in.respond = lambda *_: (200, {"hello": "world"})
    with pytest.raises(EngineError, match="answers, but not as a vLLM server does"):
        opened(stand_in)
    stand_in.stop()
    with pytest.raises(
        EngineError, match=rf"{stand_in.url} did not answer within 1 s \(rollout\.patience\)"
    ):
        opened(stand_in, patience=0.6)


def test_a_server_that_shares_the_gpu_is_awake_only_to_generate(
    stand_ins: Any, opened: Open
) -> None:
    stand_in = stand_ins()
    engine = opened(stand_in, sleeps=True)
    engine.adopt()
    assert "/v1/load_lora_adapter" not in stand_in.paths()  # it may be asleep
    stand_in.calls.clear()
    for _ in range(2):
        assert generate(engine) == EXPECTED
        engine.adopt()
        assert stand_in.asleep
    engine.close()
    assert not stand_in.asleep  # as it was found
    once = ["/wake_up", "/v1/load_lora_adapter", *["/v1/completions"] * 24, "/sleep?level=1"]
    asked = [path for path in stand_in.paths() if path != "/v1/unload_lora_adapter"]
    assert asked == [*once, *once, "/wake_up"]


def test_the_disk_being_full_is_said(
    stand_ins: Any, opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError("no space left")

    engine = opened(stand_ins())
    monkeypatch.setattr(vllm, "save_adapter", full)
    with pytest.raises(
        EngineError, match=r"could not be written to .*no space left; free some space"
    ):
        engine.adopt()


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
import sys, time
from pathlib import Path
from paint.engines.launch import ServerProcess
ServerProcess(sys.argv[2:], {}, Path(sys.argv[1])).start()
time.sleep(600)
"""


@pytest.mark.skipif(not Path("/proc").exists(), reason="looks at processes through /proc")
@pytest.mark.parametrize(
    ("end", "manner"),
    [
        ("stop", "obedient"),
        ("server dies", "obedient"),
        ("trainer is killed", "obedient"),
        pytest.param("stop", "stubborn", marks=pytest.mark.slow),
        pytest.param("server dies", "stubborn", marks=pytest.mark.slow),
        pytest.param("trainer is killed", "stubborn", marks=pytest.mark.slow),
    ],
)
def test_no_process_of_a_server_outlives_it_or_its_trainer(
    tmp_path: Path, end: str, manner: str
) -> None:
    pids = tmp_path / "pids"
    family = [sys.executable, "-c", FAMILY, str(pids), manner]

    def family_pids() -> list[int]:
        until(pids.exists, 60)
        return [int(pid) for pid in pids.read_text().split()]

    if end == "stop":
        process = ServerProcess(family, {}, tmp_path / "log")
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


def owned(policy: Policy, folder: Path, command: Sequence[str]) -> VllmEngine:
    process = ServerProcess(command, {}, folder / "server.log")
    served = Server(f"http://127.0.0.1:{free_port()}", timeout=5.0, process=process)
    return VllmEngine(policy, [served], folder, Display(), in_flight=4, patience=30.0)


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (["no-such-vllm", "serve"], "no-such-vllm cannot be started"),
        (
            [sys.executable, "-c", "print('CUDA out of memory'); raise SystemExit(1)"],
            "CUDA out of memory\n.*status 1",
        ),
    ],
    ids=["no command", "dies"],
)
def test_a_server_that_does_not_start_shows_the_end_of_its_log(
    policy: Policy, tmp_path: Path, command: list[str], message: str
) -> None:
    engine = owned(policy, tmp_path, command)
    with pytest.raises(
        EngineError, match=f"ended before it was ready; .*server.log ends with\n(?s:.*){message}"
    ):
        engine.connect()
    engine.close()


def test_the_end_of_a_long_log_is_shown_as_plain_text(tmp_path: Path) -> None:
    process = ServerProcess(["vllm"], {}, tmp_path / "log")
    assert process.tail() == "(No such file or directory)"
    process.log.write_bytes(b"x" * 10**6 + b"\n\x1b[31mred\x1b[0m\x07 \xff end\n\n")
    assert process.tail(1) == "red\\x07 \ufffd end"
    assert len(process.tail()) < 20_100


def test_a_server_of_ours_is_started_for_the_model_and_the_adapter() -> None:
    """``vllm serve`` takes the model without a flag; the user's arguments come last and win."""
    config = read_recipe(find_recipe("paint-qwen3-1.7b"))
    rollout = replace(
        config.rollout, server="env A=1 vllm serve", server_args="--dtype half -x 'a b'", sleep=True
    )
    config = replace(config, rollout=rollout, model=replace(config.model, lora_rank=40))
    line = server_command(
        config.model, config.rollout, 8123, max_tokens=8192 + 1024, positions=1024
    )
    assert line[:5] == ["env", "A=1", "vllm", "serve", config.model.path]
    flags = dict(zip(line[5:17:2], line[6:17:2], strict=True))
    assert flags == {
        "--host": "127.0.0.1",
        "--port": "8123",
        "--dtype": "bfloat16",
        "--max-model-len": "1024",  # the positions, fewer than 8,192 and 1,024 tokens
        "--max-lora-rank": "64",
        "--max-loras": "1",
    }
    ahead = replace(config.rollout, sleep=False, ahead=3)
    line_ahead = server_command(config.model, ahead, 8123, max_tokens=9216, positions=None)
    assert line_ahead[line_ahead.index("--max-loras") + 1] == "4"
    assert line[17:] == ["--enable-lora", "--enable-sleep-mode", "--dtype", "half", "-x", "a b"]


def test_a_server_of_ours_gets_the_variables_it_needs_and_none_of_a_launcher(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("LOCAL_RANK", "1")
    monkeypatch.setenv("MASTER_PORT", "29500")
    monkeypatch.setenv("VLLM_SERVER_DEV_MODE", "0")
    rollout = Config().rollout
    for sleep, mode in ((False, "0"), (True, "1")):
        variables = server_environment(replace(rollout, sleep=sleep))
        environment = ServerProcess(["vllm"], variables, tmp_path / "log").environment
        assert environment["VLLM_ALLOW_RUNTIME_LORA_UPDATING"] == "1"
        assert environment["VLLM_SERVER_DEV_MODE"] == mode
        assert environment["PATH"] == os.environ["PATH"]
        assert not {"LOCAL_RANK", "MASTER_PORT"} & set(environment)


def test_every_server_is_asked_by_the_canary_and_a_wrong_one_is_not_averaged_away(
    trained: Policy, problems: list[Problem], stand_ins: Any, opened: Open
) -> None:
    servers = [stand_ins(seconds=0.05) for _ in range(5)]
    engine = opened(*servers)
    engine.generate(PROMPTS[:20], SHORT, range(20))
    counts = [s.paths().count("/v1/completions") for s in servers]
    assert counts == [4] * 5

    class OneOfTwo(LocalEngine):
        def generate(self, prompts: Any, sampling: Sampling, seeds: Any) -> list[Completion]:
            first, *rest = super().generate(prompts, sampling, seeds)
            log_probs = tuple(log_prob - 0.04 for log_prob in first.log_probs)
            return [replace(first, source="http://b", log_probs=log_probs), *rest]

    with pytest.raises(EngineGap, match=r"engine and trainer differ by 0\.04 nats"):
        canary(
            trained,
            OneOfTwo(trained, batch_size=8),
            lab_prompts(trained, problems) * 2,
            SAMPLING,
            0.02,
        )


def test_a_server_that_was_not_started_to_sleep_is_refused_with_the_flag(
    stand_ins: Any, opened: Open
) -> None:
    with pytest.raises(
        EngineError, match=r"cannot sleep .*--enable-sleep-mode .*VLLM_SERVER_DEV_MODE=1"
    ):
        generate(opened(stand_ins(sleeps=False), sleeps=True))


LAB_PROMPTS = 4


def lab_prompts(policy: Policy, problems: Sequence[Problem]) -> list[list[int]]:
    return [policy.student_prompt(p.problem) for p in problems[:LAB_PROMPTS]]


SAMPLING = Sampling(temperature=1.1, top_p=0.95, top_k=20, max_new_tokens=12)


class Stale(LocalEngine):
    """An engine that loads the first ``keeps`` adapters it is given, and then keeps the last."""

    def __init__(self, policy: Policy, folder: Path, keeps: int) -> None:
        super().__init__(policy, batch_size=4)
        self.folder, self.left = folder, keeps

    def adopt(self) -> None:
        if self.left > 0:
            self.left -= 1
            self.policy.model.save_pretrained(self.folder)

    def generate(self, prompts: Any, sampling: Sampling, seeds: Any) -> list[Completion]:
        current = [p.detach().clone() for p in self.policy.trainable]
        load_adapter(self.policy, self.folder)
        try:
            return super().generate(prompts, sampling, seeds)
        finally:
            with torch.no_grad():
                for parameter, value in zip(self.policy.trainable, current, strict=True):
                    parameter.copy_(value)


def test_the_canary_passes_an_engine_that_follows_and_changes_nothing(
    trained: Policy, problems: list[Problem]
) -> None:
    before = [p.detach().clone() for p in trained.trainable]
    engine = LocalEngine(trained, batch_size=4)
    gaps = canary(trained, engine, lab_prompts(trained, problems), SAMPLING, 1e-3)
    assert max(gaps["before"], gaps["perturbed"], gaps["restored"]) < 1e-4
    assert gaps["moved"] > 0.1
    assert all(torch.equal(a, b) for a, b in zip(before, trained.trainable, strict=True))


@pytest.mark.parametrize(
    ("keeps", "message", "bound"),
    [
        (1, "does not serve the adapter that it is given", 1e-3),
        (1, "does not serve the adapter that it is given", 0.05),
        (1, "does not serve the adapter that it is given", float("inf")),
        (2, "answers from an older version", 1e-3),
        (2, "answers from an older version", 0.05),
    ],
)
def test_the_canary_finds_an_engine_that_keeps_an_adapter(
    trained: Policy, problems: list[Problem], tmp_path: Path, keeps: int, message: str, bound: float
) -> None:
    before = [p.detach().clone() for p in trained.trainable]
    with pytest.raises(EngineGap, match=message):
        canary(
            trained,
            Stale(trained, tmp_path, keeps),
            lab_prompts(trained, problems),
            SAMPLING,
            bound,
        )
    assert all(torch.equal(a, b) for a, b in zip(before, trained.trainable, strict=True))


def test_the_canary_finds_an_engine_that_starts_from_another_policy(
    trained: Policy, problems: list[Problem], tmp_path: Path
) -> None:
    engine = Stale(trained, tmp_path, keeps=1)
    prompts = lab_prompts(trained, problems)
    engine.adopt()
    with torch.no_grad():
        for parameter in trained.trainable:
            parameter.mul_(0.5)
    with pytest.raises(
        EngineGap, match=r"before the first step, engine and trainer differ by .*model\.path"
    ):
        canary(trained, engine, prompts, SAMPLING, 1e-3)


def test_a_step_whose_engine_disagrees_is_refused_with_what_to_look_at() -> None:
    completion = Completion((5, 6), (-1.0, -1.5), truncated=False)
    rollout = Rollout(0, Problem("p", "s", "7", "1"), [], completion, "")
    scored = [Scored(rollout, {"student_log_prob": [-1.0, -1.1]})]
    require_agreement(scored, 0.21, 7)
    with pytest.raises(
        EngineGap,
        match=r"step 7: .* by 0\.2 nats .*max_engine_gap 0\.19; nothing was updated.*--dtype",
    ):
        require_agreement(scored, 0.19, 7)
    broken = [Scored(rollout, {"student_log_prob": [float("nan"), -1.1]})]
    with pytest.raises(EngineGap):
        require_agreement(broken, 1e9, 7)


def test_in_float32_merged_weights_sample_the_same(
    trained: Policy, problems: list[Problem]
) -> None:
    prompts = lab_prompts(trained, problems)
    merged = MergedEngine(trained, batch_size=4).generate(prompts, SAMPLING, range(4))
    swapped = LocalEngine(trained, batch_size=4).generate(prompts, SAMPLING, range(4))
    assert [c.ids for c in merged] == [c.ids for c in swapped]
