"""Supervised fine-tuning: maximum likelihood of the reference solutions.

    L = −mean of log p_S(y*_n | x, y*_{<n}) over tokens, or over completions (objective.reduction)

The reference takes the completion's place, so a step samples nothing and needs no teacher (paper:
section 'Compared post-training recipes').
"""

from collections.abc import Sequence
from functools import partial

from torch import Tensor

from paint.core.display import Clock
from paint.data.problems import Problem
from paint.inference.conversations import written_conversation
from paint.inference.engine import Completion
from paint.objective.loss import weighted_sum
from paint.training.rollouts import Rollout, ScoredRollout, rollout_of
from paint.training.train_step import Batch, Setup, completion_lengths, learn, student_log_probs


def sft_step(
    setup: Setup, batch: Batch, step_index: int, clock: Clock
) -> tuple[list[ScoredRollout], float]:
    """One update towards the reference solutions of a minibatch: off policy (paper: 'SFT')."""
    references = []
    for row, problem in batch:
        references.append(reference(setup, row, problem))
    return learn(setup, references, partial(score_reference, setup), step_index, clock)


def reference(setup: Setup, row: int, problem: Problem) -> Rollout:
    """The verified solution in place of the student's completion, ended as the template does.

    Of a conversation, all turns of the assistant.
    """
    policy = setup.policy
    if problem.conversation:
        whole = written_conversation(policy, problem, problem.conversation, "reference")
        return rollout_of(policy, row, problem, [], whole)
    ids = tuple(policy.reference_ids(problem))
    # Nothing was sampled: metrics of rollouts leave out what comes from a reference.
    completion = Completion(ids, (), truncated=False, source="reference")
    prompt = policy.student_prompt(problem)
    return Rollout(row, problem, prompt, completion, problem.solution)


def score_reference(setup: Setup, rollouts: Sequence[Rollout]) -> tuple[Tensor, dict[str, Tensor]]:
    """The negative log-likelihood of references under the student, at temperature 1."""
    scores, lengths = student_log_probs(setup, rollouts, 1.0), completion_lengths(rollouts)
    loss = -weighted_sum(scores.log_prob, lengths, setup.resolved.objective)
    return loss, {"loss": -scores.log_prob.detach(), "student_entropy": scores.entropy}
