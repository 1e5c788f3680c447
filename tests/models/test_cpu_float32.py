"""Products by float32 are torch's own, keep no copies, and serve a CPU that lacks 16 bits."""

import dataclasses
from types import MappingProxyType
from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from conftest import DEMO
from paint.config.schema import Dtype
from paint.core.device import multiplies
from paint.models import cpu_float32 as wides
from paint.models.cpu_float32 import ROWS, WideLinear
from paint.models.policy import Policy, load_policy

HALVES = [torch.bfloat16, torch.float16]


def layers(dtype: torch.dtype, *, bias: bool) -> tuple[nn.Linear, WideLinear]:
    torch.manual_seed(0)
    plain, wide = nn.Linear(48, 80, bias, dtype=dtype), WideLinear(48, 80, bias, dtype=dtype)
    wide.load_state_dict(plain.state_dict())
    return plain, wide


def passed(layer: nn.Linear, x: Tensor) -> list[Tensor]:
    """The output, and the gradients of input, weight and bias."""
    x = x.clone().requires_grad_()
    layer.zero_grad()
    output = layer(x)
    (output.float() * torch.linspace(-1, 1, output.shape[-1])).sum().backward()
    found = [output.detach(), x.grad, *(parameter.grad for parameter in layer.parameters())]
    return [tensor for tensor in found if tensor is not None]


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("dtype", HALVES)
def test_cpu_float32_product_rounds_once(dtype: torch.dtype, bias: bool) -> None:
    _, wide = layers(dtype, bias=bias)
    x = torch.randn(3, 5, 48).to(dtype)
    exact = nn.Linear(48, 80, bias, dtype=torch.float64)
    exact.load_state_dict({name: value.double() for name, value in wide.state_dict().items()})

    mine, exacts = passed(wide, x), passed(exact, x.double())
    # The gradient of the output reaches the layer in the format of the output, hence the bound.
    scale = 2 * torch.finfo(dtype).eps
    assert len(mine) == len(exacts) == 3 + bias
    for name, m, e in zip(["y", "x", "W", "b"], mine, exacts, strict=False):
        assert (m.dtype, m.shape) == (dtype, e.shape)
        assert (m.double() - e).abs().max() <= scale * e.abs().max(), name
    rounded = exacts[0].to(dtype)
    assert (mine[0] != rounded).float().mean() < 0.01


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("dtype", HALVES)
def test_cpu_float32_gradients_match_torch(dtype: torch.dtype, bias: bool) -> None:
    _, wide = layers(dtype, bias=bias)

    class Converted(nn.Linear):
        def forward(self, input: Tensor) -> Tensor:
            offset = None if self.bias is None else self.bias.float()
            return nn.functional.linear(input.float(), self.weight.float(), offset).to(input.dtype)

    converted = Converted(48, 80, bias, dtype=dtype)
    converted.load_state_dict(wide.state_dict())
    x = torch.randn(3, 5, 48).to(dtype)
    for mine, theirs in zip(passed(wide, x), passed(converted, x), strict=True):
        torch.testing.assert_close(mine, theirs)


