"""The optimizer, 8-bit moments included, and the learning-rate schedules."""

import io
import math
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch

from paint.config.schema import ConfigError, TrainConfig
from paint.models.policy import Policy
from paint.training.optim import learning_rate, open_optimizer
from paint.training.trainer import train
from runs import adapter, assert_same, changed, train_in_parts

FAKE = """
import torch

class AdamW8bit(torch.optim.AdamW):
    def step(self):
        super().step()
        for state in self.state.values():
            for name in ("exp_avg", "exp_avg_sq"):
                scale = state[name].abs().max().clamp(min=1e-12) / 127
                state[name].copy_((state[name] / scale).round() * scale)
"""
"""What bitsandbytes.optim has, where it is not installed: moments of 255 values."""


@pytest.fixture
def bitsandbytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, policy: Policy) -> Iterator[None]:
    """bitsandbytes, or what stands for it."""
    # peft looks for it once, when the policy gets its adapter, and wants layers that this lacks.
    if find_spec("bitsandbytes") is not None:
        yield
        return
    (tmp_path / "bitsandbytes").mkdir()
    (tmp_path / "bitsandbytes/__init__.py").touch()
    (tmp_path / "bitsandbytes/optim.py").write_text(FAKE)
    monkeypatch.syspath_prepend(tmp_path)
    yield
    for name in ("bitsandbytes", "bitsandbytes.optim"):  # other tests would take it for installed
        sys.modules.pop(name, None)


def small(**options: Any) -> dict[str, dict[str, Any]]:
    options = {"batch_size": 2, "checkpoint_every": 1, "learning_rate": 1e-3} | options
    return {"model": {"lora_rank": 4}, "rollout": {"max_new_tokens": 20}, "train": options}


@pytest.mark.slow
@pytest.mark.usefixtures("bitsandbytes")
def test_open_optimizer_8bit_run_resumed_is_bitwise_equal(tmp_path: Path) -> None:
    def config(steps: int, optimizer: str = "adamw8bit") -> Any:
        return changed("demo-paint", small(steps=steps, optimizer=optimizer))

    train(config(3), tmp_path / "whole")
    train_in_parts(config(3), tmp_path / "broken", first=1)
    assert_same(adapter(tmp_path / "broken"), adapter(tmp_path / "whole"))
    train(config(3, "adamw"), tmp_path / "float32")
    with pytest.raises(AssertionError):
        assert_same(adapter(tmp_path / "float32"), adapter(tmp_path / "whole"))


def test_open_optimizer_8bit_without_bitsandbytes_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"train\.optimizer .*pip install bitsandbytes"):
        train(changed("demo-paint", small(steps=1, optimizer="adamw8bit")), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_open_optimizer_on_cuda_is_fused_and_resumes_bitwise(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # torch's fused AdamW runs on CPUs, too.
    monkeypatch.setattr(torch.Tensor, "is_cuda", property(lambda _: True))

    def opened(values: torch.Tensor) -> tuple[torch.nn.Parameter, torch.optim.Optimizer]:
        weight = torch.nn.Parameter(values.clone())
        return weight, open_optimizer([weight], TrainConfig(weight_decay=0.1))

    def step(weight: torch.nn.Parameter, optimizer: torch.optim.Optimizer, seed: int) -> None:
        weight.grad = torch.randn(50, generator=torch.Generator().manual_seed(seed))
        optimizer.step()

    whole, optimizer = opened(torch.zeros(50))
    assert optimizer.param_groups[0]["fused"] is True
    step(whole, optimizer, 0)
    saved = io.BytesIO()
    torch.save((whole.detach(), optimizer.state_dict()), saved)
    step(whole, optimizer, 1)

    values, state = torch.load(io.BytesIO(saved.getvalue()), weights_only=True)
    resumed, optimizer = opened(values)
    optimizer.load_state_dict(state)
    step(resumed, optimizer, 1)
    assert torch.equal(resumed, whole)


def test_open_optimizer_on_cpu_is_not_fused() -> None:
    optimizer = open_optimizer([torch.nn.Parameter(torch.zeros(2))], TrainConfig())
    assert optimizer.param_groups[0]["fused"] is None


def test_learning_rate_is_set_in_optimizer(tmp_path: Path) -> None:
    train(changed("demo-paint", small(steps=3, warmup_steps=2)), tmp_path)
    for number, rate in enumerate((5e-4, 1e-3, 1e-3), start=1):
        state = torch.load(tmp_path / f"checkpoints/step-{number:06d}/optimizer.pt")
        [group] = state["param_groups"]
        assert (group["lr"], group["weight_decay"]) == (rate, 0.0)
        assert (group["betas"], group["eps"]) == ((0.9, 0.999), 1e-8)


@pytest.mark.parametrize("schedule", ["constant", "linear", "cosine"])
def test_learning_rate_warmup_rises_linearly(schedule: str) -> None:
    config = TrainConfig(steps=10, warmup_steps=4, learning_rate=8e-4, schedule=schedule)  # type: ignore[arg-type]
    assert [learning_rate(config, t) for t in range(4)] == pytest.approx([2e-4, 4e-4, 6e-4, 8e-4])
    assert learning_rate(config, 4) == pytest.approx(8e-4)


def test_learning_rate_after_warmup_follows_schedule() -> None:
    def rates(schedule: str) -> list[float]:
        config = TrainConfig(steps=6, warmup_steps=2, learning_rate=1.0, schedule=schedule)  # type: ignore[arg-type]
        return [learning_rate(config, t) for t in range(2, 6)]

    assert rates("constant") == [1.0, 1.0, 1.0, 1.0]
    assert rates("linear") == pytest.approx([1.0, 0.75, 0.5, 0.25])
    swing = math.sqrt(0.125)
    assert rates("cosine") == pytest.approx([1.0, 0.5 + swing, 0.5, 0.5 - swing])
