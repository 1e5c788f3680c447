"""Layers with and without adapters, by name; experts are refused."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from peft.tuners.lora import LoraLayer

from conftest import DEMO
from paint.models.adapters import describe_adapters, find_targets
from paint.models.policy import PolicyError, load_policy
from paint.models.weights import load_trained, read_adapter_shape, save_trained
from paint.resolve.structure import last_part, linear_layers, linear_modules
from tiny_models import save_tiny, tiny_config, tiny_model


def test_find_targets_of_experts_are_refused() -> None:
    model = tiny_model(tiny_config("qwen3_moe"))
    assert find_targets(model, ["q_proj", "o_proj"]).modules == ["q_proj", "o_proj"]
    for targets in (["q_proj", "gate_proj"], ["all-linear"], ["experts.down_proj"]):
        with pytest.raises(ValueError, match=r"; its experts get no adapters"):
            find_targets(model, targets)
    assert "without adapters: experts.down_proj, experts.gate_up_proj, k_proj" in describe_adapters(
        model
    )


@pytest.mark.parametrize("family", ["falcon", "gpt2", "gpt_neox", "lfm2", "phi3", "zamba2"])
def test_load_policy_all_linear_adapts_every_linear_layer_but_head(
    family: str, tmp_path: Path
) -> None:
    config = replace(DEMO, path=save_tiny(tiny_config(family), tmp_path))
    policy = load_policy(replace(config, lora_targets=("all-linear",)), seed=0)
    assert policy.adapted.keys() == linear_modules(policy.base).keys()
    assert len(policy.adapted) > 4
    assert not isinstance(policy.lm_head, LoraLayer)
    assert describe_adapters(policy.base).endswith("every linear layer has one")

    with torch.no_grad():
        for parameter in policy.trainable:
            parameter.add_(0.05)
    save_trained(policy, tmp_path / "adapter")
    shape = read_adapter_shape(tmp_path / "adapter")
    again = load_policy(replace(config, lora_targets=shape.lora_targets), seed=1)
    assert again.adapted.keys() == policy.adapted.keys()
    load_trained(again, tmp_path / "adapter")
    states = [p.hidden_states([[5, 6, 7]], [[8, 9]]) for p in (policy, again)]
    torch.testing.assert_close(*states, rtol=0, atol=0)


@pytest.mark.parametrize(
    ("family", "target"), [("qwen3", "lm_head"), ("gpt2", "wpe"), ("gpt2", "attn")]
)
def test_load_policy_target_that_is_no_linear_layer_lists_those(
    family: str, target: str, tmp_path: Path
) -> None:
    path = save_tiny(tiny_config(family), tmp_path)
    layers = ", ".join(linear_layers(tiny_model(tiny_config(family))))
    config = replace(DEMO, path=path, lora_targets=(target,))
    with pytest.raises(PolicyError, match=rf"{target} is no linear layer .* those are {layers}"):
        load_policy(config, seed=0)


def test_load_policy_adapts_named_conv1d_layers(tmp_path: Path) -> None:
    path = save_tiny(tiny_config("gpt2"), tmp_path)
    policy = load_policy(replace(DEMO, path=path, lora_targets=("c_attn",)), seed=0)
    assert {last_part(name) for name in policy.adapted} == {"c_attn"}
    assert "of c_attn; without adapters: c_fc, c_proj" in describe_adapters(policy.base)
