"""Drops or rejects problems whose prompts exceed the limit; prints the first prompts.

A prompt is never truncated: a solution without its end would be another experiment.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field

from chatforms.lengths import most_tokens, token_lengths
from paint.config.context_sources import context_source
from paint.config.schema import PAPER_PROMPTS, DataConfig
from paint.core.display import Display, differing_lines
from paint.data.contexts import Contexts
from paint.data.mixtures import counts_by_source
from paint.data.problems import DataError, Problem, ValidRows
from paint.inference.conversations import written_conversation
from paint.inference.rollouts import Rollout, TeacherPrompt
from paint.models.lengths import chunks, spaced
from paint.models.model_errors import REASON, PromptError
from paint.models.policy import Policy
from paint.models.prompts import replaced_system_turns
from paint.models.references import describe_changes
from paint.resolve.check import Resolved
from paint.resolve.structure import position_limit
from paint.training.row_prompts import RowPrompts, measure_rows, shows_another
from paint.training.teacher_views import (
    masked_context,
    prompt_limit,
    reserved_tokens,
    view_with_context,
)

MARKS = 64
"""Tokens that a chat template adds to a message, at most (assumed)."""


def filter_problems(
    policy: Policy,
    run: Resolved,
    candidates: ValidRows,
    display: Display,
    contexts: Contexts | None = None,
    measured: Sequence[RowPrompts] | None = None,
) -> list[Problem]:
    """Return the problems whose prompts fit; data.on_bad_row refuses or counts the others.

    ``contexts`` are of all problems, and their prompts ``measured``, where that was done before.
    """
    config, rows = run.config, candidates.problems
    display.notes(candidates.notes)
    limit = prompt_limit(policy.base.config, run)
    contexts = contexts or Contexts(config.context, rows)
    if measured is None:
        measured = measure_rows(run, policy.writer, contexts, rows, display, limit=limit)
    check = _PromptCheck(policy, run, limit)
    pairs = [pair for pair in zip(rows, measured, strict=True) if check.is_taken(*pair)]
    if len(check.with_control) == len(rows):
        raise DataError(f"{config.data.place}: no problem is left; all hold {REASON}")
    kept = check.fitting(pairs)
    if shows_another(run) and kept:
        # Another row's text must fit as well, and only solutions that fit themselves are shown.
        longest = _longest_solution(policy, [problem for problem, _ in kept], display)
        # Another completion of the problem has at most as many tokens as are reserved for one.
        longest = max(longest, reserved_tokens(run) if contexts.needs_peers else 0)
        kept = check.fitting_beside(kept, longest)
    problems = [problem for problem, _ in kept]
    refused, over = len(check.refused), len(rows) - len(check.with_control) - len(problems)
    if not problems:
        others = f"; the chat template does not take {refused}" if refused else ""
        raise DataError(
            f"{config.data.place}: no problem is left; {over - refused} of {over} are over "
            f"{limit} tokens{others}"
        )
    _require_every_source(config.data, problems, limit)

    skipped = {
        REASON: len(check.with_control),
        "the chat template does not take their turns or thoughts": refused,
        "over the token limit": over - refused,
    }
    for reason, number in (candidates.skipped | skipped).items():
        if number:
            display.warn(f"skipped {number} rows: {reason}")
    _note_prompts(policy, run, contexts, problems, display)
    return problems


def _require_every_source(data: DataConfig, problems: Sequence[Problem], limit: int) -> None:
    """Raise DataError for a source of a mixture without a problem of at most ``limit`` tokens."""
    left = counts_by_source(problems)
    for source in data.sources:
        if source.name not in left:
            raise DataError(
                f"{source.path}: no problem is left, as its rows hold {REASON} or are over "
                f"{limit} tokens; leave the source out, or raise data.max_prompt_tokens"
            )


def _note_prompts(
    policy: Policy, run: Resolved, contexts: Contexts, problems: Sequence[Problem], display: Display
) -> None:
    """Say what of the problems the views do not read as it is in the file."""
    display.warnings([replaced_system_turns(run.config.prompts, problems)])
    if run.algorithm.needs_context:
        note_unmasked(contexts, problems, display)
    if run.learns_solutions:
        display.notes(describe_changes([policy.reference(problem) for problem in problems]))


Measured = tuple[Problem, RowPrompts]


@dataclass(frozen=True)
class _PromptCheck:
    """Refuses, or leaves out, problems that are no prompts, or whose longest is over a limit."""

    policy: Policy
    run: Resolved
    limit: int
    with_control: list[Problem] = field(default_factory=list)  # text, and left out
    refused: list[Problem] = field(default_factory=list)  # by the chat template, and left out

    @property
    def stops(self) -> bool:
        return self.run.config.data.on_bad_row == "error"

    def place(self, problem: Problem) -> str:
        return f"{self.run.config.data.path_of(problem.source)}: problem {problem.name}"

    def is_taken(self, problem: Problem, row: RowPrompts) -> bool:
        """Return whether a problem has no control text, and is a prompt by the chat template."""
        if row.control and self.stops:
            raise DataError(
                f"{self.place(problem)} holds {REASON}{row.control}; fix the row or "
                f"pass --data.on-bad-row skip"
            )
        if row.control:
            self.with_control.append(problem)
        elif row.refused:
            self._set_aside(problem, row.refused)
        return not (row.control or row.refused)

    def _set_aside(self, problem: Problem, error: PromptError) -> None:
        if self.stops:
            raise DataError(
                f"{self.run.config.data.path_of(problem.source)}: {error}; --data.on-bad-row skip "
                f"leaves such rows out"
            ) from error
        self.refused.append(problem)

    def fitting(self, rows: Sequence[Measured]) -> list[Measured]:
        """Return the problems whose prompts fit, with what is learned of their solutions."""
        kept: list[Measured] = []
        for chunk in chunks(rows):
            learned = self._learned(chunk) if self.run.learns_solutions else [0] * len(chunk)
            for (problem, row), solution in zip(chunk, learned, strict=True):
                if solution is None:  # set aside
                    continue
                if self._fits(problem, max(row.student, row.teacher, solution)):
                    kept.append((problem, row))
        return kept

    def fitting_beside(self, rows: Sequence[Measured], tokens: int) -> list[Measured]:
        """Return the problems whose prompts fit with so many tokens of another row's text."""
        return [pair for pair in rows if self._fits(pair[0], pair[1].beside_another + tokens)]

    def _fits(self, problem: Problem, length: int) -> bool:
        if length > self.limit and self.stops:
            self._refuse(problem, length)
        return length <= self.limit

    def _learned(self, rows: Sequence[Measured]) -> list[int | None]:
        """Return tokens of each prompt with its solution, or a bound in the limit; None: aside."""
        policy = self.policy
        found, texts = list[int | None](), dict[int, list[str]]()
        end = len(policy.solution_ids(""))
        for place, (problem, row) in enumerate(rows):
            try:
                if problem.conversation:
                    found.append(self._longest_turn(problem, row))
                    continue
                reference = policy.reference(problem)
            except PromptError as error:
                self._set_aside(problem, error)
                found.append(None)
                continue
            own = [text for text in (reference.lead, reference.text) if text]
            length = row.student + end + sum(most_tokens(policy.tokenizer, one) for one in own)
            found.append(length)
            if length > self.limit:
                # All three are tokenised by themselves.
                own += [] if row.is_counted else policy.writer.texts(problem)
                texts[place] = own
        counts = iter(
            token_lengths(policy.tokenizer, [one for own in texts.values() for one in own])
        )
        for place, own in texts.items():
            row = rows[place][1]
            before = row.student if row.is_counted else 0
            found[place] = before + end + sum(next(counts) for _ in own)
        return found

    def _longest_turn(self, problem: Problem, row: RowPrompts) -> int:
        """Return tokens of a conversation's longest turn with its prompt, or a bound."""
        policy, bound = self.policy, row.student + MARKS
        for message in problem.conversation:
            text = json.dumps(message, ensure_ascii=False)
            bound += most_tokens(policy.tokenizer, text) + MARKS
        if bound <= self.limit:
            return bound
        written = written_conversation(policy, problem, problem.conversation, "reference")
        turns = written.conversation.turns if written.conversation else ()
        return max(len(turn.prompt) + turn.length for turn in turns)

    def _refuse(self, problem: Problem, length: int) -> None:
        algorithm, data = self.run.algorithm, self.run.config.data
        kind = "teacher prompt" if algorithm.needs_context else "prompt"
        if not algorithm.needs_rollouts:
            kind = "prompt with its solution"
        elif self.run.learns_solutions:
            kind = f"{kind}, or a prompt with its solution,"
        raise DataError(
            f"{self.place(problem)} makes a {kind} of {length} tokens, over the limit of "
            f"{self.limit} (data.max_prompt_tokens {data.max_prompt_tokens}, or the model's "
            f"{position_limit(self.policy.base.config)} positions less rollout.max_new_tokens "
            f"{reserved_tokens(self.run)}); shorten it, or pass --data.on-bad-row skip"
        )


