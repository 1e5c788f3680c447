"""Models at real widths, without memory for their weights."""

from typing import Any

import torch
from torch import nn

from paint.resolve.shapes import Shape


def settings_of(shape: Shape) -> dict[str, Any]:
    """A shape in the words of transformers' configs."""
    return {
        "vocab_size": shape.vocabulary,
        "hidden_size": shape.hidden,
        "intermediate_size": shape.intermediate,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head_size,
        "tie_word_embeddings": shape.tied,
        "max_position_embeddings": shape.positions,
    }


def give_fake_weights(model: nn.Module) -> None:
    """Make parameters and buffers anew, as fake tensors under ``FakeTensorMode``."""
    made: dict[int, Any] = {}  # tied weights stay one
    for module in model.modules():
        for name, value in list(module._parameters.items()):
            if value is not None:
                fake = nn.Parameter(torch.empty(value.shape, dtype=value.dtype), False)
                fake = made.setdefault(id(value), fake.requires_grad_(value.requires_grad))
                module._parameters[name] = fake
        for name, buffer in module._buffers.items():
            if buffer is not None:
                module._buffers[name] = torch.empty(buffer.shape, dtype=buffer.dtype)
