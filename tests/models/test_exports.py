"""What is exported is read again, and is what was trained, whatever format the base's file has."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoModelForCausalLM

from conftest import move
from paint.config.schema import ModelConfig
from paint.models.exports import export_merged, merged_difference, text_ids, text_log_probs
from paint.models.policy import Policy, PolicyError, load_policy
from paint.models.weights import load_trained, save_trained
from tiny_models import save_tiny, tiny_config

FILE = "model.safetensors"
BLOCK = 16


def config_of(path: str, dtype: Any = "bfloat16", **changes: Any) -> ModelConfig:
    """A model with adapters on the outputs of its attention."""
    family = json.loads((Path(path) / "config.json").read_text())["model_type"]
    target = "out_proj" if family == "qwen3_5_text" else "o_proj"
    values: dict[str, Any] = {"lora_rank": 4, "lora_alpha": 8, "lora_targets": (target,)}
    return ModelConfig(path=path, dtype=dtype, **{**values, **changes})


def trained(config: ModelConfig, folder: Path) -> Policy:
    """A policy whose trained weights have moved and are saved in the folder."""
    policy = load_policy(config, seed=0)
    move(policy)
    save_trained(policy, folder)
    return policy


def rewrite(path: str, change: Mapping[str, Tensor], **settings: Any) -> None:
    """Change weights of a model's file, and settings in its config.json."""
    folder = Path(path)
    save_file(dict(change), folder / FILE, metadata={"format": "pt"})
    table = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(table | settings))


def in_16_bits(path: str, *parts: str) -> dict[str, Tensor]:
    """Store a model in bfloat16, without those of these names; the latter, spread over 32 bits."""
    weights, kept = load_file(Path(path) / FILE), {}
    for name, value in weights.items():
        if any(part in name for part in parts):
            torch.manual_seed(1)
            weights[name] = kept[name] = 4.8 + 0.02 * torch.rand_like(value.float())
        else:
            weights[name] = value.to(torch.bfloat16)
    rewrite(path, weights, dtype="bfloat16")
    return kept


