"""The report of what a GPU shows, rehearsed on a CPU; the formula of an update's memory."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from peft import LoraConfig, get_peft_model
from torch.utils.flop_counter import FlopCounterMode
from transformers import Qwen3Config, Qwen3Model

import gpu
from gpu import Options, backward_flops, forward_flops, main, update_flops
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
