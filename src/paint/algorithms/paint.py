"""PAINT's training step: the paper's Algorithm 1 for one minibatch, top to bottom.

    rollouts -> overlap -> mask ratio -> teacher prompt -> scores -> clipped KL -> update

OPSD is the same step without masking and interpolation (recipes/demo-opsd.toml). Every random
choice is a pure function of (seed, step, row), so a resumed run repeats the original one.
"""

import random
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from torch import Tensor

from paint.config.schema import ContextConfig
from paint.core.display import Clock
from paint.data.problems import DataError, Problem
from paint.grading.math.compare import compare_text
from paint.inference.engine import derive_seed, sampling_from
from paint.inference.local import LocalEngine
from paint.models.policy import Policy
from paint.objective.fused import loss_from_hidden
from paint.objective.masking import mask_ratio, mask_solution, overlap_metrics
from paint.objective.prompts import announces_complete
from paint.training.rollouts import Rollout, ScoredRollout, TeacherPrompt, check_logprob_mismatch
from paint.training.train_step import (
    Batch,
    Setup,
    accumulate,
    completion_ids,
    completion_lengths,
    generate_rollouts,
    update,
)
from paint.training.weighting import token_factors, weigh_by_verdict

MASKED_SOURCES = ("own", "other")
# Context sources that are masked; all others are shown in full.


def paint_step(
    setup: Setup, batch: Batch, step_index: int, clock: Clock
) -> tuple[list[ScoredRollout], float]:
    """One update of the student on this rank's rows of a minibatch (paper: Algorithm 1).

    Returns the rollouts of all ranks with their per-token values, in the order of the minibatch,
    and the norm of the gradient.
    """
    rollouts = generate_rollouts(setup, batch, step_index, clock)
    rollouts = add_contexts(setup, rollouts, step_index, clock)

    with clock("loss"):
        scored = accumulate(setup, rollouts, partial(score_rollouts, setup))
        check_logprob_mismatch(scored, setup.config.rollout.max_logprob_mismatch, step_index + 1)

    with clock("update"):
        gradient_norm = update(setup, step_index)
    return scored, gradient_norm


def add_contexts(
    setup: Setup, rollouts: Sequence[Rollout], step_index: int, clock: Clock
) -> list[Rollout]:
    """Build the teacher's prompts of this rank's rollouts, and weigh them by verdict if asked."""
    with clock("context"):
        rollouts = [add_teacher_prompt(setup, rollout, step_index) for rollout in rollouts]
    if setup.config.teacher.reason_first:
        with clock("rationale"):
            rollouts = write_rationales(setup, rollouts, step_index)
    if setup.config.objective.uses_verdicts:
        with clock("reward"):
            rollouts = weigh_by_verdict(setup, rollouts)
    return list(rollouts)


def add_teacher_prompt(setup: Setup, rollout: Rollout, step_index: int) -> Rollout:
    """Compute overlap and mask ratio of a rollout, and build its teacher prompt.

    Source: section 'Overlap-Adaptive Partial Solution Conditioning'.
    """
    options, problem = setup.config.context, rollout.problem
    scores = overlap_metrics(rollout.text, problem.solution)
    ratio = mask_ratio(
        scores["overlap"], wrong=options.mask_ratio_wrong, correct=options.mask_ratio_correct
    )

    seed = derive_seed(setup.config.train.seed, step_index, rollout.row)
    prompt = build_teacher_prompt(setup.policy, options, setup.problems, problem, ratio, seed)
    metrics = {**rollout.metrics, **scores, "mask_ratio": ratio}
    return replace(rollout, teacher_prompt=prompt, metrics=metrics)


def build_teacher_prompt(
    policy: Policy,
    options: ContextConfig,
    problems: Sequence[Problem],
    problem: Problem,
    ratio: float,
    seed: int,
) -> TeacherPrompt:
    """The teacher's prompt for a problem, with ``ratio`` of the solution masked."""
    reference = context = select_reference(problems, problem, options.source, seed)
    if reference is not None and options.source in MASKED_SOURCES:
        context = mask_solution(reference, ratio, placement=options.placement, seed=seed)

    complete = announces_complete(options.wording, is_complete=context == reference)
    prompt = policy.teacher_prompt(problem, context, complete=complete)
    return TeacherPrompt(context, complete, prompt)


def select_reference(
    problems: Sequence[Problem], problem: Problem, source: str, seed: int
) -> str | None:
    """The reference of the teacher's prompt before masking; all sources but "own" are controls.

    Raises:
        DataError: the source needs another problem or another answer, and there is none.
    """
    match source:
        case "own":
            return problem.solution
        case "none":
            return None
        case "answer":
            return f"The answer is $\\boxed{{{problem.answer}}}$."

    start = random.Random(seed).randrange(len(problems))
    for i in range(len(problems)):
        other = problems[(start + i) % len(problems)]
        if source == "other" and other.id != problem.id:
            return other.solution
        if source == "wrong_answer" and compare_text(other.answer, problem.answer) == "wrong":
            return f"The answer is $\\boxed{{{other.answer}}}$."

    needed = (
        "a second problem"
        if source == "other"
        else f"a problem with another answer than {problem.answer!r}"
    )
    raise DataError(f"context.source {source} needs {needed}, and there is none")


def write_rationales(setup: Setup, rollouts: Sequence[Rollout], step_index: int) -> list[Rollout]:
    """Sample the teacher's rationale of its context, and append it to the teacher prompt.

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

    with_rationales = []
    for (rollout, context, complete), written in zip(with_context, rationales, strict=True):
        rationale = policy.decode(written.ids).strip()
        prompt = policy.teacher_prompt(
            rollout.problem, context, complete=complete, rationale=rationale
        )
        teacher_prompt = TeacherPrompt(context, complete, prompt, rationale)
        metrics = {**rollout.metrics, "rationale_tokens": len(written.ids)}
        with_rationales.append(replace(rollout, teacher_prompt=teacher_prompt, metrics=metrics))
    return with_rationales


def score_rollouts(
    setup: Setup, rollouts: Sequence[Rollout], student_hidden: Tensor | None = None
) -> tuple[Tensor, dict[str, Tensor]]:
    """Score the completions under student and teacher, and compute the loss.

    The student's hidden states are computed unless they are given.

    Source: section 'Sparse Teacher Energy Interpolation', Eq. main_loss.
    """
    policy, config = setup.policy, setup.config
    completions = [rollout.completion.ids for rollout in rollouts]

    prompts = [rollout.prompt for rollout in rollouts]
    teacher_prompts = [r.teacher_prompt.prompt for r in rollouts if r.teacher_prompt]
    teacher_hidden = setup.teacher.hidden_states(teacher_prompts, prompts, completions)
    if student_hidden is None:
        student_hidden = policy.hidden_states(prompts, completions)

    loss = loss_from_hidden(
        student_hidden,
        teacher_hidden,
        policy.lm_head,
        completion_lengths(rollouts),
        config.objective.resolve(config.rollout.temperature),
        tokens=completion_ids(rollouts, student_hidden.device),
        factors=token_factors(rollouts, student_hidden.device),
        teacher_lm_head=setup.teacher.lm_head,
    )
    return loss.value, {"loss": loss.per_token, **loss.stats}
