"""What a model's modules and config say of it: linear layers, dropout, and the range of its rope.

Pure functions of a loaded model or of its config, for any family of transformers.
"""

import math
from typing import Any

from torch import nn
from torch.nn.modules.dropout import _DropoutNd
from transformers import PreTrainedConfig
from transformers.pytorch_utils import Conv1D

DROPOUT_WORDS = "drop", "jitter"
"""Words in the names of all rates at which layers draw random numbers while they train."""


def linear_modules(model: Any) -> dict[str, nn.Module]:
    """Return the linear layers of a model but its head, by names without those of adapters."""
    head = model.get_output_embeddings()
    modules = {}
    for name, module in model.named_modules():
        is_adapter = ".lora_" in name
        if isinstance(module, nn.Linear | Conv1D) and module is not head and not is_adapter:
            modules[name.removesuffix(".base_layer")] = module
    return modules


def linear_layers(model: Any) -> tuple[str, ...]:
    """Names of a model's linear layers but its head: the last parts, each once, sorted."""
    return tuple(sorted({last_part(name) for name in linear_modules(model)}))


def widths(layer: Any) -> tuple[int, int]:
    if isinstance(layer, Conv1D):
        return layer.nx, layer.nf
    return layer.in_features, layer.out_features


def last_part(name: str) -> str:
    """The last part of a module's name: ``q_proj`` of ``model.layers.0.self_attn.q_proj``."""
    return name.rpartition(".")[2]


def dropout_rates(model: Any) -> dict[str, float]:
    """Return rates above 0 of every kind of dropout, by their names in config and modules."""
    rates: dict[str, float] = {}
    _add_rates(rates, vars(model.config.get_text_config()))
    for name, module in model.named_modules():
        if ".lora_" in name:
            continue
        if isinstance(module, _DropoutNd):
            _add_rates(rates, {last_part(name): module.p})
        else:
            _add_rates(rates, vars(module))
    return rates


def _add_rates(rates: dict[str, float], values: dict[str, Any]) -> None:
    for name, value in values.items():
        # A bool is an int in Python, and a flag such as dropout=True is no rate.
        is_rate = isinstance(value, int | float) and not isinstance(value, bool)
        is_dropout = any(word in name for word in DROPOUT_WORDS)
        if is_rate and is_dropout and value > 0:
            rates[name] = float(value)


def position_limit(config: PreTrainedConfig) -> float:
    """Return the longest row whose states depend on it alone, in tokens; inf without a limit."""
    limits = [context_length(config), rope_range(config)]
    return min((limit for limit in limits if limit is not None), default=math.inf)


def context_length(config: PreTrainedConfig) -> int | None:
    """Most positions of a row by the model's config; None for a model without a limit."""
    positions = getattr(config.get_text_config(), "max_position_embeddings", None)
    if isinstance(positions, int):
        return positions
    return None


def rope_range(config: PreTrainedConfig) -> int | None:
    """Positions up to which the rotary embedding is one function of the position; None for all."""
    # Beyond them, longrope and dynamic NTK take other frequencies for all rows of a batch, also for
    # shorter ones: a row would depend on the rows next to it, and a token on the text after it.
    text = config.get_text_config()
    parameters = getattr(text, "rope_parameters", None) or {}
    by_layer = [value for value in parameters.values() if isinstance(value, dict)]
    ranges = []
    for rope in by_layer or [parameters]:
        kind = rope.get("rope_type", "default")
        if kind == "longrope":
            ranges.append(int(rope["original_max_position_embeddings"]))
        elif "dynamic" in kind:
            ranges.append(int(text.max_position_embeddings))
    return min(ranges, default=None)
