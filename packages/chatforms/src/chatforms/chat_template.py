"""Prompts by a model's chat template: token ids of messages, and a check that all of them are read.

A template may write nothing of a turn, such as a system turn or a developer's. A prompt without one
of its turns is refused.

Messages may hold calls of tools and their results, as OpenAI's API has them: ``tool_calls`` of the
assistant, and turns of the role "tool". ``ToolTurns`` is what a template needs to write them.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from typing import Any

from transformers import PreTrainedTokenizerBase

from chatforms.conventions import RENDERING_ERRORS, render_turns, thought_tags
from chatforms.errors import FIX, ChatFormError, MessageError, format_short, reason
from chatforms.messages import THOUGHT_FIELDS, Message, call_parts, texts_of
from chatforms.rendering import by_template
from chatforms.special_tokens import require_no_control
from strictgrade.thoughts import split_thought

TRIAL_NAME = "trial_tool"
TRIAL_ARGUMENTS: Mapping[str, Any] = {"trialkey": "trialvalue"}
_TRIAL_QUESTION, _TRIAL_RESULT = "trial-question", "trial-result"
TRIAL_TOOL: Mapping[str, Any] = {
    "type": "function",
    "function": {
        "name": TRIAL_NAME,
        "description": "A trial.",
        "parameters": {
            "type": "object",
            "properties": {"trialkey": {"type": "string", "description": "A text."}},
            "required": ["trialkey"],
        },
    },
}
"""A tool of trial chats; its name and arguments occur in no template."""

_AS_USER = f"write its text into a turn of the user, or {FIX}"


def encode(
    tokenizer: PreTrainedTokenizerBase,
    messages: Sequence[Message],
    *,
    thinking: bool,
    tools: Sequence[Mapping[str, Any]] = (),
    day: str | None = None,
    said: int = 0,
) -> list[int]:
    """Return token ids of a chat prompt. Arguments and errors are those of ``render_prompt``."""
    text = render_prompt(tokenizer, messages, thinking=thinking, tools=tools, day=day, said=said)
    # As apply_chat_template does: a template writes the tokens that begin a text itself.
    ids: list[int] = tokenizer(text, add_special_tokens=False)["input_ids"]
    return ids


def render_prompt(
    tokenizer: PreTrainedTokenizerBase,
    messages: Sequence[Message],
    *,
    thinking: bool,
    tools: Sequence[Mapping[str, Any]] = (),
    day: str | None = None,
    said: int = 0,
    is_reply: bool = False,
) -> str:
    """Return the text of a chat prompt up to the reply; with ``is_reply`` to the last turn's end.

    Text that an assistant wrote beside calls is the template's to write or to leave out, as
    Llama's does; so are its thoughts.

    Args:
        tools: JSON schemas of the functions that the model may call (``tool_schemas``).
        day: for a template that reads the clock, as YYYY-MM-DD; None is the current day.
        said: the last turns, of a conversation that a model took part in. That the template writes
            such turns is checked, and not that it writes their texts: it may drop what it takes for
            a thought in them.

    Raises:
        MessageError: the template refuses the turns, or leaves out one of them or a call in it; or
            a call is not one of OpenAI's API.
        ChatFormError: the template leaves out the tools; or a text holds control text.
    """
    for text in _texts(messages, tools):
        require_no_control(tokenizer, text)
    whose = f"the chat template of {tokenizer.name_or_path}"
    chat = _with_tool_turns(tokenizer, messages, whose)
    render = partial(render_turns, tokenizer, thinking=thinking, day=day, tools=tools)
    try:
        text = render(chat, begins_reply=not is_reply)
    except RENDERING_ERRORS as error:
        roles = ", ".join(message["role"] for message in chat)
        refusal = f"{whose} refuses the turns {roles}: {reason(error)}"
        advice, turn = f"change them, or {FIX}", None
        if chat[0]["role"] == "system":
            with suppress(*RENDERING_ERRORS):  # the template takes the turns behind it
                render(chat[1:], begins_reply=True)
                advice, turn = _AS_USER, 0
        raise MessageError(refusal, advice, turn) from error
    unwritten = _unwritten_turns(
        tokenizer,
        tuple((message["role"], len(message.get("tool_calls") or ())) for message in chat),
        thinking=thinking,
        day=day,
        has_tools=bool(tools),  # a model may have a template of its own for chats with tools
    )
    for number, message in enumerate(chat):
        if number >= len(chat) - said and number not in unwritten:
            continue
        missing = _missing_part(tokenizer, text, message, is_unwritten=number in unwritten)
        if missing:
            omission = f"{whose} leaves out {missing}, which the model would not read"
            raise MessageError(omission, _AS_USER, turn=number)
    _require_tools(text, tools, whose)
    return text


@dataclass(frozen=True)
class ToolTurns:
    """How a chat template takes calls of tools and their results."""

    arguments_as_text: bool = False  # JSON in place of an object, as DeepSeek-V3's
    needs_ids: bool = False  # of nine letters and digits, as Mistral's
    calls_alone: bool = False  # it writes calls of turns whose content is null alone
    several: bool = True  # it writes more than one call of a turn

    def messages(self, messages: Sequence[Message]) -> list[Message]:
        """Return messages with calls and results as the template takes them.

        Raises MessageError where a call has no name, or arguments that are no JSON object.
        """
        chat, waiting, ids = [], list[Message](), dict[str, str]()
        for message in messages:
            written = dict(message)
            if message.get("tool_calls"):
                waiting = [self._call(call, ids) for call in message["tool_calls"]]
                written["tool_calls"] = list(waiting)
                content = message.get("content") or ""
                written["content"] = None if self.calls_alone else content
            elif message["role"] == "tool":
                given = str(message.get("tool_call_id", ""))
                call = _answered(waiting, ids.get(given, given), message.get("name"))
                if call:
                    waiting.remove(call)
                    written.setdefault("name", call["function"]["name"])
                if call and "id" in call:
                    written["tool_call_id"] = call["id"]
            chat.append(written)
        return chat

    def _call(self, call: Any, ids: dict[str, str]) -> Message:
        """One call in the form of OpenAI's API; ``ids`` are those given before, by their texts."""
        function, known = call_parts(call), {}
        given = call.get("id")
        if given or self.needs_ids:
            key = str(given or f"call {len(ids)}")
            fits = not self.needs_ids or re.fullmatch(r"[A-Za-z0-9]{9}", key)
            known["id"] = ids[key] = key if fits else f"call{len(ids):05d}"
        arguments: Any = function[1]
        if self.arguments_as_text:
            arguments = json.dumps(arguments, ensure_ascii=False)
        return {
            **known,
            "type": "function",
            "function": {"name": function[0], "arguments": arguments},
        }


