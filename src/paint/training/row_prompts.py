"""The prompts of a run's rows, each written and measured once: for memory plan and prompt filter.

Tokens take longer than bytes, of which a prompt has more: they are counted of a prompt that may be
over the limit, and of the rows that a memory plan is made of.
"""

import heapq
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from math import inf

from transformers import PreTrainedTokenizerBase

from chatforms.conventions import keeps_turns
from chatforms.lengths import SLACK, most_tokens, token_lengths
from paint.config.context_sources import context_source
from paint.core.display import Display
from paint.data.chats import is_learned
from paint.data.contexts import Contexts
from paint.data.problems import Problem
from paint.models.lengths import SAMPLED, chunks
from paint.models.model_errors import PromptError, chat_errors, special_text_finder
from paint.models.prompts import ViewWriter, tools_of_row
from paint.objective.masking import MARKER
from paint.resolve.check import Resolved
from paint.resolve.plan import LongestRows

LONGEST = 200
"""Rows of a long file that are counted in tokens as they have the most bytes of a text."""


@dataclass(slots=True)
class RowPrompts:
    """Tokens of a row's prompts: where they are not over the limit, they may be a bound on them."""

    student: int = 0  # of the longest prompt; 0 for a method without such a view
    teacher: int = 0
    beside_another: int = 0  # of the teacher's prompt beside a text of another row
    solution: int = 0  # of what is learned of it, or of all of a conversation, without its end
    control: str = ""  # what is taken for control, as ``special_text_finder`` says it
    refused: PromptError | None = None  # why the chat template does not take it
    is_counted: bool = False  # all of them are in tokens


def shows_another(run: Resolved) -> bool:
    """Return whether the teacher reads a solution or a completion of another row."""
    sources = map(context_source, run.config.context.source)
    return run.algorithm.needs_context and any(one.bounded_by == "solution" for one in sources)


def measure_rows(
    run: Resolved,
    views: ViewWriter,
    contexts: Contexts,
    problems: Sequence[Problem],
    display: Display,
    *,
    limit: float,
    counted: Collection[int] = (),
) -> list[RowPrompts]:
    """Write the prompts of these problems, and measure them.

    Prompts that may be over ``limit`` are counted in tokens, and those of the rows at the places
    ``counted``. Raises PolicyError or DataError for a setting or a template that makes no prompt.
    """
    found: list[RowPrompts] = []
    with display.counting("training problems measured", len(problems)) as counter:
        for chunk in chunks(problems):
            rows: list[RowPrompts] = []
            texts: list[tuple[RowPrompts, str, str]] = []  # to be counted, by their field
            for problem in chunk:
                row = RowPrompts(is_counted=len(found) + len(rows) in counted)
                rows.append(row)
                row.control = _control_text(run, views.tokenizer, contexts, problem)
                if row.control:
                    continue
                try:
                    written = _texts(run, views, contexts, problem, with_solution=row.is_counted)
                except PromptError as error:
                    row.refused = error
                    continue
                for name, text in written:
                    bound = most_tokens(views.tokenizer, text)
                    if row.is_counted or bound > limit or name == "beside_another":
                        texts.append((row, name, text))
                    else:
                        setattr(row, name, max(getattr(row, name), bound))
            lengths = token_lengths(views.tokenizer, [text for _, _, text in texts])
            for (row, name, _), length in zip(texts, lengths, strict=True):
                setattr(row, name, max(getattr(row, name), length))
            found += rows
            counter.to(counter.done + len(chunk))
    return found


def _control_text(
    run: Resolved, tokenizer: PreTrainedTokenizerBase, contexts: Contexts, problem: Problem
) -> str:
    texts = {"solution": problem.solution, "answer": problem.answer}
    texts |= contexts.of_own_row(problem) if run.algorithm.needs_context else {}
    texts["problem"] = "\n\n".join([problem.problem, *(text for _, text in problem.turns)])
    return special_text_finder(tokenizer, **texts) or ""


def _texts(
    run: Resolved, views: ViewWriter, contexts: Contexts, problem: Problem, *, with_solution: bool
) -> list[tuple[str, str]]:
    """Return the texts that the model reads of a problem, by the fields of RowPrompts."""
    algorithm = run.algorithm
    if algorithm.needs_rollouts and not run.engine.is_stored:
        # What answers calls are functions, whatever a written conversation had.
        tools_of_row(replace(problem, conversation=()), views.tools)
    texts: list[tuple[str, str]] = []
    if with_solution and run.learns_solutions:
        text = problem.solution
        if problem.conversation:
            text = views.student(problem, then=problem.conversation, is_reply=True)
        texts.append(("solution", text))
    if not algorithm.needs_context:
        return [("student", views.texts(problem)[0]), *texts]
    # The longest view hides next to nothing, and has the marker on top.
    shown = [contexts.longest(problem)]
    if shows_another(run):
        shown.append("\n\n".join([*contexts.of_own_row(problem).values(), MARKER]))
    # The paper's wording of a complete solution is the shorter one.
    written = views.texts(problem, shown)
    texts += zip(("student", "teacher", "beside_another"), written, strict=False)
    return texts


def _is_of_row(run: Resolved) -> bool:
    # Other sources show another row's text, what is known of a completion, or run code.
    return all(context_source(source).of_row for source in run.config.context.source)


def rows_to_count(run: Resolved, contexts: Contexts, problems: Sequence[Problem]) -> list[int]:
    """Return places of the rows with the most bytes, and of others at equal distances."""
    rows = range(len(problems))
    if len(rows) <= SAMPLED:
        return [*rows]
    is_of_row = _is_of_row(run)
    sizes = []
    for problem in problems:
        shown = contexts.longest(problem) if is_of_row else problem.solution
        sizes.append(len(problem.problem.encode()) + len(shown.encode()))
    longest = heapq.nlargest(LONGEST, rows, key=sizes.__getitem__)
    return sorted({*rows[:: len(rows) // SAMPLED], *longest})


def measure_longest(
    run: Resolved, problems: Sequence[Problem], tokenizer: PreTrainedTokenizerBase
) -> LongestRows:
    """Return the longest prompts, and write no others. Raises as measure_rows."""
    contexts, views = Contexts(run.config.context, problems), ViewWriter.of(tokenizer, run.config)
    rows = [problems[place] for place in rows_to_count(run, contexts, problems)]
    counted, quiet = range(len(rows)), Display(enabled=False)
    measured = measure_rows(run, views, contexts, rows, quiet, limit=inf, counted=counted)
    return longest_rows(run, tokenizer, problems, measured)


def longest_rows(
    run: Resolved,
    tokenizer: PreTrainedTokenizerBase,
    problems: Sequence[Problem],
    measured: Sequence[RowPrompts],
) -> LongestRows:
    """Return the longest prompts of the rows that were counted, for a memory plan."""
    rows = [row for row in measured if row.is_counted]
    student = max(row.student for row in rows)
    teacher = None
    if not run.algorithm.needs_context:
        teacher = student
    elif _is_of_row(run):
        teacher = max(row.teacher for row in rows)
    turns = max(1, *(sum(map(is_learned, problem.conversation)) for problem in problems))
    is_open = turns > 1 or run.config.conversation.is_on
    model = run.config.model
    modes = {model.student_thinking, model.teacher_thinking}
    with chat_errors():
        keeps = is_open and all(keeps_turns(tokenizer, thinking=mode) for mode in modes)
    return LongestRows(
        student,
        teacher,
        # SLACK is for the ends of the turn and of a thought.
        max(row.solution for row in rows) + SLACK,
        len(rows),
        len(problems),
        turns=turns,
        keeps_turns=keeps,
    )
