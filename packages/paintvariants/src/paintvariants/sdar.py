"""SDAR: GRPO next to a distillation that a gate holds where the teacher is surer than the student.

    loss = ℓ_GRPO + c mean of g_n Δ_n,     Δ_n = log p_T(ŷ_n) − log p_S(ŷ_n),  g_n = σ(β Δ_n)

g_n is held fixed, so that the gradient is −c g_n ∇ log p_S(ŷ_n): every sampled token becomes
likelier, most of all those that the teacher is surer of. Source: Self-Distilled Agentic
Reinforcement Learning, https://arxiv.org/abs/2605.15155.

``sdar_loss`` is the mean of g_n Δ_n, ``gate`` that of g_n.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor

from paint.algorithms.grpo import grpo_terms, token_advantages
from paint.core.settings import NOT_NEGATIVE, setting
from paint.inference.rollouts import Rollout
from paint.objective.loss import weighted_sum
from paint.training import train_step as ts
from paintvariants.rewarded_variant import RewardedVariant, teacher_log_probs


@dataclass(frozen=True)
class Options:
    coefficient: float = setting(0.1, NOT_NEGATIVE, "default: 0.1")
    """Weight c of the distillation next to GRPO's loss, at least 0; 0 is GRPO."""
    gate: float = setting(5.0, NOT_NEGATIVE, "default: 5")
    """Steepness β of the gate, at least 0; 0 is a gate of 1/2 everywhere."""


class Sdar(RewardedVariant):
    options: Options

    def score(self, setup: ts.Setup, rollouts: Sequence[Rollout]) -> ts.Scores:
        teacher, temperature = teacher_log_probs(setup, rollouts), setup.config.rollout.temperature
        scores = ts.student_log_probs(setup, rollouts, temperature)
        log_prob = scores.log_prob
        advantage = token_advantages(rollouts, log_prob.device)
        # There is one update: the ratio is 1, and the clip is idle.
        rewarded, values = grpo_terms(log_prob, log_prob.detach(), advantage)
        distilled, gate = gated_terms(log_prob, teacher, self.options.gate)
        loss = rewarded + self.options.coefficient * distilled
        lengths = ts.completion_lengths(rollouts)
        total = weighted_sum(loss, lengths, setup.resolved.objective)
        values |= {"loss": loss.detach(), "sdar_loss": distilled.detach(), "gate": gate}
        values |= {"student_entropy": scores.entropy, "student_log_prob": scores.untempered}
        return total, values


def gated_terms(
    log_prob: Float[Tensor, " n"], teacher: Float[Tensor, " n"], steepness: float
) -> tuple[Float[Tensor, " n"], Float[Tensor, " n"]]:
    """g Δ of each token, with the gradient of log_prob alone, and the gate g."""
    gap = teacher.detach() - log_prob
    gate = (steepness * gap.detach()).sigmoid()
    return gate * gap, gate
