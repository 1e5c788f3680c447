"""Tokens weigh as much as the entropies of teacher and student differ.

    D_i = Σ_n w_n D_n / Σ_n w_n of a completion,     w_n = |H_T − H_S|, held fixed

Source: E2-OPSD: Taming Entropy Overshoot in On-Policy Self-Distillation,
https://arxiv.org/abs/2610.05048; there the gap also sets the direction of a token's KL.

    paint train e2-opsd --model.path MODEL --data.path FILE            # on OPSD, a neighbour shown
    paint train paint-entropy-gap --model.path MODEL --data.path FILE  # on PAINT (ours)

The weights need the entropies of all tokens of a completion, so the loss is computed twice: five
matrix products a token in place of three. A subclass with other ``weights`` weighs tokens by them.
"""

from collections.abc import Mapping, Sequence
from functools import partial

import torch
from jaxtyping import Float
from torch import Tensor

from paint.algorithms.base import Algorithm
from paint.algorithms.paint import add_teacher_prompts, rollout_loss, teacher_hidden_states
from paint.core.display import Clock
from paint.training import train_step as ts
from paint.training.rollouts import Rollout
from paint.training.weighting import mean_one_by_completion

Statistics = Mapping[str, Tensor]


class EntropyGap(Algorithm):
    """PAINT whose tokens weigh by their statistics."""

    needs_context = True

    def weights(self, stats: Statistics) -> Float[Tensor, " n"]:
        """Weights, at least 0, of tokens with these statistics (paint.objective.loss.Loss)."""
        return (stats["teacher_entropy"] - stats["student_entropy"]).abs()

    def step(
        self, setup: ts.Setup, batch: ts.Batch, step_index: int, clock: Clock
    ) -> ts.StepResult:
        rollouts = ts.generate_rollouts(setup, batch, step_index, clock)
        with clock("context"):
            rollouts = add_teacher_prompts(setup, rollouts, step_index)
        return ts.learn(setup, rollouts, partial(self.score, setup), step_index, clock)

    def score(self, setup: ts.Setup, rollouts: Sequence[Rollout]) -> ts.Scores:
        teacher = teacher_hidden_states(setup, rollouts)
        student = ts.student_hidden_states(setup, rollouts)
        with torch.no_grad():
            _, stats = rollout_loss(setup, rollouts, student, teacher)
        lengths, options = ts.completion_lengths(rollouts), setup.config.objective
        by_token = mean_one_by_completion(self.weights(stats), lengths, options)
        return rollout_loss(setup, rollouts, student, teacher, by_token)
