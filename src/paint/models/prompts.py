"""Chat messages of the views: the paper's, those of the section [prompts], or chats of the data.

    problem -> student_chat;    problem, masked reference -> teacher_chat

Templates are rendered once, in the sandbox in which transformers renders chat templates. What they
insert is data: braces in it stay as they are.
"""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from jinja2 import StrictUndefined, Template
from jinja2.sandbox import ImmutableSandboxedEnvironment
from transformers import PreTrainedTokenizerBase

from chatforms.chat_template import render_prompt
from chatforms.conventions import common_length
from chatforms.rendering import limited
from chatforms.special_tokens import drop_special_text
from chatforms.tool_schemas import Schema, name_of_schema, tool_schemas
from paint.config.schema import Config, PromptsConfig
from paint.core.errors import format_short, wrap_errors
from paint.core.nesting import parse_json
from paint.data.chats import is_chat, json_value
from paint.data.problems import Problem
from paint.data.readers import DataError, kind_of, shorten
from paint.models.model_errors import PromptError, chat_errors
from paint.objective import messages as paper
from paint.resolve.environments import tools_of

REFERENCE = "=== Reference Begin ===\n{{ context }}\n=== Reference End ===\n\n"
TEACHER = REFERENCE + "{{ student }}"
RATIONALE = TEACHER + "\n\nBefore you answer, explain what in the reference above matters for it."
"""Default templates where the student's prompt is not the paper's (ours)."""

FEEDBACK = (
    "{{ student }}"
    "{% if reference %}\n\nCorrect solution:\n\n{{ reference }}\n\n{% endif %}"
    "{% if feedback %}\n\nThe following is feedback from your unsuccessful earlier attempt:"
    "\n\n{{ feedback }}\n\n{% endif %}"
    "\n\n\nCorrectly solve the original question.\n\n"
)
"""Default template of the teacher where a source is feedback: SDPO's wording (arXiv 2601.20802), as
in TRL. Jinja2 drops the first newline after a block and the last one of a template."""

NO_NAMES: Mapping[str, str] = {}

COMPLETION_NAMES = ("completion", "feedback", "reference")
"""Names of templates that depend on the completion."""

Messages = list[dict[str, str]]


@dataclass(frozen=True)
class ViewWriter:
    """Writes the texts of both views' prompts, which needs a tokenizer and no weights."""

    tokenizer: PreTrainedTokenizerBase
    prompts: PromptsConfig
    student_thinking: bool
    teacher_thinking: bool
    day: str | None = None  # for a template that reads the clock; None is the current day
    tools: Sequence[Schema] = ()  # that a row without its own tells of

    @classmethod
    def of(cls, tokenizer: PreTrainedTokenizerBase, config: Config) -> "ViewWriter":
        """Return the writer of a config, whose policy need not be loaded."""
        model = config.model
        with chat_errors():
            tools = tool_schemas(tools_of(config.conversation))
        return cls(
            tokenizer,
            config.prompts,
            model.student_thinking,
            model.teacher_thinking,
            day=None if model.date == "auto" else model.date,
            tools=tools,
        )

    def student(
        self,
        problem: Problem,
        *,
        thinking: bool | None = None,
        then: Sequence[Mapping[str, Any]] = (),
        is_reply: bool = False,
    ) -> str:
        """Return the text of the deployment prompt, with thinking as configured unless given.

        ``then`` are the messages of a conversation after it, up to the next turn; with ``is_reply``
        to the end of a written one.
        """
        if thinking is None:
            thinking = self.student_thinking
        chat = student_chat(self.prompts, problem)
        return self.render(problem, chat, thinking=thinking, then=then, is_reply=is_reply)

    def teacher(
        self,
        problem: Problem,
        context: str | None,
        *,
        complete: bool,
        rationale: str | None = None,
        request: str = "",
        names: Mapping[str, str] = NO_NAMES,
        then: Sequence[Mapping[str, Any]] = (),
    ) -> str:
        """Return the text of the privileged prompt: with a masked, a complete or no reference.

        ``names`` are those of a context (``paint.data.contexts.Context``), and ``then`` the
        messages of a conversation after it, up to the next turn.
        """
        # The control without a reference: the same prompt, in the teacher's thinking mode.
        if context is None:
            return self.student(problem, thinking=self.teacher_thinking, then=then)
        if rationale is not None:  # generated text, which the user cannot correct
            rationale = drop_special_text(self.tokenizer, rationale)
        if names:  # so may be the context
            context = drop_special_text(self.tokenizer, context)
            names = {key: drop_special_text(self.tokenizer, names[key]) for key in names}
        chat = teacher_chat(
            self.prompts,
            problem,
            context,
            complete=complete,
            rationale=rationale,
            request=request,
            generated=names,
        )
        setting = system_setting(self.prompts)
        return self.render(
            problem, chat, thinking=self.teacher_thinking, system_setting=setting, then=then
        )

    def rationale(
        self, problem: Problem, context: str, *, complete: bool, request: str = ""
    ) -> str:
        """Return the text of the request for a rationale; thinking is off: that is the reply."""
        # A context may be a completion. Special text of a problem's row was refused before.
        context = drop_special_text(self.tokenizer, context)
        chat = rationale_chat(self.prompts, problem, context, complete=complete, request=request)
        setting = system_setting(self.prompts)
        return self.render(problem, chat, thinking=False, system_setting=setting)

    def texts(
        self, problem: Problem, contexts: Sequence[str | None] = (), *, complete: bool = False
    ) -> list[str]:
        """Return the student's prompt, and the teacher's with each of some contexts."""
        shown = [self.teacher(problem, context, complete=complete) for context in contexts]
        return [self.student(problem), *shown]

    def render(
        self,
        problem: Problem,
        chat: Sequence[dict[str, Any]],
        *,
        thinking: bool,
        system_setting: str = "",
        then: Sequence[Mapping[str, Any]] = (),
        is_reply: bool = False,
    ) -> str:
        """Return the text of a chat about a problem, and of the messages ``then`` of a model.

        ``system_setting`` is that of ``chat_errors``.
        """
        with chat_errors(f"problem {problem.name}" if problem.id else "", system_setting):
            return render_prompt(
                self.tokenizer,
                [*chat, *map(dict, then)],
                thinking=thinking,
                tools=tools_of_row(problem, self.tools),
                day=self.day,
                said=len(then),
                is_reply=is_reply,
            )


