"""Distillation next to GRPO's reward: the loss and its gradient are the weighted sum of both."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from paint.algorithms import grpo
from paint.config.run_folder import read_metrics
from paint.training import train_step
from paint.training.train_step import Setup
from paintvariants.rewarded import Rewarded
from runs import Sections, changed, stored, train, variant

SMALL: dict[str, dict[str, Any]] = {
    "model": {"lora_rank": 4, "lora_alpha": 8},
    "rollout": {"max_new_tokens": 60, "batch_size": 12, "samples_per_problem": 4},
    "train": {"steps": 1, "batch_size": 12, "micro_batch_size": 5},
}


GRPO: dict[str, dict[str, Any]] = {"train": {"method": "grpo"}}


def gradient(folder: Path, monkeypatch: pytest.MonkeyPatch, method: Sections) -> Tensor:
    """The gradient of a run's only step."""
    found: list[Tensor] = []
    take = train_step.update

    def update(setup: Setup, step_index: int) -> float:
        found.extend(p.grad.flatten() for p in setup.policy.trainable if p.grad is not None)
        found[:] = [torch.cat(found).clone()]
        return take(setup, step_index)

    for module in (train_step, grpo):
        monkeypatch.setattr(module, "update", update)
    train(changed("demo-paint", SMALL, method), folder)
    (flat,) = found
    return flat


@pytest.mark.slow
def test_rewarded_step_adds_weighted_reward_loss_and_gradient(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    both = gradient(tmp_path / "both", monkeypatch, variant(Rewarded, reward_weight=0.5))
    distilled = gradient(tmp_path / "distilled", monkeypatch, variant(Rewarded, reward_weight=0.0))
    rewarded = gradient(tmp_path / "rewarded", monkeypatch, GRPO)
    assert rewarded.norm() > 0.01 * distilled.norm() > 0
    torch.testing.assert_close(both, distilled + 0.5 * rewarded, rtol=1e-4, atol=1e-6)

    figures = {name: read_metrics(tmp_path / name)[0] for name in ("both", "distilled", "rewarded")}
    assert figures["both"]["grpo_loss"] == pytest.approx(figures["rewarded"]["loss"], abs=1e-6)
    total = figures["distilled"]["loss"] + 0.5 * figures["rewarded"]["loss"]
    assert figures["both"]["loss"] == pytest.approx(total, abs=1e-6)
    assert figures["both"]["kl"] == figures["distilled"]["kl"]
    row = stored(tmp_path / "both")[0]
    assert {"overlap", "mask_ratio", "reward", "advantage", "context"} <= row.keys()
