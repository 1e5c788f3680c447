"""Trained weights on disk: saving and loading a LoRA adapter or a full model."""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal

import peft
import torch
from peft.utils import load_peft_weights, set_peft_model_state_dict
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedModel
from transformers.utils import GENERATION_CONFIG_NAME

from paint.config import schema as cfg
from paint.core import storage
from paint.core.demo_files import model_name, model_path
from paint.core.errors import PaintError, wrap_errors
from paint.core.hub import local_file
from paint.core.nesting import parse_json
from paint.models.policy import Policy, PolicyError, read_config
from paint.models.sharding import digest_of, digest_of_weights
from paint.resolve.structure import linear_layers

ADAPTER, ADAPTER_CONFIG = "adapter_model.safetensors", "adapter_config.json"

_NOT_PLAIN = (
    *("rank_pattern", "alpha_pattern", "modules_to_save", "lora_bias"),
    *("use_rslora", "use_dora", "target_parameters"),
)


class NonFiniteWeights(PolicyError):
    """Stored weights have values that are not finite; the message names the first tensor."""


def own_dtype(path: str) -> cfg.Dtype:
    """Return the dtype in which a model's weights are stored; bfloat16 if its config has none."""
    names: dict[torch.dtype, cfg.Dtype] = {torch.float32: "float32", torch.float16: "float16"}
    return names.get(read_config(path).dtype, "bfloat16")


def linear_layers_of(path: str) -> tuple[str, ...]:
    """Return names of a model's linear layers, without its weights. Raises PolicyError."""
    config = read_config(path)
    with wrap_errors(path, PolicyError, "name a causal language model"), torch.device("meta"):
        return linear_layers(AutoModelForCausalLM.from_config(config, trust_remote_code=False))


def read_adapter_shape(folder: Path) -> cfg.ModelConfig:
    """Read base model and shape of a saved adapter. Raises PolicyError as ``read_lora``."""
    adapter = read_lora(folder)
    base = str(adapter["base_model_name_or_path"])
    try:
        return cfg.ModelConfig(
            path=model_name(base),
            dtype=own_dtype(base),
            lora_rank=adapter["r"],
            lora_alpha=adapter["lora_alpha"],
            lora_targets=tuple(sorted(adapter["target_modules"])),
        )
    except (PaintError, TypeError) as error:
        raise PolicyError(f"{folder / ADAPTER_CONFIG}: {error}") from error


def read_lora(folder: Path) -> Mapping[str, Any]:
    """Read a saved adapter_config.json.

    Raises PolicyError unless it is of a plain LoRA adapter of one rank and alpha.
    """
    path = folder / ADAPTER_CONFIG
    with wrap_errors(path, PolicyError, "only LoRA adapters of one rank and alpha can be read"):
        adapter: dict[str, Any] = parse_json(path.read_bytes())
        plain = {"peft_type": "LORA", "bias": "none"} | dict.fromkeys(_NOT_PLAIN)
        for name, value in plain.items():
            # peft writes what is off as None, false or {}.
            if (adapter.get(name) or value) != value:
                raise ValueError(f"{name} is {adapter[name]!r}, which is not supported")
        if not isinstance(adapter["target_modules"], list):  # a pattern is a text
            raise ValueError(f"target_modules is {adapter['target_modules']!r}, no list of names")
        _ = adapter["r"], adapter["lora_alpha"], adapter["base_model_name_or_path"]
    return adapter


def model_digests(policy: Policy) -> dict[str, str]:
    """Return digests of a model's weights and of its tokenizer and chat template."""
    tokenizer = policy.tokenizer
    text = json.dumps([tokenizer.chat_template, sorted(tokenizer.get_vocab().items())])
    return {
        "weights": weights_digest(policy),
        "tokenizer and chat template": storage.digest(text, str(policy.end_ids))[:16],
    }


def weights_digest(policy: Policy) -> str:
    """Return the digest of the base model's weights, independent of its path and adapter."""
    return policy.digest or digest_of_weights(policy.base)


def trained_digest(policy: Policy) -> str:
    named = policy.model.named_parameters()
    return digest_of((name, value) for name, value in named if value.requires_grad)


def trained_in(checkpoint: Path, tuning: Literal["lora", "full"]) -> Path:
    return checkpoint / {"lora": "adapter", "full": "model"}[tuning]


