"""RMS norms in two kernels on CUDA, in place of transformers' eight."""

import inspect
from types import MethodType
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import rms_norm


def fuse_norms(model: nn.Module) -> None:
    """Compute the model's RMS norms by torch's kernel, where its values are the model's own."""
    for norm in model.modules():
        if hasattr(norm, "variance_epsilon") and _is_weight_times_rms_norm(norm):
            norm.forward = MethodType(_forward, norm)


def _is_weight_times_rms_norm(norm: Any) -> bool:
    # Others take a gate, too, or add 1 to the weight.
    if [*inspect.signature(norm.forward).parameters] != ["hidden_states"]:
        return False
    x = torch.linspace(-2, 2, norm.weight.numel()).to(norm.weight)
    with torch.no_grad():
        return torch.allclose(norm(x), _forward(norm, x), rtol=0.01)


def _forward(norm: Any, hidden_states: Float[Tensor, "*rows h"]) -> Float[Tensor, "*rows h"]:
    # Rounded before the weight is applied, as transformers and vLLM do.
    shape = hidden_states.shape[-1:]
    result: Tensor = norm.weight * rms_norm(hidden_states, shape, eps=norm.variance_epsilon)
    return result
