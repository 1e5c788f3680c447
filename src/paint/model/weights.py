"""What training leaves on disk, an adapter or a whole model: written, read back, loaded, merged.

Whatever is saved is read back at once, so that what is on disk is what was trained.
"""

import json
from pathlib import Path
from typing import Literal

import peft
import torch
from peft.utils import load_peft_weights, set_peft_model_state_dict
from safetensors import SafetensorError
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM

from paint import config as cfg
from paint.lab.files import model_name, model_path
from paint.model.policy import Policy, PolicyError


def own_dtype(path: str) -> cfg.Dtype:
    """The number format in which a model's weights are stored; bfloat16 where it does not say."""
    try:
        dtype = AutoConfig.from_pretrained(model_path(path)).dtype
    except (OSError, ValueError, KeyError) as error:
        raise PolicyError(
            f"model {path!r} cannot be loaded as a causal language model: {error}"
        ) from error

    names: dict[torch.dtype, cfg.Dtype] = {torch.float32: "float32", torch.float16: "float16"}
    return names.get(dtype, "bfloat16")


def read_adapter_shape(folder: Path) -> cfg.Model:
    """The model that a saved adapter belongs to, and the adapter's shape.

    Raises:
        PolicyError: adapter_config.json is damaged, or not that of a plain LoRA adapter.
    """
    path = folder / "adapter_config.json"
    try:
        adapter = json.loads(path.read_text())
        for name in ("use_rslora", "use_dora", "rank_pattern", "alpha_pattern", "modules_to_save"):
            if value := adapter.get(name):
                raise ValueError(f"{name} is {value!r}, which this evaluation does not model")

        bias, targets = adapter.get("bias", "none"), adapter["target_modules"]
        if bias != "none" or not isinstance(targets, list):
            raise ValueError(f"bias is {adapter.get('bias')!r}, target_modules {targets!r}")

        base = adapter["base_model_name_or_path"]
        return cfg.Model(
            path=model_name(base),
            dtype=own_dtype(base),
            lora_rank=adapter["r"],
            lora_alpha=adapter["lora_alpha"],
            lora_targets=tuple(sorted(targets)),
        )
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise PolicyError(f"{path} does not describe a plain LoRA adapter: {error}") from error


def save_adapter(policy: Policy, folder: Path) -> None:
    """Write the adapter in peft's format and read it back: what is on disk is what was trained.

    Raises:
        PolicyError: the file does not hold the trained values (as happens with sharded parameters).
        OSError: the disk is full or not writable.
    """
    try:
        policy.model.save_pretrained(folder)
    except SafetensorError as error:  # how a full disk is reported
        raise OSError(f"{folder} could not be written: {error}") from error

    trained = peft.get_peft_model_state_dict(policy.model)
    stored = load_peft_weights(str(folder), device="cpu")
    for name, value in trained.items():
        if name not in stored or not torch.equal(stored[name], value.detach().cpu()):
            raise PolicyError(
                f"{folder}: {name} was not saved as it was trained; do not use this checkpoint"
            )


def load_adapter(policy: Policy, folder: Path) -> None:
    """Put saved adapter weights into the policy, exactly.

    Raises:
        PolicyError: the folder holds no adapter, or one of another shape.
    """
    try:
        weights = load_peft_weights(str(folder), device=str(policy.device))
        result = set_peft_model_state_dict(policy.model, weights)
    except (OSError, ValueError, RuntimeError) as error:
        raise PolicyError(f"{folder} does not hold an adapter for this model: {error}") from error

    missing = set(peft.get_peft_model_state_dict(policy.model)) - set(weights)
    if missing or result.unexpected_keys:
        raise PolicyError(f"{folder}: adapter of another shape (missing {sorted(missing)[:3]} ...)")


def save_model(policy: Policy, folder: Path) -> None:
    """Write every weight and the tokenizer, as any tool loads them, and read the weights back.

    Raises:
        PolicyError: the folder does not hold the trained values.
        OSError: the disk is full or not writable.
    """
    try:
        merge(policy, folder)
    except SafetensorError as error:
        raise OSError(f"{folder} could not be written: {error}") from error

    stored = _read_model(policy, folder)
    for name, value in policy.model.named_parameters():
        if not torch.equal(stored[name], value.detach().cpu()):
            raise PolicyError(
                f"{folder}: {name} was not saved as it was trained; do not use this checkpoint"
            )


def load_model(policy: Policy, folder: Path) -> None:
    """Put the weights of a saved model into a policy all of whose weights are trained, exactly.

    Raises:
        PolicyError: the folder holds no model, or one of another shape.
    """
    stored = _read_model(policy, folder)
    with torch.no_grad():
        for name, value in policy.model.named_parameters():
            value.copy_(stored[name])


def trained_in(checkpoint: Path, tuning: Literal["lora", "full"]) -> Path:
    """Where a checkpoint keeps what was trained."""
    return checkpoint / {"lora": "adapter", "full": "model"}[tuning]


def save_trained(policy: Policy, folder: Path) -> None:
    """Write what is trained, an adapter or a model, and read it back.

    Raises:
        PolicyError, OSError: as save_adapter and save_model do.
    """
    save = {"lora": save_adapter, "full": save_model}[policy.tuning]
    save(policy, folder)


def load_trained(policy: Policy, folder: Path) -> None:
    """Put what was saved by ``save_trained`` into the policy, exactly.

    Raises:
        PolicyError: as load_adapter and load_model do.
    """
    load = {"lora": load_adapter, "full": load_model}[policy.tuning]
    load(policy, folder)


def merge(policy: Policy, folder: Path) -> None:
    """Write base + adapter as one model, for serving elsewhere.

    Rounding to the model's dtype may lose a small adapter. So generation during training never uses
    merged weights (docs/paper.md, D4).
    """
    with policy.merged():
        weights = {
            name.replace(".base_layer", ""): value
            for name, value in policy.base.state_dict().items()
            if ".lora_" not in name
        }
        policy.base.save_pretrained(folder, state_dict=weights)
        policy.tokenizer.save_pretrained(folder)


def _read_model(policy: Policy, folder: Path) -> dict[str, Tensor]:
    """Every weight of a saved model, on the CPU, by the names of the policy's model.

    Raises:
        PolicyError: the folder holds no model, or not all weights of one of the policy's shape.
    """
    try:
        model, loading = AutoModelForCausalLM.from_pretrained(
            folder, dtype=policy.model.dtype, local_files_only=True, output_loading_info=True
        )
    except (OSError, ValueError, KeyError, RuntimeError, SafetensorError) as error:
        raise PolicyError(f"{folder} does not hold a model that can be loaded: {error}") from error

    # transformers makes up what a file lacks, and says so only here.
    made_up = set(loading["missing_keys"]) | {name for name, *_ in loading["mismatched_keys"]}
    stored = {name: value.detach() for name, value in model.named_parameters()}
    wanted = {name: value.shape for name, value in policy.model.named_parameters()}
    if made_up or wanted != {name: value.shape for name, value in stored.items()}:
        raise PolicyError(
            f"{folder}: a model of another shape than the policy's, or without "
            f"{sorted(made_up)[:3]}"
        )
    return stored
