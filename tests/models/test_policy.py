"""The model that is trained: its prompts, its hidden states, its parameters, what is stored."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer

from conftest import DEMO, logits_alone, move
from paint.inference.engine import Sampling
from paint.inference.local import LocalEngine
from paint.models.policy import Policy, PolicyError, load_policy
from paint.models.weights import load_trained, save_trained
from tiny_models import save_tiny, tiny_config

PROMPTS = [[5, 20, 31, 7], [9, 9, 12, 40, 41, 42, 43], [3]]
COMPLETIONS = [[50, 60, 70], [80], [90, 91, 92, 93, 94]]


@pytest.fixture
def full() -> Policy:
    """The demo's model, all of whose weights are trained, a step away from where it was."""
    policy = load_policy(replace(DEMO, train_mode="full"), seed=0)
    move(policy, by=0.02)
    return policy


def all_logits_alone(model: torch.nn.Module) -> Tensor:
    return torch.cat([logits_alone(model, *row) for row in zip(PROMPTS, COMPLETIONS, strict=True)])


def test_hidden_states_do_not_depend_on_padding_or_batch(trained: Policy) -> None:
    trained.model.double()
    batch = trained.lm_head(trained.hidden_states(PROMPTS, COMPLETIONS))
    torch.testing.assert_close(batch, all_logits_alone(trained.model), rtol=1e-10, atol=1e-10)


def test_load_policy_trains_only_adapters_of_seven_projections(policy: Policy) -> None:
    policy.hidden_states(PROMPTS, COMPLETIONS).square().sum().backward()
    trained = {name: p for name, p in policy.model.named_parameters() if p.grad is not None}
    layers = policy.model.config.num_hidden_layers
    assert len(trained) == 2 * 7 * layers == len(policy.trainable)
    assert all("lora_A" in name or "lora_B" in name for name in trained)

    for target in DEMO.lora_targets:
        assert sum(f".{target}." in name for name in trained) == 2 * layers
    assert {p.shape[0] for name, p in trained.items() if "lora_A" in name} == {DEMO.lora_rank}


def test_adapters_are_float32_without_dropout_on_bfloat16_weights() -> None:
    policy = load_policy(replace(DEMO, dtype="bfloat16"), seed=0)
    assert {p.dtype for p in policy.trainable} == {torch.float32}
    frozen = {p.dtype for p in policy.model.parameters() if not p.requires_grad}
    assert frozen == {torch.bfloat16}

    for parameter in policy.trainable:  # B starts at 0, where a dropout would not be seen
        torch.nn.init.constant_(parameter, 0.1)
    policy.model.train()
    once, again = (policy.hidden_states(PROMPTS, COMPLETIONS) for _ in range(2))
    torch.testing.assert_close(once, again, rtol=0, atol=0)


def test_save_trained_round_trip_is_bitwise(trained: Policy, tmp_path: Path) -> None:
    save_trained(trained, tmp_path / "adapter")
    fresh = load_policy(DEMO, seed=5)
    load_trained(fresh, tmp_path / "adapter")
    for x, y in zip(fresh.trainable, trained.trainable, strict=True):
        assert torch.equal(x, y)
    assert sum(float(p.detach().norm()) for p in fresh.trainable) > 1


def test_load_adapter_of_other_rank_is_refused(trained: Policy, tmp_path: Path) -> None:
    save_trained(trained, tmp_path / "adapter")
    other = load_policy(replace(DEMO, lora_rank=4), seed=0)
    with pytest.raises(PolicyError, match="adapter"):
        load_trained(other, tmp_path / "adapter")


def test_full_tuning_trains_every_weight_in_float32(full: Policy) -> None:
    assert {id(p) for p in full.trainable} == {id(p) for p in full.model.parameters()}
    assert {p.dtype for p in full.trainable} == {torch.float32}
    # Tied, as the model comes.
    assert full.lm_head.weight is full.base.get_input_embeddings().weight

    states = full.lm_head(full.hidden_states(PROMPTS, COMPLETIONS))
    torch.testing.assert_close(states, all_logits_alone(full.model), rtol=1e-4, atol=1e-4)

    states.square().mean().backward()
    assert all(p.grad is not None and p.grad.abs().max() > 0 for p in full.trainable)

    sampling = Sampling(1.0, 1.0, -1, 8)
    [completion] = LocalEngine(full, batch_size=1).generate([PROMPTS[0]], sampling, [0])
    with torch.no_grad():
        log_probs = logits_alone(full.model, PROMPTS[0], list(completion.ids)).log_softmax(-1)
    chosen = [float(row[i]) for row, i in zip(log_probs, completion.ids, strict=True)]
    assert completion.log_probs == pytest.approx(chosen, abs=1e-4)


