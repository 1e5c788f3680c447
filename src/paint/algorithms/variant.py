"""PAINT's step with another score of its completions, of which most variants are made.

rollouts -> teacher prompts -> score -> update
"""

from collections.abc import Sequence
from functools import partial

from paint.algorithms.paint import add_teacher_prompts, score_rollouts
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
