"""Leaves out, or refuses, problems whose prompts are over the limit or are no prompts.

A prompt is never truncated: a solution without its end would be another experiment.
"""

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import chain, islice

from chatforms.lengths import most_tokens, token_lengths
from paint.config.schema import PAPER_PROMPTS, DataConfig
from paint.core.display import Display
from paint.data.contexts import Contexts
from paint.data.mixtures import counts_by_source
from paint.data.problems import DataError, Problem, ValidRows
from paint.inference.conversations import written_conversation
from paint.models.lengths import chunks
from paint.models.model_errors import REASON, PromptError
from paint.models.policy import Policy
from paint.models.references import describe_changes
from paint.resolve.check import Resolved
from paint.resolve.structure import position_limit
from paint.training.row_prompts import RowPrompts, measure_rows, shows_another
from paint.training.teacher_views import prompt_limit, reserved_tokens

MARKS = 64
"""Tokens that a chat template adds to a message, at most (assumed)."""

NO_PROMPT = "the chat template does not take their turns or thoughts"
TOO_LONG = "over the token limit"


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
    prompts = [pair for pair in zip(rows, measured, strict=True) if check.is_prompt(*pair)]
    kept = check.fitting(prompts)
    if shows_another(run) and kept:
        # Another row's text must fit as well, and only solutions that fit themselves are shown.
        longest = _longest_solution(policy, [problem for problem, _ in kept], display)
        # Another completion of the problem has at most as many tokens as are reserved for one.
        longest = max(longest, reserved_tokens(run) if contexts.needs_peers else 0)
        kept = [(one, row) for one, row in kept if check.fits(one, row.beside_another + longest)]
    problems = [problem for problem, _ in kept]
    if not problems:
        counts = ", ".join(f"{number} {reason}" for reason, number in check.left_out.items())
        raise DataError(
            f"{config.data.place}: no problem is left of {len(rows)} with a limit of {limit} "
            f"tokens: {counts}"
        )
    _require_every_source(config.data, problems, limit)
    for reason, number in (candidates.skipped | check.left_out).items():
        display.warn(f"skipped {number} rows: {reason}")
    if run.learns_solutions:
        display.notes(describe_changes([policy.reference(problem) for problem in problems]))
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


Measured = tuple[Problem, RowPrompts]


@dataclass(frozen=True)
class _PromptCheck:
    """Refuses, or leaves out, problems that are no prompts, or whose longest is over a limit."""

    policy: Policy
    run: Resolved
    limit: int
    left_out: Counter[str] = field(default_factory=Counter)  # rows by the reason

    def is_prompt(self, problem: Problem, row: RowPrompts) -> bool:
        """Return whether a problem has no control text, and is a prompt by the chat template."""
        if row.control:
            self._leave_out(REASON, problem, f"problem {problem.name} holds {REASON}{row.control}")
        elif row.refused:
            self._leave_out(NO_PROMPT, problem, str(row.refused))
        return not (row.control or row.refused)

    def _leave_out(self, reason: str, problem: Problem, fault: str) -> None:
        """Count a row by a reason, or raise DataError for it by data.on_bad_row."""
        data = self.run.config.data
        if data.on_bad_row == "error":
            [path] = [source.path for source in data.sources if source.name == problem.source]
            raise DataError(f"{path}: {fault}; correct the row, or pass --data.on-bad-row skip")
        self.left_out[reason] += 1

    def fitting(self, rows: Sequence[Measured]) -> list[Measured]:
        """Return the problems whose prompts fit, with what is learned of their solutions."""
        kept: list[Measured] = []
        for chunk in chunks(rows):
            learned = dict.fromkeys(range(len(chunk)), 0)
            if self.run.learns_solutions:
                learned = self._learned(chunk)
            for place, length in learned.items():
                problem, row = chunk[place]
                if self.fits(problem, max(row.student, row.teacher, length)):
                    kept.append(chunk[place])
        return kept

    def fits(self, problem: Problem, length: int) -> bool:
        if length > self.limit:
            self._leave_out(TOO_LONG, problem, self._describe_length(problem, length))
        return length <= self.limit

    def _learned(self, rows: Sequence[Measured]) -> dict[int, int]:
        """Return tokens of prompts with their solutions, or a bound in the limit, by their place.

        Solutions that are none by the chat template are left out.
        """
        policy, end = self.policy, len(self.policy.solution_ids(""))
        lengths: dict[int, int] = {}
        counted: dict[int, list[str]] = {}  # texts of the rows that may be over the limit
        for place, (problem, row) in enumerate(rows):
            try:
                if problem.conversation:
                    lengths[place] = self._longest_turn(problem, row)
                    continue
                reference = policy.reference(problem)
            except PromptError as error:
                self._leave_out(NO_PROMPT, problem, str(error))
                continue
            own = [reference.lead, reference.text]
            bounds = [most_tokens(policy.tokenizer, text) for text in own]
            lengths[place] = row.student + sum(bounds) + end
            if lengths[place] > self.limit:
                # All of them are tokenised by themselves.
                counted[place] = [*policy.writer.texts(problem), *own]
        counts = iter(token_lengths(policy.tokenizer, [*chain.from_iterable(counted.values())]))
        for place, texts in counted.items():
            lengths[place] = sum(islice(counts, len(texts))) + end
        return lengths

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

    def _describe_length(self, problem: Problem, length: int) -> str:
        algorithm, data = self.run.algorithm, self.run.config.data
        kind = "teacher prompt" if algorithm.needs_context else "prompt"
        if not algorithm.needs_rollouts:
            kind = "prompt with its solution"
        elif self.run.learns_solutions:
            kind = f"{kind}, or a prompt with its solution,"
        return (
            f"problem {problem.name} makes a {kind} of {length} tokens, over the limit of "
            f"{self.limit} (data.max_prompt_tokens {data.max_prompt_tokens}, or the model's "
            f"{position_limit(self.policy.base.config)} positions less rollout.max_new_tokens "
            f"{reserved_tokens(self.run)})"
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
