"""Errors of models and of their prompts, and what those of chatforms become."""

from collections.abc import Iterator
from contextlib import contextmanager

from transformers import PreTrainedTokenizerBase

from chatforms.errors import FIX, ChatFormError, MessageError, ToolError
from chatforms.special_tokens import special_text
from paint.core.errors import ConfigError, PaintError


class PolicyError(PaintError, ValueError):
    """The model cannot be student and teacher; the message names the reason and the fix."""


class PromptError(PolicyError):
    """A row cannot be a prompt or a reference of this model; other rows may be."""


@contextmanager
def chat_errors(place: str = "", system_setting: str = "") -> Iterator[None]:
    """Raise what chatforms says of messages as PromptError, of tools as ConfigError.

    All else that it raises is of the model, a PolicyError.

    Args:
        place: whose prompt it is, such as a problem; messages begin with it.
        system_setting: the setting that made the first turn a system turn, if one did. Where a
            template does not take it, that is no fault of the row: a PolicyError.
    """
    try:
        yield
    except ChatFormError as error:
        kind: type[PaintError] = PolicyError
        text = str(error)
        if isinstance(error, ToolError):
            kind = ConfigError
        elif isinstance(error, MessageError) and error.turn == 0 and system_setting:
            text = (
                f"{error.fault}; {system_setting} adds this system turn: set prompts.teacher in "
                f"its place, which words the user's turn, such as "
                f"'{{{{ context }}}}\\n\\n{{{{ student }}}}', or {FIX}"
            )
        elif isinstance(error, MessageError):
            kind = PromptError
        raise kind(f"{place}: {text}" if place else text) from error


REASON = "text that the chat format takes for control"
"""Reason for which a row with control text is refused."""


def special_text_finder(tokenizer: PreTrainedTokenizerBase, **texts: str) -> str | None:
    """Describe control text in the named texts, as a continuation of ``REASON``; None if none."""
    for name, text in texts.items():
        with chat_errors():
            piece = special_text(tokenizer, text)
        if piece:
            return f": {piece!r} in its {name}"
    return None
