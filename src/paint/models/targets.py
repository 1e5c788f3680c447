"""Which layers and experts get an adapter, and which do not."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from peft.tuners.lora import LoraLayer

from paint.config.schema import ALL_LINEAR, names_experts
from paint.resolve.structure import last_part, linear_layers, linear_modules


class LoraTargets(NamedTuple):
    """What gets an adapter: names that peft takes, and full names of all that they stand for."""

    modules: list[str]  # peft's target_modules
    parameters: list[str]  # peft's target_parameters
    names: set[str]


def find_targets(base: Any, targets: Sequence[str]) -> LoraTargets:
    """Return the linear layers and the experts' matrices that get an adapter.

    all-linear is every linear layer but the head. Raises ValueError for a target that is none of
    them, and for all-linear with experts, which are to be named.
    """
    linear, layers, experts = linear_modules(base), linear_layers(base), expert_matrices(base)
    if ALL_LINEAR in targets and not experts:
        targets = layers
    parameters = [target for target in targets if names_experts(target)]
    modules = [target for target in targets if not names_experts(target)]
    unknown = [t for t in modules if not any(matches(name, t) for name in linear)]
    unknown += [t for t in parameters if not any(matches(name, t) for name in experts)]
    if unknown:
        all_of_them = f", or {ALL_LINEAR} for all of them"
        if experts:
            matrices = dict.fromkeys(_last_two(name) for name in experts)
            all_of_them = f"; its experts are {', '.join(matrices)}"
        raise ValueError(
            f"{', '.join(unknown)} is no linear layer of the model before its head; those are "
            f"{', '.join(layers)}{all_of_them}"
        )

    found = {name for name, _ in base.named_modules() if _is_targeted(name, modules)}
    names = {name for name in found if name in linear}
    if names != found:
        # Full names, since peft would also take the head, or another module, of a target's name.
        modules = [name for name in linear if name in names]
    names |= {name for name in experts if _is_targeted(name, parameters)}
    return LoraTargets(modules, parameters, names)


def require_adapters(base: Any, targets: LoraTargets) -> None:
    """Raise ValueError unless these layers and experts, and no others, have an adapter."""
    # For adapters of transformers 4, peft takes the names of some families' linear layers, such as
    # down_proj of DeepSeek-V3, for those of their experts, in files, too.
    adapted = adapted_names(base)
    for fault, names in (
        ("gives no adapter to", targets.names - adapted),
        ("also gives one to", adapted - targets.names),
    ):
        if names:
            raise ValueError(
                f"peft {fault} {min(names)} ({len(names)} in all): of models of type "
                f"{base.config.model_type} it takes some of these names for those of experts; "
                f"leave them out"
            )


def adapted_names(base: Any) -> set[str]:
    """Return full names of the linear layers and of the experts' matrices with an adapter."""
    names = set()
    for name, module in base.named_modules():
        if isinstance(module, LoraLayer):
            matrix = getattr(module, "parameter_name", "")
            names.add(f"{name}.{matrix}".rstrip(".").replace(".base_layer", ""))
    return names


def matches(name: str, target: str) -> bool:
    """Return whether a target is a module's full name, or its last parts, as peft compares them."""
    return name == target or name.endswith(f".{target}")


def describe_adapters(base: Any) -> str:
    """Return which linear layers and experts have adapters, and which have none."""
    trained = sum(p.numel() for p in base.parameters() if p.requires_grad)
    adapters, experts = adapted_names(base), expert_matrices(base)
    adapted: set[str] = set()
    frozen: set[str] = set()
    for name in [*linear_modules(base), *experts]:
        short = _last_two(name) if name in experts else last_part(name)
        (adapted if name in adapters else frozen).add(short)
    without = "every linear layer has one"
    if frozen:
        without = f"without adapters: {', '.join(sorted(frozen))}"
    return f"adapters: {trained / 1e6:.3g} M weights of {', '.join(sorted(adapted))}; {without}"


def expert_matrices(base: Any) -> list[str]:
    """Return full names of the weights of experts, tensors of three axes."""
    return [
        name.replace(".base_layer", "")
        for name, weights in base.named_parameters()
        if weights.dim() == 3 and "expert" in name
    ]


def _last_two(name: str) -> str:
    return ".".join(name.split(".")[-2:])


def _is_targeted(name: str, targets: Sequence[str]) -> bool:
    return any(matches(name, target) for target in targets)
