"""Learn from the shortest correct completion of a problem, or from others that verdicts choose.

    loss = mean of D_i over the completions that ``keep`` names

Source: OASIS, Overcoming Scaling Limits in On-Policy Self-Distillation for LLM Reasoning,
https://arxiv.org/abs/2609.37915. Its teacher reads another rollout of the problem (context.source).

``kept_completions`` counts the completions that are learned from.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

from paint.algorithms.paint import score_rollouts
from paint.algorithms.variant import Variant
from paint.core.display import Clock
from paint.core.distributed import all_gather_objects
from paint.inference.rollouts import Rollout
from paint.training.train_step import Batch, Setup, StepResult
from paint.training.weighting import learn_from

Keep = Literal["shortest_correct", "correct", "wrong"]


@dataclass(frozen=True)
class Options:
    keep: Keep = "shortest_correct"
    """Of each problem the shortest with reward 1, all with reward 1, or those with another
    reward."""


class Oasis(Variant):
    needs_grades = True
    options: Options

    def step(self, setup: Setup, batch: Batch, step_index: int, clock: Clock) -> StepResult:
        rollouts = self.rollouts(setup, batch, step_index, clock)
        size = setup.config.rollout.samples_per_problem
        rows = kept_rows(all_gather_objects(rollouts), self.options.keep, size)
        # Others are logged without a loss.
        score = partial(score_rollouts, setup)
        return learn_from(setup, rollouts, rows, score, step_index, clock)


def kept_rows(rollouts: Sequence[Rollout], keep: Keep, size: int) -> set[int]:
    """The rows to learn from, of graded rollouts of all ranks; a problem has size neighbours."""
    if keep == "wrong":
        return {r.row for r in rollouts if not r.is_correct}
    correct = [r for r in rollouts if r.is_correct]
    if keep == "correct":
        return {r.row for r in correct}
    shortest: dict[int, int] = {}  # of equally short ones the first
    for r in sorted(correct, key=lambda r: (len(r.completion.ids), r.row)):
        shortest.setdefault(r.row // size, r.row)
    return set(shortest.values())