def _longest_solution(policy: Policy, problems: Sequence[Problem], display: Display) -> int:
    longest = 0
    with display.counting("their solutions measured", len(problems)) as counter:
        for chunk in chunks(problems):
            texts = [problem.solution for problem in chunk]
            texts = [text for text in texts if most_tokens(policy.tokenizer, text) > longest]
            longest = max([longest, *token_lengths(policy.tokenizer, texts)])
            counter.to(counter.done + len(chunk))
    return longest + len(policy.solution_ids(""))


def describe_missing_answers(run: Resolved, problems: Sequence[Problem]) -> str:
    """Return a line where completions are to be graded, and no row has an answer; "" elsewhere."""
    grades = run.algorithm.needs_rollouts and not run.config.grading.is_off
    if not (grades and run.needs_answer) or any(problem.answer for problem in problems):
        return ""
    # A column of another name is among those that no setting reads.
    columns = ", ".join(dict.fromkeys(name for problem in problems for name in problem.fields))
    return (
        f"no row has an answer: accuracy is not reported (--data.answer-field names the column, "
        f"now {run.config.data.answer_field}; columns: {columns})"
    )


def note_unmasked(contexts: Contexts, problems: Sequence[Problem], display: Display) -> None:
    """Name the contexts that the teacher reads in full."""
    sources = [context_source(source) for source in contexts.options.source]
    shared = [source.name for source in sources if source.origin == "setting"]
    if shared:
        display.note(f"the context of {' and '.join(shared)} is shown in full to every problem")
    is_masked = any(source.masked for source in sources)
    hides = contexts.options.mask_ratio_wrong > 0 or contexts.options.mask_ratio_correct > 0
    if is_masked and hides and contexts.options.alignment == "anchors":
        searched = spaced(problems)
        texts = (
            contexts.aligned(problem, contexts.of_own_row(problem))
            for problem in display.track("contexts searched for anchors", searched)
        )
        without_anchors = sum(not contexts.is_masked(text) for text in texts)
        if without_anchors:
            display.warn(
                f"{without_anchors} of {len(searched)} contexts have no anchors: their overlap "
                f"counts as 0, and they are shown in full (context.alignment words or fixed masks "
                f"them, too)"
            )


