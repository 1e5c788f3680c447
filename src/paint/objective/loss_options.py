"""Options of the loss, as the losses and their kernels take them.

Those that are plain values are the settings of the section [objective]
(paint.config.schema.LossSettings). This module does not import torch.
"""

from dataclasses import dataclass, replace
from typing import Any, get_args

from paint.config.schema import ClipMode, Impl, LossSettings, Reduction
from paint.core.settings import require, setting, within
from paint.objective.divergences import (
    DIVERGENCES,
    FORWARD_KL,
    Divergence,
    find_divergence,
    full_name,
)


@dataclass(frozen=True, slots=True)
class Objective(LossSettings):
    """What the loss takes; the defaults are those of the settings."""

    divergence: Divergence = FORWARD_KL
    temperature: float = setting(1.1, within("[0.001, 1000]"), "paper: 1.1")

    def __post_init__(self) -> None:
        # First: for Python, which reads no table, these are not checked elsewhere.
        literals = {"clip_mode": ClipMode, "reduction": Reduction, "impl": Impl}
        for key, literal in literals.items():
            choices = get_args(literal)
            is_known = getattr(self, key) in choices
            require(self, key, is_known, f"one of {', '.join(choices)}", f"default: {choices[0]}")
        LossSettings.__post_init__(self)

        name = full_name(self.divergence)
        has_kernel = self.impl != "triton" or self.divergence in DIVERGENCES.values()
        note = f"there is no kernel of the divergence {name}"
        require(self, "impl", has_kernel, "auto, chunked or reference", note)
        is_clippable = self.clip_mode in ("none", "huber") or not self.divergence.is_sampled
        why = "others would take the gradient from the tokens that the teacher disfavours most"
        allowed = f'"huber" or "none" with objective.divergence "{name}"'
        require(self, "clip_mode", is_clippable, allowed, why)


PAPER_LOSS = Objective(clip_mode="pointwise")
"""The paper's loss of rollouts at the paper's temperature."""


def with_changes(options: Objective, **changes: Any) -> Objective:
    """Return the options with some of them changed; a divergence may be given by its name."""
    divergence = changes.get("divergence")
    if isinstance(divergence, str):
        changes["divergence"] = find_divergence(divergence)
    return replace(options, **changes)
