"""Layers of 4 bits: steps, teacher and files are those of the rounded weights, made float again."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from conftest import DEMO, move
from paint.config import schema as cfg
from paint.inference.vllm.process import server_command
from paint.models.exports import export_merged
from paint.models.policy import Policy, PolicyError, load_policy
from paint.models.teacher import open_teacher
from paint.models.weights import load_trained, save_trained, weights_digest
from runs import Sections, adapter, assert_same, assert_same_history, changed, train, train_in_parts

PROMPTS, COMPLETIONS = [[5, 20, 31, 7], [9, 9, 12]], [[50, 60, 70], [80]]
NF4 = replace(DEMO, quantization="nf4")


def test_nf4_server_command_quantizes_same_weights() -> None:
    command = server_command(NF4, cfg.RolloutConfig(), 8000, max_model_len=100)
    assert command[command.index("--quantization") + 1] == "bitsandbytes"
    command = server_command(DEMO, cfg.RolloutConfig(), 8000, max_model_len=100)
    assert "--quantization" not in command


@pytest.fixture
def rounded() -> Policy:
    """The demo's model in 4 bits, with an adapter that changes its answers."""
    pytest.importorskip("bitsandbytes")
    policy = load_policy(NF4, seed=0)
    move(policy)
    return policy


@pytest.fixture
def same(rounded: Policy) -> Policy:
    """The same policy with the rounded weights in float32."""
    from bitsandbytes.functional import dequantize_4bit

    policy = load_policy(DEMO, seed=0)
    move(policy)
    with torch.no_grad():
        for name, layer in policy.adapted.items():
            weight = rounded.adapted[name].get_base_layer().weight
            layer.get_base_layer().weight.copy_(dequantize_4bit(weight.data, weight.quant_state))
    return policy


def gradients(policy: Policy) -> list[torch.Tensor]:
    policy.hidden_states(PROMPTS, COMPLETIONS).square().sum().backward()
    return [p.grad for p in policy.trainable if p.grad is not None]


@pytest.mark.parametrize("generated_before", [False, True])
def test_nf4_gradients_match_floats(rounded: Policy, same: Policy, generated_before: bool) -> None:
    if generated_before:  # without gradients, where bitsandbytes may change its format
        with torch.no_grad():
            rounded.hidden_states(PROMPTS, COMPLETIONS)
    states = [policy.hidden_states(PROMPTS, COMPLETIONS) for policy in (rounded, same)]
    torch.testing.assert_close(*states)
    found, expected = gradients(rounded), gradients(same)
    assert len(found) == len(expected) == len(same.trainable)
    for a, b in zip(found, expected, strict=True):
        assert (a - b).norm() <= 1e-4 * b.norm()


def test_nf4_frozen_teacher_is_quantized_base(rounded: Policy, same: Policy) -> None:
    for weights in ("frozen", "live"):
        views = []
        for policy in (rounded, same):
            with open_teacher(policy, cfg.TeacherConfig(weights=weights)).view():
                views.append(policy.hidden_states(PROMPTS, COMPLETIONS))
        torch.testing.assert_close(*views)


def test_nf4_quantizes_only_layers_and_digest_covers_scales(rounded: Policy) -> None:
    assert type(rounded.lm_head) is torch.nn.Linear
    assert rounded.lm_head.weight.dtype == torch.float32
    assert all(x.get_base_layer().weight.dtype == torch.uint8 for x in rounded.adapted.values())

    before = weights_digest(rounded)
    assert before == weights_digest(load_policy(NF4, seed=1))
    assert before != weights_digest(load_policy(DEMO, seed=0))
    layer = next(iter(rounded.adapted.values())).get_base_layer()
    layer.weight.quant_state.absmax[0] += 1
    assert weights_digest(rounded) != before


def test_nf4_adapter_is_saved_and_merge_is_refused(rounded: Policy, tmp_path: Path) -> None:
    save_trained(rounded, tmp_path / "adapter")
    fresh = load_policy(NF4, seed=3)
    load_trained(fresh, tmp_path / "adapter")
    assert torch.equal(*(p.hidden_states(PROMPTS, COMPLETIONS) for p in (fresh, rounded)))
    with pytest.raises(PolicyError, match="quantized by"):
        export_merged(rounded, tmp_path / "adapter", tmp_path / "merged", torch.float32)


def test_nf4_run_resumes_bitwise(rounded: Policy, tmp_path: Path) -> None:
    small: Sections = {
        "model": {"quantization": "nf4", "lora_rank": 4, "lora_alpha": 8},
        "data": {"limit": 20},
        "rollout": {"max_new_tokens": 16},
        "train": {"steps": 2, "batch_size": 4, "micro_batch_size": 2, "checkpoint_every": 1},
    }
    config = changed("demo-paint", small)
    train(config, tmp_path / "whole")
    train_in_parts(config, tmp_path / "parts", first=1)
    assert_same(adapter(tmp_path / "whole"), adapter(tmp_path / "parts"))
    assert_same_history(tmp_path / "whole", tmp_path / "parts")