@by_template()
def tool_turns(tokenizer: PreTrainedTokenizerBase) -> ToolTurns | None:
    """Return how a template takes calls and results; None if it omits or refuses them."""
    key, value = next(iter(TRIAL_ARGUMENTS.items()))
    result = {"role": "tool", "content": _TRIAL_RESULT}
    for as_text, needs_ids, alone in product((False, True), repeat=3):
        turns, texts = ToolTurns(as_text, needs_ids, alone), []
        for count in (1, 2):
            calls = {"role": "assistant", "tool_calls": [trial_call()] * count}
            asked = {"role": "user", "content": _TRIAL_QUESTION}
            chat = turns.messages([asked, calls, *[result] * count])
            try:
                text = render_turns(
                    tokenizer, chat, thinking=True, tools=[TRIAL_TOOL], begins_reply=True
                )
            except RENDERING_ERRORS:
                text = ""
            texts.append(text.partition(_TRIAL_QUESTION)[2])
        once, twice = texts
        if all(part in once for part in (TRIAL_NAME, key, value, _TRIAL_RESULT)):
            return replace(turns, several=twice.count(value) == 2 * once.count(value))
    return None


@by_template(1024)
def _unwritten_turns(
    tokenizer: PreTrainedTokenizerBase,
    turns: tuple[tuple[str, int], ...],
    *,
    thinking: bool,
    day: str | None,
    has_tools: bool,
) -> tuple[int, ...]:
    """The turns of a chat of which the template writes nothing, by their numbers.

    ``turns`` are roles and numbers of calls. Of a turn with calls, their names are looked for.
    """
    chat, marks = list[Message](), list[list[str]]()
    for number, (role, calls) in enumerate(turns):
        text = f"trial-turn-{number}-text"
        names = [f"trial_turn_{number}_call_{i}_name" for i in range(calls)]
        marks.append(names or [text])
        chat.append({"role": role, "content": "" if names else text})
        if names:
            chat[-1] |= {"tool_calls": [trial_call(name) for name in names]}
    try:
        trial = _with_tool_turns(tokenizer, chat, "")
        tools = [TRIAL_TOOL] * has_tools
        found = render_turns(
            tokenizer, trial, thinking=thinking, day=day, tools=tools, begins_reply=True
        ).lower()  # a template may write in capitals
    except RENDERING_ERRORS:
        return ()  # a template that refuses these texts refuses the chat's own, or reads them
    return tuple(
        number for number, texts in enumerate(marks) if any(text not in found for text in texts)
    )


