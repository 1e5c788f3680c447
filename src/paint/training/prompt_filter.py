"""Drops or rejects problems whose prompts exceed the limit; prints the first prompts.

A prompt is never truncated: a solution without its end would be another experiment.
"""

from collections.abc import Sequence

from paint.config.schema import PAPER_PROMPTS, ConfigError
from paint.core.display import Display
from paint.data.contexts import IN_FULL, Contexts
from paint.data.problems import DataError, Problem, ValidRows
from paint.models.chat_template import PromptError
from paint.models.policy import Policy
from paint.models.prompts import describe_replaced, replaced_system_turns
from paint.models.references import describe_changes
from paint.models.special_tokens import REASON, special_text_finder
from paint.models.structure import position_limit
from paint.objective.masking import MARKER
from paint.training.check import Resolved
from paint.training.rollouts import Rollout


def filter_problems(
    policy: Policy,
    run: Resolved,
    candidates: ValidRows,
    display: Display,
    file_content: str | None = None,
) -> list[Problem]:
    """The problems whose prompts fit; data.on_bad_row refuses or counts the others.

    ``file_content`` is the content of context.file, if it was read before.
    """
    algorithm, config = run.algorithm, run.config
    data = config.data
    reserved = _reserved(run)
    limit = prompt_limit(policy, run)

    def has_no_control(problem: Problem) -> bool:
        texts = {"solution": problem.solution, "answer": problem.answer}
        texts |= contexts.of_own_row(problem) if algorithm.needs_context else {}
        texts["problem"] = "\n\n".join([problem.problem, *(text for _, text in problem.turns)])
        found = special_text_finder(policy.tokenizer, **texts)
        if found is not None and data.on_bad_row == "error":
            raise DataError(
                f"{data.path}: problem {problem.id} holds {REASON}{found}; fix the row or "
                f"pass --data.on-bad-row skip"
            )
        return found is None

    def fits(problem: Problem, other_tokens: int = 0) -> bool:
        try:
            length = _longest_prompt(policy, run, contexts, problem, other_tokens)
        except PromptError as error:
            if data.on_bad_row == "error":
                raise DataError(
                    f"{data.path}: {error}; --data.on-bad-row skip leaves such rows out"
                ) from error
            refused.append(problem)
            return False
        if length > limit and data.on_bad_row == "error":
            kind = "prompt" if algorithm.needs_rollouts else "prompt with its solution"
            kind = "teacher prompt" if algorithm.needs_context else kind
            raise DataError(
                f"{data.path}: problem {problem.id} makes a {kind} of {length} tokens, over the "
                f"limit of {limit} (data.max_prompt_tokens {data.max_prompt_tokens}, or the "
                f"model's {position_limit(policy.base.config)} positions less "
                f"rollout.max_new_tokens {reserved}); shorten it, change the limit, or pass "
                f"--data.on-bad-row skip"
            )
        return length <= limit

    for note in candidates.notes:
        display.note(note)
    contexts = Contexts(config.context, candidates.problems, file_content)
    sources = config.context.source
    # Before they are measured: the policy refuses to encode such text.
    problems = [problem for problem in candidates.problems if has_no_control(problem)]
    if not problems:
        raise DataError(f"{data.path}: no problem is left; all hold {REASON}")

    refused: list[Problem] = []  # by the chat template
    count = len(problems)
    problems = [p for p in display.track("training problems measured", problems) if fits(p)]
    if {"other", "neighbour", "rollout"} & {*sources} and problems:
        # Another row's text must fit as well, and only solutions that fit themselves are shown.
        measured = display.track("their solutions measured", problems)
        longest = max(len(policy.solution_ids(p.solution)) for p in measured)
        # Another completion of the problem has at most as many tokens as are reserved for one.
        longest = max(longest, reserved if contexts.needs_peers else 0)
        measured = display.track("measured with another's solution", problems)
        problems = []
        for p in measured:
            if fits(p, longest):
                problems.append(p)
    if not problems:
        others = f"; the chat template does not take {len(refused)}" if refused else ""
        raise DataError(
            f"{data.path}: no problem is left; {count - len(refused)} of {count} are over {limit} "
            f"tokens{others}"
        )

    skipped = {
        REASON: len(candidates.problems) - count,
        "the chat template does not take their turns or thoughts": len(refused),
        "over the token limit": count - len(problems) - len(refused),
    }
    for reason, rows in (candidates.skipped | skipped).items():
        if rows:
            display.note(f"skipped {rows} rows: {reason}")
    replaced = replaced_system_turns(config.prompts, problems)
    if replaced:
        display.note(describe_replaced(replaced, len(problems)))
    if algorithm.needs_context:
        note_unmasked(contexts, problems, display)
    if not algorithm.needs_rollouts:
        display.notes(describe_changes([policy.reference(problem) for problem in problems]))
    return problems