def tools_of_row(problem: Problem, tools: Sequence[Schema]) -> Sequence[Schema]:
    """Return the schemas that a problem's prompts tell of: those that its row names, or else all.

    The column ``tools`` of a row is a list of names, or of schemas as TRL's data have them, also as
    a JSON text. Schemas of a written conversation need not be of known tools.

    Raises PromptError for a name that is none of the tools.
    """
    given = problem.fields.get("tools")
    if isinstance(given, str):
        with suppress(ValueError):
            given = parse_json(given)
    elif is_chat(given):
        given = json_value(given, "tools")
    listed = given if isinstance(given, list) else []
    are_schemas = bool(listed) and all(isinstance(one, Mapping) for one in listed)
    if problem.conversation and (are_schemas or not listed):
        return listed or tools
    if given in (None, ""):
        return tools
    # Without tools, a column of names may be about anything.
    if not tools and not are_schemas:
        return tools
    known = {name_of_schema(schema): schema for schema in tools}
    named = [name_of_schema(one) if isinstance(one, Mapping) else one for one in listed]
    # A list, since a row may hold what has no hash.
    wrong = [name for name in named if name not in [*known]]
    if not isinstance(given, list):
        wrong = [given]
    if wrong:
        raise PromptError(
            f"problem {problem.name}: its tools name {format_short(wrong[0])}, and those of "
            f"conversation.tools are {', '.join(known) or 'none'}; correct the row, which must "
            f"hold a list of such names, or name the function in conversation.tools"
        )
    return [schema for name, schema in known.items() if name in named]


def student_chat(options: PromptsConfig, problem: Problem) -> Messages:
    """Return the deployment prompt: the paper's wording of the problem, a template's, or the chat.

    Raises DataError where a template cannot be rendered, as for a field that the row has not.
    """
    if options.student:
        return _render("prompts.student", options.student, problem, {})
    if problem.turns:
        return _messages(problem.turns)
    return paper.student_messages(problem.problem)


def teacher_chat(
    options: PromptsConfig,
    problem: Problem,
    context: str,
    *,
    complete: bool,
    rationale: str | None = None,
    request: str = "",
    generated: Mapping[str, str] = NO_NAMES,
) -> Messages:
    """Return the privileged prompt: the student's with the masked or complete reference.

    ``generated`` are further names of templates, those of ``paint.data.contexts.Context``.
    With a rationale it is a conversation: the request for it (``rationale_chat``), the rationale as
    the reply, and the student's turn (of the paper's wording: a request for the answer).
    """
    is_paper = not (options.student or problem.turns)
    student = student_chat(options, problem)
    names = {"context": context, "complete": complete, "student": student[-1]["content"]}
    names |= generated
    if rationale is not None:
        reply = {"role": "assistant", "content": rationale}
        last = student[-1:]
        if is_paper:
            last = paper.teacher_messages(
                problem.problem, context, complete=complete, rationale=rationale
            )[-1:]
        asked = rationale_chat(options, problem, context, complete=complete, request=request)
        return [*asked, reply, *last]
    if options.teacher:
        messages = _render("prompts.teacher", options.teacher, problem, names)
    elif options.teacher_system:
        messages = student
    elif is_paper and "feedback" not in generated:
        messages = paper.teacher_messages(problem.problem, context, complete=complete)
    else:
        template = FEEDBACK if "feedback" in generated else TEACHER
        messages = [*student[:-1], _user(_compile(template).render(names))]
    return _with_system(options, problem, names, messages)


