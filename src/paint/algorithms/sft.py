"""Supervised fine-tuning: maximum likelihood of the reference solutions.

    L = −mean over tokens of log p_S(y*_n | x, y*_{<n})

The reference takes the completion's place, so a step samples nothing and needs no teacher (paper:
section 'Compared post-training recipes').
"""

from collections.abc import Sequence
from functools import partial

from jaxtyping import Float
from torch import Tensor

from paint.core.display import Clock
from paint.data.problems import Problem
from paint.inference.engine import Completion
from paint.objective.loss import weighted_sum
from paint.objective.options import Reduction
from paint.training.rollouts import Rollout, ScoredRollout
from paint.training.train_step import (
    Batch,
    Setup,
    accumulate,
    completion_lengths,
    student_log_probs,
    update,
)


def sft_step(
    setup: Setup, batch: Batch, step_index: int, clock: Clock
) -> tuple[list[ScoredRollout], float]:
    """One update towards the reference solutions of a minibatch: off policy, without a teacher.

    Source: paper, 'SFT'.
    """
    references = [reference(setup, row, problem) for row, problem in batch]

    with clock("loss"):
        scored = accumulate(setup, references, partial(score_reference, setup))

    with clock("update"):
        gradient_norm = update(setup, step_index)
    return scored, gradient_norm


def reference(setup: Setup, row: int, problem: Problem) -> Rollout:
    """The verified solution in place of the student's completion, its end token included."""
    policy = setup.policy
    ids = tuple(policy.solution_ids(problem.solution))
    completion = Completion(ids, (), truncated=False, source="reference")
    prompt = policy.student_prompt(problem)
    return Rollout(row, problem, prompt, completion, problem.solution)


def score_reference(setup: Setup, rollouts: Sequence[Rollout]) -> tuple[Tensor, dict[str, Tensor]]:
    """The negative log-likelihood of references under the student, at temperature 1."""
    scores = student_log_probs(setup, rollouts, 1.0)
    loss = sft_loss(
        scores.log_prob,
        completion_lengths(rollouts),
        reduction=setup.config.objective.reduction,
        skip_tokens=setup.config.objective.skip_tokens,
    )
    return loss, {"loss": -scores.log_prob.detach(), "student_entropy": scores.entropy}


def sft_loss(
    log_prob: Float[Tensor, " n"],
    lengths: Sequence[int],
    *,
    reduction: Reduction = "token",
    skip_tokens: int = 0,
) -> Tensor:
    """−log p_S(y*_n | x, y*_{<n}): mean over all tokens, or over each completion's and then those.

    Raises ValueError for an unknown reduction.
    """
    return -weighted_sum(log_prob, lengths, reduction, skip_tokens)
