"""Liger's kernels for rotary positions, RMS norms and SwiGLU, in one model on CUDA.

Liger-Kernel (Hsu et al. 2024) computes each of the three in one Triton kernel, where PyTorch takes
several that each read and write all activations, and SwiGLU saves two tensors in place of three.
The values differ from PyTorch's in rounding only.

Only the instances of one model are changed: neither transformers' modules nor other models of the
process. A family is known if its code for a part is Llama's, statement by statement. Liger itself
replaces names in transformers' modules, which would change every model.
"""

import ast
import inspect
import sys
import textwrap
from collections.abc import Callable
from importlib.util import find_spec
from types import FunctionType, MethodType
from typing import Any

from jaxtyping import Float
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.models.llama import modeling_llama as llama

INSTALL = "pip install 'paint-distill[gpu]'"


def is_installed() -> bool:
    """Whether liger-kernel can be imported."""
    return find_spec("liger_kernel") is not None


def use_liger(model: PreTrainedModel) -> str:
    """Compute what can be by Liger's kernels in this model; return what was replaced, in a line.

    Call it before adapters are added: they take the place of the layers within an MLP.
    """
    if not is_installed():
        return f"kernels: PyTorch's; Liger's take less time and memory ({INSTALL})"
    replaced = []
    if _use_rotary(model):
        replaced.append("rotary positions")
    if _use_norms(model):
        replaced.append("RMS norms")
    if _use_swiglu(model):
        replaced.append("SwiGLU")
    if not replaced:
        family = model.config.model_type
        return f"kernels: PyTorch's; the layers of {family} are not Llama's, which Liger computes"
    return f"kernels: Liger's for {', '.join(replaced)} (--model.no-liger for PyTorch's)"


def _use_norms(model: nn.Module) -> bool:
    from liger_kernel.transformers.rms_norm import LigerRMSNorm

    norms: list[Any] = []
    for part in model.modules():
        if _is_as(part, llama.LlamaRMSNorm):
            norms.append(part)
    for norm in norms:
        norm.offset, norm.casting_mode, norm.row_mode = 0.0, "llama", None
        # In place, the gradient would be overwritten, which a residual connection may share.
        norm.in_place = False
        norm.forward = MethodType(LigerRMSNorm.forward, norm)
    return bool(norms)


def _use_swiglu(model: nn.Module) -> bool:
    from liger_kernel.transformers.swiglu import LigerSwiGLUMLP

    layers = []
    for part in model.modules():
        if _is_as(part, llama.LlamaMLP) and isinstance(
            part.act_fn, nn.SiLU | type(llama.ACT2FN["silu"])
        ):
            layers.append(part)
    for layer in layers:
        layer.forward = MethodType(LigerSwiGLUMLP.forward, layer)
    return bool(layers)


def _use_rotary(model: PreTrainedModel) -> bool:
    """Let attention call Liger's function in place of its module's ``apply_rotary_pos_emb``."""
    if not any(_is_as(part, llama.LlamaRotaryEmbedding) for part in model.modules()):
        return False
    copies: dict[type[nn.Module], FunctionType] = {}
    for attention in model.modules():
        kind = type(attention)
        if kind not in copies:
            if not _calls_rotary(kind):
                continue
            copies[kind] = _with_rotary(kind.forward)
        attention.forward = MethodType(copies[kind], attention)
    return bool(copies)


def _with_rotary(forward: Any) -> FunctionType:
    """A copy of a function in which the global name ``apply_rotary_pos_emb`` is Liger's."""
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
    """Queries and keys rotated by their positions; computed in place where they are contiguous."""
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
    """Whether a layer's forward pass calls Llama's function with queries, keys, cos and sin."""
    forward = kind.forward
    if not inspect.isfunction(forward) or "apply_rotary_pos_emb" not in forward.__code__.co_names:
        return False
    module = sys.modules[kind.__module__]
    is_llamas = all(
        _statements(getattr(module, name)) == _statements(getattr(llama, name))
        for name in ("apply_rotary_pos_emb", "rotate_half")
    )
    tree = ast.parse(textwrap.dedent(inspect.getsource(forward)))
    calls = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "apply_rotary_pos_emb":
            calls.append(node)
    has_four = all(len(call.args) == 4 and not call.keywords for call in calls)
    return is_llamas and bool(calls) and has_four


def _is_as(part: nn.Module, kind: type[nn.Module]) -> bool:
    """Whether a module's forward pass is that of Llama's, statement by statement."""
    if "forward" in vars(part):  # replaced already
        return False
    own = type(part).forward
    return inspect.isfunction(own) and _statements(own) == _statements(kind.forward)


_KNOWN: dict[Callable[..., Any], str] = {}


def _statements(function: Any) -> str:
    """The statements of a function, without its docstring and comments."""
    if function not in _KNOWN:
        _KNOWN[function] = _parse(function)
    return _KNOWN[function]


def _parse(function: Any) -> str:
    try:
        source = inspect.getsource(function)
    except OSError:  # made at run time: known to nobody
        return repr(function)
    [tree] = ast.parse(textwrap.dedent(source)).body
    assert isinstance(tree, ast.FunctionDef)
    has_docstring = ast.get_docstring(tree) is not None
    return "\n".join(ast.unparse(line) for line in tree.body[has_docstring:])
