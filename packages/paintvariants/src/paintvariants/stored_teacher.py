"""Distillation from a teacher whose likeliest entries are stored with the completions (ours).

    loss = mean of the clipped KL(p ‖ q) over the bins p_1 ... p_k and p_rest

    paint train demo-paint --train.method paintvariants.stored_teacher:StoredTeacher \
        --rollout.engine stored --rollout.stored FILE --objective.temperature 1

No teacher is in memory and no context is read: the teacher has read it when it was scored.
paintvariants.top_k has the loss, docs/how-to/rollouts.md what the file holds.
"""

from collections.abc import Sequence
from functools import partial

import numpy as np
import torch

from paint.config.schema import Config, ConfigError
from paint.core.display import Clock
from paint.data.problems import DataError
from paint.inference.engine import TeacherTop
from paint.inference.rollouts import Rollout
from paint.resolve.algorithm import Algorithm
from paint.resolve.engines import engine_of
from paint.training import train_step as ts
from paintvariants.top_k import top_k_loss


class StoredTeacher(Algorithm):
    def check(self, config: Config) -> None:
        if not engine_of(config.rollout).is_stored:
            raise ConfigError(
                f'rollout.engine must be "stored" with train.method {config.train.method}, got '
                f'"{config.rollout.engine}" (rollout.stored holds the teacher\'s log-probs)'
            )

    def step(
        self, setup: ts.Setup, batch: ts.Batch, step_index: int, clock: Clock
    ) -> ts.StepResult:
        rollouts = ts.generate_rollouts(setup, batch, step_index, clock)
        return ts.learn(setup, rollouts, partial(self.score, setup), step_index, clock)

    def score(self, setup: ts.Setup, rollouts: Sequence[Rollout]) -> ts.Scores:
        tops = [_teacher_of(rollout, setup.config) for rollout in rollouts]
        student = ts.student_hidden_states(setup, rollouts)
        ids = torch.from_numpy(np.concatenate([top.ids for top in tops])).long()
        log_probs = torch.from_numpy(np.concatenate([top.log_probs for top in tops]))
        loss = top_k_loss(
            student,
            setup.policy.lm_head,
            ts.completion_lengths(rollouts),
            ids.to(student.device),
            log_probs.to(student.device),
            setup.resolved.objective,
            tokens=ts.completion_ids(rollouts, student.device),
        )
        return loss.value, {"loss": loss.per_token, **loss.stats}


def _teacher_of(rollout: Rollout, config: Config) -> TeacherTop:
    """The stored entries. Raises DataError without any, or at another temperature."""
    top, place = rollout.completion.teacher_top, f"{config.rollout.stored}: problem "
    if top is None:
        raise DataError(
            f"{place}{rollout.problem.name}: its rollout has no teacher_ids and no "
            f"teacher_log_probs; score it (docs/how-to/rollouts.md)"
        )
    if top.temperature != config.loss_temperature:
        raise DataError(
            f"{place}{rollout.problem.name}: the teacher's log-probs are at temperature "
            f"{top.temperature:g}, and the loss is at {config.loss_temperature:g}; pass "
            f"--objective.temperature {top.temperature:g}"
        )
    return top
