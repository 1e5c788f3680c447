"""The report of what a GPU shows, rehearsed on a CPU; the formula of an update's memory."""

import json
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from torch.utils.flop_counter import FlopCounterMode
from transformers import Qwen3Config, Qwen3Model

import gpu
from gpu import (
    Options,
    backward_flops,
    forward_flops,
    main,
    run_part,
    update_flops,
)
from large_models import settings_of
from paint.config import schema as cfg
from paint.resolve.shapes import SHAPES, Shape

TARGETS = cfg.ModelConfig().lora_targets


def test_update_flops_match_hand_count() -> None:
    shape, load = SHAPES["Qwen/Qwen3-1.7B"], gpu.Load(32, 200, 2000, 1024)
    model = cfg.ModelConfig()
    plain, kept = (
        update_flops(shape, model, replace(load, checkpointing=on)) for on in (False, True)
    )
    assert plain["loss"] == 32 * 1024 * 3 * 2 * 2048 * 151_936
    attention = 4 * 28 * 2048 * 3024**2 / 2
    assert plain["teacher forward"] == 32 * (2 * shape.weights * 3024 + attention)
    assert kept["backward"] == plain["backward"] + plain["student forward"]
    long = update_flops(shape, model, gpu.Load(1, 200, 8192, 16_384))
    assert long["loss"] == pytest.approx(16_384 * 3.09 * 2 * 2048 * 151_936)


def test_flops_match_real_model_with_adapters() -> None:
    shape = Shape(3, 16, 4, 24, True, kv_heads=2, head_size=8, vocabulary=32)
    model = Qwen3Model(Qwen3Config(**settings_of(shape), attn_implementation="eager"))
    adapted = get_peft_model(model, LoraConfig(r=2, target_modules=list(TARGETS)))
    # Else the first block's input needs no gradient, and the pass costs a little less.
    adapted.enable_input_require_grads()
    adapters = shape.adapters(2, TARGETS)
    assert sum(p.numel() for p in adapted.parameters() if p.requires_grad) == adapters

    tokens = 20
    with FlopCounterMode(display=False) as forward:
        hidden = adapted(input_ids=torch.arange(tokens)[None]).last_hidden_state
    with FlopCounterMode(display=False) as backward:
        hidden.sum().backward()
    # Eager attention also computes what the causal mask hides: as much again.
    masked = 4 * shape.layers * shape.queries * tokens**2 / 2
    assert forward.get_total_flops() == forward_flops(shape, adapters, tokens) + masked
    assert backward.get_total_flops() == backward_flops(shape, adapters, tokens) + 2 * masked


