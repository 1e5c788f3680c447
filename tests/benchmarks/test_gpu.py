"""The report of what a GPU shows, rehearsed on a CPU; the formula of an update's memory."""

import json
import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from torch.utils.flop_counter import FlopCounterMode
from transformers import Qwen3Config, Qwen3Model

import gpu
import loss
import step
from gpu import (
    REHEARSAL,
    Options,
    Place,
    Skipped,
    backward_flops,
    forward_flops,
    main,
    markdown,
    peak_flops,
    run_part,
    update_flops,
)
from large_models import settings_of
from paint.config import schema as cfg
from paint.demo.files import MODEL, TRAINING_PROBLEMS
from paint.estimate.shapes import SHAPES, Shape

Rows = list[tuple[str, dict[str, Any]]]
TARGETS = cfg.ModelConfig().lora_targets


def rehearsed(name: str, folder: Path) -> Rows:
    """What a part says when it is rehearsed in this process."""
    rows: Rows = []
    place = Place(folder, time.time() + 600, smollm2="")
    gpu.PARTS[name].run(REHEARSAL, lambda table="", **cells: rows.append((table, cells)), place)
    return rows


def cells_of(rows: Rows, table: str) -> list[dict[str, Any]]:
    """The rows of one table."""
    return [cells for name, cells in rows if name == table]


def test_kernels_part_compares_every_dtype_and_impl_with_eager(tmp_path: Path) -> None:
    rows = rehearsed("kernels", tmp_path)
    found = cells_of(rows, "Kernels")
    assert [(row["dtype"], row["impl"]) for row in found] == [
        (dtype, impl)
        for dtype in ("float32", "bfloat16", "float16")
        for impl in ("reference", "chunked", "triton")
    ]
    for row in found:
        assert "failed" not in row
        assert 0 < row["value_error"] < 1e-3
        assert 0 < row["gradient_error"] < (1e-4 if row["dtype"] == "float32" else 1e-2)
    assert rows[-1][1]["note"].startswith("largest error of the kernels over that of eager code")


def test_update_part_reports_seconds_by_rows_and_phase_beside_formula(tmp_path: Path) -> None:
    updates = cells_of(rehearsed("update", tmp_path), "Updates")
    assert [(row["rows"], row["checkpointing"]) for row in updates] == [
        (load.rows, load.checkpointing) for load in REHEARSAL.loads
    ]
    for row in updates:
        assert row["formula_GB"] > 0
        assert row["seconds"] == pytest.approx(row["rows"] * row["seconds_a_row"])
        phases = [row[p] for p in ("teacher forward", "student forward", "loss", "backward")]
        assert min(phases) > 0
        assert sum(phases) < row["seconds"]


def test_update_part_that_is_out_of_memory_for_some_rows_keeps_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = gpu._update_of_load

    def update(*given: Any) -> None:
        if given[3].rows == 2:
            raise torch.OutOfMemoryError("full")
        real(*given)

    monkeypatch.setattr(gpu, "_update_of_load", update)
    broken, sound = cells_of(rehearsed("update", tmp_path), "Updates")
    assert broken["failed"] == "OutOfMemoryError: full"
    assert sound["seconds"] > 0


def test_layers_part_measures_error_against_float32(tmp_path: Path) -> None:
    (row,) = cells_of(rehearsed("layers", tmp_path), "Layers")
    assert row["layers"] == "PyTorch's"
    assert 0 < row["error_of_states"] < 0.02
    assert 0 < row["error_of_gradients"] < 0.05


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


def test_decode_part_times_two_calls_and_bounds_logprob_mismatch(tmp_path: Path) -> None:
    found = cells_of(rehearsed("decode", tmp_path), "Decoding")
    assert [row["rows"] for row in found] == [decoded.rows for decoded in REHEARSAL.decoded]
    for row in found:
        assert row["tokens_per_second"] == pytest.approx(row["tokens"] / row["seconds"])
        assert row["largest_gap"] < 0.05
        assert row["calls_with_the_same_tokens"] == f"{row['rows']} of {row['rows']}"


