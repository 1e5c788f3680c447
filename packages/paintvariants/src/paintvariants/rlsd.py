"""RLSD: GRPO whose tokens get more or less of the advantage by a teacher with the solution.

    A_n = A ((1 − λ) + λ clip(w_n, 1 − ε, 1 + ε)),     w_n = (p_T / p_S)^sign(A) of the token

The reward decides the direction of an update, the teacher only its size. λ may go linearly from one
value to another. Source: Self-Distilled RLVR, https://arxiv.org/abs/2604.03128.

``teacher_weight`` is λ.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

from paint.algorithms.grpo import token_advantages
from paint.core.display import Clock
from paint.core.schedules import linear
from paint.core.settings import POSITIVE, setting, within
from paint.inference.rollouts import Rollout
from paint.objective.loss import weighted_sum
from paint.training import train_step as ts
from paintvariants.rewarded_variant import RewardedVariant, teacher_log_probs


@dataclass(frozen=True)
class Options:
    epsilon: float = setting(0.2, within("[0, 1)"), "default: 0.2")
    """Width ε of the clip around 1, in [0, 1); 0 is GRPO."""
    weight: float = setting(1.0, within("[0, 1]"), "default: 1")
    """Weight λ of the teacher in the first step, in [0, 1]; 0 is GRPO."""
    weight_end: float | None = setting(None, within("[0, 1]"), "None: weight in all steps")
    """λ after weight_steps steps, to which it goes linearly; None is weight in all steps."""
    weight_steps: int = setting(50, POSITIVE, "steps; default: 50")
    """Steps from weight to weight_end, at least 1."""


class Rlsd(RewardedVariant):
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
        score = partial(self.weighted_score, setup, weight)
        return ts.learn(setup, rollouts, score, step_index, clock)

    def weighted_score(
        self, setup: ts.Setup, weight: float, rollouts: Sequence[Rollout]
    ) -> ts.Scores:
        teacher, temperature = teacher_log_probs(setup, rollouts), setup.config.rollout.temperature
        log_prob = ts.student_log_probs(setup, rollouts, temperature).log_prob
        advantage = token_advantages(rollouts, log_prob.device)
        # Towards the teacher where the reward is above the mean, away from it where below.
        gain = advantage.sign() * (teacher - log_prob).detach()
        low, high = 1 - self.options.epsilon, 1 + self.options.epsilon
        advantage = advantage * ((1 - weight) + weight * gain.exp().clamp(low, high))
        # The ratio is 1 in the only update; its gradient is that of log p.
        loss = -advantage * (log_prob - log_prob.detach()).exp()
        lengths = ts.completion_lengths(rollouts)
        total = weighted_sum(loss, lengths, setup.resolved.objective)
        return total, {"loss": loss.detach(), "gain": gain}
