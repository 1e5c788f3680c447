"""Supervised fine-tuning: maximum likelihood of the reference solutions.

    L = −mean of log p_S(y*_n | x, y*_{<n}) over tokens, or over completions (objective.reduction)

The reference takes the completion's place, so a step samples nothing and needs no teacher (paper:
section 'Compared post-training recipes').
"""

from functools import partial

from paint.core.display import Clock
from paint.inference.rollouts import Rollout
from paint.training.solutions import reference, score_reference
from paint.training.train_step import Batch, Setup, learn


def sft_step(
    setup: Setup, batch: Batch, step_index: int, clock: Clock
) -> tuple[list[Rollout], float]:
    """Update the student towards the reference solutions of a minibatch (paper: 'SFT')."""
    references = [reference(setup, row, problem) for row, problem in batch]
    return learn(setup, references, partial(score_reference, setup), step_index, clock)