FAKE = """
import json, sys, time
order = json.loads(sys.argv[2])
with open(order["rows"], "a") as file:
    print(json.dumps({"table": "Rows", "value": 1}), file=file, flush=True)
    file.write('{"table": "Ro')  # a row that the kill cut short
if order["name"] == "slow":
    time.sleep(60)
if order["name"] == "bad":
    raise SystemExit("it broke")
if order["name"] == "missing":
    print("the package x is not installed")
    sys.exit(3)
"""


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Parts that end in all ways, each after one row and a half."""
    script = tmp_path / "fake.py"
    script.write_text(FAKE)
    monkeypatch.setattr(gpu, "SCRIPT", script)
    return tmp_path


@pytest.mark.parametrize(
    ("name", "limit", "status"),
    [
        ("slow", 2, "stopped at its limit of 2 s"),
        ("bad", 60, "failed with 1: it broke"),
        ("missing", 60, "skipped: the package x is not installed"),
    ],
)
def test_run_part_keeps_rows_if_it_fails(name: str, limit: float, status: str, fake: Path) -> None:
    found = run_part(name, limit, fake, Options(folder=fake))
    assert found["status"] == status
    assert found["rows"] == [{"table": "Rows", "value": 1}]


Rows = list[tuple[str, dict[str, Any]]]


@pytest.fixture
def said() -> Rows:
    """What a part has written."""
    return []


@pytest.fixture
def say(said: Rows) -> Callable[..., None]:
    return lambda table="", **cells: said.append((table, cells))


def test_first_step_starts_twice_and_counts_what_is_compiled_anew(
    said: Rows, say: Callable[..., None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def paint(command: Sequence[str], _: Any, environment: dict[str, str]) -> float:
        run = tmp_path / command[command.index("--log.name") + 1]
        (run / "rollouts").mkdir(parents=True)
        rows = [{"seconds_rollout": s, "seconds_loss": 1, "seconds_left": 99} for s in (6, 1, 2)]
        (run / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        rollouts = run / "rollouts" / "step-000001.jsonl"
        rollouts.touch()
        os.utime(rollouts, (time.time() + 17, time.time() + 17))  # the end of the first step
        assert "TRITON_CACHE_DIR" not in environment
        kernel = Path(environment["XDG_CACHE_HOME"]) / "paint" / "kernel"
        kernel.parent.mkdir(exist_ok=True)
        kernel.touch()
        return 30.0

    monkeypatch.setenv("TRITON_CACHE_DIR", "/theirs")
    monkeypatch.setattr(gpu, "_paint", paint)
    monkeypatch.setattr(gpu, "_random_model", lambda *_: "model")
    gpu.first_step(gpu.REHEARSAL, say, gpu.Place(tmp_path, 0, ""))
    assert [cells["caches"] for _, cells in said] == ["cold", "warm"]
    for (_, cells), new in zip(said, (1, 0), strict=True):
        assert cells["seconds_to_first_step"] == pytest.approx(10, abs=1)
        assert (cells["first_step"], cells["usual_step"], cells["beyond_usual"]) == (7, 3, 4)
        assert (cells["command"], cells["new_files"]) == (30, new)


def test_peers_pass_on_the_time_that_is_left_and_write_each_contender(
    said: Rows, say: Callable[..., None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = {"seconds": 3.0, "rollouts": 2.0, "peak_bytes": None}
    asked: list[str] = []

    def benchmark(script: str, arguments: Sequence[str], _: Any, rows: Callable[..., None]) -> None:
        asked.extend((script, *arguments))
        rows({"paint": {"steps": [step]}, "trl sdft": {"steps": [], "error": "late"}})

    monkeypatch.setattr(gpu, "_benchmark", benchmark)
    monkeypatch.setattr(gpu, "_random_model", lambda *_: "model")
    gpu.peers(gpu.FULL, say, gpu.Place(tmp_path, time.time() + 100, ""))
    assert (asked[0], asked[asked.index("--model") + 1]) == ("whole_step.py", "model")
    assert float(asked[asked.index("--seconds") + 1]) == pytest.approx(90, abs=2)
    assert [cells for table, cells in said if table] == [
        {"contender": "paint"}
        | {"seconds": 3.0, "rollouts": 2.0, "update": 1.0, "first": 3.0, "steps": 1}
        | {"peak_GB": None},
        {"contender": "trl sdft", "failed": "late"},
    ]


def test_benchmark_without_time_left_counts_what_it_stored_and_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "slow.py").write_text(
        "import pathlib, sys, time\npathlib.Path(sys.argv[2]).write_text('[7]')\ntime.sleep(60)\n"
    )
    monkeypatch.setattr(gpu, "HERE", tmp_path)
    found: list[Any] = []
    place = gpu.Place(tmp_path, time.time() + 8, "")  # of which it gets 3 s
    with pytest.raises(RuntimeError, match=r"slow\.py had no time left"):
        gpu._benchmark("slow.py", [], place, found.append)
    assert found == [[7]]


def test_decode_steps_write_a_row_for_each_engine_and_its_notes(
    said: Rows, say: Callable[..., None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    notes, kernels = ["not compiled"], {"gemm": "60 x 0.5 ms"}
    row = {"rows": 32, "step": "compiled", "ms_a_step": 2.8}
    found = [{**row, "notes": notes, "kernels": kernels}]
    monkeypatch.setattr(gpu, "_benchmark", lambda *given: given[-1](found))
    monkeypatch.setattr(gpu, "_random_model", lambda *_: "model")
    gpu.decode_steps(gpu.FULL, say, gpu.Place(tmp_path, 0, ""))
    assert said == [
        ("", {"note": "32 rows, compiled: not compiled"}),
        (
            "Kernels of a step",
            {"rows": 32, "step": "compiled", "kernel": "gemm", "takes": "60 x 0.5 ms"},
        ),
        ("Decode steps", row),
    ]


@pytest.mark.slow
def test_main_rehearsal_completes_its_parts(tmp_path: Path) -> None:
    # Without the parts that run commands and tests that other tests run, too.
    parts = ("decode", "update", "loss", "train-local", "long", "train-vllm")
    report = main(Options(folder=tmp_path, only=parts, rehearse=True, seconds=1800))
    statuses = {name: part["status"] for name, part in report["parts"].items()}
    assert "there is no GPU, or no vLLM" in statuses.pop("train-vllm")
    assert set(statuses.values()) == {"done"}
    for name in statuses:
        rows = report["parts"][name]["rows"]
        assert rows
        assert not any(row.get("failed") for row in rows)
