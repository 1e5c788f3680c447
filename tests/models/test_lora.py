"""The layer computes what peft's computes, bit by bit on a CPU, and keeps less of it."""

import dataclasses
from collections import Counter
from copy import deepcopy
from typing import Any

import peft
import pytest
import torch
from torch import Tensor, nn

from conftest import DEMO, move
from paint.config.schema import Dtype, TeacherConfig
from paint.models import adapters, layers
from paint.models.joint_layers import share_inputs
from paint.models.layers import BFloat16Lora, Float32Lora, checkpoint_layers
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


@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("share", [0.005, 0.05, 0.3])
@pytest.mark.parametrize(
    ("function", "count", "worst"),
    [(Float32Lora, 1, 1e-6), (BFloat16Lora, 1, 4e-3), (BFloat16Lora, 3, 4e-3)],
)
def test_lora_output_errs_by_its_rounding_with_operands_in_either_format(
    function: type[torch.autograd.Function], count: int, worst: float, share: float, has_bias: bool
) -> None:
    """Against float64, of so many layers; the adapter adds this share of a layer's output."""
    apply: Any = function.apply
    torch.manual_seed(0)
    n, width, scale = 256, 256, 2.0
    x = torch.randn(2, n // 2, width).bfloat16()
    frozen = [nn.Linear(width, 64 * (4 - i), has_bias).bfloat16() for i in range(count)]
    adapters: list[Tensor] = []
    for i, layer in enumerate(frozen):
        layer.requires_grad_(False)
        nn.init.normal_(layer.weight, std=1 / 16)
        a, b = torch.randn(64 - 16 * i, width) / 16, torch.randn(len(layer.weight), 64 - 16 * i)
        b *= share / (scale * (x.float() @ a.T @ b.T)).std()
        adapters += [a, b]
    gradients = [1e-3 * torch.randn(*x.shape[:2], len(f.weight)).bfloat16() for f in frozen]

    def run(dtype: torch.dtype | None) -> tuple[list[Tensor], list[Tensor]]:
        inputs = [t.to(dtype or t.dtype, copy=True).requires_grad_() for t in (x, *adapters)]
        copies = [deepcopy(layer).to(dtype or layer.weight.dtype) for layer in frozen]
        if dtype is not None:
            pairs = zip(inputs[1::2], inputs[2::2], copies, strict=True)
            outputs = [f(inputs[0]) + scale * (inputs[0] @ a.T @ b.T) for a, b, f in pairs]
        elif function is BFloat16Lora:
            outputs = apply(inputs[0], copies, scale, *inputs[1:])
        else:
            outputs = [apply(copies[0](inputs[0]), *inputs, scale)]
        above = [gradient.to(y.dtype) for gradient, y in zip(gradients, outputs, strict=True)]
        torch.autograd.backward(outputs, above)
        return [y.detach() for y in outputs], [t.grad for t in inputs if t.grad is not None]

    found, exact = run(None), run(torch.float64)
    assert [t.dtype for t in found[1]] == [torch.bfloat16, *2 * count * [torch.float32]]
    outputs, (of_x, *of_adapters) = (
        [float((a.double() - b).norm() / b.norm()) for a, b in zip(*pair, strict=True)]
        for pair in zip(found, exact, strict=True)
    )
    # Those of rounding to bfloat16.
    assert min(outputs) > 1.5e-3
    assert max(outputs) < 3e-3
    assert of_x < (3e-3 if count == 1 else 4e-3)
    assert max(of_adapters) < worst


@pytest.mark.parametrize("checkpointing", [False, True])
def test_layers_of_one_input_share_products_and_err_no_more_than_each_by_itself(
    checkpointing: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(layers, "_multiplies_bfloat16", lambda x: x.dtype == torch.bfloat16)
    policy = loaded("bfloat16")
    adapted = list(policy.adapted.values())
    exact = loaded("float32")
    exact.model.double()
    truth, alone = passed(exact)[0], passed(policy)[0]
    share_inputs(policy.base)
    assert Counter(len(layer.group) for layer in adapted) == {3: 9, 2: 6, 1: 6}
    if checkpointing:
        assert checkpoint_layers(policy.base) == 3
    calls: list[int] = []
    apply: Any = BFloat16Lora.apply

    def counted(x: Tensor, frozen: list[nn.Linear], *more: Any) -> Any:
        calls.append(len(frozen))
        return apply(x, frozen, *more)

    monkeypatch.setattr(BFloat16Lora, "apply", counted)
    policy.model.zero_grad()
    shared = passed(policy)[0]
    assert Counter(calls) == {
        n: times * (1 + checkpointing) for n, times in {3: 3, 2: 3, 1: 6}.items()
    }
    assert all(layer._pending is None for layer in adapted)
    for part in (slice(1), slice(1, None)):  # states, and gradients
        mine, own = (_distance(found[part], truth[part]) for found in (shared, alone))
        assert mine < 1.1 * own
    with open_teacher(policy, TeacherConfig()).view():
        policy.hidden_states(PROMPTS, COMPLETIONS)
    assert len(calls) == 12 * (1 + checkpointing)  # none for the teacher


def _distance(found: list[Tensor], truth: list[Tensor]) -> float:
    """Norm of the difference of all tensors, over that of the truth."""
    a, b = (torch.cat([t.double().flatten() for t in tensors]) for tensors in (found, truth))
    return float((a - b).norm() / b.norm())


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