@pytest.mark.slow
def test_start_parts_run_first_commands_to_their_end(tmp_path: Path) -> None:
    parts = ("start-demo", "start-1.7B", "start-eval")
    found = [row for part in parts for row in cells_of(rehearsed(part, tmp_path), "Starts")]
    names = ["doctor", "plan", "train the demo", "train 1.7B", "evaluate the demo"]
    assert [row["command"] for row in found] == names
    assert all(row["seconds"] > 0 for row in found)


def _command(monkeypatch: pytest.MonkeyPatch, code: str) -> None:
    """Let every command of paint be some lines of Python, with the command's words."""
    real = subprocess.Popen

    def started(command: list[str], **options: Any) -> subprocess.Popen[bytes]:
        return real([sys.executable, "-c", code, *command[3:]], **options)

    monkeypatch.setattr("gpu.subprocess.Popen", started)


def test_starts_part_command_that_fails_costs_its_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = 'import sys; print("one line\\nthe reason"); sys.exit("train" in sys.argv)'
    _command(monkeypatch, code)
    found = cells_of(rehearsed("start-demo", tmp_path), "Starts")
    assert ["failed" in row for row in found] == [False, False, True]
    assert found[2]["failed"] == "RuntimeError: ended with 1: the reason"


@pytest.mark.slow
def test_train_part_reports_each_step(tmp_path: Path) -> None:
    found = cells_of(rehearsed("train-local", tmp_path), "Training")
    assert [row["step"] for row in found] == ["all", 1, 2, 3]
    assert all(row["rollout_tokens_per_second"] > 0 for row in found[1:])


def test_train_part_of_engine_that_is_absent_is_skipped(tmp_path: Path) -> None:
    with pytest.raises(Skipped, match="there is no GPU, or no vLLM"):
        rehearsed("train-vllm", tmp_path)


@pytest.mark.slow
def test_resume_part_reports_bitwise_equal_runs(tmp_path: Path) -> None:
    found = cells_of(rehearsed("resume", tmp_path), "Resuming")
    assert [row["run"] for row in found] == ["resumed after step 1", "the same from the start"]
    for row in found:
        assert row["bitwise"]
        assert row["largest_difference"] == 0
        assert row["steps_with_the_same_loss"] == "2 of 2"


@pytest.mark.slow
def test_smollm2_part_trains_two_quarters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "SMOLLM2_RECIPE", "demo-paint")
    (tmp_path / "real").mkdir()
    (tmp_path / "real/model").symlink_to(MODEL)
    (tmp_path / "real/train.jsonl").symlink_to(TRAINING_PROBLEMS)
    place = Place(tmp_path, time.time() + 600, smollm2=str(tmp_path / "real"))
    rows: Rows = []
    gpu.smollm2(REHEARSAL, lambda table="", **cells: rows.append((table, cells)), place)
    assert [row["steps"] for row in cells_of(rows, "SmolLM2")] == ["first quarter", "last quarter"]
    assert all(row["of"] == 1 and 0 <= row["accuracy"] <= 1 for _, row in rows)


def test_smollm2_part_without_model_is_skipped_by_name(tmp_path: Path) -> None:
    for folder, missing in (("", "names no folder"), (str(tmp_path), "model/config.json is not")):
        with pytest.raises(Skipped, match=missing):
            gpu.smollm2(REHEARSAL, lambda: None, Place(tmp_path, 0.0, folder))


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
        ("good", 60, "done"),
        ("slow", 2, "stopped at its limit of 2 s"),
        ("bad", 60, "failed with 1: it broke"),
        ("missing", 60, "skipped: the package x is not installed"),
    ],
)
def test_run_part_keeps_rows_if_it_fails(name: str, limit: float, status: str, fake: Path) -> None:
    found = run_part(name, limit, fake, Options(folder=fake))
    assert found["status"] == status
    assert found["rows"] == [{"table": "Rows", "value": 1}]