def test_save_trained_full_model_round_trip_is_bitwise(full: Policy, tmp_path: Path) -> None:
    save_trained(full, tmp_path / "model")
    fresh = load_policy(replace(DEMO, train_mode="full"), seed=5)
    places = [p.data_ptr() for p in fresh.trainable]
    load_trained(fresh, tmp_path / "model")
    for x, y in zip(fresh.trainable, full.trainable, strict=True):
        assert torch.equal(x, y)
    assert [p.data_ptr() for p in fresh.trainable] == places  # the optimizer holds on to them

    anywhere = AutoModelForCausalLM.from_pretrained(tmp_path / "model", dtype="float32")
    assert torch.equal(all_logits_alone(anywhere), all_logits_alone(full.model))
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "model")
    assert tokenizer.chat_template == full.tokenizer.chat_template

    # Served elsewhere or evaluated as a model of its own, it is the same.
    alone = load_policy(replace(DEMO, path=str(tmp_path / "model")), seed=0)
    found, expected = (p.hidden_states(PROMPTS, COMPLETIONS) for p in (alone, full))
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6)


def test_load_trained_missing_weights_are_refused(full: Policy, tmp_path: Path) -> None:
    save_trained(full, tmp_path)
    before = [p.detach().clone() for p in full.trainable]
    path = tmp_path / "model.safetensors"
    others = {name: value for name, value in load_file(path).items() if "layers.0" not in name}
    save_file(others, path, {"format": "pt"})
    with pytest.raises(PolicyError, match=r"model\.layers\.0"):
        load_trained(full, tmp_path)

    for x, y in zip(full.trainable, before, strict=True):
        assert torch.equal(x, y)


def test_load_policy_logit_softcapping_is_refused(tmp_path: Path) -> None:
    path = save_tiny(tiny_config("gemma2", final_logit_softcapping=30.0), tmp_path)
    with pytest.raises(PolicyError, match=r"after lm_head \(final_logit_softcapping 30"):
        other_demo(Path(path), attention="eager")


def test_load_policy_missing_weights_are_refused(demo_copy: Path) -> None:
    path = demo_copy / "model.safetensors"
    weights = load_file(path)
    name = "model.layers.1.mlp.up_proj.weight"
    save_file({n: w for n, w in weights.items() if n != name}, path, {"format": "pt"})
    with pytest.raises(PolicyError, match=rf"lacks {re.escape(name)}"):
        other_demo(demo_copy)

    # A layer that config.json leaves out is that of another model.
    above = [n for n in weights if "layers.1." in n]
    more = {n.replace("layers.1.", "layers.3."): weights[n].clone() for n in above}
    save_file(weights | more, path, {"format": "pt"})
    with pytest.raises(PolicyError, match=r"no place for model\.layers\.3"):
        other_demo(demo_copy)

    bias = "model.layers.0.mlp.down_proj.bias"
    save_file(weights | {bias: torch.ones(8)}, path, {"format": "pt"})
    with pytest.raises(PolicyError, match=rf"no place for {re.escape(bias)}"):
        other_demo(demo_copy)


def other_demo(folder: Path, **changes: Any) -> Policy:
    return load_policy(replace(DEMO, path=str(folder), **changes), seed=0)


@pytest.mark.parametrize(("slowdown", "dtype"), [(0.5, torch.bfloat16), (31.0, torch.float32)])
def test_load_policy_dtype_auto_is_what_the_cpu_multiplies_fast(
    monkeypatch: pytest.MonkeyPatch, slowdown: float, dtype: torch.dtype
) -> None:
    monkeypatch.setattr("paint.models.policy.product_slowdown", lambda _: slowdown)
    policy = load_policy(replace(DEMO, dtype="auto"), seed=0)
    assert policy.lm_head.weight.dtype == dtype
