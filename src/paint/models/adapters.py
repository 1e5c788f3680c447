"""Adapters of peft: added to a model, and what they make of its weights.

    LoRA     W + s B A             with s = alpha / rank
    rsLoRA   W + s B A             with s = alpha / sqrt(rank)
    DoRA     g (W + s B A)         with g = m / |W + s B A|, a number for each output

Experts, tensors of three axes, have the update of LoRA or rsLoRA, with an A and a B for each. The
magnitudes m are trained. They start at |W|, so that every adapter starts at no update.
"""

import warnings

import peft
import torch
from jaxtyping import Float
from peft.tuners.lora import LoraLayer
from torch import Tensor, nn
from transformers import PreTrainedModel

from paint.config import schema as cfg
from paint.core.errors import wrap_errors
from paint.models.layers import MemoryEfficientLoraLinear
from paint.models.model_errors import PolicyError
from paint.models.targets import find_targets, require_adapters

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
            use_rslora=config.use_rslora,
            use_dora=config.use_dora,
            target_modules=targets.modules,
            target_parameters=targets.parameters or None,
            task_type="CAUSAL_LM",
        )
        adapter._register_custom_module({nn.Linear: MemoryEfficientLoraLinear})
        model = peft.get_peft_model(base, adapter)
        require_adapters(base, targets)
    for layer in model.modules():
        if isinstance(layer, LoraLayer) and is_dora(layer):
            _start_at_norms(layer)
    return model


def is_dora(layer: LoraLayer) -> bool:
    return bool(layer.use_dora[NAME])


def dora_gain(layer: LoraLayer) -> Float[Tensor, "o"]:
    """Return the factor of a DoRA on each output of the layer, before the bias: m / |W + s B A|."""
    base: Tensor = layer.get_base_layer().weight
    merged = base.detach().float() + layer.get_delta_weight(NAME)
    norms = merged.norm(dim=0 if layer.fan_in_fan_out else 1)  # a Conv1D has a column per output
    gain: Tensor = layer.lora_magnitude_vector[NAME].weight / norms
    return gain


def adapter_update(layer: LoraLayer) -> Tensor:
    """Return the change by which a layer's weight would compute what it does with its adapter.

    In float32, in the weight's own layout.
    """
    update: Tensor = layer.get_delta_weight(NAME)
    if not is_dora(layer):
        return update
    base: Tensor = layer.get_base_layer().weight.detach().float()
    gain = dora_gain(layer)
    return (base + update) * (gain if layer.fan_in_fan_out else gain[:, None]) - base


def _start_at_norms(layer: LoraLayer) -> None:
    # In float32. peft computes the magnitudes in the dtype of the weights: in bfloat16 each output
    # would change by up to 0.4 %, and the student would not start as the base.
    layer.lora_magnitude_vector[NAME].update_layer(
        base_layer=layer.get_base_layer(),
        lora_A=layer.lora_A[NAME].weight,
        lora_B=layer.lora_B[NAME].weight,
        scaling=layer.scaling[NAME],
    )
