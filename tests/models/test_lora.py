"""The lean layer computes what peft's computes, bit by bit, and keeps less of it."""

import dataclasses

import peft
import pytest
import torch
from torch import Tensor

from conftest import DEMO, move
from paint.config.schema import Dtype, TeacherConfig
from paint.models import policy as policies
from paint.models.policy import Policy, load_policy
from paint.models.teacher import open_teacher

PROMPTS, COMPLETIONS = [[5, 6, 7], [8, 9]], [[10, 11, 12, 13], [14, 15, 16]]


def loaded(dtype: Dtype) -> Policy:
    policy = load_policy(dataclasses.replace(DEMO, dtype=dtype), seed=0)
    move(policy)
    return policy


def passed(policy: Policy) -> tuple[list[Tensor], int]:
    """States and gradients of a pass, and the bytes that it kept."""
    kept: dict[int, int] = {}
    frozen = {p.untyped_storage().data_ptr() for p in policy.model.parameters()}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in frozen:
            kept[storage.data_ptr()] = storage.nbytes()
        held.append(tensor)
        return tensor

    held: list[Tensor] = []
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        states = policy.hidden_states(PROMPTS, COMPLETIONS)
    (states.float() * torch.linspace(0, 1, states.shape[-1])).sum().backward()
    gradients = [parameter.grad for parameter in policy.trainable]
    return [states.detach(), *(g for g in gradients if g is not None)], sum(kept.values())


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_memory_efficient_lora_is_bitwise_equal_to_peft(
    dtype: Dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    lean, lean_bytes = passed(loaded(dtype))
    monkeypatch.setattr(policies, "MemoryEfficientLoraLinear", peft.tuners.lora.Linear)
    plain, plain_bytes = passed(loaded(dtype))
    assert len(lean) == len(plain) > 1
    assert all(torch.equal(mine, theirs) for mine, theirs in zip(lean, plain, strict=True))
    assert lean_bytes == plain_bytes if dtype == "float32" else lean_bytes < 0.8 * plain_bytes


def test_memory_efficient_lora_disabled_or_merged_matches_peft() -> None:
    policy = loaded("bfloat16")
    states = policy.hidden_states(PROMPTS, COMPLETIONS)
    with policy.model.disable_adapter():
        off = policy.hidden_states(PROMPTS, COMPLETIONS)
    with open_teacher(policy, TeacherConfig()).view():
        assert torch.equal(policy.hidden_states(PROMPTS, COMPLETIONS), off)
    untrained = load_policy(dataclasses.replace(DEMO, dtype="bfloat16"), seed=0)
    assert torch.equal(off, untrained.hidden_states(PROMPTS, COMPLETIONS))
    assert not torch.equal(off, states)

    with policy.merged():
        merged = policy.hidden_states(PROMPTS, COMPLETIONS)
    assert (merged - states).norm() < 0.2 * (off - states).norm()
