"""Reference solutions as completions that are learned from: by SFT, or beside another method.

    L = ℓ + w ℓ_SFT,     ℓ_SFT = −mean of log p_S(y*_n | x, y*_{<n})

ℓ is the method's loss, and ℓ_SFT that of SFT on the problems of the step, whether their completions
are learned from or not. Both are means by objective.reduction.
"""

from collections.abc import Sequence

from paint.core.display import Clock
from paint.data.problems import Problem
from paint.inference.conversations import written_conversation
from paint.inference.engine import Completion
from paint.inference.rollouts import Rollout, rollout_of
from paint.objective.loss import weighted_sum
from paint.training.run_log import loss_metrics
from paint.training.train_step import (
    Batch,
    Scores,
    Setup,
    accumulate,
    completion_lengths,
    student_log_probs,
)


def reference(setup: Setup, row: int, problem: Problem) -> Rollout:
    """Return the solution, or the turns of a written conversation, in place of a completion."""
    policy = setup.policy
    if problem.conversation:
        whole = written_conversation(policy, problem, problem.conversation, "reference")
        return rollout_of(policy.decode, row, problem, [], whole)
    ids = tuple(policy.reference_ids(problem))
    # Nothing was sampled: metrics of rollouts leave out what comes from a reference.
    completion = Completion(ids, (), truncated=False, source="reference")
    prompt = policy.student_prompt(problem)
    return Rollout(row, problem, prompt, completion, problem.solution)


def score_reference(setup: Setup, rollouts: Sequence[Rollout]) -> Scores:
    """Return the negative log-likelihood of references under the student, at temperature 1."""
    scores, lengths = student_log_probs(setup, rollouts, 1.0), completion_lengths(rollouts)
    loss = -weighted_sum(scores.log_prob, lengths, setup.resolved.objective)
    return loss, {"loss": -scores.log_prob.detach(), "student_entropy": scores.entropy}


def add_gradient_of_solutions(
    setup: Setup, batch: Batch, step_index: int, clock: Clock
) -> dict[str, float]:
    """Add the gradient of w ℓ_SFT to that of the step; return w and this rank's ℓ_SFT."""
    config, ranks = setup.config, setup.accelerator.num_processes
    if not config.objective.has_sft:
        return {}
    weight = config.objective.sft_weight_of(step_index)
    if not weight:
        return {"sft_weight": weight}
    # Completions of a problem have one solution, which is repeated where each rank needs a row.
    samples = config.rollout.samples_per_problem
    copies = -(-ranks * samples // config.train.batch_size)
    learned = [reference(setup, row, problem) for row, problem in batch if row % samples < copies]

    def score(micro: Sequence[Rollout]) -> Scores:
        loss, values = score_reference(setup, micro)
        return weight * loss, values

    with clock("solutions"):
        scored = accumulate(setup, learned, score)
    metrics = {"sft_weight": weight}
    if scored:  # a rank other than the first may have none
        metrics["sft_loss"] = loss_metrics(scored, setup.resolved.objective)["loss"]
    return metrics
