"""A contrast of two contexts as target: the solution's teacher, away from a wrong answer's (ours).

    target logits = z + s (z − z'),     z with context.source, z' with ``against``, s = strength

What both contexts change alike, such as style, cancels.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from paint.algorithms.paint import add_teacher_prompts, rollout_loss, teacher_hidden_states
from paint.algorithms.variant import Variant
from paint.core.display import Clock
from paint.inference.rollouts import Rollout
from paint.training import train_step as ts


@dataclass(frozen=True)
class Options:
    strength: float = 0.5
    """Strength s; 0 is PAINT."""
    against: str = "wrong_answer"
    """The other context: a value of context.source."""


class Contrast(Variant):
    options: Options

    def step(
        self, setup: ts.Setup, batch: ts.Batch, step_index: int, clock: Clock
    ) -> ts.StepResult:
        rollouts = self.rollouts(setup, batch, step_index, clock)
        config = setup.config.changed("context", source=(self.options.against,))
        other = replace(setup, resolved=replace(setup.resolved, config=config))

        def score(micro: Sequence[Rollout]) -> ts.Scores:
            mine = teacher_hidden_states(setup, micro)
            against = teacher_hidden_states(other, add_teacher_prompts(other, micro, step_index))
            # The head is linear, so this is the contrast of the logits. It costs one more pass.
            target = mine + self.options.strength * (mine - against)
            return rollout_loss(setup, micro, ts.student_hidden_states(setup, micro), target)

        return ts.learn(setup, rollouts, score, step_index, clock)
