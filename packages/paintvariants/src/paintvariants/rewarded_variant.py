"""PAINT's step on groups of completions with GRPO's rewards, of which some variants are made."""

from collections.abc import Sequence

from jaxtyping import Float
from torch import Tensor

from paint.algorithms.grpo import reward
from paint.algorithms.paint import teacher_hidden_states
from paint.algorithms.variant import Variant
from paint.core.display import Clock
from paint.inference.rollouts import Rollout
from paint.training import train_step as ts


class RewardedVariant(Variant):
    """The step on groups of completions with GRPO's rewards and advantages."""

    needs_grades = True
    min_samples = 2
    uses_policy_gradient = True

    def rollouts(
        self, setup: ts.Setup, batch: ts.Batch, step_index: int, clock: Clock
    ) -> list[Rollout]:
        rollouts = super().rollouts(setup, batch, step_index, clock)
        with clock("reward"):
            return reward(setup, rollouts)


def teacher_log_probs(setup: ts.Setup, rollouts: Sequence[Rollout]) -> Float[Tensor, " n"]:
    """Return the teacher's log-prob of each token (n), at the sampling temperature."""
    hidden, head = teacher_hidden_states(setup, rollouts), setup.teacher.lm_head
    temperature = setup.config.rollout.temperature
    return ts.student_log_probs(setup, rollouts, temperature, hidden=hidden, head=head).log_prob
