"""Fused norms have the values of the model's own, and other kinds of norms are left alone."""

from copy import deepcopy
from typing import Any

import pytest
import torch
from torch import nn
from transformers.models.gemma2.modeling_gemma2 import Gemma2RMSNorm
from transformers.models.llama.modeling_llama import LlamaRMSNorm
from transformers.models.qwen3.modeling_qwen3 import Qwen3RMSNorm
from transformers.models.qwen3_next.modeling_qwen3_next import Qwen3NextRMSNormGated

from paint.models.layers import fuse_norms


class ShiftedRMSNorm(nn.Module):
    variance_epsilon = 1e-6

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        normed = torch.nn.functional.rms_norm(hidden_states, self.weight.shape, eps=1e-6)
        return normed * (1 + self.weight)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("kind", [Qwen3RMSNorm, LlamaRMSNorm])
def test_fuse_norms_keeps_values(kind: type[nn.Module], dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    norm: Any = kind(64).to(dtype)
    norm.weight.data += 0.1 * torch.randn(64)
    x = torch.randn(2, 5, 64).to(dtype)
    wanted, exact = norm(x), deepcopy(norm).double()(x.double())
    fuse_norms(nn.Sequential(norm), "cpu")
    assert "forward" in vars(norm)
    if dtype == torch.float32:
        assert torch.allclose(norm(x), wanted, rtol=1e-6, atol=0)
    else:  # rounded once, in place of twice
        assert (norm(x) - exact).norm() < (wanted - exact).norm()


@pytest.mark.parametrize("kind", [Gemma2RMSNorm, Qwen3NextRMSNormGated, ShiftedRMSNorm])
def test_fuse_norms_leaves_other_kinds(kind: type[nn.Module]) -> None:
    norm = kind(64)
    fuse_norms(nn.Sequential(norm), "cpu")
    assert "forward" not in vars(norm)


def test_fuse_norms_leaves_norm_that_is_replaced_already() -> None:
    norm: Any = Qwen3RMSNorm(64)
    norm.forward = other = lambda hidden_states: hidden_states
    fuse_norms(nn.Sequential(norm), "cpu")
    assert norm.forward is other
