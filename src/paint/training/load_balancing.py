"""Load balancing: assignment of a step's rows to ranks and micro-batches by their tokens.

Row lengths differ by large factors, and a step takes as long as its slowest rank. The result does
not depend on the assignment, since every row has its weight in the complete step.
"""

from collections.abc import Iterator, Sequence

from accelerate import Accelerator

from paint.config.schema import TrainConfig
from paint.core.distributed import all_gather_objects
from paint.training.rollouts import Rollout


def balance_rows(
    accelerator: Accelerator, rollouts: Sequence[Rollout], limits: TrainConfig
) -> list[Rollout]:
    """Return this rank's part of the rollouts of all ranks, balanced by cost."""
    if accelerator.num_processes == 1:
        return list(rollouts)
    all_rollouts, ranks = all_gather_objects(list(rollouts)), accelerator.num_processes
    return assign_rows(all_rollouts, ranks, limits)[accelerator.process_index]


def assign_rows(
    rollouts: Sequence[Rollout], ranks: int, limits: TrainConfig
) -> list[list[Rollout]]:
    """Assign rollouts to ranks greedily: the most expensive first, each to the rank it loads least.

    Every rank gets a rollout if there are enough. The result does not depend on the input order.
    """

    def cost(part: Sequence[Rollout]) -> int:
        return sum(token_passes(micro) for micro in micro_batches(part, limits))

    assigned: list[list[Rollout]] = [[] for _ in range(ranks)]
    # The row breaks ties: every rank computes the assignment by itself, and finds the same.
    for rollout in sorted(rollouts, key=lambda r: (-cost([r]), r.row)):
        # The cost with the row: next to rows of its length it needs little padding.
        min(assigned, key=lambda part: cost([*part, rollout])).append(rollout)
    return assigned


def token_passes(micro: Sequence[Rollout]) -> int:
    """Tokens of a micro-batch with padding, times passes: the student's two, the teacher's one."""
    widths = [_widths(rollout) for rollout in micro]
    return len(micro) * (2 * max(s for s, _ in widths) + max(t for _, t in widths))


def micro_batches(rollouts: Sequence[Rollout], limits: TrainConfig) -> Iterator[list[Rollout]]:
    """Group rollouts of similar length, the longest first, so that there is little padding.

    A group has at most ``train.micro_batch_size`` rows and ``train.micro_batch_tokens`` tokens,
    padding included. A row over that limit is a group by itself.
    """
    group: list[Rollout] = []
    for rollout in sorted(rollouts, key=lambda r: max(_widths(r)), reverse=True):
        extended = [*group, rollout]
        # The first row is the longest, so all are padded to its width.
        tokens = len(extended) * max(_widths(extended[0]))
        is_over = tokens > limits.token_limit or len(extended) > limits.row_limit
        if group and is_over:
            yield group
            extended = [rollout]
        group = extended
    if group:
        yield group


def _widths(rollout: Rollout) -> tuple[int, int]:
    """Tokens of the student's sequence, and of the teacher's; 0 without a teacher."""
    completion, teacher = len(rollout.completion.ids), rollout.teacher_prompt
    return len(rollout.prompt) + completion, len(teacher.prompt) + completion if teacher else 0
