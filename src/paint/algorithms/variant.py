"""PAINT's step with another score of its completions, of which most variants are made.

rollouts -> rewards, with RewardedVariant -> teacher prompts -> score -> update
"""

from collections.abc import Sequence
from functools import partial

from jaxtyping import Float
from torch import Tensor

from paint.algorithms.grpo import reward
from paint.algorithms.paint import add_teacher_prompts, score_rollouts, teacher_hidden_states
from paint.core.display import Clock
from paint.inference.rollouts import Rollout
from paint.resolve.algorithm import Algorithm
from paint.training import train_step as ts


class Variant(Algorithm):
    """PAINT's step; a subclass has another ``score``, or another ``step`` on the ``rollouts``."""

    needs_context = True

    def step(
        self, setup: ts.Setup, batch: ts.Batch, step_index: int, clock: Clock
    ) -> ts.StepResult:
        rollouts = self.rollouts(setup, batch, step_index, clock)
        return ts.learn(setup, rollouts, partial(self.score, setup), step_index, clock)

    def rollouts(
        self, setup: ts.Setup, batch: ts.Batch, step_index: int, clock: Clock
    ) -> list[Rollout]:
        """Return a completion for every row, graded, with its teacher prompt."""
        rollouts = ts.generate_rollouts(setup, batch, step_index, clock)
        with clock("context"):
            return add_teacher_prompts(setup, rollouts, step_index)

    def score(self, setup: ts.Setup, rollouts: Sequence[Rollout]) -> ts.Scores:
        """Return the loss of a micro-batch, and values of its tokens by name."""
        return score_rollouts(setup, rollouts)


class RewardedVariant(Variant):
    """The same on groups of completions with GRPO's rewards and advantages."""

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
