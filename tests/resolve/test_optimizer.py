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

from paint.config.run_folder import read_metrics, read_run
from paint.config.schema import Config, ConfigError, ModelConfig, TrainConfig
from paint.core.extensions import spec_of
from paint.inference.engine import EngineError
from paint.inference.local import LocalEngine
from paint.models.policy import Policy
from paint.resolve.memory import Rows, training_memory
from paint.resolve.optimizer import (
    AdamW,
    OptimizerFactory,
    find_optimizer,
    learning_rate,
    open_optimizer,
    set_learning_rate,
)
from paint.resolve.shapes import SHAPES
from paint.training.checkpoint import load_optimizer_state
from runs import adapter, assert_same, changed, last_checkpoint, train, train_in_parts

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
        return weight, open_optimizer(AdamW(), [weight], TrainConfig(weight_decay=0.1))

    def step(weight: torch.nn.Parameter, optimizer: torch.optim.Optimizer, seed: int) -> None:
        weight.grad = torch.randn(50, generator=torch.Generator().manual_seed(seed))
        optimizer.step()

    whole, optimizer = opened(torch.zeros(50))
    assert optimizer.param_groups[0]["fused"] is True  # on a CPU, None
    step(whole, optimizer, 0)
    saved = io.BytesIO()
    torch.save((whole.detach(), optimizer.state_dict()), saved)
    step(whole, optimizer, 1)

    values, state = torch.load(io.BytesIO(saved.getvalue()), weights_only=True)
    resumed, optimizer = opened(values)
    optimizer.load_state_dict(state)
    step(resumed, optimizer, 1)
    assert torch.equal(resumed, whole)


def test_learning_rate_is_set_in_optimizer(tmp_path: Path) -> None:
    train(changed("demo-paint", small(steps=2, warmup_steps=2)), tmp_path)
    for number, rate in enumerate((5e-4, 1e-3), start=1):
        state = torch.load(tmp_path / f"checkpoints/step-{number:06d}/optimizer.pt")
        [group] = state["param_groups"]
        assert (group["lr"], group["weight_decay"]) == (rate, 0.0)
        assert (group["betas"], group["eps"]) == ((0.9, 0.999), 1e-8)


SWING = math.sqrt(0.125)


@pytest.mark.parametrize("rate", [math.nan, math.inf, -1e-6])
def test_learning_rate_out_of_range_is_refused(rate: float) -> None:
    class Rated(AdamW):
        def learning_rate(self, config: TrainConfig, step_index: int) -> float:
            return rate

    with pytest.raises(ConfigError, match="the learning rate of step 3 is"):
        learning_rate(Rated(), TrainConfig(), 2)


@pytest.mark.parametrize(
    ("schedule", "after"),
    [
        ("constant", [1.0, 1.0, 1.0, 1.0]),
        ("linear", [1.0, 0.75, 0.5, 0.25]),
        ("cosine", [1.0, 0.5 + SWING, 0.5, 0.5 - SWING]),
    ],
)
def test_learning_rate_rises_linearly_and_then_follows_schedule(
    schedule: Any, after: list[float]
) -> None:
    config = TrainConfig(steps=8, warmup_steps=4, learning_rate=1.0, schedule=schedule)
    rates = [learning_rate(AdamW(), config, step) for step in range(8)]
    assert rates == pytest.approx([0.25, 0.5, 0.75, 1.0, *after])


LION = "extensions.lion:LionFactory"


@pytest.mark.slow
def test_find_optimizer_lion_trains_and_resumes_bitwise(tmp_path: Path) -> None:
    config = changed("demo-paint", small(steps=2, optimizer=LION))
    train(config, tmp_path / "whole")
    train_in_parts(config, tmp_path / "broken", first=1)
    assert_same(adapter(tmp_path / "broken"), adapter(tmp_path / "whole"))
    assert read_run(tmp_path / "whole").train.optimizer == LION
    rates = [row["learning_rate"] for row in read_metrics(tmp_path / "whole")]
    assert rates == pytest.approx([1e-3, 1e-3 / 2**0.5])
    saved = torch.load(tmp_path / "whole/checkpoints/step-000002/optimizer.pt")
    assert {name for state in saved["state"].values() for name in state} == {"momentum"}
    assert saved["param_groups"][0]["lr"] == rates[-1]

    # Lion's updates are of one size: that of the learning rate, weight decay apart.
    first = adapter(tmp_path / "whole", 1)
    moved = [value for name, value in first.items() if "lora_B" in name]  # 0 before training
    assert torch.cat([value.flatten() for value in moved]).abs().max() == pytest.approx(1e-3)