def save_trained(policy: Policy, folder: Path) -> None:
    """Save the trained weights: peft's adapter, or transformers' model. Raises SafetensorError."""
    if policy.tuning == "full":
        save_model(policy, folder, plain_weights(policy))
        return
    policy.model.save_pretrained(folder)
    # peft writes the targets in the arbitrary order of a set.
    shape = json.loads((folder / ADAPTER_CONFIG).read_bytes())
    shape["target_modules"].sort()
    storage.write_atomic(folder / ADAPTER_CONFIG, json.dumps(shape, indent=2, sort_keys=True))


def save_served(policy: Policy, folder: Path) -> None:
    """Save the adapter for a server, rounded to the base's dtype as the server itself would."""
    # Nothing waits for a disk: a server reads it at once, and nobody after a crash.
    dtype, named = policy.lm_head.weight.dtype, policy.model.named_parameters()
    rounded = {name: value.detach().to(dtype) for name, value in named if value.requires_grad}
    policy.model.save_pretrained(folder, state_dict=rounded)


def load_trained(policy: Policy, folder: Path) -> None:
    """Load weights saved by ``save_trained`` into the policy, bit by bit.

    Raises PolicyError for none, for others of another shape, and for some that are not finite.
    """
    if policy.tuning == "full":
        _load_model(policy, folder)
    else:
        _load_adapter(policy, folder)


def save_generation_settings(name: str, folder: Path) -> None:
    """Copy a model's generation_config.json, by which others sample as before, if it has one."""
    settings = local_file(model_path(name), GENERATION_CONFIG_NAME)
    if settings:
        storage.write_atomic(folder / GENERATION_CONFIG_NAME, settings.read_bytes())


def read_model(folder: Path, **options: Any) -> tuple[PreTrainedModel, set[str]]:
    """Return a folder's model, and the weights that it lacks, which transformers draws."""
    # local_files_only: a folder that is missing would be looked up on the hub.
    model, loading = AutoModelForCausalLM.from_pretrained(
        folder, local_files_only=True, output_loading_info=True, trust_remote_code=False, **options
    )
    return model, {*loading["missing_keys"], *(name for name, *_ in loading["mismatched_keys"])}


def save_model(policy: Policy, folder: Path, weights: dict[str, Tensor]) -> None:
    """Save weights, as those of ``plain_weights``, with the base's settings and tokenizer."""
    policy.base.save_pretrained(folder, state_dict=weights)
    policy.tokenizer.save_pretrained(folder)
    save_generation_settings(policy.tokenizer.name_or_path, folder)


def plain_weights(policy: Policy) -> dict[str, Tensor]:
    """Return the base's weights and persistent buffers, by their names without adapters."""
    return {
        name.replace(".base_layer", ""): value
        for name, value in policy.base.state_dict().items()
        if ".lora_" not in name
    }


def not_finite(weights: Iterable[tuple[str, Tensor]]) -> str:
    """Return the name of the first of these tensors with a value that is not finite, or ""."""
    return next((name for name, value in weights if not value.isfinite().all()), "")


def require_finite_weights(folder: Path, weights: Mapping[str, Tensor]) -> None:
    """Refuse weights that are not finite, before the policy is changed."""
    name = not_finite(weights.items())
    if name:
        raise NonFiniteWeights(
            f"{folder}: {name} has values that are not finite; train it again, or take an earlier "
            f"checkpoint"
        )


def _load_adapter(policy: Policy, folder: Path) -> None:
    with wrap_errors(folder, PolicyError, "it must hold an adapter for this model"):
        weights = load_peft_weights(str(folder), device=str(policy.device))
        require_finite_weights(folder, weights)
        result = set_peft_model_state_dict(policy.model, weights)

    missing = set(peft.get_peft_model_state_dict(policy.model)) - set(weights)
    if missing or result.unexpected_keys:
        raise PolicyError(f"{folder}: adapter of another shape (missing {sorted(missing)[:3]} ...)")


def _load_model(policy: Policy, folder: Path) -> None:
    with wrap_errors(folder, PolicyError, "it must hold a model that can be loaded"):
        model, missing = read_model(folder, dtype=policy.model.dtype)
    stored = {name: value.detach() for name, value in model.named_parameters()}
    expected = {name: value.shape for name, value in policy.model.named_parameters()}
    if missing or expected != {name: value.shape for name, value in stored.items()}:
        raise PolicyError(
            f"{folder}: a model of another shape than the policy's, or without "
            f"{sorted(missing)[:3]}"
        )
    require_finite_weights(folder, stored)
    with torch.no_grad():
        for name, value in policy.model.named_parameters():
            value.copy_(stored[name])