def test_main_writes_report_after_each_part_and_continues_after_failure(
    fake: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []

    def noted(name: str, limit: float, folder: Path, options: Options) -> dict[str, Any]:
        path = fake / "out/gpu-report.json"
        seen.append(list(json.loads(path.read_text())["parts"]) if path.exists() else [])
        return run_part(name, limit, folder, options)

    monkeypatch.setattr(gpu, "run_part", noted)
    parts = {name: gpu.Part(name, 30, gpu.kernels) for name in ("bad", "good", "missing")}
    report = main(Options(folder=fake / "out"), parts)
    assert seen == [[], ["bad"], ["bad", "good"]]
    statuses = [part["status"].partition(" ")[0] for part in report["parts"].values()]
    assert statuses == ["failed", "done", "skipped:"]
    assert (fake / "out/gpu-report.md").exists()

    late = main(Options(folder=fake / "out", seconds=5), parts)
    assert {part["status"] for part in late["parts"].values()} == {"skipped: no time was left"}


@pytest.mark.slow
def test_main_runs_where_paint_is_not_installed(tmp_path: Path) -> None:
    # Without the site module, files of site-packages that name other folders are not read.
    packages = str(Path(torch.__file__).parents[1])
    environment = os.environ | {"PYTHONPATH": packages}
    python = [sys.executable, "-S"]
    absent = subprocess.run([*python, "-c", "import paint"], env=environment, capture_output=True)
    if absent.returncode == 0:
        pytest.skip("paint is in site-packages itself")
    flags = ["--rehearse", "--only", "smollm2", "--folder", str(tmp_path)]
    command = [*python, str(gpu.SCRIPT), *flags]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    report = json.loads((tmp_path / "gpu-report.json").read_text())
    assert report["parts"]["smollm2"]["status"] == "skipped: Skipped: --smollm2 names no folder"


@pytest.mark.parametrize("benchmark", [gpu, loss, step])
def test_only_unknown_name_is_refused_with_those_there_are(benchmark: Any, tmp_path: Path) -> None:
    options = {"json": tmp_path / "out.json"} if benchmark is not gpu else {"folder": tmp_path}
    with pytest.raises(SystemExit, match=r"--only 'none': .* choose from '"):
        benchmark.main(benchmark.Options(only=("none",), **options))
    assert not list(tmp_path.iterdir())


def test_markdown_shows_tables_notes_and_rehearsal_notice() -> None:
    row = {"table": "Kernels", "head": "8B", "peak_GB": 1.2345, "failed": None, "bitwise": True}
    rows = [row, {"table": "", "note": "mended"}]
    part = {"title": "A part", "status": "done", "seconds": 3.0, "rows": rows}
    facts = {"date": "today", "is_rehearsal": True}
    text = markdown({"about": facts, "parts": {"kernels": part}})
    assert "| head | peak GB | failed | bitwise |" in text
    assert "| 8B | 1.23 | - | yes |" in text
    assert "- mended" in text
    assert "**A rehearsal" in text
    facts["is_rehearsal"] = False
    assert "rehearsal" not in markdown({"about": facts, "parts": {}})


def test_peak_flops_match_data_sheets() -> None:
    assert peak_flops("NVIDIA H200") == peak_flops("NVIDIA H100 80GB HBM3") == 989.4e12
    assert peak_flops("NVIDIA H100 PCIe") == 756e12
    assert peak_flops("A card of tomorrow") is None


@pytest.mark.slow
def test_main_rehearsal_completes_its_parts(tmp_path: Path) -> None:
    others = ("loss", "tests", "smollm2")  # those that are not tested above
    report = main(Options(folder=tmp_path, rehearse=True, seconds=1200, only=others))
    statuses = {name: part["status"] for name, part in report["parts"].items()}
    assert statuses.pop("smollm2") == "skipped: Skipped: --smollm2 names no folder"
    assert set(statuses.values()) == {"done"}
    contenders = [row["contender"] for row in report["parts"]["loss"]["rows"] if row["table"]]
    assert contenders[:3] == ["products", "paint chunked", "trl"]
    (tests,) = (row for row in report["parts"]["tests"]["rows"] if row["table"] == "Tests")
    assert tests["passed"] > 0
    assert tests["failed"] == 0
