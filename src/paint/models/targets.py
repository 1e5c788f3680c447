"""Which layers get an adapter, and which do not."""

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

from peft.tuners.lora import LoraLayer
from torch import nn

from paint.config.schema import ALL_LINEAR
from paint.models.structure import embedding, last_part, linear_layers, linear_modules, widths


def target_modules(base: Any, targets: Sequence[str]) -> list[str]:
    """The layers that get an adapter, by names that peft takes.

    all-linear is every linear layer but the head. Names are full where a target is also the name of
    a module that is no linear layer, or of the head, which peft would take for a target as well.

    Raises ValueError for a target that is neither a linear layer nor the embedding, and for a model
    with experts, whose weights adapters do not train, unless every target is a linear layer.
    """
    linear, layers, experts = linear_modules(base), linear_layers(base), _experts(base)
    if ALL_LINEAR in targets and not experts:
        targets = layers
    known = {**linear, **embedding(base)}
    unknown = []
    for target in targets:
        if not any(matches(name, target) for name in known):
            unknown.append(target)
    if unknown and experts:
        raise ValueError(
            f"the model has experts ({', '.join(experts)}), whose weights adapters do not train; "
            f"its linear layers, which can be trained without them, are {', '.join(layers)}"
        )
    if unknown:
        raise ValueError(
            f"{', '.join(unknown)} is no linear layer of the model before its head; those are "
            f"{', '.join(layers)}, or {ALL_LINEAR} for all of them"
        )

    def is_target(name: str) -> bool:
        return any(matches(name, target) for target in targets)

    names = [name for name, _ in base.named_modules() if is_target(name)]
    if all(name in known for name in names):
        return list(targets)
    return [name for name in names if name in known]


def matches(name: str, target: str) -> bool:
    """Whether a target is a module's full name, or its last parts, as peft compares them."""
    return name == target or name.endswith(f".{target}")


def describe_adapters(base: Any) -> str:
    """Which layers have adapters, and which linear layers and experts have none, with sizes."""
    trained = sum(p.numel() for p in base.parameters() if p.requires_grad)
    adapters = {name for name, module in base.named_modules() if isinstance(module, LoraLayer)}
    adapted, frozen = Counter[str](), Counter[str]()
    for name, module in {**linear_modules(base), **embedding(base)}.items():
        size = math.prod(widths(module))
        if name in adapters:
            adapted[last_part(name)] += size
        elif not isinstance(module, nn.Embedding):
            frozen[last_part(name)] += size
    without = ", ".join(
        f"{name} ({n / 1e6:.3g} M)" for name, n in (frozen | _experts(base)).items()
    )
    return (
        f"adapters: {trained / 1e6:.3g} M weights, next to the "
        f"{adapted.total() / 1e6:.3g} M of {', '.join(sorted(adapted))}"
        + (f"; without adapters: {without}" if without else "; every linear layer has one")
    )


def _experts(base: Any) -> Counter[str]:
    """Weights of experts, tensors of three axes, by the last two parts of their names."""
    counts: Counter[str] = Counter()
    for name, weights in base.named_parameters():
        if weights.dim() == 3 and "expert" in name:
            counts[".".join(name.split(".")[-2:])] += weights.numel()
    return counts
