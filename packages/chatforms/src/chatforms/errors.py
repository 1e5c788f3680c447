"""Errors of the library, and the wording that their messages share."""

import difflib
import json
from collections.abc import Iterable

FIX = "fix chat_template.jinja in the model's folder"
"""The advice for what a chat template does not do."""

_MOST_SHOWN, _MOST_OF_REASON = 200, 300


class ChatFormError(Exception):
    """A chat template, tokenizer or text does not fit; the message gives the reason and the fix."""


class MessageError(ChatFormError):
    """Messages that a chat template does not take; it may take others.

    Attributes:
        fault: the message without its advice.
        turn: the number of the turn at fault, from 0; None where it is not one alone.
    """

    def __init__(self, fault: str, advice: str, turn: int | None = None) -> None:
        super().__init__(f"{fault}; {advice}")
        self.fault, self.turn = fault, turn


class ToolError(ChatFormError):
    """A function cannot be a tool; the message names it, the parameter and the fix."""


class TemplateLimitError(ChatFormError):
    """A template passes a limit; the message names it.

    Not among the errors by which a template refuses a chat (``RENDERING_ERRORS``).
    """


def format_short(value: object) -> str:
    """Return a text in double quotes, or the repr of another value, cut for a message."""
    try:
        text = json.dumps(value, ensure_ascii=False) if isinstance(value, str) else repr(value)
    except Exception:  # it nests too deep, or its own repr fails
        text = f"an object of type {type(value).__name__}"
    return cut(text, _MOST_SHOWN)


def cut(text: str, most: int = 60) -> str:
    """Return a text, cut for a message."""
    return text if len(text) <= most else f"{text[: most - 3]}..."


def did_you_mean(value: str, known: Iterable[str]) -> str:
    """Return a hint at the name that is most like a value; "" without one."""
    close = difflib.get_close_matches(value, list(known), n=1)
    return f"; did you mean {close[0]}?" if close else ""


def reason(error: BaseException) -> str:
    """Return the message of an error in one line, with the error's name where it is one word."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    # A line such as "Errors in loading:" is a heading; the reason follows it.
    count = 1 + next((i for i, line in enumerate(lines) if not line.endswith(":")), 0)
    message = " ".join(lines[:count])[:_MOST_OF_REASON]
    if " " in message:
        return message
    name = type(error).__name__  # the message of a KeyError is the key alone
    return f"{name}: {message}" if message else name
