"""Weights of completions, and learning from some of them only: the loss is Σ w D / Σ w.

Weights are given by row, the place in the step's batch, and are equal on all ranks.
"""

from collections.abc import Callable, Mapping, Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from paint.config.schema import ObjectiveConfig
from paint.core.display import Clock
from paint.core.distributed import all_gather_objects, gather_on_rank0
from paint.inference.rollouts import Rollout
from paint.training.train_step import (
    Scores,
    Setup,
    StepResult,
    completion_lengths,
    learn,
    loss_count,
)

Weights = Mapping[int, float]
WeightedScore = Callable[[Sequence[Rollout], Weights], Scores]
"""Scores a micro-batch, each completion with its weight."""


def rows_with_context(rollouts: Sequence[Rollout]) -> set[int]:
    """Return the rows of all ranks whose teacher reads a context."""
    views = [(r.row, r.teacher_prompt) for r in rollouts]
    mine = [row for row, view in views if view and view.context is not None]
    return set(all_gather_objects(mine))


def mean_one(
    rollouts: Sequence[Rollout], value: Callable[[Rollout], float], options: ObjectiveConfig
) -> dict[int, float]:
    """Return weights of the completions of all ranks, in proportion to their values.

        w_i = v_i Σ_j c_j / Σ_j v_j c_j,     c = 1, or with reduction token the tokens that count

    All are 0 where no completion has a value above 0.
    """
    mine = [(r.row, value(r), loss_count([r], options)) for r in rollouts]
    # By row, so that the sums do not depend on how the rows lie on the ranks.
    every = sorted(all_gather_objects(mine))
    total = sum(v * count for _, v, count in every)
    counts = sum(count for _, _, count in every)
    return {row: v * counts / total if total else 0.0 for row, v, _ in every}


def factors(
    weights: Weights, rollouts: Sequence[Rollout], device: torch.device
) -> Float[Tensor, " n"]:
    """Return each token's factor (n): the weight of its completion."""
    by_completion = torch.tensor([weights[r.row] for r in rollouts], device=device)
    lengths = torch.tensor(completion_lengths(rollouts), device=device)
    return by_completion.repeat_interleave(lengths)


def learn_from(
    setup: Setup,
    rollouts: Sequence[Rollout],
    rows: set[int],
    score: WeightedScore,
    step_index: int,
    clock: Clock,
) -> StepResult:
    """Update by the mean loss of these rows; without any, nothing. Others have no values."""
    others = sorted(set(all_gather_objects([r.row for r in rollouts])) - rows)
    # Each rank needs a row for its passes: where there are too few, others fill up with weight 0.
    spare = others[: max(setup.accelerator.num_processes - len(rows), 0)]
    used = [r for r in rollouts if r.row in rows.union(spare)]
    scored: list[Rollout] = []
    norm = 0.0
    # All ranks have the same set, and pass over the collectives together. An optimizer step without
    # a gradient would move the weights by its momentum.
    if rows:
        weights = mean_one(used, lambda r: float(r.row in rows), setup.config.objective)
        scored, norm = learn(setup, used, lambda micro: score(micro, weights), step_index, clock)
    left_out = gather_on_rank0([r for r in rollouts if r.row not in rows])
    learned = [r for r in scored if r.row in rows]
    return sorted([*learned, *left_out], key=lambda r: r.row), norm