def in_8_bits(path: str) -> None:
    """Store the layers of a model in FP8, with a scale for each block."""
    stored = {}
    for name, value in load_file(Path(path) / FILE).items():
        if value.dim() != 2 or any(part in name for part in ("embed", "head", "mlp.gate.")):
            stored[name] = value.to(torch.bfloat16)
            continue
        rows, columns = value.shape
        blocks = value.float().reshape(rows // BLOCK, BLOCK, columns // BLOCK, BLOCK)
        scales = blocks.abs().amax((1, 3), keepdim=True) / 448
        stored[name] = (blocks / scales).reshape(rows, columns).to(torch.float8_e4m3fn)
        stored[f"{name}_scale_inv"] = scales.reshape(rows // BLOCK, columns // BLOCK)
    settings = {"quant_method": "fp8", "activation_scheme": "dynamic"}
    settings |= {"weight_block_size": [BLOCK, BLOCK]}  # type: ignore[dict-item]
    rewrite(path, stored, dtype="bfloat16", quantization_config=settings)


def exported(config: ModelConfig, folder: Path, dtype: torch.dtype) -> tuple[Policy, float]:
    """The trained policy, and how far its merged export in ``folder/out`` is from it, in nats."""
    policy = trained(config, folder / "trained")
    base = load_policy(config, seed=0)
    merged = export_merged(base, folder / "trained", folder / "out", dtype)
    return policy, merged_difference(folder / "out", merged)


def elsewhere(folder: Path, policy: Policy) -> float:
    """How far a stranger's log-probs are from the policy's, computed here once more."""
    model = AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=False)
    ids = text_ids(policy)
    found = text_log_probs(model, ids) - text_log_probs(policy.base, ids)
    return float(found.abs().mean())


FAMILIES: dict[str, dict[str, Any]] = {
    "tied": {"family": "qwen3", "tie_word_embeddings": True},
    "untied": {"family": "llama", "tie_word_embeddings": False},
    "experts": {"family": "qwen3_moe"},
    "hybrid": {"family": "qwen3_5_text"},
}


@pytest.mark.parametrize(
    ("name", "stored"),
    [
        ("tied", "float32"),
        ("untied", "bfloat16"),
        ("experts", "bfloat16"),
        ("hybrid", "float32"),
        ("tied", "fp8"),
        ("experts", "fp8"),
    ],
)
def test_export_merged_reads_again_as_the_policy(name: str, stored: str, tmp_path: Path) -> None:
    path = save_tiny(tiny_config(**FAMILIES[name]), tmp_path / "base")
    if stored == "bfloat16":
        in_16_bits(path)
    elif stored == "fp8":
        in_8_bits(path)
    config = config_of(path, "float32" if stored == "float32" else "bfloat16")
    policy, nats = exported(config, tmp_path, torch.float32)
    assert nats == pytest.approx(elsewhere(tmp_path / "out", policy), abs=1e-6)
    assert nats < (1e-5 if stored == "float32" else 1e-2)
    untrained = elsewhere(Path(path), policy)
    assert untrained > 3 * nats
    weights = load_file(tmp_path / "out" / FILE)
    assert {value.dtype for value in weights.values()} == {torch.float32}
    table = json.loads((tmp_path / "out/config.json").read_text())
    assert (table["dtype"], "quantization_config" in table) == ("float32", False)


@pytest.mark.parametrize("own", ["bfloat16", "float32"])
def test_export_merged_keeps_parts_of_family_in_float32(own: str, tmp_path: Path) -> None:
    fields = {"first_k_dense_replace": 1, "n_group": 1, "topk_group": 1}
    path = save_tiny(tiny_config("deepseek_v3", **fields), tmp_path / "base")
    parts = in_16_bits(path, "e_score_correction_bias")
    assert parts
    exported(config_of(path, own), tmp_path, torch.bfloat16)
    weights = load_file(tmp_path / "out" / FILE)
    for name, value in weights.items():
        expected = parts.get(name)
        assert value.dtype == (torch.bfloat16 if expected is None else torch.float32)
        assert expected is None or torch.equal(value, expected)
    assert parts.keys() <= weights.keys()
    assert json.loads((tmp_path / "out/config.json").read_text())["dtype"] == "bfloat16"


def test_save_trained_full_model_of_fp8_base_is_loaded_again(tmp_path: Path) -> None:
    path = save_tiny(tiny_config("llama"), tmp_path / "base")
    in_8_bits(path)
    config = config_of(path, "float32", train_mode="full")
    policy = trained(config, tmp_path / "trained")
    again = load_policy(config, seed=0)
    load_trained(again, tmp_path / "trained")
    values = dict(policy.model.named_parameters())
    assert all(torch.equal(values[name], value) for name, value in again.model.named_parameters())


def test_export_merged_layers_still_quantized_are_refused(policy: Policy, tmp_path: Path) -> None:
    class Quantizer:
        class quantization_config:
            quant_method = "awq"

    policy.base.hf_quantizer = Quantizer()
    with pytest.raises(PolicyError, match=r"quantized by awq: .*export the adapter"):
        export_merged(policy, tmp_path, tmp_path / "out", torch.float32)


@pytest.mark.parametrize("fault", ["tensor", "lost", "setting"])
def test_merged_difference_of_other_model_is_refused(fault: str, tmp_path: Path) -> None:
    path = save_tiny(tiny_config("llama", tie_word_embeddings=False), tmp_path / "base")
    config = config_of(path, "float32")
    trained(config, tmp_path / "trained")
    base = load_policy(config, seed=0)
    merged = export_merged(base, tmp_path / "trained", tmp_path / "out", torch.float32)
    assert merged_difference(tmp_path / "out", merged) < 1e-5
    weights, settings = load_file(tmp_path / "out" / FILE), {}
    name = "model.layers.0.mlp.up_proj.weight"
    if fault == "tensor":
        weights[name] = weights[name].to(torch.bfloat16).float()
    elif fault == "lost":
        del weights[name]
    else:
        settings = {"rms_norm_eps": 10.0}
    rewrite(str(tmp_path / "out"), weights, **settings)
    expected = {
        "tensor": rf"{name} is not what",
        "lost": f"lacks {name}",
        "setting": "nats a token",
    }
    with pytest.raises(PolicyError, match=rf"read again, .*{expected[fault]}"):
        merged_difference(tmp_path / "out", merged)
