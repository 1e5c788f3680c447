"""Adapters of every kind start as the base, compute what they are said to, and can be exported."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from conftest import DEMO, move
from paint.config.schema import TeacherConfig
from paint.models.adapters import adapter_update
from paint.models.exports import (
    adapter_difference,
    export_adapter,
    export_merged,
    merged_difference,
)
from paint.models.policy import Policy, load_policy
from paint.models.teacher import open_teacher
from paint.models.weights import load_trained, read_adapter_shape, save_trained
from tiny_models import save_tiny, tiny_config

IDS = [[5, 20, 31, 7, 9, 12, 40]]
BOTH: dict[str, Any] = {"use_dora": True, "use_rslora": True}


def states(policy: Policy) -> Tensor:
    return policy.hidden_states(IDS, IDS)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_load_policy_new_dora_is_base(dtype: Any) -> None:
    policy = load_policy(replace(DEMO, dtype=dtype, **BOTH), seed=0)
    with open_teacher(policy, TeacherConfig()).view():
        base = states(policy)
    assert torch.equal(states(policy), base)


def test_rslora_is_lora_of_alpha_times_root_of_rank_in_states_and_gradients() -> None:
    found = []
    for changes in ({"use_rslora": True}, {"lora_alpha": 4 * DEMO.lora_alpha}):
        policy = load_policy(replace(DEMO, lora_rank=16, **changes), seed=0)
        move(policy)
        output = states(policy)
        output.square().sum().backward()
        found.append([output, *(p.grad for p in policy.trainable if p.grad is not None)])
    assert len(found[0]) == 1 + 2 * 7 * policy.base.config.num_hidden_layers
    assert all(torch.equal(mine, theirs) for mine, theirs in zip(*found, strict=True))


def test_dora_trains_its_magnitudes_in_16_bits() -> None:
    policy = load_policy(replace(DEMO, dtype="bfloat16", use_dora=True), seed=0)
    move(policy)
    states(policy).float().square().sum().backward()
    magnitudes = [p for name, p in policy.model.named_parameters() if "magnitude" in name]
    assert len(magnitudes) == len(policy.adapted)
    assert all(p.grad is not None and p.grad.any() for p in magnitudes)


@pytest.mark.parametrize("family", ["qwen2", "gpt2"])  # with biases, and with transposed weights
def test_dora_is_unit_rows_times_magnitudes_in_value_and_gradient(
    family: str, tmp_path: Path
) -> None:
    """Against the definition in float64; the norms are constants, as in the paper's 4.3."""
    config = replace(DEMO, path=save_tiny(tiny_config(family), tmp_path), use_dora=True)
    policy = load_policy(replace(config, lora_targets=("all-linear",)), seed=0)
    move(policy)
    policy.model.double()
    layer: Any = next(iter(policy.adapted.values()))
    a, b = layer.lora_A["default"].weight, layer.lora_B["default"].weight
    m = layer.lora_magnitude_vector["default"].weight
    base = layer.get_base_layer()
    weight = base.weight.detach().T if family == "gpt2" else base.weight.detach()

    def defined(x: Tensor) -> Tensor:
        direction = weight + layer.scaling["default"] * b @ a
        unit = direction / direction.detach().norm(dim=1, keepdim=True)
        output: Tensor = x @ (m[:, None] * unit).T + base.bias
        return output

    x = torch.randn(3, weight.shape[1], dtype=torch.float64)
    found = [
        [output, *torch.autograd.grad(output.square().sum(), (a, b, m))]
        for output in (layer(x), defined(x))
    ]
    for mine, theirs in zip(*found, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("family", ["qwen3", "gpt2"])
def test_adapter_update_added_to_weights_gives_states_of_adapter(
    family: str, tmp_path: Path
) -> None:
    path = save_tiny(tiny_config(family), tmp_path)
    config = replace(DEMO, path=path, lora_targets=("all-linear",), **BOTH)
    policy = load_policy(config, seed=0)
    move(policy)
    student = states(policy)
    # A moving average starts at the student, and is applied beside the weights.
    with open_teacher(policy, TeacherConfig(weights="ema")).view():
        torch.testing.assert_close(states(policy), student, rtol=1e-4, atol=1e-4)
    updates = {name: adapter_update(layer) for name, layer in policy.adapted.items()}
    with torch.no_grad(), policy.model.disable_adapter():
        assert (states(policy) - student).abs().max() > 1e-2
        for name, layer in policy.adapted.items():
            layer.get_base_layer().weight.add_(updates[name])
        torch.testing.assert_close(states(policy), student, rtol=1e-4, atol=1e-4)


@pytest.mark.slow
def test_export_of_dora_is_the_policy_as_adapter_and_merged(tmp_path: Path) -> None:
    config = replace(DEMO, **BOTH)
    policy = load_policy(config, seed=0)
    move(policy)
    save_trained(policy, tmp_path)
    shape = read_adapter_shape(tmp_path)
    assert (shape.use_rslora, shape.use_dora) == (config.use_rslora, config.use_dora)

    again = load_policy(replace(config, lora_targets=shape.lora_targets), seed=1)
    load_trained(again, tmp_path)
    assert torch.equal(states(again), states(policy))
    for folder in ("adapter", "merged"):
        (tmp_path / folder).mkdir()
    export_adapter(tmp_path, tmp_path / "adapter", torch.bfloat16)
    assert adapter_difference(config, tmp_path, tmp_path / "adapter") < 0.05
    merged = export_merged(again, tmp_path, tmp_path / "merged", torch.float32)
    assert merged_difference(tmp_path / "merged", merged) < 1e-4
    assert merged.rounding.error < 1e-5


def test_export_adapter_in_16_bits_keeps_magnitudes(tmp_path: Path) -> None:
    policy = load_policy(replace(DEMO, use_dora=True), seed=0)
    move(policy, by=1e-3)
    save_trained(policy, tmp_path)
    (tmp_path / "exported").mkdir()
    export_adapter(tmp_path, tmp_path / "exported", torch.bfloat16)
    trained, exported = (
        load_file(folder / "adapter_model.safetensors")
        for folder in (tmp_path, tmp_path / "exported")
    )
    magnitudes = [name for name in trained if "magnitude" in name]
    assert len(magnitudes) == len(policy.adapted)
    assert all(torch.equal(trained[name], exported[name]) for name in magnitudes)
    assert all(v.dtype == torch.bfloat16 for k, v in exported.items() if k not in magnitudes)