def _longest_prompt(
    policy: Policy, run: Resolved, contexts: Contexts, problem: Problem, other_tokens: int
) -> int:
    """Tokens of the longest prompt, with so many of a text from another row that may be shown."""
    if not run.algorithm.needs_context:
        solution = () if run.algorithm.needs_rollouts else policy.reference_ids(problem)
        return len(policy.student_prompt(problem)) + len(solution)  # SFT reads both as one row

    def teacher_tokens(context: str) -> int:
        # The paper's wording of a complete solution is the shorter one.
        return max(
            len(policy.teacher_prompt(problem, context, complete=complete))
            for complete in {False, bool(policy.prompts.teacher_complete)}
        )

    # The longest view hides next to nothing, and has the marker on top.
    longest = max(len(policy.student_prompt(problem)), teacher_tokens(contexts.longest(problem)))
    if not other_tokens:
        return longest
    own = "\n\n".join([*contexts.of_own_row(problem).values(), MARKER])
    return max(longest, teacher_tokens(own) + other_tokens)


def prompt_limit(policy: Policy, run: Resolved) -> int:
    """Most tokens of a prompt: ``data.max_prompt_tokens``, or what a completion leaves.

    Raises ConfigError where a completion leaves no room.
    """
    model_limit = position_limit(policy.base.config)
    limit = min(run.config.data.max_prompt_tokens, model_limit - _reserved(run))
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
    """Raise DataError for a teacher prompt over the limit.

    The filter measures a problem once; a context may depend on the step's seed or completions.
    """
    limit = prompt_limit(policy, run)
    if len(prompt) > limit:
        raise DataError(
            f"problem {problem.id}: the context of this rollout makes a teacher prompt of "
            f"{len(prompt)} tokens, over the limit of {limit} (data.max_prompt_tokens, or the "
            f"model's positions less {_reserved(run)}); return a shorter context, or raise the "
            f"limit"
        )


def _reserved(run: Resolved) -> int:
    """The tokens that follow a prompt."""
    if run.algorithm.needs_rollouts:
        return run.rollout.max_new_tokens
    return 0


def note_unmasked(contexts: Contexts, problems: Sequence[Problem], display: Display) -> None:
    """Name the contexts that the teacher reads in full."""
    shared = []
    for source in contexts.options.source:
        if source in ("text", "file"):
            shared.append(source)
    if shared:
        display.note(f"the context of {' and '.join(shared)} is shown in full to every problem")
    masked = [source for source in contexts.options.source if source not in IN_FULL]
    if masked and contexts.options.alignment == "anchors":
        texts = (
            contexts.aligned(problem, contexts.of_own_row(problem))
            for problem in display.track("contexts searched for anchors", problems)
        )
        without_anchors = sum(not contexts.is_masked(text) for text in texts)
        if without_anchors:
            display.note(
                f"{without_anchors} of {len(problems)} contexts have no anchors: their overlap "
                f"counts as 0, and they are shown in full (context.alignment words or fixed masks "
                f"them, too)"
            )


def warn_template_mismatch(display: Display, policy: Policy) -> None:
    """Warn if the views' templates differ in more than the context (docs/fidelity.md, D9)."""
    student, teacher = policy.template_difference()
    if student == teacher:
        return

    where = "as in OPSD's scripts, " if policy.prompts == PAPER_PROMPTS else ""
    display.note(
        f"{where}the views differ in more than what the teacher is shown: where the student reads "
        f"{student!r}, the teacher reads {teacher!r} (docs/fidelity.md, D9). objective.skip_tokens "
        f"1 leaves the first token after it (first_kl) out of the loss; model.teacher_thinking and "
        f"model.student_thinking, if they are equal, give both the same template"
    )


def print_first_prompts(display: Display, policy: Policy, rollout: Rollout) -> None:
    """Print the first prompts of student and teacher, and the completion, with special tokens."""
    prompts = {"student": rollout.prompt}
    if rollout.teacher_prompt:
        prompts["teacher"] = rollout.teacher_prompt.prompt

    for role, ids in prompts.items():
        # As the model reads them: a template that differs by accident shows here (D2).
        text = policy.decode(ids, special=True)
        display.note(f"--- first {role} prompt, {len(ids)} tokens ---\n{text}")
    display.note(f"--- completion, {len(rollout.completion.ids)} tokens ---")
    display.note(policy.decode(rollout.completion.ids, special=True) + "\n---")