def warn_template_mismatch(display: Display, policy: Policy) -> None:
    """Warn if the views' templates differ in more than the context (docs/fidelity.md, D9)."""
    student, teacher = policy.template_difference()
    if student == teacher:
        return

    where = "as in OPSD's scripts, " if policy.prompts == PAPER_PROMPTS else ""
    display.warn(
        f"{where}the views differ in more than what the teacher is shown: where the student reads "
        f"{student!r}, the teacher reads {teacher!r} (docs/fidelity.md, D9). objective.skip_tokens "
        f"1 leaves the first token after it (first_kl) out of the loss; model.teacher_thinking and "
        f"model.student_thinking, if they are equal, give both the same template"
    )


@dataclass(frozen=True)
class FirstPrompts:
    """The prompts that were printed before the first rollout."""

    student: list[int]
    teacher: TeacherPrompt | None = None  # None where it depends on the completion


def print_first_prompts(
    display: Display, policy: Policy, contexts: Contexts | None, problem: Problem, seed: int
) -> FirstPrompts:
    """Print the prompts of student and teacher of a problem, before there is a completion.

    The teacher's is that of a completion without overlap; contexts are None without a teacher.
    """
    student = policy.student_prompt(problem)
    _print_prompt(display, policy, "first student prompt", student)
    if contexts is None or contexts.reads_feedback or contexts.needs_peers:
        return FirstPrompts(student)
    context, metrics = masked_context(contexts, problem, seed)
    teacher, ratio = view_with_context(policy, problem, context), metrics["mask_ratio"]
    title = "first teacher prompt"
    if ratio:
        title += f" (with {ratio:.0%} hidden, as of a completion without overlap)"
    _print_prompt(display, policy, title, teacher.prompt, student)
    return FirstPrompts(student, teacher)


def print_first_completion(
    display: Display, policy: Policy, rollout: Rollout, printed: FirstPrompts
) -> None:
    """Print a completion with special tokens, and prompts of its own that it is the first to have.

    A teacher's prompt that differs in what of the context is hidden alone is not printed again.
    """
    if rollout.prompt != printed.student:
        _print_prompt(display, policy, "its student prompt", rollout.prompt)
    teacher = rollout.teacher_prompt
    if teacher and (printed.teacher is None or teacher.rationale is not None):
        _print_prompt(display, policy, "its teacher prompt", teacher.prompt, rollout.prompt)
    _print_prompt(display, policy, "completion", rollout.completion.ids)
    display.note("---")


def _print_prompt(
    display: Display,
    policy: Policy,
    title: str,
    ids: Sequence[int],
    student: Sequence[int] | None = None,
) -> None:
    # As the model reads them: a template that differs by accident shows here (D2).
    text = policy.decode(ids, special=True)
    if student is not None:
        text = differing_lines(text, policy.decode(student, special=True), "the student's")
    display.note(f"--- {title}, {len(ids)} tokens ---\n{text}")
