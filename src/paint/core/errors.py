"""Exception types, and sanitizing of untrusted text."""

import difflib
import errno
import json
import os
import re
import select
import sys
import unicodedata
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from paint.core.credentials import hide_values, redact

MAX_REASON_CHARACTERS = 300  # longest part of a library's message that is passed on
READ_CHARACTERS = 2_000
"""Longest part of an error's text in which addresses are looked for, which takes its square."""
SHOWN_CHARACTERS = 200  # longest part of a setting's value that a message shows


class PaintError(Exception):
    """An error that the user can fix; the message gives the problem, its place and a hint.

    Addresses in it have no user, password and query.
    """

    def __init__(self, *parts: object) -> None:
        super().__init__(*(redact(part) if isinstance(part, str) else part for part in parts))


class ConfigError(PaintError, ValueError):
    """A setting is unknown, missing, of the wrong type or out of range; the message names it."""


class NonFiniteError(PaintError):
    """The policy's numbers are no longer finite."""


class Interrupted(Exception):
    """A signal stopped the run, which has saved its state; the message names the next command."""

    def __init__(self, message: str, signal_number: int) -> None:
        super().__init__(message)
        self.signal_number = signal_number


class PeerExit(Exception):
    """Another rank ended the run with this status and reports the reason; this one is silent."""

    def __init__(self, status: int) -> None:
        super().__init__(f"another rank ended the run, with status {status}")
        self.status = status


def has_control_characters(text: str) -> bool:
    """Return whether text has control characters other than line ends and tabs."""
    return any(unicodedata.category(c) == "Cc" and c not in "\n\t" for c in text)


def is_unicode(text: str) -> bool:
    """Return whether text has no unpaired surrogates: bytes that are no UTF-8."""
    return text == replace_surrogates(text)


def replace_surrogates(text: str) -> str:
    """Return text that can be encoded: with "?" for each unpaired surrogate."""
    return text.encode("utf-8", "replace").decode()


def format_value(value: object) -> str:
    """Format text as in a TOML recipe, any other value as its repr."""
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    try:
        return repr(value)
    except BaseException:  # code from outside of paint, which may end in any way
        return f"an object of type {type(value).__name__}"


def format_short(value: object) -> str:
    """Format a value for a message, cut to SHOWN_CHARACTERS, with addresses redacted."""
    return cut(redact(format_value(value)[:READ_CHARACTERS]), SHOWN_CHARACTERS)


def cut(text: str, most: int = 60) -> str:
    if len(text) <= most:
        return text
    return f"{text[: most - 3]}..."


def did_you_mean(value: object, known: Iterable[str]) -> str:
    """Return a hint at the most similar of some names; "" without one."""
    close = difflib.get_close_matches(str(value), list(known), n=1)
    return f"; did you mean {close[0]}?" if close else ""


@contextmanager
def wrap_errors(place: object, kind: type[PaintError], hint: str) -> Iterator[None]:
    """Turn any exception in the block into a ``kind`` with place, reason and hint.

    Use it around calls of libraries and of the system only; otherwise a bug in paint would be
    reported as a fault of the file. PaintError, Interrupted, PeerExit and warnings pass unchanged.
    """
    try:
        yield
    # A warning is raised only where somebody has made warnings errors.
    except (PaintError, Interrupted, PeerExit, Warning):
        raise
    except (Exception, SystemExit) as error:  # user code may call sys.exit
        raise kind(f"{place}: {reason(error)}; {hint}") from error


def error_text(error: BaseException) -> str:
    """Return the text of an exception; "" where its own ``__str__`` fails."""
    try:
        return str(error)
    except BaseException:  # code from outside of paint, which may end in any way
        return ""


def innermost(error: BaseException) -> tuple[BaseException, int]:
    """Return the first error of nested groups, and the number of the others."""
    if not isinstance(error, BaseExceptionGroup):
        return error, 0
    found = [innermost(inner) for inner in error.exceptions]
    return found[0][0], sum(1 + others for _, others in found) - 1


def is_out_of_memory(error: BaseException) -> bool:
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return True
    if isinstance(error, OSError) and error.errno == errno.ENOMEM:
        return True
    # torch's allocator, libraries that pass the system's message on, and one that is not loaded.
    texts = "can't allocate memory|not enough memory|Cannot allocate memory|bad_alloc|map segment"
    is_of_library = isinstance(error, RuntimeError | ImportError)
    return is_of_library and re.search(texts, error_text(error)) is not None


@contextmanager
def naming(setting: str) -> Iterator[None]:
    """Begin the message of a PaintError in the block with a setting, unless it names it."""
    try:
        yield
    except PaintError as error:
        if setting in str(error):
            raise
        raise type(error)(f"{setting}: {error}") from error


def reason(error: BaseException) -> str:
    """Return an exception's message in one redacted line, without the advice of libraries."""
    if is_out_of_memory(error):
        return "there is not enough memory"
    if isinstance(error, OSError) and error.errno:
        return os.strerror(error.errno)

    text = hide_values(error_text(error))[:READ_CHARACTERS]
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    # A line such as "Errors in loading:" is a heading; the reason follows it.
    count = 1 + next((i for i, line in enumerate(lines) if not line.endswith(":")), 0)
    if "inline_container" in text or "PytorchStreamWriter" in text:  # of torch.save
        return "it cannot be written whole: the disk is full, or a limit (ulimit -f) is reached"
    message = redact(" ".join(lines[:count]))[:MAX_REASON_CHARACTERS]
    if " " in message:
        return message
    # The message of a KeyError is the key alone, and others have none.
    name = type(error).__name__
    if message:
        return f"{name}: {message}"
    return name


def is_output_unread() -> bool:
    """Return whether stdout is a closed pipe, as in `paint ... | head`, and drop it then."""
    try:
        handle = sys.stdout.fileno()
    except (AttributeError, OSError, ValueError):
        return False
    poll = select.poll()
    # With no event requested, poll reports errors and a closed pipe alone.
    poll.register(handle, 0)
    if not poll.poll(0):
        return False
    # Or Python's own flush at its end would fail again.
    os.dup2(os.open(os.devnull, os.O_WRONLY), handle)
    return True


def sanitize_for_terminal(text: str) -> str:
    """Escape characters of untrusted text that could control a terminal, as ``\\x1b``.

    These are control characters other than line ends and tabs, marks of the direction of text, and
    unpaired surrogates.
    """
    return _CONTROLS.sub(lambda match: ascii(match[0])[1:-1], text)


def escape_markdown_cell(text: str) -> str:
    """Escape untrusted text as one cell of a Markdown table, in one line."""
    return _MARKS.sub(r"\\\g<0>", " ".join(sanitize_for_terminal(text).split()))


_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
# An underscore within a word is no emphasis, and only a bracket after ] makes a link.
_MARKS = re.compile(r"[\\`*<|~$&]|(?<![^\W_])_|_(?![^\W_])|(?<=\])[(\[]")
