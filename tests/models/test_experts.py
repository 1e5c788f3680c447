"""Adapters of experts, which transformers keeps in tensors of three axes."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from conftest import DEMO, move
from paint.config.schema import ConfigError, ModelConfig
from paint.inference.engine import Sampling
from paint.inference.local import LocalEngine
from paint.models.exports import (
    adapter_difference,
    export_adapter,
    export_merged,
    merged_difference,
)
from paint.models.policy import Policy, PolicyError, load_policy
from paint.models.weights import load_trained, read_adapter_shape, save_trained
from paint.resolve.check import check_training, resolve
from paint.resolve.plan import Machine
from runs import assert_same, assert_same_history, changed, train, train_in_parts
from tiny_models import save_tiny, tiny_config

SHAPE = ("lora_rank", "lora_alpha", "lora_targets", "use_rslora")
IDS = [[5, 20, 31, 7, 9, 12, 40, 41], [3, 50, 60]]
GATE_UP, DOWN = "experts.gate_up_proj", "experts.down_proj"
FAMILIES: dict[str, tuple[tuple[str, ...], dict[str, Any]]] = {
    "qwen3_moe": (("q_proj", GATE_UP, DOWN), {}),
    "mixtral": ((GATE_UP, DOWN), {}),
    "deepseek_v3": (
        ("o_proj", DOWN),
        {"first_k_dense_replace": 1, "n_group": 1, "topk_group": 1},
    ),
}


def config_of(family: str, folder: Path, **changes: Any) -> ModelConfig:
    targets, fields = FAMILIES[family]
    path = save_tiny(tiny_config(family, **fields), folder / "model")
    return replace(DEMO, path=path, lora_rank=4, lora_alpha=8, lora_targets=targets, **changes)


def states(policy: Policy) -> Tensor:
    return policy.hidden_states(IDS, IDS)


def _in_float64(policy: Policy) -> None:
    policy.model.double()
    policy.base.config._experts_implementation = "eager"  # grouped products have no float64


@pytest.mark.parametrize("family", FAMILIES)
def test_adapters_of_experts_have_the_gradients_of_their_sums(family: str, tmp_path: Path) -> None:
    """In float64, against the gradient of W + s B A in a model without adapters."""
    config = config_of(family, tmp_path)
    policy = load_policy(config, seed=0)
    with policy.model.disable_adapter():
        base = states(policy)
    assert torch.equal(states(policy), base)
    move(policy)
    _in_float64(policy)
    loss = states(policy).square().sum()
    loss.backward()

    plain = load_policy(replace(config, train_mode="full"), seed=0)
    _in_float64(plain)
    matrices = {}
    with torch.no_grad():
        for name, layer in policy.adapted.items():
            part = getattr(layer, "parameter_name", "weight")
            matrix = plain.base.get_parameter(f"{name}.{part}".replace(".base_layer", ""))
            matrix.add_(layer.get_delta_weight("default"))
            matrices[layer] = matrix
    expected = states(plain).square().sum()
    torch.testing.assert_close(loss, expected, rtol=1e-12, atol=0)
    expected.backward()
    for layer, matrix in matrices.items():
        if not hasattr(layer, "parameter_name"):
            continue
        # dL/dB of expert e is s G_e A_eᵀ, and dL/dA is s B_eᵀ G_e.
        a, b = layer.lora_A["default"].weight, layer.lora_B["default"].weight
        of_expert = a.view(len(matrix), config.lora_rank, -1)
        in_expert = b.view(len(b), config.lora_rank, len(matrix))
        assert matrix.grad is not None
        scaled = layer.scaling["default"] * matrix.grad
        of_b = torch.einsum("eoi,eri->ore", scaled, of_expert).reshape(b.shape)
        of_a = torch.einsum("eoi,ore->eri", scaled, in_expert).reshape(a.shape)
        assert b.grad is not None
        assert b.grad.abs().max() > 0
        torch.testing.assert_close(b.grad, of_b, rtol=1e-9, atol=1e-12)
        torch.testing.assert_close(a.grad, of_a, rtol=1e-9, atol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_adapters_of_experts_are_sampled_from_saved_and_exported(
    family: str, tmp_path: Path
) -> None:
    config = config_of(family, tmp_path)
    policy = load_policy(config, seed=0)
    move(policy)
    completions = LocalEngine(policy, batch_size=2).generate(
        IDS, Sampling(1.0, 1.0, -1, max_new_tokens=8), [0, 1]
    )
    logits = policy.lm_head(policy.hidden_states(IDS, [c.ids for c in completions]))
    tokens = torch.tensor([token for c in completions for token in c.ids])
    scored = logits.log_softmax(-1).gather(-1, tokens[:, None])[:, 0]
    sampled = torch.tensor([x for c in completions for x in c.log_probs])
    torch.testing.assert_close(sampled, scored, rtol=1e-4, atol=1e-4)

    trained = tmp_path / "trained"
    save_trained(policy, trained)
    shape = read_adapter_shape(trained)
    assert set(shape.lora_targets) == set(config.lora_targets)
    again = load_policy(replace(config, lora_targets=shape.lora_targets), seed=1)
    load_trained(again, trained)
    assert torch.equal(states(again), states(policy))
    for folder in ("adapter", "merged"):
        (tmp_path / folder).mkdir()
    export_adapter(trained, tmp_path / "adapter", torch.float32)
    assert adapter_difference(config, trained, tmp_path / "adapter") < 1e-5
    merged = export_merged(again, trained, tmp_path / "merged", torch.float32)
    assert merged_difference(tmp_path / "merged", merged) < 1e-5
    assert merged.rounding.error < 1e-5


@pytest.mark.slow
def test_run_with_adapters_of_experts_resumed_is_equal(tmp_path: Path) -> None:
    model = config_of("qwen3_moe", tmp_path, use_rslora=True)
    config = changed(
        "demo-paint",
        {
            "data": {"limit": 8},
            "model": {name: getattr(model, name) for name in ("path", *SHAPE)},
            "rollout": {"max_new_tokens": 8, "batch_size": 4},
            "train": {"steps": 2, "batch_size": 2, "checkpoint_every": 1},
        },
    )
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    train(config, whole)
    train_in_parts(config, parts, first=1)
    adapter = "checkpoints/step-000002/adapter/adapter_model.safetensors"
    assert_same(*(load_file(run / adapter) for run in (whole, parts)))
    assert_same_history(whole, parts)


@pytest.mark.parametrize(
    "targets", [("o_proj", "down_proj"), ("o_proj", "shared_experts.down_proj")]
)
def test_load_policy_linear_layers_that_peft_takes_for_experts_are_refused(
    targets: tuple[str, ...], tmp_path: Path
) -> None:
    config = replace(config_of("deepseek_v3", tmp_path), lora_targets=targets)
    with pytest.raises(PolicyError, match=r"peft gives no adapter to model\.layers.*deepseek_v3"):
        load_policy(config, seed=0)


@pytest.mark.parametrize(
    ("section", "changes"),
    [
        ("model", {"dtype": "bfloat16"}),
        ("model", {"use_dora": True}),
        ("teacher", {"weights": "ema"}),
        ("rollout", {"engine": "vllm"}),
    ],
)
def test_check_training_what_does_not_go_with_experts_is_refused(
    section: str, changes: dict[str, Any]
) -> None:
    config = changed("demo-paint", {"model": {"lora_targets": (DOWN,), "dtype": "auto"}})
    with pytest.raises(ConfigError, match="experts"):
        check_training(config.changed(section, **changes))


def test_resolve_dtype_auto_of_experts_is_float32_on_a_gpu() -> None:
    config = changed("demo-paint", {"model": {"lora_targets": (DOWN,), "dtype": "auto"}})
    run = resolve(check_training(config), Machine(gpus=1, memory=8e10))
    assert run.config.model.dtype == "float32"
