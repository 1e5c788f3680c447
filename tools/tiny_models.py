"""Tiny random models of transformers' causal families, for tests and for the table of models."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    GenerationConfig,
    PreTrainedConfig,
    PreTrainedModel,
)
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from paint.core.demo_files import MODEL
from paint.resolve.structure import DROPOUT_WORDS

VOCABULARY = 982
"""Size of the demo's vocabulary, whose tokenizer fits every tiny model."""

SIZES = (
    (VOCABULARY, ("vocab_size", "vocab_size_per_layer_input")),
    (0, ("pad_token_id",)),
    (1, ("bos_token_id", "decoder_start_token_id", "n_shared_experts")),
    (2, ("eos_token_id", "num_hidden_layers", "n_layer", "n_layers", "num_layers")),
    (2, ("decoder_layers", "encoder_layers", "num_decoder_layers", "num_encoder_layers")),
    (2, ("num_key_value_heads", "num_kv_heads", "num_experts_per_tok", "num_experts_per_token")),
    (2, ("moe_top_k", "moe_k", "top_k_experts")),
    (4, ("num_attention_heads", "n_head", "n_heads", "rotary_dim")),
    (4, ("encoder_attention_heads", "decoder_attention_heads")),
    (4, ("num_encoder_attention_heads", "num_decoder_attention_heads")),
    (4, ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")),
    (8, ("head_dim", "attention_head_size", "d_kv", "qk_nope_head_dim", "qk_rope_head_dim")),
    (8, ("v_head_dim", "hidden_size_per_layer_input")),
    (16, ("q_lora_rank", "kv_lora_rank")),
    (32, ("hidden_size", "n_embd", "d_model", "dim", "embedding_size", "emb_dim")),
    (48, ("intermediate_size", "ffn_dim", "n_inner", "ffn_hidden_size", "d_inner", "d_ff")),
    (48, ("encoder_ffn_dim", "decoder_ffn_dim", "moe_intermediate_size", "dim_ff")),
    (48, ("shared_expert_intermediate_size", "shared_intermediate_size", "feed_forward_size")),
    (48, ("dense_intermediate_size", "mlp_intermediate_size")),
    (256, ("max_position_embeddings", "n_positions", "n_ctx", "max_seq_len", "seq_length")),
    (256, ("max_target_positions", "context_length")),
    (True, ("is_decoder",)),
)
"""Values of the fields of a config that make a model tiny, where a family has them."""

# A latent attention has as many key heads as query heads.
_LATENT: Mapping[str, Any] = {"num_key_value_heads": 4}
_MAMBA: Mapping[str, Any] = {"mamba_n_heads": 4, "mamba_d_state": 16}
_HYBRID = ["mamba", "mamba", "hybrid", "mamba", "hybrid"]
_KINDS = ("sliding_attention", "full_attention")
_ROPE = {"rope_type": "default", "rope_theta": 10_000.0, "mrope_section": [1, 1, 2]}
_LAYERS = ["sliding_attention"] * 4 + ["full_attention"]

OF_FAMILY: Mapping[str, Mapping[str, Any]] = {
    "axk1": {**_LATENT, "n_group": 1, "topk_group": 1},
    **dict.fromkeys(("axk2", "deepseek_v2", "deepseek_v3", "deepseek_v32"), _LATENT),
    **dict.fromkeys(("glm4_moe_lite", "glm_moe_dsa", "minicpm3", "youtu"), _LATENT),
    **dict.fromkeys(("bamba", "granitemoehybrid"), _MAMBA),
    "falcon_h1": {"mamba_d_ssm": 64, "mamba_n_heads": 4, "mamba_d_head": 16, "mamba_d_state": 8},
    "gemma3n_text": {
        "num_hidden_layers": 10,
        "num_kv_shared_layers": 5,
        "layer_types": _LAYERS * 2,
    },
    "gemma4_text": {"num_kv_shared_layers": 0},
    "gpt_neo": {"attention_types": [[["global", "local"], 1]]},
    "kimi_linear": {"linear_head_dim": 8},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"]},
    "longcat_flash": {**_LATENT, "moe_topk": 2, "zero_expert_num": 2, "expert_ffn_hidden_size": 16},
    "mamba2": {"num_heads": 4, "head_dim": 16, "state_size": 16, "n_groups": 1},
    "rembert": {"input_embedding_size": 32, "output_embedding_size": 32},
    "roc_bert": {"pronunciation_embed_dim": 16, "shape_embed_dim": 16, "shape_vocab_size": 99},
    "cohere_compass_text": {"rope_parameters": dict.fromkeys(_KINDS, _ROPE)},
    "xmod": {"default_language": "en_XX"},
    "zamba": {"num_hidden_layers": 5, "layers_block_type": _HYBRID},
    "zamba2": {"num_hidden_layers": 5, "layers_block_type": _HYBRID, "mamba_ngroups": 1},
    "zaya": {"num_experts_per_tok": 1},
}
"""Further fields of families whose sizes depend on each other."""


def tiny_config(family: str, *, dropout: float | None = None, **fields: Any) -> PreTrainedConfig:
    """The config of a tiny model; ``dropout`` is the value of every rate of any kind."""
    kind: Any = CONFIG_MAPPING[family]
    default = vars(kind())
    values: dict[str, Any] = {}
    for value, names in SIZES:
        values |= {name: value for name in names if name in default}
    if dropout is not None:
        values |= dict.fromkeys(rate_names(default), dropout)
    config: PreTrainedConfig = kind(**{**values, **OF_FAMILY.get(family, {}), **fields})
    return config


def rate_names(fields: Mapping[str, Any]) -> list[str]:
    """Names of the fields that are rates of dropout, layerdrop or jitter."""
    names = []
    for name, value in fields.items():
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if is_number and any(word in name for word in DROPOUT_WORDS):
            names.append(name)
    return names


def tiny_model(config: PreTrainedConfig) -> PreTrainedModel:
    """A model with random weights, always the same, in evaluation mode."""
    torch.manual_seed(0)
    model: PreTrainedModel = AutoModelForCausalLM.from_config(config, trust_remote_code=False)
    return model.eval()


def save_tiny(config: PreTrainedConfig, folder: Path) -> str:
    """Save a tiny model with the demo's tokenizer, and return its path for model.path."""
    model = tiny_model(config)
    model.generation_config = GenerationConfig(eos_token_id=2, pad_token_id=0)
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(MODEL, trust_remote_code=False).save_pretrained(folder)
    return str(folder)
