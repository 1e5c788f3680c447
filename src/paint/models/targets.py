"""Which layers get an adapter, and which do not."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

from peft.tuners.lora import LoraLayer
from torch import nn


def target_modules(base: Any, targets: Sequence[str]) -> str | list[str]:
    """The layers that get an adapter, as peft takes them: names, or "all-linear" but lm_head.

    Raises ValueError for a model with experts, whose weights adapters do not train, unless every
    target is one of its linear layers.
    """
    linear, experts = linear_layers(base), _experts(base)
    if experts and not set(targets) <= linear.keys():
        raise ValueError(
            f"the model has experts ({', '.join(experts)}), whose weights adapters do not train; "
            f"its linear layers, which can be trained without them, are "
            f"{', '.join(sorted(linear))}"
        )
    return "all-linear" if list(targets) == ["all-linear"] else list(targets)


def describe_adapters(base: Any) -> str:
    """Which layers have adapters, and which linear layers and experts have none, with sizes."""
    layers = linear_layers(base)
    trained = sum(p.numel() for p in base.parameters() if p.requires_grad)
    adapted = {_kind(name) for name, m in base.named_modules() if isinstance(m, LoraLayer)}
    frozen = {name: n for name, n in layers.items() if name not in adapted} | _experts(base)
    without = ", ".join(f"{name} ({n / 1e6:.3g} M)" for name, n in frozen.items())
    return (
        f"adapters: {trained / 1e6:.3g} M weights, beside the "
        f"{sum(layers[name] for name in adapted) / 1e6:.3g} M of {', '.join(sorted(adapted))}"
        + (f"; without adapters: {without}" if without else "; every linear layer has one")
    )


def linear_layers(base: Any) -> dict[str, int]:
    """Weights of the linear layers but lm_head, by the last part of their names."""
    counts: Counter[str] = Counter()
    for name, module in base.named_modules():
        is_own = isinstance(module, nn.Linear) and ".lora_" not in name
        if is_own and module is not base.get_output_embeddings():
            size = module.in_features * module.out_features
            counts[_kind(name.removesuffix(".base_layer"))] += size
    return dict(counts)


def _experts(base: Any) -> dict[str, int]:
    """Weights of experts, tensors of three axes, by the last two parts of their names."""
    counts: Counter[str] = Counter()
    for name, weights in base.named_parameters():
        if weights.dim() == 3 and "expert" in name:
            counts[".".join(name.split(".")[-2:])] += weights.numel()
    return dict(counts)


def _kind(name: str) -> str:
    return name.rpartition(".")[2]
