"""Distillation beside a task reward: PAINT's loss and GRPO's on the same completions.

    loss = PAINT + w GRPO,     w = grpo.weight

Every problem has ``rollout.samples_per_problem`` completions. Each of them is scored by the
teacher, and gets an advantage within its group. There is one update, so GRPO's ratio is 1 and its
clip idle.
"""

from collections.abc import Sequence
from functools import partial

from torch import Tensor

from paint.algorithms.grpo import reward, score_group
from paint.algorithms.paint import add_contexts, score_rollouts
from paint.core.display import Clock
from paint.training.rollouts import Rollout, ScoredRollout
from paint.training.train_step import Batch, Setup, generate_rollouts, learn, student_hidden_states


def mixed_step(
    setup: Setup, batch: Batch, step_index: int, clock: Clock
) -> tuple[list[ScoredRollout], float]:
    """One batch of groups, each row of a group on the same problem, and one update."""
    rollouts = generate_rollouts(setup, batch, step_index, clock)
    with clock("reward"):
        rollouts = reward(setup, rollouts)
    rollouts = add_contexts(setup, rollouts, step_index, clock)
    return learn(setup, rollouts, partial(score_both, setup), step_index, clock)


def score_both(setup: Setup, rollouts: Sequence[Rollout]) -> tuple[Tensor, dict[str, Tensor]]:
    """The sum of both losses of some completions; ``grpo_loss`` is GRPO's part without w."""
    hidden = student_hidden_states(setup, rollouts)
    distilled, values = score_rollouts(setup, rollouts, hidden)
    rewarded, of_grpo = score_group(setup, {}, rollouts, hidden)
    weight = setup.config.grpo.weight
    loss = values["loss"] + weight * of_grpo["loss"]
    return distilled + weight * rewarded, (
        of_grpo | values | {"loss": loss, "grpo_loss": of_grpo["loss"]}
    )
