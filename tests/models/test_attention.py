"""Heads side by side attend as the library's attention does, and only where they share keys."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from paint.models.attention import masked_decode


def masks(batch: int, heads: int, tokens: int, places: int) -> dict[str, Tensor | None]:
    shown = torch.rand(batch, 1, tokens, places) < 0.7
    shown[..., -1] = True
    return {
        "none": None,
        "of places": shown,
        "added": torch.zeros(shown.shape, dtype=torch.float64).masked_fill(~shown, -torch.inf),
        "of each head": shown.repeat(1, heads, 1, 1) & (torch.arange(places) != 0),
    }


@pytest.mark.parametrize("mask", ["none", "of places", "added", "of each head"])
@pytest.mark.parametrize("tokens", [1, 4])
@pytest.mark.parametrize("groups", [1, 2, 6])
@pytest.mark.parametrize("scaling", [None, 0.3])
def test_masked_decode_matches_library(
    mask: str, tokens: int, groups: int, scaling: float | None
) -> None:
    torch.manual_seed(groups)
    batch, heads, places = 3, 6, 9
    query = torch.randn(batch, tokens, heads, 8, dtype=torch.float64).transpose(1, 2)
    key = torch.randn(batch, groups, places, 8, dtype=torch.float64)
    value = torch.randn(batch, groups, places, 5, dtype=torch.float64)
    given = query, key, value, masks(batch, heads, tokens, places)[mask]
    module: Any = torch.nn.Module()
    module.num_key_value_groups, module.is_causal = heads // groups, True

    expected, _ = sdpa_attention_forward(module, *given, scaling=scaling)
    config = SimpleNamespace(_attn_implementation="flash_attention_2")
    with masked_decode(config):
        assert config._attn_implementation == "sdpa"
        found, _ = ALL_ATTENTION_FUNCTIONS["sdpa"](module, *given, scaling=scaling)
    torch.testing.assert_close(found, expected, rtol=1e-13, atol=1e-13)
    assert ALL_ATTENTION_FUNCTIONS["sdpa"] is sdpa_attention_forward
    assert config._attn_implementation == "flash_attention_2"
