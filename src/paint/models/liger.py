"""Liger's kernels for rotary positions, RMS norms and SwiGLU, in one model on CUDA.

Liger-Kernel (Hsu et al. 2024) computes each of the three in one Triton kernel, where PyTorch takes
several that each read and write all activations, and SwiGLU saves two tensors in place of three.
The values differ from PyTorch's in rounding only.

Only the instances of one model are changed: Liger's own patch replaces names in transformers'
modules, which would change every model of the process. A family is known if its code for a part is
Llama's, word by word.
"""

import inspect
import sys
from functools import lru_cache
from importlib.util import find_spec
from types import FunctionType, MethodType
from typing import Any

from jaxtyping import Float
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.models.llama import modeling_llama as llama

INSTALL = "pip install 'paint-distill[gpu]'"


def is_installed() -> bool:
    return find_spec("liger_kernel") is not None


def use_liger(model: PreTrainedModel) -> str:
    """Compute what can be by Liger's kernels in this model; return what was replaced, in a line.

    Call it before adapters are added: they take the place of the layers within an MLP.
    """
    if not is_installed():
        return f"kernels: PyTorch's; Liger's take less time and memory ({INSTALL})"
    from liger_kernel.transformers.rms_norm import LigerRMSNorm
    from liger_kernel.transformers.swiglu import LigerSwiGLUMLP

    has_rotary = any(_is_as(part, llama.LlamaRotaryEmbedding) for part in model.modules())
    # For "swish" and "silu", transformers has two classes of one function.
    silu = nn.SiLU | type(llama.ACT2FN["silu"])
    replaced = dict.fromkeys(("rotary positions", "RMS norms", "SwiGLU"), False)
    for module in model.modules():
        part: Any = module
        if _is_as(part, llama.LlamaRMSNorm):
            # What LigerRMSNorm.forward reads of its module; these are its values for Llama.
            part.offset, part.casting_mode, part.row_mode = 0.0, "llama", None
            # In place, the gradient would be overwritten, which a residual connection may share.
            part.in_place = False
            part.forward = MethodType(LigerRMSNorm.forward, part)
            replaced["RMS norms"] = True
        elif _is_as(part, llama.LlamaMLP) and isinstance(part.act_fn, silu):
            part.forward = MethodType(LigerSwiGLUMLP.forward, part)
            replaced["SwiGLU"] = True
        elif has_rotary and _calls_rotary(type(part)):
            part.forward = MethodType(_with_rotary(type(part).forward), part)
            replaced["rotary positions"] = True
    names = [name for name, is_replaced in replaced.items() if is_replaced]
    if not names:
        family = model.config.model_type
        return f"kernels: PyTorch's; the layers of {family} are not Llama's, which Liger computes"
    return f"kernels: Liger's for {', '.join(names)} (--model.no-liger for PyTorch's)"


@lru_cache
def _with_rotary(forward: Any) -> FunctionType:
    """Return a copy of a function in which the global name ``apply_rotary_pos_emb`` is Liger's."""
    names = {**forward.__globals__, "apply_rotary_pos_emb": rotary}
    copy = FunctionType(
        forward.__code__, names, forward.__name__, forward.__defaults__, forward.__closure__
    )
    copy.__kwdefaults__ = forward.__kwdefaults__
    return copy


def rotary(
    q: Float[Tensor, "b heads n d"],
    k: Float[Tensor, "b groups n d"],
    cos: Float[Tensor, "#b n d"],
    sin: Float[Tensor, "#b n d"],
) -> tuple[Float[Tensor, "b heads n d"], Float[Tensor, "b groups n d"]]:
    """Return queries and keys rotated by their positions, in place where they are contiguous."""
    from liger_kernel.ops import LigerRopeFunction

    rows, tokens = len(cos), cos.shape[1]
    if rows == 1:
        rotated: tuple[Tensor, Tensor] = LigerRopeFunction.apply(q, k, cos, sin)
        return rotated
    # As one row: the kernel is compiled anew for each number of rows.
    q, k = (x.transpose(1, 2).flatten(0, 1)[None].transpose(1, 2) for x in (q, k))
    cos, sin = (x.flatten(0, 1)[None] for x in (cos, sin))
    q, k = LigerRopeFunction.apply(q, k, cos, sin)
    q, k = (x[0].transpose(0, 1).unflatten(0, (rows, tokens)).transpose(1, 2) for x in (q, k))
    return q, k


def _calls_rotary(kind: type[nn.Module]) -> bool:
    """Return whether a layer calls Llama's function with queries, keys, cos and sin."""
    module = sys.modules[kind.__module__]
    for name in ("apply_rotary_pos_emb", "rotate_half"):
        if _source(getattr(module, name, None)) != _source(getattr(llama, name)):
            return False
    call = "apply_rotary_pos_emb(query_states, key_states, cos, sin)"
    return call in _source(kind.forward)


def _is_as(part: nn.Module, kind: type[nn.Module]) -> bool:
    """Return whether a module's forward pass is that of Llama's, and was not replaced before."""
    return "forward" not in vars(part) and _source(type(part).forward) == _source(kind.forward)


@lru_cache
def _source(function: Any) -> str:
    try:
        return inspect.getsource(function)
    except (OSError, TypeError):  # made at run time, or no function: known to nobody
        return ""