def system_setting(options: PromptsConfig) -> str:
    """Return the setting that begins the teacher's prompts with a system turn; "" if none does."""
    return "prompts.teacher_system" if options.teacher_system else ""


def rationale_chat(
    options: PromptsConfig, problem: Problem, context: str, *, complete: bool, request: str = ""
) -> Messages:
    """Return the prompt for the rationale of a reason-first teacher: a template's, or ours.

    The template ``request`` is train.options.request of paintvariants.reason_first.
    """
    student = student_chat(options, problem)
    names = {"context": context, "complete": complete, "student": student[-1]["content"]}
    if request:
        messages = _render("train.options.request", request, problem, names)
    elif options.student or problem.turns:
        messages = [*student[:-1], _user(_compile(RATIONALE).render(names))]
    else:
        messages = paper.rationale_messages(problem.problem, context, complete=complete)
    return _with_system(options, problem, names, messages)


def _with_system(
    options: PromptsConfig, problem: Problem, names: Mapping[str, Any], messages: Messages
) -> Messages:
    if not options.teacher_system:
        return messages
    system = _render("prompts.teacher_system", options.teacher_system, problem, names)[-1]
    others = [message for message in messages if message["role"] != "system"]
    return [{"role": "system", "content": system["content"]}, *others]


def _render(setting: str, template: str, problem: Problem, names: Mapping[str, Any]) -> Messages:
    """Return the chat with its last user turn by a template."""
    fields = problem.fields
    place = f"{setting} {format_short(template)}"
    found = f"problem {problem.name} has the fields {', '.join(fields) or 'problem'}"
    if "{" not in template:  # it would be the same for all rows
        raise DataError(f"{place} inserts nothing, as {{{{ problem }}}} does; {found}")
    roles = {"problem": problem.problem, "solution": problem.solution, "answer": problem.answer}
    roles["system"] = "\n\n".join(text for role, text in problem.turns if role == "system")
    given = {name: text for name, text in roles.items() if text}
    # Later names win: "solution" is the field that data.solution_field names, where there is one.
    known = {"system": "", **fields, "id": problem.id, **given, "row": fields, **names}
    if setting != "prompts.student":  # prompts are measured before there is a completion
        known = dict.fromkeys(COMPLETION_NAMES, "") | known
    with wrap_errors(place, DataError, found), chat_errors(), limited(place):
        text = _compile(template).render(known)
    return [*_messages(problem.turns[:-1]), _user(text)]


def _messages(turns: Iterable[tuple[str, str]]) -> Messages:
    return [{"role": role, "content": text} for role, text in turns]


def _user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


@lru_cache(maxsize=16)
def _compile(template: str) -> Template:
    # As transformers renders chat templates, but a misspelt name is an error.
    sandbox = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, undefined=StrictUndefined, finalize=_require_text
    )
    return sandbox.from_string(template)


def _require_text(value: Any) -> Any:
    """Return the text or number that a template inserts. Raises ValueError for all else."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    # An undefined name has an error of its own.
    if isinstance(value, str | StrictUndefined) or is_number:
        return value
    raise ValueError(
        f"it inserts {kind_of(value)} (value {shorten(value)}), which is no text; say how to show "
        f'it: {{{{ x | join(", ") }}}}, {{{{ x | tojson }}}} or {{{{ x or "" }}}}'
    )


def differing_lines(text: str, student: str) -> str:
    """Return a prompt with marks for the lines at its ends that the student's has, too."""
    lines, others = text.splitlines(), student.splitlines()
    if lines == others:
        return "(as the student's)"
    before = common_length(lines, others)
    after = common_length(lines[before:][::-1], others[before:][::-1])
    kept = lines[before : len(lines) - after]
    top, bottom = lines[:before], lines[len(lines) - after :]
    if before > 1:
        top = [f"({before} lines as the student's)"]
    if after > 1:
        bottom = [f"({after} lines as the student's)"]
    return "\n".join([*top, *kept, *bottom])
