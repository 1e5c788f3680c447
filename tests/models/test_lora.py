"""The layer computes what peft's computes, bit by bit on a CPU, and keeps less of it."""

import dataclasses

import peft
import pytest
import torch
from torch import Tensor

from conftest import DEMO, move
from paint.config.schema import Dtype, TeacherConfig
from paint.models import adapters
from paint.models.layers import BFloat16Lora, Float32Lora
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
def test_memory_efficient_lora_equals_peft(dtype: Dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    lean, lean_bytes = passed(loaded(dtype))
    monkeypatch.setattr(adapters, "MemoryEfficientLoraLinear", peft.tuners.lora.Linear)
    plain, plain_bytes = passed(loaded(dtype))
    assert len(lean) == len(plain) > 1
    assert all(torch.equal(mine, theirs) for mine, theirs in zip(lean, plain, strict=True))
    assert lean_bytes == plain_bytes if dtype == "float32" else lean_bytes < 0.8 * plain_bytes


def test_memory_efficient_lora_disabled_matches_peft() -> None:
    policy = loaded("bfloat16")
    states = policy.hidden_states(PROMPTS, COMPLETIONS)
    with policy.model.disable_adapter():
        off = policy.hidden_states(PROMPTS, COMPLETIONS)
    with open_teacher(policy, TeacherConfig()).view():
        assert torch.equal(policy.hidden_states(PROMPTS, COMPLETIONS), off)
    untrained = load_policy(dataclasses.replace(DEMO, dtype="bfloat16"), seed=0)
    assert torch.equal(off, untrained.hidden_states(PROMPTS, COMPLETIONS))
    assert not torch.equal(off, states)


@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("share", [0.005, 0.05, 0.3])
@pytest.mark.parametrize(("function", "worst"), [(Float32Lora, 1e-6), (BFloat16Lora, 4e-3)])
def test_lora_output_errs_by_its_rounding_with_operands_in_either_format(
    function: type[torch.autograd.Function], worst: float, share: float, has_bias: bool
) -> None:
    """Against float64; the adapter adds this share of the layer's output."""
    torch.manual_seed(0)
    n, width, rank, scale = 256, 256, 64, 2.0
    x, weight = torch.randn(2, n // 2, width).bfloat16(), torch.randn(width, width).bfloat16() / 16
    bias = torch.randn(width).bfloat16() if has_bias else None
    a, b = torch.randn(rank, width) / 16, torch.randn(width, rank)
    b *= share / (scale * (x.float() @ a.T @ b.T)).std()
    gradient = 1e-3 * torch.randn(2, n // 2, width).bfloat16()

    def run(dtype: torch.dtype | None) -> list[Tensor]:
        inputs = [t.to(dtype or t.dtype, copy=True).requires_grad_() for t in (x, a, b)]
        added = bias if bias is None else bias.to(dtype or bias.dtype)
        y = torch.nn.functional.linear(inputs[0], weight.to(inputs[0].dtype), added)
        if dtype is None:
            output = function.apply(y, *inputs, scale)
        else:
            output = y + scale * (inputs[0] @ inputs[1].T @ inputs[2].T)
        output.backward(gradient.to(output.dtype))
        return [output.detach(), *(t.grad for t in inputs if t.grad is not None)]

    found = run(None)
    assert [t.dtype for t in found] == [torch.bfloat16, torch.bfloat16, *2 * [torch.float32]]
    output, of_x, of_a, of_b = (
        float((mine.double() - exact).norm() / exact.norm())
        for mine, exact in zip(found, run(torch.float64), strict=True)
    )
    assert 1.5e-3 < output < 3e-3  # that of rounding to bfloat16
    assert of_x < 3e-3
    assert max(of_a, of_b) < worst
