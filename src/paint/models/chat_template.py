"""Prompts by a model's chat template: token ids of messages, and a check that all of them are read.

A template may write nothing of a turn, such as a system turn or a developer's. A prompt without one
of its turns is refused, whoever made the turn: a row, the section [prompts], or the method.
"""

import re
from collections.abc import Sequence

from transformers import PreTrainedTokenizerBase

from paint.core.errors import PaintError, format_short, reason
from paint.models.conventions import (
    RENDERING_ERRORS,
    Message,
    template_arguments,
    thought_tags,
    unwritten_turns,
)
from paint.models.special_tokens import special_text
from strictgrade.thoughts import split_thought

FIX = "fix chat_template.jinja in the model's folder"


class PolicyError(PaintError, ValueError):
    """The model cannot be student and teacher; the message names the reason and the fix."""


class PromptError(PolicyError):
    """A row cannot be a prompt or a reference of this model; other rows may be."""


def encode(
    tokenizer: PreTrainedTokenizerBase,
    messages: Sequence[Message],
    *,
    thinking: bool,
    day: str | None = None,
    place: str = "",
    system_setting: str = "",
) -> list[int]:
    """Token ids of a chat prompt, up to the reply. Arguments and errors are ``render_prompt``'s."""
    text = render_prompt(
        tokenizer, messages, thinking=thinking, day=day, place=place, system_setting=system_setting
    )
    # As apply_chat_template does: a template writes the tokens that begin a text itself.
    ids: list[int] = tokenizer(text, add_special_tokens=False)["input_ids"]
    return ids


def render_prompt(
    tokenizer: PreTrainedTokenizerBase,
    messages: Sequence[Message],
    *,
    thinking: bool,
    day: str | None = None,
    place: str = "",
    system_setting: str = "",
) -> str:
    """Text of a chat prompt, up to the reply.

    Args:
        day: for a template that reads the clock, as YYYY-MM-DD; None is the current day.
        place: whose prompt it is, such as a problem, for messages.
        system_setting: the setting that made the first turn a system turn, if one did.

    Raises:
        PromptError: the template refuses the turns, or leaves one of them out.
        PolicyError: it does so with the turn of ``system_setting``; or a text holds control text.
    """
    for message in messages:
        require_no_control(tokenizer, message["content"])
    whose = f"the chat template of {tokenizer.name_or_path}"
    if place:
        whose = f"{place}: {whose}"
    try:
        text = _render(tokenizer, messages, thinking=thinking, day=day)
    except RENDERING_ERRORS as error:
        roles = ", ".join(message["role"] for message in messages)
        refusal = f"{whose} refuses the turns {roles}: {reason(error)}"
        without, system = messages[1:], messages[0]["role"] == "system"
        if system and _is_rendered(tokenizer, without, thinking=thinking, day=day):
            raise _fault(refusal, system_setting) from error
        raise PromptError(f"{refusal}; change them, or {FIX}") from error
    unwritten = unwritten_turns(
        tokenizer,
        str(tokenizer.chat_template),
        tuple(message["role"] for message in messages),
        thinking=thinking,
        day=day,
    )
    for number, message in enumerate(messages):
        expected = message["content"]
        if message["role"] == "assistant":
            expected = _answer(tokenizer, expected)
        if expected.strip() and (number in unwritten or not _holds(text, expected)):
            omission = f"{whose} leaves out the {message['role']} turn {format_short(expected)}"
            raise _fault(
                f"{omission}, which the model would not read", "" if number else system_setting
            )
    return text


def require_no_control(tokenizer: PreTrainedTokenizerBase, text: str) -> None:
    """Raise PolicyError for a text with control text, which would change the conversation."""
    piece = special_text(tokenizer, text)
    if piece:
        raise PolicyError(
            f"a text contains {piece!r}, which the model's chat format takes for control; it "
            f"would change the conversation; spell it differently ({text[:60]!r} ...)"
        )


def _render(
    tokenizer: PreTrainedTokenizerBase,
    messages: Sequence[Message],
    *,
    thinking: bool,
    day: str | None,
) -> str:
    arguments = template_arguments(tokenizer, thinking=thinking, day=day)
    text = tokenizer.apply_chat_template(
        list(messages), tokenize=False, add_generation_prompt=True, **arguments
    )
    return str(text)


def _is_rendered(
    tokenizer: PreTrainedTokenizerBase,
    messages: Sequence[Message],
    *,
    thinking: bool,
    day: str | None,
) -> bool:
    try:
        _render(tokenizer, messages, thinking=thinking, day=day)
    except RENDERING_ERRORS:
        return False
    return True


def _fault(fault: str, system_setting: str) -> PolicyError:
    """The error for a turn that the template does not take: of a row, or of a setting."""
    if system_setting:
        return PolicyError(
            f"{fault}; {system_setting} adds this system turn: set prompts.teacher in its place, "
            f"which words the user's turn, such as '{{{{ context }}}}\\n\\n{{{{ student }}}}', "
            f"or {FIX}"
        )
    return PromptError(f"{fault}; write its text into a turn of the user, or {FIX}")


def _answer(tokenizer: PreTrainedTokenizerBase, text: str) -> str:
    """An assistant's text without its thought, which templates leave out of earlier turns."""
    answer = split_thought(text, thought_tags(tokenizer, str(tokenizer.chat_template))).answer
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
