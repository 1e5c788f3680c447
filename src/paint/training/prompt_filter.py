"""Drops or rejects problems whose prompts exceed the limit; prints the first prompts.

A prompt is never truncated: a solution without its end would be another experiment.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

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
from paint.models.model_errors import REASON, PromptError, special_text_finder
from paint.models.policy import Policy, tools_of_row
from paint.models.prompts import describe_replaced, replaced_system_turns
from paint.models.references import describe_changes
from paint.objective.masking import MARKER
from paint.resolve.check import Resolved
from paint.resolve.structure import position_limit
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
    file_content: str | None = None,
) -> list[Problem]:
    """The problems whose prompts fit; data.on_bad_row refuses or counts the others.

    ``file_content`` is the content of context.file, if it was read before.
    """
    config, rows = run.config, candidates.problems
    for note in candidates.notes:
        display.note(note)
    contexts = Contexts(config.context, rows, file_content)
    check = _PromptCheck(policy, run, contexts, prompt_limit(policy, run))
    problems, count = [], 0  # without control text
    with display.counting("training problems measured", len(rows)) as counter:
        for chunk in chunks(rows):
            # First, as the policy refuses to encode such text.
            free = [problem for problem in chunk if check.is_free_of_control(problem)]
            count += len(free)
            problems += check.fitting(free)
            counter.to(counter.done + len(chunk))
    if not count:
        raise DataError(f"{config.data.place}: no problem is left; all hold {REASON}")

    shows_another = any(
        context_source(source).bounded_by == "solution" for source in config.context.source
    )
    if shows_another and problems:
        # Another row's text must fit as well, and only solutions that fit themselves are shown.
        longest = _longest_solution(policy, problems, display)
        # Another completion of the problem has at most as many tokens as are reserved for one.
        longest = max(longest, reserved_tokens(run) if contexts.needs_peers else 0)
        measured, problems = problems, []
        with display.counting("measured with another's solution", len(measured)) as counter:
            for chunk in chunks(measured):
                problems += check.fitting(chunk, longest)
                counter.to(counter.done + len(chunk))
    refused = len(check.refused)
    if not problems:
        others = f"; the chat template does not take {refused}" if refused else ""
        raise DataError(
            f"{config.data.place}: no problem is left; {count - refused} of {count} are over "
            f"{check.limit} tokens{others}"
        )
    _require_every_source(config.data, problems, check.limit)

    skipped = {
        REASON: len(rows) - count,
        "the chat template does not take their turns or thoughts": refused,
        "over the token limit": count - len(problems) - refused,
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
    replaced = replaced_system_turns(run.config.prompts, problems)
    if replaced:
        display.warn(describe_replaced(replaced, len(problems)))
    if run.algorithm.needs_context:
        note_unmasked(contexts, problems, display)
    if run.learns_solutions:
        display.notes(describe_changes([policy.reference(problem) for problem in problems]))


@dataclass(frozen=True)
class _PromptCheck:
    """Refuses, or leaves out, problems whose longest prompt is over a limit in tokens."""

    policy: Policy
    run: Resolved
    contexts: Contexts
    limit: int
    refused: list[Problem] = field(default_factory=list)  # by the chat template, and left out

    def place(self, problem: Problem) -> str:
        """The file and the name of a problem, for messages."""
        return f"{self.run.config.data.path_of(problem.source)}: problem {problem.name}"

    def is_free_of_control(self, problem: Problem) -> bool:
        """Whether no text of a problem holds control text; with on_bad_row error it is refused."""
        data = self.run.config.data
        texts = {"solution": problem.solution, "answer": problem.answer}
        texts |= self.contexts.of_own_row(problem) if self.run.algorithm.needs_context else {}
        texts["problem"] = "\n\n".join([problem.problem, *(text for _, text in problem.turns)])
        found = special_text_finder(self.policy.tokenizer, **texts)
        if found is not None and data.on_bad_row == "error":
            raise DataError(
                f"{self.place(problem)} holds {REASON}{found}; fix the row or "
                f"pass --data.on-bad-row skip"
            )
        return found is None

    def fitting(self, problems: Sequence[Problem], other_tokens: int = 0) -> list[Problem]:
        """The problems that fit, with so many tokens of a text from another row."""
        tokenizer, taken, rows = self.policy.tokenizer, [], []
        for problem in problems:
            found = self._rows(problem, other_tokens)
            if found:
                taken.append(problem)
                rows.append(found)
        # Most rows have fewer bytes than the limit has tokens, and need no tokens.
        long = [
            i
            for i, found in enumerate(rows)
            if max(beside + sum(most_tokens(tokenizer, t) for t in ts) for ts, beside in found)
            > self.limit
        ]
        texts = [text for i in long for texts, _ in rows[i] for text in texts]
        counts = iter(token_lengths(tokenizer, texts))
        over = {}
        for i in long:
            lengths = [beside + sum(next(counts) for _ in texts) for texts, beside in rows[i]]
            if max(lengths) > self.limit:
                over[i] = max(lengths)
        if over and self.run.config.data.on_bad_row == "error":
            place, length = next(iter(over.items()))
            self._refuse(taken[place], length)
        return [problem for i, problem in enumerate(taken) if i not in over]

    def _rows(self, problem: Problem, other_tokens: int) -> list[tuple[list[str], int]]:
        """What the model reads of a problem, of which the longest counts.

        Each is texts that are tokenised by themselves, and a number of further tokens. Empty for a
        problem that the chat template does not take.
        """
        try:
            return self._rendered(problem, other_tokens)
        except PromptError as error:
            data = self.run.config.data
            if data.on_bad_row == "error":
                path = data.path_of(problem.source)
                raise DataError(
                    f"{path}: {error}; --data.on-bad-row skip leaves such rows out"
                ) from error
            self.refused.append(problem)
            return []

    def _rendered(self, problem: Problem, other_tokens: int) -> list[tuple[list[str], int]]:
        policy, algorithm = self.policy, self.run.algorithm
        if algorithm.needs_rollouts and not self.run.engine.is_stored:
            # What answers calls are functions, whatever a written conversation had.
            tools_of_row(replace(problem, conversation=()), policy.tools)
        learned: list[tuple[list[str], int]] = []
        if self.run.learns_solutions and problem.conversation:
            learned = [([], self._longest_turn(problem))]
        elif self.run.learns_solutions:
            [prompt] = policy.prompt_texts(problem, (), complete=False)
            # Both are read as one row.
            reference, end = policy.reference(problem), len(policy.solution_ids(""))
            learned = [([prompt, *filter(None, [reference.lead]), reference.text], end)]
        if not algorithm.needs_rollouts:
            return learned
        if not algorithm.needs_context:
            [prompt] = policy.prompt_texts(problem, (), complete=False)
            return [([prompt], 0), *learned]

        # The longest view hides next to nothing, and has the marker on top.
        contexts = [self.contexts.longest(problem)]
        if other_tokens:
            own = self.contexts.of_own_row(problem).values()
            contexts.append("\n\n".join([*own, MARKER]))
        rows = learned
        # The paper's wording of a complete solution is the shorter one.
        for complete in {False, bool(policy.prompts.teacher_complete)}:
            texts = policy.prompt_texts(problem, contexts, complete=complete)
            beside = (0, 0, other_tokens)
            rows += [([text], further) for text, further in zip(texts, beside, strict=False)]
        return rows

    def _longest_turn(self, problem: Problem) -> int:
        """Tokens of the longest turn of a written conversation with its prompt, or a bound."""
        policy = self.policy
        texts = policy.prompt_texts(problem, (), complete=False)
        texts += [json.dumps(message, ensure_ascii=False) for message in problem.conversation]
        bound = sum(most_tokens(policy.tokenizer, text) + MARKS for text in texts)
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
            f"{self.place(problem)} makes a {kind} of {length} tokens, over the "
            f"limit of {self.limit} (data.max_prompt_tokens {data.max_prompt_tokens}, or the "
            f"model's {position_limit(self.policy.base.config)} positions less "
            f"rollout.max_new_tokens {reserved_tokens(self.run)}); shorten it, change the limit, "
            f"or pass --data.on-bad-row skip"
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
    """A line where completions are to be graded, and no row has an answer; "" elsewhere."""
    grades = run.algorithm.needs_rollouts and not run.config.grading.is_off
    if not (grades and run.needs_answer) or any(problem.answer for problem in problems):
        return ""
    data = run.config.data
    read = {data.problem_field, data.solution_field, data.answer_field, data.id_field, "messages"}
    others: dict[str, None] = {}  # in the order of the file
    for problem in problems:
        others |= dict.fromkeys(name for name in problem.fields if name not in read)
    columns = f"; other columns: {', '.join(others)}" if others else ""
    return (
        f"no row has an answer: accuracy is not reported (--data.answer-field names the column, "
        f"now {data.answer_field}{columns})"
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
            of = f"{len(searched)}"
            if len(searched) < len(problems):
                of = f"{len(searched):,}, at equal distances among {len(problems):,},"
            display.warn(
                f"{without_anchors} of {of} contexts have no anchors: their overlap counts as 0, "
                f"and they are shown in full (context.alignment words or fixed masks them, too)"
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

    What the teacher reads then is hidden as for a completion that shares nothing with it. Contexts
    are None for a method without a teacher that reads any.
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
    """Print a completion with special tokens, and its prompts where they are worded otherwise."""
    if rollout.prompt != printed.student:
        _print_prompt(display, policy, "its student prompt", rollout.prompt)
    teacher = rollout.teacher_prompt
    if teacher and _wording(policy, teacher) != _wording(policy, printed.teacher):
        _print_prompt(display, policy, "its teacher prompt", teacher.prompt, rollout.prompt)
    ids = rollout.completion.ids
    _print_prompt(display, policy, "completion", ids)
    display.note("---")


def _print_prompt(
    display: Display,
    policy: Policy,
    title: str,
    ids: Sequence[int],
    student: Sequence[int] | None = None,
) -> None:
    """Print a prompt; of the teacher's, what differs from the student's."""
    # As the model reads them: a template that differs by accident shows here (D2).
    text = policy.decode(ids, special=True)
    if student is not None:
        text = differing_lines(text, policy.decode(student, special=True), "the student's")
    display.note(f"--- {title}, {len(ids)} tokens ---\n{text}")


def _wording(policy: Policy, teacher: TeacherPrompt | None) -> str:
    """The text of a teacher's prompt without its context, of which a completion hides a part."""
    if teacher is None:
        return ""
    return policy.decode(teacher.prompt, special=True).replace(teacher.context or "", "")
