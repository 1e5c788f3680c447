"""Weights for other programs: adapters and merged models, written, and read again from disk.

What is written of a merged model is held against the policy in memory: every tensor, and the
log-probs of a fixed text under what transformers loads.
"""

import math
from collections.abc import Iterable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

import torch
from jaxtyping import Float
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from paint.core import storage
from paint.core.errors import wrap_errors
from paint.models.adapters import NAME
from paint.models.policy import Policy, PolicyError
from paint.models.sharding import digest_of
from paint.models.weights import (
    ADAPTER,
    ADAPTER_CONFIG,
    load_trained,
    not_finite,
    plain_weights,
    read_model,
    require_finite_weights,
    save_model,
)
from paint.resolve.structure import position_limit

TEXT = (
    "The sum of the first n odd numbers is a square: 1 + 3 = 4, 1 + 3 + 5 = 9, and in general "
    "1 + 3 + ... + (2n - 1) = n^2. So the answer to the question, how much the first ten of them "
    "are, is one hundred.\n\ndef first_odd_numbers(n):\n    return [2 * i + 1 for i in range(n)]"
)
"""The fixed text whose log-probs are compared."""

TEXT_TOKENS = 96
"""Most tokens of it: a forward pass of these takes seconds on a CPU."""

FAR_NATS = 0.5
"""Nats a token from the trained policy at which an export is another model. Rounding to bfloat16
makes 0.02 to 0.04 in random models with large logits; a lost scale or adapter makes more than 1."""

SAME_NATS = 1e-2
"""Most nats by which the log-probs of the text may differ between equal weights, by the order of
sums, on average over its tokens."""

READ = "what was written is not the trained policy: read again,"
_SMALLER = "export the adapter, or name another --dtype"


@dataclass(frozen=True)
class Rounding:
    """What a number format keeps of the update ΔW by training, over all layers."""

    kept: float  # share that is stored: <stored − base, ΔW> / ‖ΔW‖²
    error: float  # size of what is stored wrongly: ‖stored − base − ΔW‖ / ‖ΔW‖


@dataclass(frozen=True)
class Merged:
    """A merged model on disk, and what the policy in memory was."""

    rounding: Rounding
    ids: list[int]  # of the fixed text
    exact: Float[Tensor, "n"]  # its log-probs under the trained policy
    rounded: Float[Tensor, "n"]  # the same under the merged weights in memory
    digests: Mapping[str, str]  # of the weights, by their names
    attention: str  # the implementation with which the policy computes it


def export_adapter(trained: Path, folder: Path, dtype: torch.dtype) -> Rounding:
    """Copy an adapter to another folder in this dtype; return what is kept of it there.

    Raises PolicyError if there is none or the dtype cannot hold it, and NonFiniteWeights.
    """
    with wrap_errors(trained, PolicyError, "it must hold an adapter"):
        exact = load_file(trained / ADAPTER)
        shape = (trained / ADAPTER_CONFIG).read_bytes()
    require_finite_weights(trained, exact)
    rounded = {name: value.to(dtype) for name, value in exact.items()}
    _require_fit(rounded.items(), dtype)
    save_file(rounded, folder / ADAPTER, metadata={"format": "pt"})
    storage.write_atomic(folder / ADAPTER_CONFIG, shape)
    stored = load_file(folder / ADAPTER)

    def updates() -> Iterator[tuple[Tensor, Tensor]]:
        for a in (name for name in exact if ".lora_A." in name):
            b = a.replace(".lora_A.", ".lora_B.")
            yield exact[b] @ exact[a], stored[b].float() @ stored[a].float()

    return _rounding(updates())


def export_merged(policy: Policy, trained: Path, folder: Path, dtype: torch.dtype) -> Merged:
    """Load trained weights into the untrained policy, and save one model in this dtype.

    The sum of base and adapter is rounded once. Weights that the family keeps in float32 beside 16
    bits stay so. Afterwards the policy holds the rounded weights. Raises PolicyError for weights
    that do not fit, or a base that is quantized, and NonFiniteWeights.
    """
    quantizer = getattr(policy.base, "hf_quantizer", None)
    if quantizer is not None:
        raise PolicyError(
            f"an adapter cannot be added to weights that are quantized by "
            f"{quantizer.quantization_config.quant_method}: it would be rounded away; export the "
            f"adapter"
        )
    before = {}
    if policy.tuning == "full":
        for name, value in policy.model.named_parameters():
            before[name] = value.detach().clone()
    load_trained(policy, trained)
    ids = text_ids(policy)
    exact = text_log_probs(policy.base, ids)
    dtypes = _dtypes(policy, dtype)
    with torch.no_grad():
        rounding = _rounding(_merge(policy, before, dtypes))
    # The weights without an adapter, which the merge left as they were.
    for name, value in policy.base.state_dict(keep_vars=True).items():
        if ".lora_" not in name and value.is_floating_point():
            value.data = value.data.to(dtypes[name.replace(".base_layer", "")])
    _require_fit(plain_weights(policy).items(), dtype)
    with policy.model.disable_adapter() if policy.tuning == "lora" else nullcontext():
        rounded = text_log_probs(policy.base, ids)
    written = plain_weights(policy)
    digests = {name: digest_of([("", value)]) for name, value in written.items()}
    save_model(policy, folder, written)
    attention = str(policy.base.config._attn_implementation)
    return Merged(rounding, ids, exact, rounded, digests, attention)


