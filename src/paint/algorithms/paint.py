"""PAINT's training step: the paper's Algorithm 1 for one minibatch, top to bottom.

    rollouts -> overlap -> mask ratio -> teacher prompt -> scores -> clipped KL -> update

OPSD is the same step without masking and interpolation (recipes/demo-opsd.toml). Every random
choice is a pure function of (seed, step, row), so a resumed run repeats the original one.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from jaxtyping import Float
from torch import Tensor

from paint.core.display import Clock
from paint.inference.engine import derive_seed, sampling_from
from paint.inference.local import LocalEngine
from paint.objective.fused import fused_paint_loss
from paint.training.prompt_filter import require_prompt_fits
from paint.training.rollouts import Rollout, ScoredRollout, TeacherPrompt
from paint.training.token_log import token_bytes
from paint.training.train_step import (
    Batch,
    Setup,
    completion_ids,
    completion_lengths,
    generate_rollouts,
    learn,
    student_hidden_states,
    token_factors,
    verified_peers,
    weigh_by_verdict,
)


def paint_step(
    setup: Setup, batch: Batch, step_index: int, clock: Clock
) -> tuple[list[ScoredRollout], float]:
    """One update of the student on this rank's rows of a minibatch (paper: Algorithm 1).

    Returns the rollouts of all ranks with their per-token values, in the order of the minibatch,
    and the norm of the gradient.
    """
    rollouts = generate_rollouts(setup, batch, step_index, clock)
    rollouts = add_contexts(setup, rollouts, step_index, clock)
    return learn(setup, rollouts, partial(score_rollouts, setup), step_index, clock)


def add_contexts(
    setup: Setup, rollouts: Sequence[Rollout], step_index: int, clock: Clock
) -> list[Rollout]:
    """Build the teacher's prompts of this rank's rollouts, and weigh them by verdict if asked."""
    with clock("context"):
        rollouts = add_teacher_prompts(setup, rollouts, step_index)
    if setup.config.teacher.reason_first:
        with clock("rationale"):
            rollouts = write_rationales(setup, rollouts, step_index)
    if setup.config.objective.uses_verdicts:
        with clock("reward"):
            rollouts = weigh_by_verdict(setup, rollouts)
    return list(rollouts)


def add_teacher_prompts(
    setup: Setup, rollouts: Sequence[Rollout], step_index: int
) -> list[Rollout]:
    """Compute overlap and mask ratio of rollouts, and build their teacher prompts.

    Source: section 'Overlap-Adaptive Partial Solution Conditioning'.
    """
    contexts, policy = setup.contexts, setup.policy
    peers = verified_peers(setup, rollouts) if contexts.needs_peers else {}
    with_prompts = []
    for rollout in rollouts:
        problem, mine = rollout.problem, peers.get(rollout.row, ())
        seed = derive_seed(setup.config.train.seed, step_index, rollout.row)
        references = contexts.references(problem, seed, mine)
        metrics = {**rollout.metrics, **contexts.measure(rollout.text, problem, references)}
        shown = contexts.context(references, metrics["mask_ratio"], seed)
        prompt = policy.teacher_prompt(problem, shown.text, complete=shown.complete)
        require_prompt_fits(prompt, problem, policy, setup.config)
        if contexts.needs_peers:
            metrics["verified_peers"] = len(mine)
        view = TeacherPrompt(shown.text, shown.complete, prompt)
        with_prompts.append(replace(rollout, teacher_prompt=view, metrics=metrics))
    return with_prompts


def write_rationales(setup: Setup, rollouts: Sequence[Rollout], step_index: int) -> list[Rollout]:
    """Sample the teacher's rationale of its context, if it has one, and append it to its prompt.

    Source: appendix 'Training Algorithm', which names reason-first teachers.
    """
    policy, config = setup.policy, setup.config
    with_context = [
        (r, r.teacher_prompt.context, r.teacher_prompt.complete)
        for r in rollouts
        if r.teacher_prompt and r.teacher_prompt.context is not None
    ]
    prompts = [
        policy.rationale_prompt(r.problem, context, complete=complete)
        for r, context, complete in with_context
    ]
    seeds = [
        derive_seed(config.train.seed, "rationale", step_index, r.row) for r, _, _ in with_context
    ]
    sampling = replace(
        sampling_from(config.rollout), max_new_tokens=config.teacher.rationale_tokens
    )

    # Always in this process: servers hold the student, not the teacher.
    engine = LocalEngine(policy, batch_size=config.rollout.batch_size)
    with setup.teacher.view():
        rationales = engine.generate(prompts, sampling, seeds)

    without = {"rationale_tokens": 0}
    with_rationales = {r.row: replace(r, metrics={**r.metrics, **without}) for r in rollouts}
    for (rollout, context, complete), written in zip(with_context, rationales, strict=True):
        rationale = policy.decode(written.ids).strip()
        prompt = policy.teacher_prompt(
            rollout.problem, context, complete=complete, rationale=rationale
        )
        teacher_prompt = TeacherPrompt(context, complete, prompt, rationale)
        metrics = {**rollout.metrics, "rationale_tokens": len(written.ids)}
        with_rationales[rollout.row] = replace(
            rollout, teacher_prompt=teacher_prompt, metrics=metrics
        )
    return list(with_rationales.values())


def score_rollouts(
    setup: Setup,
    rollouts: Sequence[Rollout],
    student_hidden: Tensor | None = None,
    teacher_hidden: Tensor | None = None,
) -> tuple[Tensor, dict[str, Tensor]]:
    """Compute the loss of completions (paper: Eq. main_loss), from hidden states if given."""
    if teacher_hidden is None:
        teacher_hidden = teacher_hidden_states(setup, rollouts)
    if student_hidden is None:
        student_hidden = student_hidden_states(setup, rollouts)

    # All completions of a micro-batch have one divergence.
    options = setup.resolved.objective_of(rollouts[0].is_correct)
    pieces = None
    if options.position_weights != "uniform":
        ids = [i for rollout in rollouts for i in rollout.completion.ids]
        pieces = token_bytes(setup.policy.tokenizer, ids)
    loss = fused_paint_loss(
        student_hidden,
        teacher_hidden,
        setup.policy.lm_head,
        completion_lengths(rollouts),
        options,
        tokens=completion_ids(rollouts, student_hidden.device),
        factors=token_factors(rollouts, student_hidden.device),
        pieces=pieces,
        teacher_lm_head=setup.teacher.lm_head,
    )
    return loss.value, {"loss": loss.per_token, **loss.stats}


def teacher_hidden_states(setup: Setup, rollouts: Sequence[Rollout]) -> Float[Tensor, "n h"]:
    """Hidden states of the completions' tokens after the teacher's prompts, without gradients."""
    prompts = [rollout.prompt for rollout in rollouts]
    teacher_prompts = [r.teacher_prompt.prompt for r in rollouts if r.teacher_prompt]
    completions = [rollout.completion.ids for rollout in rollouts]
    return setup.teacher.hidden_states(teacher_prompts, prompts, completions)
