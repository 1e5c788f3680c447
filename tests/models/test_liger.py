"""Liger's kernels in one model: the same values, and no other model is changed.

Where liger-kernel is not installed, plain torch stands in for its three functions. Where it is, the
interpreter runs its kernels.
"""

import sys
from collections import Counter
from copy import deepcopy
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import (
    Gemma2Config,
    Gemma2ForCausalLM,
    GPTNeoXConfig,
    GPTNeoXForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    Olmo2Config,
    Olmo2ForCausalLM,
    PreTrainedModel,
    Qwen3Config,
    Qwen3ForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)

from paint.config import schema as cfg
from paint.models import liger, policy
from paint.models.layers import checkpoint_layers
from paint.models.liger import use_liger
from paint.models.policy import _use_kernels

SMALL = {
    "num_hidden_layers": 2,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "vocab_size": 100,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
PLAIN = {"llama": (LlamaForCausalLM, LlamaConfig), "qwen3": (Qwen3ForCausalLM, Qwen3Config)}


def small(family: str, dtype: torch.dtype = torch.float32) -> PreTrainedModel:
    """A model of two layers whose weights and norms differ from those of a new one."""
    torch.manual_seed(0)
    kind, settings = PLAIN[family]
    model = kind(settings(**SMALL)).to(dtype).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return model


class Rotary(torch.autograd.Function):
    """What Liger's rotary function computes, in place as it does."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(cos, sin)
        return tuple(_rotated(x, cos, sin) for x in (q, k))  # type: ignore[return-value]

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        cos, sin = ctx.saved_tensors
        return (*(_rotated(x, cos, -sin) for x in gradients), None, None)


def _rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    held = x.transpose(
        1, 2
    ).contiguous()  # the storage of queries and keys: in place without a copy
    half = held.shape[-1] // 2
    first, second = held[..., :half].clone(), held[..., half:].clone()
    cos, sin = (part[:, :, None, :half] for part in (cos, sin))
    held[..., :half] = first * cos - second * sin
    held[..., half:] = second * cos + first * sin
    return held.transpose(1, 2)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Liger of plain torch in place of the real one, which counts its calls."""
    counts: Counter[str] = Counter()

    class Norm:
        def forward(self: Any, hidden_states: Tensor) -> Tensor:
            counts["norm"] += 1
            assert not self.in_place
            wide = hidden_states.float()
            rate = torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.variance_epsilon)
            result: Tensor = (wide * rate).to(hidden_states.dtype) * self.weight
            return result

    class SwiGLU:
        def forward(self: Any, x: Tensor) -> Tensor:
            counts["swiglu"] += 1
            product = nn.functional.silu(self.gate_proj(x)) * self.up_proj(x)
            result: Tensor = self.down_proj(product)
            return result

    class Counted(Rotary):
        @classmethod
        def apply(cls, *given: Tensor) -> Any:
            counts["rotary"] += 1
            return Rotary.apply(*given)  # type: ignore[no-untyped-call]

    parts: dict[str, dict[str, Any]] = {
        "liger_kernel": {},
        "liger_kernel.ops": {"LigerRopeFunction": Counted},
        "liger_kernel.transformers": {},
        "liger_kernel.transformers.rms_norm": {"LigerRMSNorm": Norm},
        "liger_kernel.transformers.swiglu": {"LigerSwiGLUMLP": SwiGLU},
    }
    for name, members in parts.items():
        module = ModuleType(name)
        vars(module).update(members)
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setattr(liger, "is_installed", lambda: True)
    return counts


def passes(model: PreTrainedModel, positions: Tensor | None) -> list[Tensor]:
    """Final states, and the gradients of all weights."""
    model.zero_grad()
    ids = torch.randint(100, (3, 7), generator=torch.Generator().manual_seed(1))
    decoder = model.get_decoder()
    states: Tensor = decoder(
        input_ids=ids, position_ids=positions, use_cache=False
    ).last_hidden_state
    states.square().mean().backward()
    gradients = [p.grad for p in decoder.parameters()]
    assert all(gradient is not None for gradient in gradients)
    return [states.detach(), *(gradient.clone() for gradient in gradients if gradient is not None)]


SHIFTED = torch.arange(7) + torch.tensor([[0], [2], [5]])