@pytest.mark.parametrize("bias", [True, False])
def test_cpu_float32_sliced_weight_matches_complete(
    bias: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, wide = layers(torch.bfloat16, bias=bias)
    x = torch.randn(3, 5, 48).bfloat16()
    whole = passed(wide, x)
    monkeypatch.setattr(wides, "SLICE", 32)  # of 80 rows: two slices, and a shorter one
    for mine, theirs in zip(passed(wide, x), whole, strict=True):
        torch.testing.assert_close(mine, theirs)


def test_cpu_float32_few_rows_use_torch_product() -> None:
    plain, wide = layers(torch.bfloat16, bias=False)
    x = torch.randn(ROWS, 48).bfloat16().requires_grad_()
    assert type(wide(x[:-1]).grad_fn) is type(plain(x[:-1]).grad_fn)
    assert type(wide(x).grad_fn) is not type(plain(x).grad_fn)


def test_cpu_float32_frozen_layer_saves_only_weight() -> None:
    _, wide = layers(torch.bfloat16, bias=True)
    wide.requires_grad_(False)
    x = torch.randn(64, 48).bfloat16().requires_grad_()
    kept: list[Tensor] = []

    def keep(tensor: Tensor) -> Tensor:
        kept.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        wide(x).float().sum().backward()
    assert [tensor.data_ptr() for tensor in kept] == [wide.weight.data_ptr()]
    assert wide.weight.grad is None


Attended = tuple[Tensor, list[Tensor]]


def attended(dtype: torch.dtype, mask: Tensor | None, *, is_wide: bool) -> Attended:
    """What four heads of two groups find for five tokens, and the gradients of q, k and v."""
    torch.manual_seed(0)
    module: Any = nn.Module()
    module.num_key_value_groups, module.is_causal = 2, True
    shapes = (3, 4, 5, 8), (3, 2, 5, 8), (3, 2, 5, 8)
    q, k, v = (torch.randn(shape).bfloat16().to(dtype).requires_grad_() for shape in shapes)
    function = wides._attention if is_wide else sdpa_attention_forward
    mixed, _ = function(module, q, k, v, mask, scaling=0.4)
    (mixed.float() * torch.linspace(-1, 1, 8)).sum().backward()
    return mixed.detach(), [vector.grad for vector in (q, k, v) if vector.grad is not None]


def mask_of(kind: str, dtype: torch.dtype) -> Tensor | None:
    shown = torch.ones(3, 1, 5, 5, dtype=torch.bool).tril()
    shown[0, :, 1:, 0] = False
    added = torch.zeros(shown.shape, dtype=dtype).masked_fill(~shown, -torch.inf)
    return {"none": None, "of places": shown, "added": added}[kind]


@pytest.mark.parametrize("mask", ["none", "of places", "added"])
@pytest.mark.parametrize("dtype", HALVES)
def test_cpu_float32_attention_matches_exact_and_saves_no_float32(
    dtype: torch.dtype, mask: str
) -> None:
    kept: list[torch.dtype] = []

    def keep(tensor: Tensor) -> Tensor:
        kept.append(tensor.dtype)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        mine, slopes = attended(dtype, mask_of(mask, dtype), is_wide=True)
    exact, exacts = attended(torch.float64, mask_of(mask, torch.float64), is_wide=False)
    assert kept.count(torch.float32) == 1  # the weights of the sum, a test's own
    assert len(slopes) == len(exacts) == 3
    scale = 2 * torch.finfo(dtype).eps
    for m, e in zip([mine, *slopes], [exact, *exacts], strict=True):
        assert (m.dtype, m.shape) == (dtype, e.shape)
        assert (m.double() - e).abs().max() <= scale * e.abs().max()


def test_cpu_float32_attention_of_one_token_uses_registered_function() -> None:
    found = torch.randn(1, 1, 4, 8)
    q, k, v = (torch.randn(1, 4, tokens, 8).bfloat16() for tokens in (1, 3, 3))
    with patch.object(wides, "ALL_ATTENTION_FUNCTIONS", {"sdpa": lambda *_, **__: (found, None)}):
        assert wides._attention(nn.Module(), q, k, v, None)[0] is found


@pytest.mark.parametrize("has_instructions", [False, True])
@pytest.mark.parametrize("tokens", [wides.SHORT, wides.SHORT + 1])
def test_cpu_float32_attention_of_many_tokens_needs_cpu_without_instructions(
    tokens: int, has_instructions: bool, cpu: dict[str, bool]
) -> None:
    cpu["avx512_bf16"] = has_instructions
    found = torch.randn(1, tokens, 4, 8)
    q, k, v = (torch.randn(1, 4, tokens, 8).bfloat16() for _ in range(3))
    module: Any = nn.Module()
    module.is_causal = True
    with patch.object(wides, "ALL_ATTENTION_FUNCTIONS", {"sdpa": lambda *_, **__: (found, None)}):
        is_tables = wides._attention(module, q, k, v, None)[0] is found
    assert is_tables == (has_instructions and tokens > wides.SHORT)


@pytest.fixture
def cpu(monkeypatch: pytest.MonkeyPatch) -> dict[str, bool]:
    """What torch says that the CPU has."""
    has: dict[str, bool] = {}
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: MappingProxyType(has))
    return has


