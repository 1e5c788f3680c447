"""What the teacher reads of a completion: its context and the prompt with it.

    references -> overlap with the completion -> mask ratio -> context -> prompt -> limit

Training, advice and pages have it from here, so that equal seeds make equal prompts.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from transformers import PreTrainedConfig

from paint.core.distributed import all_gather_objects
from paint.core.errors import ConfigError
from paint.data.contexts import NO_ATTEMPT, Attempt, Context, Contexts
from paint.data.problems import DataError, Problem
from paint.inference.conversations import CountTokens
from paint.inference.engine import Conversation, row_seed
from paint.inference.rollouts import Rollout, TeacherPrompt
from paint.models.caches import shared_length
from paint.models.policy import Policy
from paint.resolve.check import Resolved
from paint.resolve.structure import position_limit


def with_teacher_prompt(
    policy: Policy,
    run: Resolved,
    contexts: Contexts,
    rollout: Rollout,
    attempt: Attempt,
    step_index: int,
) -> Rollout:
    """Return the rollout with its teacher's prompt, and with overlap and mask ratio as metrics.

    Of a conversation, all turns have the context of the first one. The attempt is the completion,
    with what others of its step add to what the teacher may read. Feedback that makes the prompt
    too long counts as none was given: no prompt is cut. Raises DataError for other contexts that
    do.
    """
    problem, conversation = rollout.problem, rollout.completion.conversation
    seed = row_seed(run.config.train.seed, step_index, rollout.row)
    context, measured = masked_context(contexts, problem, seed, attempt)
    metrics = {**rollout.metrics, **measured}
    if contexts.needs_peers:
        metrics["verified_peers"] = len(attempt.peers)
    if contexts.reads_feedback and run.algorithm.passes_over:
        view = fitting_view(policy, run, problem, context, conversation)
    else:
        view = view_with_context(policy, problem, context, conversation=conversation)
        # Later prompts had the limit when the conversation was sampled, with what its own row
        # gives.
        require_prompt_fits(view.prompt, problem, policy, run)
    return replace(rollout, teacher_prompt=view, metrics=metrics)


def fitting_view(
    policy: Policy,
    run: Resolved,
    problem: Problem,
    context: Context,
    conversation: Conversation | None = None,
) -> TeacherPrompt:
    """Return the teacher's prompt with a context, or without where it is over the limit."""
    view = view_with_context(policy, problem, context, conversation=conversation)
    longest = max([view.prompt, *view.later], key=len)
    if len(longest) <= prompt_limit(policy.base.config, run):
        return view
    nothing = Context(None, complete=False)
    without = view_with_context(policy, problem, nothing, conversation=conversation)
    return replace(without, refused_tokens=len(longest))


def count_teacher_tokens(policy: Policy, contexts: Contexts) -> CountTokens:
    """Return what counts the tokens of the teacher's longest prompt behind a conversation."""
    longest: dict[str, str] = {}

    def count(problem: Problem, messages: Sequence[Mapping[str, Any]]) -> int:
        if problem.id not in longest:
            longest[problem.id] = contexts.longest(problem)
        # The paper's wording of a complete solution is the shorter one.
        return len(
            policy.teacher_prompt(problem, longest[problem.id], complete=False, then=messages)
        )

    return count


def masked_context(
    contexts: Contexts,
    problem: Problem,
    seed: int,
    attempt: Attempt = NO_ATTEMPT,
    mask_ratio: float | None = None,
) -> tuple[Context, dict[str, float]]:
    """Return the context of a completion, and its overlap and mask ratio.

    A mask ratio that is given takes the place of the completion's own. Source: paper, section
    'Overlap-Adaptive Partial Solution Conditioning'.
    """
    references = contexts.references(problem, seed, attempt)  # y*
    # α = |{a ∈ A(y*): a ⊆ Norm(ŷ)}| / |A(y*)|,   ρ = ρ_wrong + (ρ_correct − ρ_wrong) α
    metrics = contexts.measure(attempt.text, problem, references)
    ratio = metrics["mask_ratio"] if mask_ratio is None else mask_ratio
    return contexts.context(references, ratio, seed, attempt), metrics  # ỹ* = M_tail(y*; ρ)


def view_with_context(
    policy: Policy,
    problem: Problem,
    context: Context,
    rationale: str | None = None,
    request: str = "",
    conversation: Conversation | None = None,
) -> TeacherPrompt:
    """Return the teacher's prompt (x, ỹ*) of each turn, with a rationale and its request."""

    def prompt(then: Sequence[Mapping[str, Any]] = ()) -> list[int]:
        return policy.teacher_prompt(
            problem,
            context.text,
            complete=context.complete,
            rationale=rationale,
            request=request,
            names=context.names,
            then=then,
        )

    # The first turn may follow others, which a written conversation marks as not to be learned.
    before = (
        [conversation.messages[: t.after] for t in conversation.turns] if conversation else [()]
    )
    first, *later = map(prompt, before)
    return TeacherPrompt(context.text, context.complete, first, rationale, later=tuple(later))


def with_shared_beginning(rollouts: Sequence[Rollout]) -> list[Rollout]:
    """Return the rollouts with the number of tokens with which all ranks' teacher prompts begin."""
    mine = [prompt for r in rollouts for prompt, _ in r.teacher_parts]
    shared = shared_length(all_gather_objects(mine))
    return [
        replace(r, teacher_prompt=r.teacher_prompt and replace(r.teacher_prompt, shared=shared))
        for r in rollouts
    ]


def prompt_limit(model: PreTrainedConfig, run: Resolved) -> int:
    """Return the most tokens of a prompt. Raises ConfigError where a completion leaves no room."""
    model_limit = position_limit(model)
    limit = min(run.config.data.max_prompt_tokens, model_limit - reserved_tokens(run))
    if limit < 1:
        raise ConfigError(
            f"rollout.max_new_tokens {run.rollout.max_new_tokens} leaves no room for a prompt "
            f"in the model's {model_limit} positions; try {int(model_limit) // 2}, which leaves as "
            f"much for prompts"
        )
    return int(limit)


def require_prompt_fits(
    prompt: Sequence[int], problem: Problem, policy: Policy, run: Resolved
) -> None:
    """Raise DataError for a teacher prompt over the limit, by a context of this step."""
    limit = prompt_limit(policy.base.config, run)
    if len(prompt) > limit:
        raise DataError(
            f"problem {problem.name}: the context of this rollout makes a teacher prompt of "
            f"{len(prompt)} tokens, over the limit of {limit} (data.max_prompt_tokens, or the "
            f"model's positions less {reserved_tokens(run)}); return a shorter context, or raise "
            f"the limit"
        )


def reserved_tokens(run: Resolved) -> int:
    """Return the most tokens that follow a prompt."""
    return run.rollout.max_new_tokens if run.algorithm.needs_rollouts else 0
