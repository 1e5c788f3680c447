"""Options of the loss: plain values, as the losses and their kernels take them.

The section [objective] of a recipe has settings of these names, with their meanings and sources
(paint.config.schema). This module does not import torch.
"""

from dataclasses import dataclass, replace
from typing import Any, Literal, TypedDict, get_args

from paint.core.settings import NOT_NEGATIVE, Section, require, setting, within
from paint.objective.divergences import (
    DIVERGENCES,
    FORWARD_KL,
    Divergence,
    find_divergence,
    full_name,
)

ClipMode = Literal["pointwise", "token", "none"]
Reduction = Literal["completion", "token"]
Impl = Literal["auto", "reference", "chunked", "triton"]


@dataclass(frozen=True, slots=True)
class Objective(Section):
    """What the loss takes; the defaults are the paper's."""

    divergence: Divergence = FORWARD_KL
    clip: float = 0.06  # tau, in nats
    clip_mode: ClipMode = "pointwise"
    interpolation_weight: float = setting(0.03, within("[0, 1]"), "k_base; paper: 0.03")
    top_fraction: float = setting(0.03, within("[0, 1]"), "f_top; paper: 0.03")
    temperature: float = setting(1.1, within("[0.001, 1000]"), "paper: 1.1")
    reduction: Reduction = "completion"
    skip_tokens: int = setting(0, NOT_NEGATIVE, "paper: none")
    impl: Impl = "auto"

    def __post_init__(self) -> None:
        Section.__post_init__(self)
        # A config checks these and the ranges when it is read; here they are checked for Python.
        literals = {"clip_mode": ClipMode, "reduction": Reduction, "impl": Impl}
        for key, literal in literals.items():
            choices = get_args(literal)
            is_known = getattr(self, key) in choices
            require(self, key, is_known, f"one of {', '.join(choices)}", f"default: {choices[0]}")
        is_positive = self.clip > 0 or self.clip_mode == "none"
        off = 'tau; paper: 0.06; off: objective.clip_mode "none"'
        require(self, "clip", is_positive, "above 0", off)

        name = full_name(self.divergence)
        has_kernel = self.impl != "triton" or self.divergence in DIVERGENCES.values()
        note = f"there is no kernel of the divergence {name}"
        require(self, "impl", has_kernel, "auto, chunked or reference", note)
        is_clippable = self.clip_mode == "none" or not self.divergence.is_sampled
        why_none = "a clip would take the gradient from the tokens that the teacher disfavours most"
        allowed = f'"none" with objective.divergence "{name}"'
        require(self, "clip_mode", is_clippable, allowed, why_none)


PAPER_LOSS = Objective()
"""The paper's loss of rollouts at the paper's temperature."""


class LossOptions(TypedDict, total=False):
    """Options of Objective that the losses take as keywords."""

    temperature: float
    interpolation_weight: float
    top_fraction: float
    clip: float
    clip_mode: ClipMode
    divergence: str | Divergence
    reduction: Reduction
    skip_tokens: int
    impl: Impl


def with_changes(options: Objective, changes: LossOptions) -> Objective:
    """The options with some of them changed. Raises ConfigError for one out of range."""
    values: dict[str, Any] = {**changes}
    divergence = values.get("divergence")
    if isinstance(divergence, str):
        values["divergence"] = find_divergence(divergence)
    return replace(options, **values)
