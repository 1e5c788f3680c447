"""Adapters compute what they are said to, by layer and scale."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from conftest import DEMO, move
from paint.config.schema import TeacherConfig
from paint.models.policy import Policy, PolicyError, load_policy
from paint.models.teacher import open_teacher, student_weights
from tiny_models import save_tiny, tiny_config

IDS = [[5, 20, 31, 7, 9, 12, 40]]


def states(policy: Policy) -> Tensor:
    return policy.hidden_states(IDS, IDS)


@pytest.mark.parametrize("family", ["qwen3", "gpt2"])
def test_adapter_update_added_to_weights_gives_states_of_adapter(
    family: str, tmp_path: Path
) -> None:
    path = save_tiny(tiny_config(family), tmp_path)
    policy = load_policy(replace(DEMO, path=path, lora_targets=("all-linear",)), seed=0)
    move(policy)
    student = states(policy)
    # A moving average starts at the student, and is applied beside the weights.
    with open_teacher(policy, TeacherConfig(weights="ema")).view():
        torch.testing.assert_close(states(policy), student, rtol=1e-4, atol=1e-4)
    updates = dict(student_weights(policy))
    with torch.no_grad(), policy.model.disable_adapter():
        assert (states(policy) - student).abs().max() > 1e-2
        for name, layer in policy.adapted.items():
            layer.get_base_layer().weight.add_(updates[name])
        torch.testing.assert_close(states(policy), student, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    "targets", [("o_proj", "down_proj"), ("o_proj", "shared_experts.down_proj")]
)
def test_load_policy_linear_layers_that_peft_takes_for_experts_are_refused(
    targets: tuple[str, ...], tmp_path: Path
) -> None:
    shape = tiny_config("deepseek_v3", first_k_dense_replace=1, n_group=1, topk_group=1)
    config = replace(DEMO, path=save_tiny(shape, tmp_path), lora_targets=targets)
    with pytest.raises(PolicyError, match=r"peft gives no adapter to model\.layers.*deepseek_v3"):
        load_policy(config, seed=0)
