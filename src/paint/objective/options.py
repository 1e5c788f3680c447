"""Options of the loss, with their ranges and the paper's values.

``ObjectiveConfig`` is the section [objective] of a recipe and the argument of the loss and its
kernels. The docstring below a field is its help text on the command line.

This module does not import torch, so that the command line's help is fast. Checks that need tensors
are in paint.objective.loss.
"""

from dataclasses import dataclass, replace
from typing import Any, Literal, TypedDict, get_args

from paint.core.errors import ConfigError
from paint.core.settings import NOT_NEGATIVE, Section, is_record, require, setting, within
from paint.objective.divergences import DIVERGENCES, Divergence, divergence_name, find_divergence
from paint.objective.weights import find_position_weights

ClipMode = Literal["pointwise", "token", "none"]
Reduction = Literal["completion", "token"]
Impl = Literal["auto", "reference", "chunked", "triton"]


@dataclass(frozen=True, slots=True)
class ObjectiveConfig(Section):
    """How the student is trained towards the teacher."""

    divergence: str = "forward_kl"
    """Divergence between target and student at a position: forward_kl, reverse_kl, jsd,
    sampled_token, or module:name for one of your own (paint.objective.divergences). sampled_token
    is reverse KL by policy gradient on the sampled token, with clip-mode none, top-p 1 and top-k -1
    (paper: Eq. clipped_fkl, forward KL; Training Algorithm names sampled tokens)."""
    clip: float = 0.06
    """Clipping threshold tau, in nats, above 0; ignored with clip-mode none (paper: Eq.
    clipped_fkl; Experimental Details, 0.06)."""
    clip_mode: ClipMode = "pointwise"
    """What is clipped: each vocabulary entry's term, a position's sum, or nothing (paper:
    pointwise)."""
    interpolation_weight: float = setting(0.03, within("[0, 1]"), "k_base; paper: 0.03")
    """Interpolation weight k_base, in [0, 1]; 0 leaves the teacher as it is (paper: Eq.
    sparse_energy_interp; Experimental Details, 0.03)."""
    top_fraction: float = setting(0.03, within("[0, 1]"), "f_top; paper: 0.03")
    """Share f_top of a completion's positions that are interpolated, in [0, 1] (paper: Eq.
    sparse_selector_objective; Experimental Details, 0.03)."""
    temperature: float | None = None
    """Temperature T of both views' distributions, in [0.001, 1000]; None is the rollout temperature
    (ours)."""
    reduction: Reduction = "completion"
    """What the loss is a mean over, of every method: each completion's tokens and then completions
    (paper: Eq. clipped_fkl), or all tokens of the optimizer step."""
    skip_tokens: int = setting(0, NOT_NEGATIVE, "paper: none")
    """First tokens of every completion that are left out of the loss, of every method, at least 0.
    Where one view thinks and the other does not, the first token is where they differ most (ours;
    paper: none)."""
    correct_weight: float = setting(1.0, NOT_NEGATIVE, "default: 1")
    """Weight of the completions that the grader accepts, at least 0. The loss is the weighted mean;
    a step in which no completion has a weight updates nothing (ours; paper: verdicts are not
    used)."""
    wrong_weight: float = setting(1.0, NOT_NEGATIVE, "default: 1")
    """Weight of all other completions, at least 0: with 0, only correct ones are learned from
    (ours; paper: verdicts are not used)."""
    wrong_divergence: str = ""
    """Divergence of completions that the grader does not accept; empty: that of all. Any but
    sampled_token (ours; paper: verdicts are not used)."""
    position_weights: str = "uniform"
    """Weights of the tokens of a completion: uniform, entropy_gap (how much the teacher's entropy
    differs from the student's), answer (those of the last box alone), or module:name for a function
    of your own (paint.objective.weights). All but uniform compute the logits twice (ours; paper:
    uniform)."""
    impl: Impl = "auto"
    """What computes the loss (paint.objective.fused): auto takes triton on a GPU where its kernels
    can be built (a C compiler and Python's headers are needed) and chunked elsewhere; reference
    holds the logits of a whole micro-batch. Changes speed and memory, never the result."""

    def __post_init__(self) -> None:
        Section.__post_init__(self)
        literals = {"clip_mode": ClipMode, "reduction": Reduction, "impl": Impl}
        for key, literal in literals.items():
            choices = get_args(literal)
            is_known = getattr(self, key) in choices
            require(self, key, is_known, f"one of {', '.join(choices)}", f"default: {choices[0]}")
        has_weight = self.correct_weight > 0 or self.wrong_weight > 0
        note = "with both 0 nothing is learned"
        require(self, "correct_weight", has_weight, "above 0 with objective.wrong_weight 0", note)
        if is_record():  # what is named as "module:name" may not be importable here
            return

        find_position_weights(self.position_weights)
        if self.wrong_divergence:
            for_wrong = find_divergence(self.wrong_divergence, "objective.wrong_divergence")
            exact = "forward_kl, reverse_kl, jsd or module:name"
            require(self, "wrong_divergence", not for_wrong.is_sampled, exact, "empty: that of all")
        divergence = find_divergence(self.divergence)
        for name in (self.divergence, self.wrong_divergence or self.divergence):
            has_kernel = self.impl != "triton" or find_divergence(name) in DIVERGENCES.values()
            note = f"there is no kernel of the divergence {name}"
            require(self, "impl", has_kernel, "auto, chunked or reference", note)
        is_clippable = self.clip_mode == "none" or not divergence.is_sampled
        why_none = "a clip would take the gradient from the tokens that the teacher disfavours most"
        allowed = f'"none" with objective.divergence "{divergence.name}"'
        require(self, "clip_mode", is_clippable, allowed, why_none)
        is_positive = self.clip > 0 or self.clip_mode == "none"
        off = 'tau; paper: 0.06; off: objective.clip_mode "none"'
        require(self, "clip", is_positive, "above 0", off)
        in_range = self.temperature is None or 0.001 <= self.temperature <= 1000
        none = "None: the rollout temperature"
        require(self, "temperature", in_range, "in [0.001, 1000] or None", none)

    def resolve(self, rollout_temperature: float) -> "ObjectiveConfig":
        """Fill in the rollout's temperature if none is set."""
        if self.temperature is not None:
            return self
        return replace(self, temperature=rollout_temperature)

    @property
    def uses_verdicts(self) -> bool:
        """Whether the loss of a completion depends on its verdict."""
        return self.correct_weight != 1 or self.wrong_weight != 1 or bool(self.wrong_divergence)

    def of_verdict(self, is_correct: bool | None) -> "ObjectiveConfig":
        """The options of the completions with this verdict."""
        if is_correct or not self.wrong_divergence:
            return self
        return replace(self, divergence=self.wrong_divergence)

    @property
    def loss_temperature(self) -> float:
        """T as a number. Raises ConfigError if it was not resolved to the rollout's temperature."""
        if self.temperature is None:
            raise ConfigError("objective.temperature must be a number in the loss, got None")
        return self.temperature


PAPER_LOSS = ObjectiveConfig(temperature=1.1)
"""The paper's loss of rollouts at the paper's temperature."""


class LossOptions(TypedDict, total=False):
    """Options of ObjectiveConfig that the losses take as keywords."""

    temperature: float
    interpolation_weight: float
    top_fraction: float
    clip: float
    clip_mode: ClipMode
    divergence: str | Divergence
    reduction: Reduction
    skip_tokens: int
    position_weights: str
    impl: Impl


def with_changes(options: ObjectiveConfig, changes: LossOptions) -> ObjectiveConfig:
    """The options with some of them changed. Raises ConfigError for one out of range."""
    values: dict[str, Any] = {**changes}
    if "divergence" in values:
        values["divergence"] = divergence_name(values["divergence"])
    return replace(options, **values)
