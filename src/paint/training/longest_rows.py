"""The longest prompts of a run's rows, for the memory plan.

The rows with the most bytes are measured in tokens, and others at equal distances.
"""

import heapq
from collections.abc import Sequence
from functools import partial

from transformers import PreTrainedTokenizerBase

from chatforms.chat_template import render_prompt
from chatforms.conventions import keeps_turns
from chatforms.lengths import SLACK, token_lengths
from chatforms.tool_schemas import Schema, tool_schemas
from paint.config.context_sources import context_source
from paint.config.schema import Config
from paint.data.chats import is_learned
from paint.data.contexts import Contexts
from paint.data.problems import Problem
from paint.environments.episodes import tools_of
from paint.models.lengths import SAMPLED, chunks
from paint.models.model_errors import chat_errors
from paint.models.policy import tools_of_row
from paint.models.prompts import student_chat, system_setting, teacher_chat
from paint.resolve.check import Resolved
from paint.resolve.plan import LongestRows

LONGEST = 200
"""Rows of a long file that are measured as they have the most bytes of a text."""


def longest_views(
    tokenizer: PreTrainedTokenizerBase,
    problem: Problem,
    config: Config,
    context: str | None,
    *,
    complete: bool = False,
    tools: Sequence[Schema] = (),
) -> dict[str, str]:
    """Text of the student's prompt, and of the teacher's with a context.

    ``tools`` are the schemas of those that a row without its own tells of.
    """
    options, setting = config.prompts, ""
    student = teacher = student_chat(options, problem)
    if context is not None:
        teacher = teacher_chat(options, problem, context, complete=complete)
        setting = system_setting(options)
    model, place = config.model, f"problem {problem.name}"
    render = partial(render_prompt, tokenizer, tools=tools_of_row(problem, tools))
    with chat_errors(place):
        views = {"student": render(student, thinking=model.student_thinking)}
    with chat_errors(place, setting):
        views["teacher"] = render(teacher, thinking=model.teacher_thinking)
    return views


def measure_longest(
    run: Resolved, problems: Sequence[Problem], tokenizer: PreTrainedTokenizerBase
) -> LongestRows:
    """Measure the rows with the most bytes, and others at equal distances.

    Raises DataError or PolicyError for a row that is no prompt.
    """
    config, rows = run.config, range(len(problems))
    contexts, model = Contexts(config.context, problems), config.model
    # Other sources show another row's text, what is known of a completion, or run code.
    is_of_row = all(context_source(source).of_row for source in config.context.source)
    with chat_errors():
        tools = tool_schemas(tools_of(config.conversation))
        keeps = [
            keeps_turns(tokenizer, thinking=mode)
            for mode in {model.student_thinking, model.teacher_thinking}
        ]
    sizes = []
    for problem in problems:
        shown = contexts.longest(problem) if is_of_row else problem.solution
        sizes.append(len(problem.problem.encode()) + len(shown.encode()))
    chosen = {*rows[:: max(len(rows) // SAMPLED, 1)]}
    chosen |= {*heapq.nlargest(LONGEST, rows, key=sizes.__getitem__)}
    most = dict.fromkeys(("student", "teacher", "solution"), 0)
    for chunk in chunks([problems[i] for i in sorted(chosen)]):
        texts: dict[str, list[str]] = {name: [] for name in most}
        for problem in chunk:
            context = contexts.longest(problem) if is_of_row else None
            for name, text in longest_views(
                tokenizer, problem, config, context, tools=tools
            ).items():
                texts[name].append(text)
            texts["solution"].append(_solution(tokenizer, problem, config, tools))
        for name, written in texts.items():
            most[name] = max(most[name], *token_lengths(tokenizer, written))
    teacher = most["teacher"] if is_of_row and run.algorithm.needs_context else None
    if not run.algorithm.needs_context:
        teacher = most["student"]
    reference = most["solution"] + SLACK  # an end of the turn, and of a thought
    return LongestRows(
        most["student"],
        teacher,
        reference,
        len(chosen),
        len(rows),
        turns=max(1, *(_turns(problem) for problem in problems)),
        keeps_turns=all(keeps),
    )


def _turns(problem: Problem) -> int:
    return sum(map(is_learned, problem.conversation))


def _solution(
    tokenizer: PreTrainedTokenizerBase, problem: Problem, config: Config, tools: Sequence[Schema]
) -> str:
    """A problem's solution; of a conversation, all of it with the prompt."""
    if not problem.conversation:
        return problem.solution
    with chat_errors(f"problem {problem.name}"):
        return render_prompt(
            tokenizer,
            [*student_chat(config.prompts, problem), *map(dict, problem.conversation)],
            tools=tools_of_row(problem, tools),
            thinking=config.model.student_thinking,
            said=len(problem.conversation),
            is_reply=True,
        )
