"""Drops or rejects problems whose prompts exceed the limit; prints the first prompts.

A prompt is never truncated: a solution without its end would be another experiment.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import compress
from typing import TypeVar

from paint.config.schema import Config, ConfigError
from paint.core.display import Display
from paint.data.problems import DataError, Problem, ValidRows
from paint.models.policy import Policy
from paint.models.special_tokens import REASON, special_text_finder
from paint.objective.masking import MARKER, anchors
from paint.training.rollouts import Rollout

Value = TypeVar("Value")


def filter_problems(
    policy: Policy, config: Config, candidates: ValidRows, display: Display
) -> list[Problem]:
    """The problems whose prompts fit; skipped rows are counted and reported.

    Raises:
        ConfigError: completions as long as the model's positions.
        DataError: a prompt over ``data.max_prompt_tokens``, or text that the chat format takes for
            control, unless data.on_bad_row is skip.
    """
    limit, reserved = _prompt_limit(policy, config)
    candidates = _without_control(policy, config, candidates)

    def fits(problem: Problem, other_tokens: int = 0) -> bool:
        length = longest_prompt(policy, config, problem, other_tokens)
        if length > limit and config.data.on_bad_row == "error":
            raise DataError(
                f"{config.data.path}: problem {problem.id} makes a "
                f"{_longest_text(config)} of {length} tokens, over the limit of "
                f"{limit} (data.max_prompt_tokens, or the model's positions less {reserved}). "
                f"Nothing is ever cut: shorten it, raise the limit, or skip such rows with "
                f"--data.on-bad-row skip"
            )
        return length <= limit

    def solution_tokens(problem: Problem) -> int:
        return len(policy.solution_ids(problem.solution))

    problems = candidates.problems
    fit = _map_with_progress(display, "training problems measured", problems, fits)
    problems = list(compress(problems, fit))
    if config.context.source == "other" and problems:
        # Another problem's solution must fit as well, and only those that fit themselves are shown.
        longest = max(
            _map_with_progress(display, "their solutions measured", problems, solution_tokens)
        )
        fits_with_other = partial(fits, other_tokens=longest)
        fit = _map_with_progress(
            display, "measured with another's solution", problems, fits_with_other
        )
        problems = list(compress(problems, fit))

    too_long = len(candidates.problems) - len(problems)
    if not problems:
        raise DataError(
            f"{config.data.path}: no problem is left; all {too_long} are over {limit} tokens"
        )
    skipped = candidates.skipped | ({"over the token limit": too_long} if too_long else {})
    for reason, count in skipped.items():
        display.note(f"skipped {count} rows: {reason}")
    if config.algorithm.needs_context:
        found = _map_with_progress(
            display, "solutions searched for anchors", problems, lambda p: anchors(p.solution)
        )
        if without_anchors := found.count(()):
            display.note(
                f"{without_anchors} of {len(problems)} solutions have no anchors; "
                f"their overlap counts as 0"
            )
    return problems


def _map_with_progress(
    display: Display, title: str, problems: Sequence[Problem], of: Callable[[Problem], Value]
) -> list[Value]:
    """Apply a function to each problem with a progress bar."""
    values = []
    with display.counting(title, len(problems)) as counter:
        for problem in problems:
            values.append(of(problem))
            counter.add()
    return values


def _without_control(policy: Policy, config: Config, candidates: ValidRows) -> ValidRows:
    """The rows without text that the chat format would read as special tokens."""
    problems, skipped = [], dict(candidates.skipped)
    for problem in candidates.problems:
        found = special_text_finder(
            policy.tokenizer,
            problem=problem.problem,
            solution=problem.solution,
            answer=problem.answer,
        )
        if found is None:
            problems.append(problem)
        elif config.data.on_bad_row == "skip":
            skipped[REASON] = skipped.get(REASON, 0) + 1
        else:
            raise DataError(
                f"{config.data.path}: problem {problem.id} holds {REASON}{found}; fix the row or "
                f"pass --data.on-bad-row skip"
            )

    if not problems:
        raise DataError(f"{config.data.path}: no problem is left; all hold {REASON}")
    return replace(candidates, problems=problems, skipped=skipped)


def _longest_text(config: Config) -> str:
    """The name of what ``longest_prompt`` measures."""
    if config.algorithm.needs_context:
        return "teacher prompt"
    return "prompt" if config.algorithm.needs_rollouts else "prompt with its solution"


def longest_prompt(policy: Policy, config: Config, problem: Problem, other_tokens: int) -> int:
    """Tokens of the longest prompt of this problem; without rollouts, its solution included.

    Args:
        other_tokens: length of the longest solution of another problem that may be shown; 0: none.
    """
    if not config.algorithm.needs_context:
        learns_solution = not config.algorithm.needs_rollouts
        solution = policy.solution_ids(problem.solution) if learns_solution else ()
        return len(policy.student_prompt(problem.problem)) + len(solution)

    rationale = "" if config.teacher.reason_first else None
    rationale_tokens = config.teacher.rationale_tokens if config.teacher.reason_first else 0

    def teacher(context: str) -> int:
        prompt = policy.teacher_prompt(
            problem.problem, context, complete=False, rationale=rationale
        )
        return len(prompt)

    # The longest view hides next to nothing, and has the marker on top.
    longest = teacher(f"{problem.solution} {MARKER}")
    if other_tokens:
        longest = max(longest, teacher(MARKER) + other_tokens)
    return longest + rationale_tokens


def warn_template_mismatch(display: Display, policy: Policy) -> None:
    """Warn if the views' templates differ in more than the context, and name the settings for it.

    Source: docs/fidelity.md, D9.
    """
    student, teacher = policy.template_difference()
    if student == teacher:
        return

    off = {True: "", False: "no-"}
    display.note(
        f"the views differ in more than what the teacher is shown: where the student reads "
        f"{_or_nothing(student)}, the teacher reads {_or_nothing(teacher)} (docs/fidelity.md, D9). "
        f"first_kl is the KL of the first token after it. --objective.skip-tokens 1 leaves that "
        f"token out of the loss; --model.{off[policy.student_thinking]}teacher-thinking gives the "
        f"teacher the student's template, --model.{off[policy.teacher_thinking]}student-thinking "
        f"the student the teacher's"
    )


def _or_nothing(text: str) -> str:
    return repr(text) if text else "nothing"


def print_first_prompts(display: Display, policy: Policy, rollout: Rollout) -> None:
    """Print the first prompts of student and teacher, and the completion, with special tokens."""
    prompts = {"student": rollout.prompt}
    if rollout.teacher_prompt:
        prompts["teacher"] = rollout.teacher_prompt.prompt

    for role, ids in prompts.items():
        text = policy.decode(ids, special=True)
        display.note(f"--- first {role} prompt, {len(ids)} tokens ---\n{text}")
    display.note(f"--- completion, {len(rollout.completion.ids)} tokens ---")
    display.note(policy.decode(rollout.completion.ids, special=True) + "\n---")


def _prompt_limit(policy: Policy, config: Config) -> tuple[int, int]:
    """The most tokens of a prompt, and the tokens reserved for the completion."""
    reserved = config.rollout.max_new_tokens if config.algorithm.needs_rollouts else 0
    positions = getattr(policy.model.config, "max_position_embeddings", None)
    limit = config.data.max_prompt_tokens
    if positions is not None:
        limit = min(limit, positions - reserved)
    if limit < 1:
        raise ConfigError(
            f"rollout.max_new_tokens {config.rollout.max_new_tokens} leaves no room for a prompt: "
            f"the model has {positions} positions"
        )
    return limit, reserved
