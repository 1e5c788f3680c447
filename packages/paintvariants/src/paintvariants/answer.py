"""Learn from the tokens of the last box alone (ours).

    D_i = Σ_n w_n D_n / Σ_n w_n of a completion,     w_n = 1 within the last box, else 0

A completion without a box teaches nothing.
"""

from collections.abc import Sequence

import torch

from paint.algorithms.paint import rollout_loss, teacher_hidden_states
from paint.algorithms.variant import Variant
from paint.inference.rollouts import Rollout
from paint.training import train_step as ts
from paint.training.token_log import token_bytes
from paintvariants.token_kinds import KINDS, kinds_of_tokens
from paintvariants.token_weights import mean_one_by_completion


class AnswerAlone(Variant):
    def score(self, setup: ts.Setup, rollouts: Sequence[Rollout]) -> ts.Scores:
        teacher = teacher_hidden_states(setup, rollouts)
        student = ts.student_hidden_states(setup, rollouts)
        is_answer: list[bool] = []
        for rollout in rollouts:
            # Bytes, as a character may lie in several tokens.
            pieces = token_bytes(setup.policy.tokenizer, rollout.completion.ids)
            is_answer += [KINDS[kind] == "answer" for kind in kinds_of_tokens(pieces)]
        lengths, options = ts.completion_lengths(rollouts), setup.config.objective
        selected = torch.tensor(is_answer, device=student.device).float()
        weights = mean_one_by_completion(selected, lengths, options)
        return rollout_loss(setup, rollouts, student, teacher, weights)
