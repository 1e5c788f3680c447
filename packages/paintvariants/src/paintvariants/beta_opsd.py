"""β-OPSD: a target between student and teacher at every token, and the returns of a completion.

    p̃ ∝ p_S(· | x, ŷ_<n)^(1−w) p_T(· | x, ỹ*, ŷ_<n)^w,     w = 1/β, linear in the steps
    ρ_n = log p_S(ŷ_n) − log p̃(ŷ_n),     G_n = ρ_n + γ G_{n+1}
    loss = mean of G_n log p_S(ŷ_n)

p̃ and G_n are held fixed. With γ = 0 it is reverse KL to p̃ by the sampled tokens; a larger γ makes a
token answer for those that follow it. PAINT's interpolation is the same at few tokens. Source:
β-OPSD, https://arxiv.org/abs/2607.28582.

``teacher_weight`` is w, and ``kl`` the mean of ρ_n. objective.divergence, the clip and the
interpolation do not apply.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from jaxtyping import Float
from torch import Tensor

from paint.algorithms.paint import rollout_loss, teacher_hidden_states
from paint.algorithms.variant import Variant
from paint.core.display import Clock
from paint.core.schedules import linear
from paint.core.settings import POSITIVE, setting, within
from paint.inference.rollouts import Rollout
from paint.objective.divergences import find_divergence
from paint.objective.loss import weighted_sum
from paint.training import train_step as ts


@dataclass(frozen=True)
class Options:
    weight: float = setting(0.5, within("[0, 1]"), "default: 0.5")
    """Weight w of the teacher in the first step, in [0, 1]; 1 is the teacher alone."""
    weight_end: float | None = setting(0.8, within("[0, 1]"), "None: weight in all steps")
    """w after weight_steps steps, to which it goes linearly; None is weight in all steps."""
    weight_steps: int = setting(199, POSITIVE, "steps; default: 199")
    """Steps from weight to weight_end, at least 1."""
    discount: float = setting(0.99, within("[0, 1]"), "default: 0.99")
    """Discount of the tokens that follow, in [0, 1]; 0 is each token by itself."""


class BetaOpsd(Variant):
    uses_policy_gradient = True
    options: Options

    def step(
        self, setup: ts.Setup, batch: ts.Batch, step_index: int, clock: Clock
    ) -> ts.StepResult:
        options = self.options
        weight = linear(step_index, options.weight, options.weight_end, options.weight_steps)
        rollouts = [
            replace(r, metrics={**r.metrics, "teacher_weight": weight})
            for r in self.rollouts(setup, batch, step_index, clock)
        ]
        # The target at all positions, and the sampled token's log ratio to it.
        resolved = setup.resolved.changed(
            "objective", interpolation_weight=1 - weight, top_fraction=1.0, clip_mode="none"
        )
        sampled = replace(resolved, divergence=find_divergence("sampled_token"))
        score = partial(self.score, replace(setup, resolved=sampled))
        return ts.learn(setup, rollouts, score, step_index, clock)

    def score(self, setup: ts.Setup, rollouts: Sequence[Rollout]) -> ts.Scores:
        teacher = teacher_hidden_states(setup, rollouts)
        student = ts.student_hidden_states(setup, rollouts)
        with torch.no_grad():
            _, values = rollout_loss(setup, rollouts, student, teacher)
        lengths, temperature = ts.completion_lengths(rollouts), setup.config.loss_temperature
        weights = returns(values["kl"], lengths, self.options.discount)
        log_prob = ts.student_log_probs(setup, rollouts, temperature, hidden=student).log_prob
        loss = weights * log_prob
        total = weighted_sum(loss, lengths, setup.resolved.objective)
        return total, values | {"loss": loss.detach()}


def returns(
    values: Float[Tensor, " n"], lengths: Sequence[int], discount: float
) -> Float[Tensor, " n"]:
    """G_n = v_n + γ G_{n+1} within each completion."""
    sums: list[float] = []
    # From the last token on; in float64 on the host, as a completion may be long.
    for part in reversed(values.split(list(lengths))):
        following = 0.0
        for value in reversed(part.tolist()):
            following = value + discount * following
            sums.append(following)
    return values.new_tensor(sums[::-1])
