"""Layers with and without adapters, by name; experts are refused."""

from dataclasses import replace
from typing import Any

import pytest
from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

from conftest import DEMO
from paint.models.policy import load_policy
from paint.models.targets import describe_adapters, target_modules


def experts() -> Any:
    """A small model with experts, which transformers keeps in tensors of three axes."""
    heads = {"num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 8}
    sizes = {"vocab_size": 32, "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1}
    return Qwen3MoeForCausalLM(
        Qwen3MoeConfig(**sizes, **heads, moe_intermediate_size=8, num_experts=4)
    )


def test_target_modules_of_experts_are_refused_unless_all_are_linear_layers() -> None:
    model = experts()
    assert target_modules(model, ["q_proj", "o_proj"]) == ["q_proj", "o_proj"]
    for targets in (["q_proj", "gate_proj"], ["all-linear"]):
        with pytest.raises(ValueError, match=r"experts \(experts.gate_up_proj, experts.down_proj"):
            target_modules(model, targets)
    assert "without adapters: q_proj (0.000256 M), " in describe_adapters(model)
    assert "experts.down_proj (0.000512 M)" in describe_adapters(model)


def test_describe_adapters_names_layers_with_and_without() -> None:
    said = {}
    for targets in (("q_proj", "down_proj"), ("all-linear",)):
        policy = load_policy(replace(DEMO, lora_targets=targets), seed=0)
        said[targets] = describe_adapters(policy.base)
        assert len(policy.adapted) == len(policy.base.model.layers) * (2 if len(targets) > 1 else 7)
    partly, fully = said.values()
    assert "of down_proj, q_proj; without adapters: k_proj (" in partly
    assert fully.endswith("v_proj; every linear layer has one")
