"""A training step beside its peers': the ratios, the goal, and that what is ours runs."""

from pathlib import Path
from typing import Any

import pytest
import torch

import step
from models import random_qwen3
from paint.models.policy import load_policy
from step import Sizes, beside_ours, verdict


def figures(**contenders: tuple[list[float], int]) -> dict[str, dict[str, Any]]:
    """Seconds and bytes by contender."""
    return {name: {"seconds": s, "peak_bytes": b} for name, (s, b) in contenders.items()}


def test_compare_ratios_use_medians_and_verdict_uses_fastest() -> None:
    peers = {"slow": ([5.0, 6.0, 9.0], 90), "fast": ([2.0, 4.4, 2.2], 21)}
    ratios = beside_ours(figures(paint=([1.0, 2.0, 1.0], 10), **peers))
    found = {name: (row["seconds"], row["peak_bytes"]) for name, row in ratios.items()}
    assert found == {"slow": (6.0, 9.0), "fast": (2.2, 2.1)}
    assert verdict(ratios).startswith("goal met: the fastest peer, fast, takes 2.20 times")
    ratios["fast"]["peak_bytes"] = 1.9
    assert verdict(ratios).startswith("goal missed")
    ratios["fast"] = {"seconds": 1.9, "peak_bytes": 3.0}
    assert verdict(ratios).startswith("goal missed")
    assert verdict({}) == "no peer ran"


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("name", ["paint", "opsd, restated"])
def test_step_moves_adapters(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = random_qwen3(tmp_path, layers=1, hidden=32, heads=2, kv_heads=1, vocabulary=1000)
    policies = []

    def loaded(*args: Any, **options: Any) -> Any:
        policies.append(load_policy(*args, **options))
        return policies[-1]

    monkeypatch.setattr(step, "load_policy", loaded)
    run = step.CONTENDERS[name](path, Sizes(2, completion=8, prompt=4, teacher_prompt=12))
    before = {n: p.detach().clone() for n, p in policies[0].model.named_parameters()}
    run()
    after = policies[0].model.named_parameters()
    moved = {n for n, p in after if not torch.equal(p.detach(), before[n])}
    assert moved
    assert all(".lora_" in name for name in moved)