@pytest.mark.parametrize("positions", [None, SHIFTED], ids=["same", "own"])
@pytest.mark.parametrize("family", PLAIN)
def test_use_liger_keeps_values_and_gradients(
    family: str, positions: Tensor | None, calls: Counter[str]
) -> None:
    model = small(family)
    wanted = passes(deepcopy(model), positions)
    assert not calls
    assert use_liger(model).startswith("kernels: Liger's for rotary positions, RMS norms, SwiGLU")
    for found, value in zip(passes(model, positions), wanted, strict=True):
        assert torch.allclose(found, value, rtol=1e-4, atol=1e-6)
    norms = 2 * (4 if family == "qwen3" else 2) + 1
    assert calls == {"norm": norms, "swiglu": 2, "rotary": 2}


def test_use_liger_with_checkpointing_keeps_gradients_bitwise(calls: Counter[str]) -> None:
    model = small("qwen3")
    use_liger(model)
    wanted = passes(model, None)
    before = calls["rotary"]
    assert checkpoint_layers(model) == 2
    found = passes(model, None)
    assert calls["rotary"] == before + 4  # each layer once more in the backward pass
    assert all(torch.equal(a, b) for a, b in zip(found, wanted, strict=True))


def test_use_liger_leaves_other_models_of_the_process(calls: Counter[str]) -> None:
    other = small("qwen3")
    wanted = passes(other, None)
    use_liger(small("qwen3"))
    for model in (other, small("qwen3")):
        assert all(torch.equal(a, b) for a, b in zip(passes(model, None), wanted, strict=True))
    assert not calls


def test_use_liger_unknown_layers_are_left(calls: Counter[str]) -> None:
    kinds = {
        Gemma2ForCausalLM: (Gemma2Config, "rotary positions"),  # norms add 1, and GELU
        Olmo2ForCausalLM: (Olmo2Config, "SwiGLU"),
        Qwen3MoeForCausalLM: (Qwen3MoeConfig, "rotary positions, RMS norms"),
    }
    for kind, (settings, known) in kinds.items():
        with torch.device("meta"):
            model = kind(settings(**SMALL, num_experts=2, moe_intermediate_size=16))
        assert use_liger(model).startswith(f"kernels: Liger's for {known} (")
    with torch.device("meta"):
        unknown = GPTNeoXForCausalLM(GPTNeoXConfig(**SMALL))
    assert use_liger(unknown) == (
        "kernels: PyTorch's; the layers of gpt_neox are not Llama's, which Liger computes"
    )
    assert not any("forward" in vars(part) for part in unknown.modules())


@pytest.mark.parametrize("is_on", [True, False])
def test_policy_on_cuda_uses_liger_unless_off(
    is_on: bool, calls: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(policy, "fuse_norms", lambda *_: None)  # it computes on the device
    model = small("qwen3")
    kernels = _use_kernels(model, cfg.ModelConfig(path="x", liger=is_on), "cuda")
    assert kernels.startswith("kernels: Liger's for rotary" if is_on else "kernels: PyTorch's")
    passes(model, None)
    assert bool(calls) == is_on


@pytest.fixture
def interpreted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let Triton's interpreter run Liger's kernels on CPU tensors."""
    rms_norm = pytest.importorskip("liger_kernel.ops.rms_norm")
    import numpy as np
    import triton.language as tl
    from triton.runtime import interpreter

    real = interpreter._implicit_cvt

    def converted(value: Any) -> Any:
        if not isinstance(value, float):
            return real(value)
        number = interpreter.TensorHandle(np.array([value], dtype=np.float32), tl.float32)
        return tl.tensor(number, tl.float32)

    monkeypatch.setattr(interpreter, "_implicit_cvt", converted)
    monkeypatch.setattr(rms_norm, "rsqrt", lambda x: tl.rsqrt(x))  # it has no libdevice


@pytest.mark.slow
@pytest.mark.usefixtures("interpreted")
@pytest.mark.parametrize("positions", [None, SHIFTED], ids=["same", "own"])
@pytest.mark.parametrize("family", PLAIN)
def test_use_liger_real_kernels_are_as_near_to_float64_as_torch(
    family: str, positions: Tensor | None
) -> None:
    if torch.cuda.is_available():
        pytest.skip("benchmarks/gpu.py runs the kernels on the GPU")
    model = small(family)
    exact = passes(deepcopy(model).double(), positions)
    plain = passes(deepcopy(model), positions)
    use_liger(model)
    for truth, a, b in zip(exact, plain, passes(model, positions), strict=True):
        theirs, ours = ((x.double() - truth).norm() / truth.norm() for x in (a, b))
        assert ours <= 2 * theirs + 1e-7
