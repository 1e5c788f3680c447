"""PAINT's training step: the paper's Algorithm 1 for one minibatch, top to bottom.

    rollouts -> overlap -> mask ratio -> teacher prompt -> scores -> clipped KL -> update

OPSD is the same step without masking and interpolation. Every random choice is a function of (seed,
step, row). Variants of the step are in packages/paintvariants.
"""

from collections.abc import Sequence
from functools import partial

from jaxtyping import Float
from torch import Tensor

from paint.core.display import Clock
from paint.inference.rollouts import Rollout
from paint.objective.fused import fused_paint_loss
from paint.training import train_step as ts
from paint.training.teacher_views import with_teacher_prompt
from paint.training.train_step import Setup
from paint.training.weighting import Weights, factors, learn_from, rows_with_context


def paint_step(setup: Setup, batch: ts.Batch, step_index: int, clock: Clock) -> ts.StepResult:
    """One update of the student on this rank's rows of a minibatch (paper: Algorithm 1)."""
    rollouts = ts.generate_rollouts(setup, batch, step_index, clock)  # ŷ ~ p_S(· | x)
    with clock("context"):
        rollouts = add_teacher_prompts(setup, rollouts, step_index)  # α, ρ(α), ỹ* = M(y*; ρ)
    score = partial(score_rollouts, setup)  # ℓ(x, y*), Eq. main_loss
    if setup.contexts.reads_feedback:  # ours; of some completions the grader has said nothing
        return learn_from(setup, rollouts, rows_with_context(rollouts), score, step_index, clock)
    return ts.learn(setup, rollouts, score, step_index, clock)  # θ by 1/|B| Σ ℓ(x, y*)


def add_teacher_prompts(
    setup: Setup, rollouts: Sequence[Rollout], step_index: int
) -> list[Rollout]:
    """Return the rollouts with overlap, mask ratio and teacher prompt (``with_teacher_prompt``)."""
    attempts = ts.attempts_by_row(setup, rollouts)
    write = partial(with_teacher_prompt, setup.policy, setup.resolved, setup.contexts)
    return [write(rollout, attempts[rollout.row], step_index) for rollout in rollouts]


def score_rollouts(
    setup: Setup, rollouts: Sequence[Rollout], weights: Weights | None = None
) -> ts.Scores:
    """Return the loss of completions under both views, p_T(· | x, ỹ*, ŷ_<n) and p_S(· | x, ŷ_<n).

    With weights, the loss of each token is multiplied by the weight of its completion.
    """
    # The teacher first: the student's graph is kept from its forward pass to the backward one.
    teacher = teacher_hidden_states(setup, rollouts)
    student = ts.student_hidden_states(setup, rollouts)
    by_token = None if weights is None else factors(weights, rollouts, student.device)
    return rollout_loss(setup, rollouts, student, teacher, by_token)


def rollout_loss(
    setup: Setup,
    rollouts: Sequence[Rollout],
    student_hidden: Float[Tensor, "n h"],
    teacher_hidden: Float[Tensor, "n h"],
    factors: Float[Tensor, " n"] | None = None,
) -> ts.Scores:
    """Return the loss of completions from hidden states of both views (``paint_loss``).

    factors multiply the loss of each token: a variant weighs tokens or completions by them.
    """
    loss = fused_paint_loss(
        student_hidden,
        teacher_hidden,
        setup.policy.lm_head,
        ts.completion_lengths(rollouts),
        setup.resolved.objective,
        tokens=ts.completion_ids(rollouts, student_hidden.device),
        factors=factors,
        teacher_lm_head=setup.teacher.lm_head,
    )
    return loss.value, {"loss": loss.per_token, **loss.stats}


def teacher_hidden_states(setup: Setup, rollouts: Sequence[Rollout]) -> Float[Tensor, "n h"]:
    """Return states of the completions' tokens after the teacher's prompts, without gradients."""
    parts = [part for rollout in rollouts for part in rollout.teacher_parts]
    prompts, completions = [prompt for prompt, _ in parts], [ids for _, ids in parts]
    shared = min(r.teacher_prompt.shared for r in rollouts if r.teacher_prompt)
    return setup.teacher.hidden_states(prompts, completions, shared)