def test_multiplies_checks_cpu_instructions_only(cpu: dict[str, bool]) -> None:
    def multiplied(device: str) -> list[bool]:
        formats = torch.float32, torch.bfloat16, torch.float16
        return [multiplies(torch.device(device), dtype) for dtype in formats]

    assert multiplied("cuda") == [True, True, True]
    assert multiplied("cpu") == [True, False, False]
    cpu["avx512_bf16"] = True
    assert multiplied("cpu") == [True, True, False]
    cpu["avx512_fp16"] = True
    assert multiplied("cpu") == [True, True, True]


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_widen_replaces_layers_where_cpu_lacks_dtype(dtype: Dtype, cpu: dict[str, bool]) -> None:
    def loaded() -> Policy:
        return load_policy(dataclasses.replace(DEMO, dtype=dtype), seed=0)

    def linears(policy: Policy) -> list[bool]:
        frozen = [m for m in policy.base.modules() if type(m) in (nn.Linear, WideLinear)]
        return [isinstance(m, WideLinear) for m in frozen if not m.weight.requires_grad]

    slow = loaded()
    assert linears(slow) == [dtype != "float32"] * len(linears(slow))
    assert len(linears(slow)) > 1
    assert isinstance(slow.lm_head, WideLinear) == (dtype != "float32")
    attention = "sdpa" if dtype == "float32" else wides.ATTENTION
    assert slow.base.config._attn_implementation == attention
    assert attention not in slow.base.config.to_json_string()

    cpu["avx512_bf16"] = cpu["avx512_fp16"] = True
    fast = loaded()
    assert not any(linears(fast))
    assert fast.base.config._attn_implementation == attention
    row = [[5, 6, 7]], [[10, 11, 12, 13, 14, 15]]
    states, slow_states = fast.hidden_states(*row).float(), slow.hidden_states(*row).float()
    assert (states - slow_states).norm() <= 0.02 * states.norm()


def test_widen_leaves_non_cpu_model(cpu: dict[str, bool]) -> None:
    assert not cpu
    config = load_policy(DEMO, seed=0).base.config
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    wides.widen(model)
    assert model.config._attn_implementation == "sdpa"
    assert not any(isinstance(module, WideLinear) for module in model.modules())


def test_widen_leaves_other_attention_implementation(cpu: dict[str, bool]) -> None:
    assert not cpu
    eager = dataclasses.replace(DEMO, dtype="bfloat16", attention="eager")
    assert load_policy(eager, seed=0).base.config._attn_implementation == "eager"


def test_cpu_float32_checkpointed_layers_give_same_gradients(cpu: dict[str, bool]) -> None:
    assert not cpu

    def gradients(*, again: bool) -> list[Tensor]:
        config = dataclasses.replace(DEMO, dtype="bfloat16", gradient_checkpointing=again)
        policy = load_policy(config, seed=0)
        rows = [[5, 6, 7], [8, 9]], [[10, 11, 12, 13, 14, 15], [16, 17]]
        (policy.hidden_states(*rows).float() ** 2).sum().backward()
        found = [parameter.grad for parameter in policy.trainable]
        return [gradient for gradient in found if gradient is not None]

    once, twice = gradients(again=False), gradients(again=True)
    assert len(once) == len(twice) > 0
    assert any(gradient.abs().max() > 0 for gradient in once)
    for mine, theirs in zip(twice, once, strict=True):
        assert torch.equal(mine, theirs)
