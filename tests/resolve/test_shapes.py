"""A model's shape from its config.json alone."""

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, Qwen3Config, Qwen3ForCausalLM

from paint.config.schema import ConfigError
from paint.core.demo_files import MODEL
from paint.resolve.shapes import SHAPES, Shape, shape_of
from paint.resolve.structure import linear_layers, linear_modules, widths
from tiny_models import tiny_config, tiny_model

SMALL = {
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
}
LLAMA = LlamaConfig(**SMALL, tie_word_embeddings=True)
QWEN = Qwen3Config(**SMALL, tie_word_embeddings=False, head_dim=16)


@pytest.mark.parametrize(("config", "kind"), [(LLAMA, LlamaForCausalLM), (QWEN, Qwen3ForCausalLM)])
def test_shape_of_folder_matches_real_model(config: Any, kind: Any, tmp_path: Path) -> None:
    config.save_pretrained(tmp_path)
    shape = shape_of(str(tmp_path))
    with torch.device("meta"):
        model = kind(config)
    assert shape.parameters == sum(p.numel() for p in model.parameters())
    linear = {
        name.rpartition(".")[2]: (module.in_features, module.out_features)
        for name, module in model.model.named_modules()
        if isinstance(module, torch.nn.Linear)
    }
    assert shape.matrices == linear
    assert shape.positions == config.max_position_embeddings


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("HuggingFaceTB/SmolLM2-135M-Instruct", 134_515_008),
        ("Qwen/Qwen3-1.7B", 1_720_574_976),
        ("Qwen/Qwen3-4B", 4_022_468_096),
        ("Qwen/Qwen3-8B", 8_190_735_360),
        ("Qwen/Qwen3-14B", 14_768_307_200),
        ("Qwen/Qwen3-32B", 32_762_123_264),
        ("meta-llama/Llama-3.3-70B-Instruct", 70_553_706_496),
    ],
)
def test_shapes_match_published_parameter_counts(name: str, parameters: int) -> None:
    """Source: the number of parameters in each model's files, as the hub shows it."""
    assert SHAPES[name].parameters == parameters


def test_shape_of_prefers_cached_config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    QWEN.save_pretrained(tmp_path)
    cached = str(tmp_path / "config.json")
    monkeypatch.setattr("paint.core.hub.try_to_load_from_cache", lambda *_: cached)
    assert shape_of("Qwen/Qwen3-8B") == shape_of(str(tmp_path)) != SHAPES["Qwen/Qwen3-8B"]
    monkeypatch.setattr("paint.core.hub.try_to_load_from_cache", lambda *_: None)
    assert shape_of("Qwen/Qwen3-8B") == SHAPES["Qwen/Qwen3-8B"]
    with pytest.raises(ConfigError, match=r'"owner/other" has no config\.json here: .*; name'):
        shape_of("owner/other")

    monkeypatch.setattr("paint.core.hub.hf_hub_download", lambda *_: cached)
    assert shape_of("owner/other") == shape_of(str(tmp_path))


def test_shape_of_experts_is_refused(tmp_path: Path) -> None:
    table = json.loads((MODEL / "config.json").read_text()) | {"num_experts": 128}
    (tmp_path / "config.json").write_text(json.dumps(table))
    with pytest.raises(ConfigError, match="it has experts"):
        shape_of(str(tmp_path))


def test_shape_of_demo_matches_expected() -> None:
    lab = Shape(3, 128, 4, 384, True, 2, 32, 982, positions=1024)
    assert shape_of("demo") == shape_of(str(MODEL)) == lab
    assert replace(lab, norms_heads=False).parameters == lab.parameters - 3 * 2 * 32


@pytest.mark.parametrize("family", ["falcon", "gpt2", "gpt_neox", "lfm2", "opt", "phi3", "gemma2"])
def test_shape_of_other_family_is_counted(family: str, tmp_path: Path) -> None:
    config = tiny_config(family)
    config.save_pretrained(tmp_path)
    shape, model = shape_of(str(tmp_path)), tiny_model(config)
    assert shape.parameters == sum(p.numel() for p in model.parameters())
    modules = linear_modules(model)
    assert shape.weights == sum(math.prod(widths(layer)) for layer in modules.values())
    assert {layer.name for layer in shape.linear} == {*linear_layers(model)}
    assert shape.adapters(3, ["all-linear"]) == 3 * sum(sum(widths(m)) for m in modules.values())
    assert (shape.layers, shape.hidden, shape.heads, shape.positions) == (2, 32, 4, 256)
    assert shape.tied == (model.lm_head.weight is model.get_input_embeddings().weight)
