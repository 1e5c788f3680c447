"""What a model's config and modules say: linear layers, dropout, the range of its rope."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import PreTrainedConfig

from conftest import DEMO
from paint.commands.plan import max_model_len
from paint.inference.engine import Sampling
from paint.inference.local import LocalEngine
from paint.models.policy import Policy, PolicyError, load_policy
from paint.resolve.shapes import shape_of
from paint.resolve.structure import (
    context_length,
    dropout_rates,
    linear_layers,
    position_limit,
    rope_range,
)
from runs import changed
from tiny_models import save_tiny, tiny_config, tiny_model

RANGE = 64


def longrope(family: str = "phi3") -> PreTrainedConfig:
    """A tiny model whose frequencies change beyond RANGE positions."""
    rope: dict[str, Any] = {"rope_type": "longrope", "rope_theta": 10_000.0, "factor": 16.0}
    rope |= {"short_factor": [1.0] * 4, "long_factor": [4.0] * 4}
    rope |= {"original_max_position_embeddings": RANGE}
    return tiny_config(
        family,
        max_position_embeddings=1024,
        original_max_position_embeddings=RANGE,
        rope_parameters=rope,
    )


def dynamic() -> PreTrainedConfig:
    rope = {"rope_type": "dynamic", "rope_theta": 10_000.0, "factor": 4.0}
    return tiny_config("llama", max_position_embeddings=RANGE, rope_parameters=rope)


@pytest.mark.parametrize(
    ("config", "context", "rope"),
    [
        (longrope(), 1024, RANGE),
        (dynamic(), RANGE, RANGE),
        (tiny_config("qwen3"), 256, None),
        (tiny_config("gpt2"), 256, None),
        (tiny_config("gemma3_text"), 256, None),
        (tiny_config("mamba"), None, None),
    ],
)
def test_position_limit_is_smaller_of_context_and_rope_range(
    config: PreTrainedConfig, context: int | None, rope: int | None
) -> None:
    assert context_length(config) == context
    assert rope_range(config) == rope
    limits = [limit for limit in (context, rope) if limit is not None]
    assert position_limit(config) == min(limits, default=torch.inf)


@pytest.mark.parametrize(
    ("family", "layers"),
    [
        ("gpt2", ("c_attn", "c_fc", "c_proj")),
        ("gpt_neox", ("dense", "dense_4h_to_h", "dense_h_to_4h", "query_key_value")),
        ("falcon", ("dense", "dense_4h_to_h", "dense_h_to_4h", "query_key_value")),
        ("phi3", ("down_proj", "gate_up_proj", "o_proj", "qkv_proj")),
    ],
)
def test_linear_layers_are_all_but_head(family: str, layers: tuple[str, ...]) -> None:
    assert linear_layers(tiny_model(tiny_config(family))) == layers


@pytest.mark.parametrize(
    ("family", "name"),
    [
        ("gpt2", "resid_pdrop"),
        ("opt", "layerdrop"),
        ("mixtral", "router_jitter_noise"),
        ("seed_oss", "residual_dropout"),
    ],
)
def test_dropout_rates_have_every_name(family: str, name: str) -> None:
    assert dropout_rates(tiny_model(tiny_config(family, dropout=0.25)))[name] == 0.25
    assert name not in dropout_rates(tiny_model(tiny_config(family, dropout=0.0)))


@pytest.fixture(params=["longrope", "dynamic"])
def limited(request: pytest.FixtureRequest, tmp_path: Path) -> Policy:
    """A policy whose rows are of at most RANGE tokens."""
    config = longrope() if request.param == "longrope" else dynamic()
    path = save_tiny(config, tmp_path)
    return load_policy(replace(DEMO, path=path, lora_targets=("all-linear",)), seed=0)


def test_hidden_states_beyond_rope_range_are_refused(limited: Policy) -> None:
    short, long = [5] * 20, [6] * 20
    alone = limited.hidden_states([short], [[7] * 20])
    together = limited.hidden_states([short, long], [[7] * 20, [8] * (RANGE - 20)])
    torch.testing.assert_close(together[:20], alone, rtol=1e-4, atol=1e-5)
    with pytest.raises(PolicyError, match=rf"row of {RANGE + 1} tokens .* max_new_tokens"):
        limited.hidden_states([short, long], [[7] * 20, [8] * (RANGE - 19)])


def test_local_engine_beyond_rope_range_is_refused(limited: Policy) -> None:
    engine = LocalEngine(limited, batch_size=2)
    fits = Sampling(temperature=1.0, top_p=1.0, top_k=-1, max_new_tokens=RANGE - 10)
    prompts = [[5] * 10, [6] * 8]
    engine.generate(prompts, fits, [0, 1])
    too_long = replace(fits, max_new_tokens=RANGE - 9)
    with pytest.raises(PolicyError, match=rf"{RANGE + 1} tokens .* max_new_tokens"):
        engine.generate(prompts, too_long, [0, 1])


def test_server_of_longrope_has_its_range(tmp_path: Path) -> None:
    """vLLM takes the frequencies of long rows for all, where its --max-model-len is longer."""
    path = save_tiny(longrope(), tmp_path)
    assert max_model_len(changed("demo-paint", {"model": {"path": path}})) == RANGE
    assert shape_of(path).positions == RANGE
