"""LoRA adapters: which layers get one, and adding them to a model.

W + s B A             with s = alpha / rank
"""

import warnings
from collections.abc import Sequence
from typing import Any, NamedTuple

import peft
import torch
from peft.tuners.lora import LoraLayer
from torch import nn
from transformers import PreTrainedModel

from paint.config import schema as cfg
from paint.core.errors import wrap_errors
from paint.models.layers import MemoryEfficientLoraLinear
from paint.models.model_errors import PolicyError
from paint.resolve.structure import last_part, linear_layers, linear_modules

NAME = "default"
"""peft's name of the one adapter of a policy."""


def add_adapter(base: PreTrainedModel, config: cfg.ModelConfig, seed: int) -> peft.PeftModel:
    """Add a new adapter to a model, which computes the same as before.

    ``seed`` is that of its A. Raises PolicyError for layers that cannot get one.
    """
    # peft draws A from the global generator. With one seed, all ranks have the same A.
    torch.manual_seed(seed)
    place = f"model.lora_targets {config.lora_targets}, model.lora_rank {config.lora_rank}"
    with (
        wrap_errors(place, PolicyError, "change model.lora_targets or model.lora_rank"),
        warnings.catch_warnings(),
    ):
        # peft sets it by the kind of each layer: a Conv1D stores its weight transposed.
        warnings.filterwarnings("ignore", "fan_in_fan_out is set to", UserWarning)
        warnings.simplefilter("ignore", RuntimeWarning)  # of what require_adapters refuses
        targets = find_targets(base, config.lora_targets)
        adapter = peft.LoraConfig(
            r=config.lora_rank,
            lora_alpha=config.lora_alpha,
            # docs/fidelity.md, C28: the scored policy must be the one that sampled.
            lora_dropout=0.0,
            target_modules=targets.modules,
            task_type="CAUSAL_LM",
        )
        adapter._register_custom_module({nn.Linear: MemoryEfficientLoraLinear})
        model = peft.get_peft_model(base, adapter)
        require_adapters(base, targets)
    return model


class LoraTargets(NamedTuple):
    """What gets an adapter: names that peft takes, and full names of all that they stand for."""

    modules: list[str]  # peft's target_modules
    names: set[str]


def find_targets(base: Any, targets: Sequence[str]) -> LoraTargets:
    """Return the linear layers that get an adapter.

    all-linear is every linear layer but the head. Raises ValueError for a target that is none of
    them, and for all-linear with experts, which get none.
    """
    linear, layers, experts = linear_modules(base), linear_layers(base), expert_matrices(base)
    if cfg.ALL_LINEAR in targets and not experts:
        targets = layers
    unknown = [t for t in targets if not any(matches(name, t) for name in linear)]
    if unknown:
        all_of_them = f", or {cfg.ALL_LINEAR} for all of them"
        if experts:
            all_of_them = "; its experts get no adapters"
        raise ValueError(
            f"{', '.join(unknown)} is no linear layer of the model before its head; those are "
            f"{', '.join(layers)}{all_of_them}"
        )

    modules = list(targets)
    all_names = [name for name, _ in base.named_modules()]
    found = {name for name in all_names if any(matches(name, target) for target in modules)}
    names = {name for name in found if name in linear}
    if names != found:
        # Full names, since peft would also take the head, or another module, of a target's name.
        modules = [name for name in linear if name in names]
    return LoraTargets(modules, names)


def require_adapters(base: Any, targets: LoraTargets) -> None:
    """Raise ValueError unless these layers, and no others, have an adapter."""
    # For adapters of transformers 4, peft takes the names of some families' linear layers, such as
    # down_proj of DeepSeek-V3, for those of their experts, in files, too.
    adapted = adapted_names(base)
    for fault, names in (
        ("gives no adapter to", targets.names - adapted),
        ("also gives one to", adapted - targets.names),
    ):
        if names:
            raise ValueError(
                f"peft {fault} {min(names)} ({len(names)} in all): of models of type "
                f"{base.config.model_type} it takes some of these names for those of experts; "
                f"leave them out"
            )


def adapted_names(base: Any) -> set[str]:
    """Return full names of the layers, and of the experts' matrices, with an adapter."""
    names = set()
    for name, module in base.named_modules():
        if isinstance(module, LoraLayer):
            matrix = getattr(module, "parameter_name", "")
            names.add(f"{name}.{matrix}".rstrip(".").replace(".base_layer", ""))
    return names


def matches(name: str, target: str) -> bool:
    """Return whether a target is a module's full name, or its last parts, as peft compares them."""
    return name == target or name.endswith(f".{target}")


def describe_adapters(base: Any) -> str:
    """Return which linear layers have adapters, and which layers and experts have none."""
    trained = sum(p.numel() for p in base.parameters() if p.requires_grad)
    adapters = adapted_names(base)
    adapted: set[str] = set()
    frozen = {".".join(name.split(".")[-2:]) for name in expert_matrices(base)}
    for name in linear_modules(base):
        (adapted if name in adapters else frozen).add(last_part(name))
    without = "every linear layer has one"
    if frozen:
        without = f"without adapters: {', '.join(sorted(frozen))}"
    return f"adapters: {trained / 1e6:.3g} M weights of {', '.join(sorted(adapted))}; {without}"


def expert_matrices(base: Any) -> list[str]:
    """Return full names of the weights of experts, tensors of three axes."""
    return [
        name for name, weights in base.named_parameters() if weights.dim() == 3 and "expert" in name
    ]
