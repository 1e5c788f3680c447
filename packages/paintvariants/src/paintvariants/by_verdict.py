"""Another divergence where the completion is wrong: forward KL on correct, reverse KL on wrong.

    loss = mean over completions of D_i,     D_i = objective.divergence where the grader accepts,
                                                   else wrong_divergence

Source: OG-OPSD, Outcome-Guided On-Policy Self-Distillation, https://arxiv.org/abs/2610.05070, on
incorrect rollouts alone; theirs learns from a prefix of them, which the teacher's entropy ends.

    paint train og-opsd --model.path MODEL --data.path FILE           # on OPSD, as in their paper
    paint train paint-by-verdict --model.path MODEL --data.path FILE  # on PAINT (ours)
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch

from paint.algorithms.paint import rollout_loss, teacher_hidden_states
from paint.algorithms.variant import Variant
from paint.inference.rollouts import Rollout
from paint.objective.divergences import find_divergence
from paint.training import train_step as ts
from paint.training.weighting import factors


@dataclass(frozen=True)
class Options:
    wrong_divergence: Literal["forward_kl", "reverse_kl", "jsd"] = "reverse_kl"
    """Divergence of the completions that the grader does not accept."""


class ByVerdict(Variant):
    needs_grades = True
    options: Options

    def score(self, setup: ts.Setup, rollouts: Sequence[Rollout]) -> ts.Scores:
        divergence = find_divergence(self.options.wrong_divergence)
        for_wrong = replace(setup, resolved=replace(setup.resolved, divergence=divergence))
        teacher = teacher_hidden_states(setup, rollouts)
        student = ts.student_hidden_states(setup, rollouts)
        is_correct = {}
        for r in rollouts:
            is_correct[r.row] = float(r.is_correct)
        right = factors(is_correct, rollouts, student.device)  # 1 or 0, by token
        loss, values = rollout_loss(setup, rollouts, student, teacher, right)
        other_loss, other = rollout_loss(for_wrong, rollouts, student, teacher, 1 - right)
        chosen = {}
        for name in values:
            chosen[name] = torch.where(right > 0, values[name], other[name])
        # Each is a sum over its completions, divided by the number of all.
        return loss + other_loss, chosen
