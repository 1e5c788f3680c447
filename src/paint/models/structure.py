"""What a model's modules and config say of it: linear layers, dropout, and the range of its rope.

Pure functions of a loaded model or of its config, for any family of transformers.
"""

import math
from dataclasses import dataclass
from typing import Any

from torch import nn
from torch.nn.modules.dropout import _DropoutNd
from transformers import PreTrainedConfig
from transformers.pytorch_utils import Conv1D

DROPOUT_WORDS = "drop", "jitter"
"""Words in the names of all rates at which layers draw random numbers while they train."""


def linear_modules(model: Any) -> dict[str, nn.Module]:
    """The linear layers of a model but its head, by their full names.

    A Conv1D is GPT-2's linear layer. A layer with an adapter has the name that it had without.
    """
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


def embedding(model: Any) -> dict[str, nn.Module]:
    """The embedding of the tokens by its full name, with or without an adapter."""
    layer = model.get_input_embeddings()
    layer = getattr(layer, "base_layer", layer)
    names = []
    for name, module in model.named_modules():
        if module is layer:
            names.append(name)
    return {name.removesuffix(".base_layer"): layer for name in names[:1]}


def widths(layer: Any) -> tuple[int, int]:
    """Widths of the input and output of a linear layer or an embedding."""
    if isinstance(layer, nn.Embedding):
        return layer.num_embeddings, layer.embedding_dim
    if isinstance(layer, Conv1D):
        return layer.nx, layer.nf
    return layer.in_features, layer.out_features


def last_part(name: str) -> str:
    """The last part of a module's name: ``q_proj`` of ``model.layers.0.self_attn.q_proj``."""
    return name.rpartition(".")[2]


def dropout_rates(model: Any) -> dict[str, float]:
    """Rates above 0 of every kind of dropout, by the names in the config and in the modules.

    They include layerdrop, drop path and a router's jitter. A rate that only another head of the
    family reads, such as a classifier's, is included too.
    """
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
        is_rate = isinstance(value, int | float) and not isinstance(value, bool)
        is_dropout = any(word in name for word in DROPOUT_WORDS)
        if is_rate and is_dropout and value > 0:
            rates[name] = float(value)


@dataclass(frozen=True)
class PositionLimit:
    """The longest row of a model.

    Attributes:
        positions: prompt and completion together, in tokens; infinite for a model without a limit.
        reason: what limits it, for messages.
    """

    positions: float
    reason: str


def position_limit(config: PreTrainedConfig) -> PositionLimit:
    """The longest row whose states depend on the row alone, by the model's config."""
    context, rope = context_length(config), rope_range(config)
    if rope is not None and (context is None or rope < context):
        reason = (
            f"the {rope} positions within which the frequencies of the model's rope stay the same; "
            f"a longer row would change those of every row next to it"
        )
        return PositionLimit(rope, reason)
    if context is None:
        return PositionLimit(math.inf, "the model's positions")
    return PositionLimit(context, f"the model's {context} positions")


def context_length(config: PreTrainedConfig) -> int | None:
    """Most positions of a row by the model's config; None for a model without a limit."""
    positions = getattr(config.get_text_config(), "max_position_embeddings", None)
    if isinstance(positions, int):
        return positions
    return None


def rope_range(config: PreTrainedConfig) -> int | None:
    """Positions up to which the rotary embedding is one function of the position.

    Beyond them, longrope and dynamic NTK take other frequencies for all rows of a batch, also for
    those that are shorter: a row would depend on the rows next to it, and a token on the length of
    the text after it. None for embeddings whose frequencies never change.
    """
    text = config.get_text_config()
    parameters = getattr(text, "rope_parameters", None) or {}
    by_layer = []
    for value in parameters.values():
        if isinstance(value, dict):
            by_layer.append(value)
    ranges = []
    for rope in by_layer or [parameters]:
        ranges.append(_range_of(rope, text))
    return min((positions for positions in ranges if positions is not None), default=None)


def _range_of(rope: dict[str, Any], text: PreTrainedConfig) -> int | None:
    kind = rope.get("rope_type", "default")
    if kind == "longrope":
        return int(rope["original_max_position_embeddings"])
    if "dynamic" in kind:
        return int(text.max_position_embeddings)
    return None