def _merge(
    policy: Policy, before: Mapping[str, Tensor], dtypes: Mapping[str, torch.dtype]
) -> Iterator[tuple[Tensor, Tensor]]:
    """Round trained weights, or sums of base and adapter; yield each update and what is kept."""
    for name, base in before.items():
        weight = policy.model.get_parameter(name)
        exact = weight.detach()
        weight.data = exact.to(dtypes[name])
        yield exact - base, weight.float() - base
    for name, layer in policy.adapted.items():
        weight, update = layer.get_base_layer().weight, layer.get_delta_weight(NAME)
        base = weight.detach().float()
        weight.data = (base + update).to(dtypes[f"{name}.weight"])
        yield update, weight.float() - base


def merged_difference(folder: Path, merged: Merged) -> float:
    """Read a merged model by transformers; return how far its log-probs are from the policy's.

    Of the fixed text, in nats a token. Raises PolicyError for a tensor that is not the one that was
    written, and where log-probs differ from the policy's by more than rounding.
    """
    with wrap_errors(READ, PolicyError, _SMALLER):
        model, missing = read_model(folder, attn_implementation=merged.attention)
    if missing:
        raise PolicyError(f"{READ} it lacks {min(missing)} ({len(missing)} weights in all)")
    for name, value in model.state_dict().items():
        if merged.digests.get(name) != digest_of([("", value)]):
            raise PolicyError(f"{READ} {name} is not what was written")
    found = text_log_probs(model, merged.ids)
    nats = float((found - merged.exact).abs().mean())
    is_same = float((found - merged.rounded).abs().mean()) <= SAME_NATS  # False for NaN
    if not is_same or nats > FAR_NATS:
        raise PolicyError(
            f"{READ} the log-probs of a text are {nats:.3g} nats a token off; {_SMALLER}"
        )
    return nats


def text_ids(policy: Policy) -> list[int]:
    """Return token ids of the fixed text, at most as many as the model has positions."""
    most = int(min(TEXT_TOKENS, position_limit(policy.base.config)))
    return list(policy.tokenizer.encode(TEXT))[:most]


@torch.no_grad()
def text_log_probs(model: nn.Module, ids: list[int]) -> Float[Tensor, "n"]:
    """Return log-probs of each token of a text after the first, by the model's own forward pass."""
    rows = torch.tensor([ids])
    logits: Tensor = model(input_ids=rows, use_cache=False).logits[0, :-1]
    return logits.float().log_softmax(-1).gather(-1, rows[0, 1:, None]).squeeze(-1)


def _dtypes(policy: Policy, dtype: torch.dtype) -> dict[str, torch.dtype]:
    """Return the dtype of each weight in an export, as transformers will load it."""
    parts = {*(getattr(policy.base, "_keep_in_fp32_modules_strict", None) or ())}
    if dtype == torch.float16:
        parts |= {*(getattr(policy.base, "_keep_in_fp32_modules", None) or ())}
    parts = {part.strip("*.") for part in parts}
    return {
        name: torch.float32 if any(part in name for part in parts) else dtype
        for name in plain_weights(policy)
    }


def _require_fit(weights: Iterable[tuple[str, Tensor]], dtype: torch.dtype) -> None:
    """Refuse finite weights that a number format with fewer bits cannot hold."""
    name = not_finite(weights)
    if name:
        raise PolicyError(
            f"{name} has values beyond those of {str(dtype).removeprefix('torch.')}; export it in "
            f"float32 or bfloat16"
        )


def _rounding(updates: Iterable[tuple[Tensor, Tensor]]) -> Rounding:
    along = squares = errors = 0.0
    for update, stored in updates:
        # In float64, as a layer has millions of terms.
        along += float((stored * update).sum(dtype=torch.float64))
        squares += float(update.square().sum(dtype=torch.float64))
        errors += float((stored - update).square().sum(dtype=torch.float64))
    if squares:
        return Rounding(along / squares, math.sqrt(errors / squares))
    return Rounding(1.0, 0.0)