def test_training_memory_asks_optimizer_for_its_bytes() -> None:
    shape, rows = SHAPES["Qwen/Qwen3-1.7B"], Rows(1, 200, 2000, 1024)
    model = ModelConfig(dtype="bfloat16")

    def optimizer_bytes(name: str) -> float:
        config = Config(model=model, train=TrainConfig(optimizer=name))
        memory = training_memory(
            config,
            shape,
            rows,
            has_teacher=True,
            state_bytes=find_optimizer(config.train).state_bytes,
        )
        return memory.optimizer / memory.adapters

    assert [optimizer_bytes(name) for name in ("adamw", "adamw8bit", LION)] == [2, 0.5, 1]


class Sgd(OptimizerFactory):
    state_bytes = 0

    def open(self, parameters: Any, config: TrainConfig) -> Any:
        return torch.optim.SGD(parameters, lr=config.learning_rate)


def test_engine_failure_with_stateless_optimizer_is_reported_as_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced = []

    def fail_at_the_second(engine: LocalEngine) -> None:
        synced.append(engine)
        if len(synced) == 2:
            raise EngineError("gone")

    monkeypatch.setattr(LocalEngine, "sync_weights", fail_at_the_second)
    with pytest.raises(EngineError, match="gone"):
        train(changed("demo-paint", small(steps=3, optimizer=spec_of(Sgd))), tmp_path / "run")
    assert last_checkpoint(tmp_path / "run") == "step-000001"


class Twins(Sgd):
    """Two groups, of which the second takes larger steps."""

    def open(self, parameters: Any, config: TrainConfig) -> Any:
        groups = [{"params": parameters[:1]}, {"params": parameters[1:], "lr_scale": 16.0}]
        return torch.optim.SGD(groups, lr=config.learning_rate)


def test_set_learning_rate_multiplies_by_scale_of_group() -> None:
    parameters = [torch.nn.Parameter(torch.zeros(2)) for _ in range(3)]
    optimizer = open_optimizer(Twins(), parameters, TrainConfig())
    set_learning_rate(optimizer, 0.5)
    assert [group["lr"] for group in optimizer.param_groups] == [0.5, 8.0]


def test_load_optimizer_state_of_other_dtypes_is_bitwise_equal() -> None:
    state: dict[str, Any] = {
        "short": torch.full((2,), 1 / 3, dtype=torch.bfloat16),
        "count": torch.tensor(2**24 + 1),  # no float32
        "counts": [torch.tensor(2**24 + 1)],
    }
    saved = {"state": {0: state}, "param_groups": [{"lr": 0.1, "params": [0]}]}
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(2))], lr=1.0)
    load_optimizer_state(optimizer, saved)
    [loaded] = optimizer.state.values()
    assert loaded["short"].dtype == torch.bfloat16
    assert torch.equal(loaded["short"], state["short"])
    assert [loaded["count"].item(), loaded["counts"][0].item()] == [2**24 + 1] * 2


class Partial(Sgd):
    def open(self, parameters: Any, config: TrainConfig) -> Any:
        return super().open([*parameters[1:], torch.nn.Parameter(torch.zeros(2))], config)


@pytest.mark.parametrize(
    ("optimizer", "message"),
    [
        ("filelock:FileLock", "not a subclass of paint.OptimizerFactory"),
        (spec_of(Partial), "open left out 1 of 1 parameters"),
    ],
)
def test_optimizer_outside_of_contract_is_refused(optimizer: str, message: str) -> None:
    config = TrainConfig(optimizer=optimizer)
    with pytest.raises(ConfigError, match=message):
        open_optimizer(find_optimizer(config), [torch.nn.Parameter(torch.zeros(2))], config)