def _missing_part(
    tokenizer: PreTrainedTokenizerBase, rendered: str, message: Message, *, is_unwritten: bool
) -> str:
    """What a rendering leaves out of a turn, for a message; "" if the turn is there."""
    for call in message.get("tool_calls") or ():
        name = call["function"]["name"]
        if is_unwritten or not _holds(rendered, name):
            return f"the call of {name} in an {message['role']} turn"
    if message.get("tool_calls"):
        return ""
    expected = message["content"]
    if message["role"] == "assistant":
        expected = _answer(tokenizer, expected)
    if expected.strip() and (is_unwritten or not _holds(rendered, expected)):
        return f"the {message['role']} turn {format_short(expected)}"
    return ""


def _require_tools(rendered: str, tools: Sequence[Mapping[str, Any]], whose: str) -> None:
    """Raise ChatFormError for tools of which a rendering does not have the name."""
    names = [tool.get("function", tool)["name"] for tool in tools]
    missing = [name for name in names if name not in rendered]
    if missing:
        raise ChatFormError(
            f"{whose} leaves out the tools {', '.join(missing)}, which the model would not know; "
            f"use a model whose template has tools, such as Qwen2.5, or {FIX}"
        )


def _with_tool_turns(
    tokenizer: PreTrainedTokenizerBase, messages: Sequence[Message], whose: str
) -> Sequence[Message]:
    """The messages with calls and results as the template takes them."""
    if not any(message.get("tool_calls") for message in messages):
        return messages
    turns = tool_turns(tokenizer)
    if turns is None:
        raise MessageError(
            f"{whose} refuses calls of tools and their results, or leaves them out",
            f"use a model whose template has both, such as Qwen2.5, or {FIX}",
        )
    return turns.messages(messages)


def _texts(messages: Sequence[Message], tools: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """All texts that others wrote, as they are and as JSON spells them."""
    for tool in tools:
        yield json.dumps(tool, ensure_ascii=False)
    for message in messages:
        for field in ("content", "name", "tool_call_id", *THOUGHT_FIELDS):
            if isinstance(message.get(field), str):
                yield message[field]
        for call in message.get("tool_calls") or ():
            name, arguments = call_parts(call)
            yield name
            yield str(call.get("id", ""))
            yield from texts_of(arguments)


def trial_call(name: str = TRIAL_NAME, arguments: Mapping[str, Any] = TRIAL_ARGUMENTS) -> Message:
    """Return a call of a trial chat."""
    return {"type": "function", "function": {"name": name, "arguments": dict(arguments)}}


def _answered(waiting: Sequence[Message], given_id: str, name: str | None) -> Message | None:
    """The call that a result answers: by its id, by its name, or the first without a result."""
    by_id = [call for call in waiting if given_id and call.get("id") == given_id]
    by_name = [call for call in waiting if call["function"]["name"] == name]
    return next(iter([*by_id, *by_name, *waiting]), None)


def _answer(tokenizer: PreTrainedTokenizerBase, text: str) -> str:
    """An assistant's text without its thought, which templates leave out of earlier turns."""
    answer = split_thought(text, thought_tags(tokenizer)).answer
    if answer is None:  # a thought that is never closed is text to a template
        return text
    return answer


def _holds(rendered: str, text: str) -> bool:
    """Whether a rendering holds a text, which templates trim, fold or escape in parts.

    Words that begin with a slash, such as SmolLM3's /no_think, are for the template to read.
    """
    if text.strip() in rendered:
        return True
    rendered, place = rendered.casefold(), 0
    for word in re.findall(r"\w+", re.sub(r"(?<!\S)/\w+", " ", text.casefold())):
        place = rendered.find(word, place)
        if place < 0:
            return False
        place += len(word)
    return True
