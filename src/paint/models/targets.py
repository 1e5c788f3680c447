"""Which layers get an adapter, and which do not."""

from collections.abc import Sequence
from typing import Any

from peft.tuners.lora import LoraLayer

from paint.config.schema import ALL_LINEAR
from paint.resolve.structure import last_part, linear_layers, linear_modules


def target_modules(base: Any, targets: Sequence[str]) -> list[str]:
    """The layers that get an adapter, by names that peft takes.

    all-linear is every linear layer but the head. Raises ValueError for a target that is no linear
    layer, and for all-linear with experts, whose weights adapters do not train.
    """
    linear, layers, experts = linear_modules(base), linear_layers(base), _experts(base)
    if ALL_LINEAR in targets and not experts:
        targets = layers
    unknown = [target for target in targets if not any(matches(name, target) for name in linear)]
    if unknown:
        all_of_them = f", or {ALL_LINEAR} for all of them"
        if experts:
            all_of_them = f"; adapters do not train the model's experts ({', '.join(experts)})"
        raise ValueError(
            f"{', '.join(unknown)} is no linear layer of the model before its head; those are "
            f"{', '.join(layers)}{all_of_them}"
        )

    names = []
    for name, _ in base.named_modules():
        if any(matches(name, target) for target in targets):
            names.append(name)
    if all(name in linear for name in names):
        return list(targets)
    # Full names, since peft would also take the head, or another module, of a target's name.
    return [name for name in names if name in linear]


def matches(name: str, target: str) -> bool:
    """Whether a target is a module's full name, or its last parts, as peft compares them."""
    return name == target or name.endswith(f".{target}")


def describe_adapters(base: Any) -> str:
    """Which linear layers have adapters, and which of them and of the experts have none."""
    trained = sum(p.numel() for p in base.parameters() if p.requires_grad)
    adapters = {name for name, module in base.named_modules() if isinstance(module, LoraLayer)}
    adapted, frozen = set(), {*_experts(base)}
    for name in linear_modules(base):
        if name in adapters:
            adapted.add(last_part(name))
        else:
            frozen.add(last_part(name))
    without = "every linear layer has one"
    if frozen:
        without = f"without adapters: {', '.join(sorted(frozen))}"
    return f"adapters: {trained / 1e6:.3g} M weights of {', '.join(sorted(adapted))}; {without}"


def _experts(base: Any) -> list[str]:
    """Weights of experts, tensors of three axes, by the last two parts of their names."""
    names = []
    for name, weights in base.named_parameters():
        if weights.dim() == 3 and "expert" in name:
            names.append(".".join(name.split(".")[-2:]))
    return list(dict.fromkeys(names))
