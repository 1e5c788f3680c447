"""RLSD: GRPO whose tokens get more or less of the advantage by a teacher with the solution.

    A_n = A clip(w_n, 1 − ε, 1 + ε),     w_n = (p_T / p_S)^sign(A) of the sampled token

The reward decides the direction of an update, the teacher only its size. Source: Self-Distilled
RLVR, https://arxiv.org/abs/2604.03128; there w starts at 1 and grows with the steps, and the width
of the clip is ours.

    paint train rlsd --model.path MODEL --data.path FILE
"""

from collections.abc import Sequence
from dataclasses import dataclass

from paint.algorithms.grpo import token_advantages
from paint.algorithms.variant import RewardedVariant, teacher_log_probs
from paint.core.settings import setting, within
from paint.objective.loss import weighted_sum
from paint.training import train_step as ts
from paint.training.rollouts import Rollout


@dataclass(frozen=True)
class Options:
    """The teacher's part in the advantage."""

    epsilon: float = setting(0.2, within("[0, 1)"), "default: 0.2")
    """Width ε of the clip around 1, in [0, 1); 0 is GRPO."""


class Rlsd(RewardedVariant):
    """GRPO with the teacher's weight on each token's advantage."""

    options: Options

    def score(self, setup: ts.Setup, rollouts: Sequence[Rollout]) -> ts.Scores:
        teacher, temperature = teacher_log_probs(setup, rollouts), setup.config.rollout.temperature
        log_prob = ts.student_log_probs(setup, rollouts, temperature).log_prob
        advantage = token_advantages(rollouts, log_prob.device)
        # Towards the teacher where the reward is above the mean, away from it where below.
        gain = advantage.sign() * (teacher - log_prob).detach()
        low, high = 1 - self.options.epsilon, 1 + self.options.epsilon
        advantage = advantage * gain.exp().clamp(low, high)
        # The ratio is 1 in the only update; its gradient is that of log p.
        loss = -advantage * (log_prob - log_prob.detach()).exp()
        lengths = ts.completion_lengths(rollouts)
        total = weighted_sum(loss, lengths, setup.resolved.objective)
        return total, {"loss": loss.detach(), "gain": gain}
