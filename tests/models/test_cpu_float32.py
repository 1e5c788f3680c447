"""Products by float32 are torch's own, keep no copies, and serve a CPU that lacks 16 bits."""

import dataclasses
from types import MappingProxyType
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from conftest import DEMO
from paint.config.schema import Dtype
from paint.core.device import multiplies
from paint.models.layers import ROWS, WideLinear, narrow
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
def test_cpu_float32_slices_match_complete(bias: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    _, wide = layers(torch.bfloat16, bias=bias)
    x = torch.randn(3, 5, 48).bfloat16()
    whole = passed(wide, x)
    monkeypatch.setattr(
        "paint.models.layers.SLICE", 32
    )  # of 80 rows: two slices, and a shorter one
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

    cpu["avx512_bf16"] = cpu["avx512_fp16"] = True
    fast = loaded()
    assert not any(linears(fast))
    row = [[5, 6, 7]], [[10, 11, 12, 13, 14, 15]]
    states, slow_states = fast.hidden_states(*row).float(), slow.hidden_states(*row).float()
    assert (states - slow_states).norm() <= 0.02 * states.norm()


def test_narrow_gives_layers_back_where_device_multiplies(monkeypatch: pytest.MonkeyPatch) -> None:
    plain, wide = layers(torch.bfloat16, bias=False)
    model: Any = nn.Sequential(plain, wide)
    for multiplied, kind in ((False, WideLinear), (True, nn.Linear)):
        monkeypatch.setattr("paint.models.layers.multiplies", lambda *_, m=multiplied: m)
        narrow(model)
        assert type(wide) is kind
