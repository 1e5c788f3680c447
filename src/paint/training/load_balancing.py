"""Load balancing: assignment of a step's rows to ranks and micro-batches by their tokens.

The result of a step does not depend on it: every row has its weight in the complete step.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from accelerate import Accelerator

from paint.config.schema import TrainConfig
from paint.core.distributed import all_gather_objects
from paint.inference.engine import TurnPart
from paint.inference.rollouts import Rollout
from paint.models.rows import joined_rows


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
    """Assign rollouts greedily: the most expensive first, each to the rank that it loads least."""

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
    shapes = [_shape(rollout) for rollout in micro]
    student = sum(s.rows for s, _ in shapes) * max(s.width for s, _ in shapes)
    return 2 * student + sum(t.rows for _, t in shapes) * max(t.width for _, t in shapes)


def micro_batches(rollouts: Sequence[Rollout], limits: TrainConfig) -> Iterator[list[Rollout]]:
    """Group rollouts of similar length, the longest first, so that there is little padding.

    A group has at most ``train.micro_batch_size`` rows and ``train.micro_batch_tokens`` tokens with
    padding, or is one rollout. Each turn that no other goes on is a row.
    """
    group: list[Rollout] = []
    for rollout in sorted(rollouts, key=_width, reverse=True):
        extended = [*group, rollout]
        rows = sum(max(part.rows for part in _shape(r)) for r in extended)
        # The first row is the longest, so all are padded to its width.
        tokens = rows * _width(extended[0])
        is_over = tokens > limits.token_limit or rows > limits.row_limit
        if group and is_over:
            yield group
            extended = [rollout]
        group = extended
    if group:
        yield group


class _Shape(NamedTuple):
    """Rows of a rollout's forward pass, and the tokens of the longest."""

    rows: int
    width: int


def _width(rollout: Rollout) -> int:
    return max(shape.width for shape in _shape(rollout))


def _shape(rollout: Rollout) -> tuple[_Shape, _Shape]:
    """The student's rows, and the teacher's; of width 0 without a teacher."""
    student, teacher = rollout.student_parts, rollout.teacher_parts
    return _shape_of(student), _shape_of(teacher) if teacher else _Shape(1, 0)


def _shape_of(parts: Sequence[TurnPart]) -> _Shape:
    if len(parts) == 1:
        [(prompt, completion)] = parts
        return _Shape(1, len(prompt) + len(completion))
    rows = joined_rows([prompt for prompt, _ in parts], [ids for _, ids in parts])
    return _Shape(len(rows), max(len(row.ids) for row in rows))
