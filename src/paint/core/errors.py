"""Exception types, and sanitizing of untrusted text."""

import json
import os
import platform
import re
import select
import shlex
import sys
import tempfile
import traceback
import unicodedata
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from paint.core.versions import versions

MAX_REASON_CHARACTERS = 300  # longest part of a library's message that is passed on
SHOWN_CHARACTERS = 200  # longest part of a setting's value that a message shows

NAME_BYTES, PATH_BYTES = 255, 4095
"""Longest file name on Linux and macOS, and longest path on Linux, in bytes."""


class PaintError(Exception):
    """An error that the user can fix; the message gives the problem, its place and a hint."""


class ConfigError(PaintError, ValueError):
    """A setting is unknown, missing, of the wrong type or out of range; the message names it."""


class NonFiniteError(PaintError):
    """The policy's numbers are no longer finite."""


class Interrupted(Exception):
    """A signal stopped the run, which has saved its state; the message says how to resume."""

    def __init__(self, message: str, signal_number: int) -> None:
        super().__init__(message)
        self.signal_number = signal_number


class PeerExit(Exception):
    """Another rank ended the run with this status and reports the reason; this one is silent."""

    def __init__(self, status: int) -> None:
        super().__init__(f"another rank ended the run, with status {status}")
        self.status = status


def path_error(path: str) -> str:
    """Return why a path is invalid, as a clause for a message; "" for a valid one."""
    if has_control_characters(path):
        return "holds control characters"
    encoded = path.encode("utf-8", "surrogatepass")
    if any(len(part) > NAME_BYTES for part in encoded.split(b"/")):
        return f"has a name of more than {NAME_BYTES} bytes"
    return f"has more than {PATH_BYTES:,} bytes" if len(encoded) > PATH_BYTES else ""


def has_control_characters(text: str) -> bool:
    """Whether text has control characters other than line ends and tabs."""
    return any(unicodedata.category(c) == "Cc" and c not in "\n\t" for c in text)


def format_value(value: object) -> str:
    """Format text as in a TOML recipe, any other value as its repr."""
    try:
        return json.dumps(value, ensure_ascii=False) if isinstance(value, str) else repr(value)
    except ValueError:  # Python writes no integer of more than 4,300 digits in decimal
        return "a number of too many digits"


def format_short(value: object) -> str:
    """Format a value for a message, cut to SHOWN_CHARACTERS."""
    shown = format_value(value)
    return shown if len(shown) <= SHOWN_CHARACTERS else f"{shown[: SHOWN_CHARACTERS - 3]}..."


@contextmanager
def wrap_errors(place: object, kind: type[PaintError], hint: str) -> Iterator[None]:
    """Turn any exception in the block into a ``kind`` with place, reason and hint.

    Use it around calls of libraries and of the system only; otherwise a bug in paint would be
    reported as a fault of the file. PaintError, Interrupted, PeerExit and warnings pass unchanged.
    """
    try:
        yield
    except (PaintError, Interrupted, PeerExit, Warning):
        raise
    except (Exception, SystemExit) as error:  # user code may call sys.exit
        raise kind(f"{place}: {reason(error)}; {hint}") from error


def reason(error: BaseException) -> str:
    """Return an exception's message in one line, without the advice that libraries append."""
    if isinstance(error, OSError) and error.errno:
        return os.strerror(error.errno)
    if isinstance(error, MemoryError):
        return "there is not enough memory"

    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    # A line such as "Errors in loading:" is a heading; the reason follows it.
    count = 1 + next((i for i, line in enumerate(lines) if not line.endswith(":")), 0)
    message = " ".join(lines[:count])[:MAX_REASON_CHARACTERS]
    # The message of a KeyError is the key alone.
    return (
        message if " " in message else f"{type(error).__name__}{': ' if message else ''}{message}"
    )


def crash_report(error: Exception, command: Sequence[str]) -> str:
    """Store the traceback, without secrets, in a new file; return the message for the user."""
    message = f"{reason(error)} ({type(error).__name__}, which paint did not expect)"
    libraries = ("torch", "transformers", "peft", "accelerate", "tokenizers", "pyarrow")
    lines = [
        f"command: paint {shlex.join(command)}",
        f"python {platform.python_version()} on {platform.platform()}",
        *map(" ".join, versions(*libraries).items()),
        "",
        *traceback.format_exception(error),
    ]
    try:
        handle, path = tempfile.mkstemp(prefix="paint-error-", suffix=".txt")
        with os.fdopen(handle, "wb") as file:
            file.write(without_secrets("\n".join(lines)).encode("utf-8", "backslashreplace"))
    except OSError as full:
        return f"{message}; its traceback could not be stored: {reason(full)}"
    return f"{message}; please report it with its traceback, {path}"


def without_secrets(text: str) -> str:
    """Mask the passwords, keys and tokens that its form or the environment reveal."""
    for name, value in os.environ.items():
        if _SECRET_NAME.search(name) and len(value) >= 6:
            text = text.replace(value, "***")
    for secret in _SECRETS:
        text = secret.sub(r"\1***", text)
    return text


def is_output_unread() -> bool:
    """Whether stdout is a closed pipe, as in `paint ... | head`; it is then set to devnull."""
    try:
        handle = sys.stdout.fileno()
    except (AttributeError, OSError, ValueError):
        return False
    poll = select.poll()
    poll.register(handle, 0)
    if not poll.poll(0):
        return False
    os.dup2(os.open(os.devnull, os.O_WRONLY), handle)
    return True


def sanitize_for_terminal(text: str) -> str:
    """Escape the characters of untrusted text that could control a terminal, as ``\\x1b``.

    Line ends and tabs stay. Control and format characters, unassigned code points, combining marks
    without a base character and lone surrogates become Python escapes.
    """
    return "".join(
        character.encode("unicode_escape", "backslashreplace").decode("ascii")
        if character not in "\n\t"
        and (unicodedata.category(character) in _UNSEEN or (before.isspace() and _sits(character)))
        else character
        for before, character in zip("\n" + text, text, strict=False)
    )


def _sits(character: str) -> bool:
    """Whether a character combines with the one before it and has no width."""
    return unicodedata.category(character)[0] == "M" or bool(_SYLLABLES_OR_SKIN.match(character))


def escape_markdown_cell(text: str) -> str:
    """Escape untrusted text as one cell of a Markdown table, in one line."""
    return _MARKS.sub(r"\\\g<0>", " ".join(sanitize_for_terminal(text).split()))


_UNSEEN = {"Cc", "Cf", "Cn", "Cs", "Zl", "Zp"}
_SYLLABLES_OR_SKIN = re.compile(r"[\u1160-\u11ff\u3164\ud7b0-\ud7ff\uffa0\U0001f3fb-\U0001f3ff]")
_MARKS = re.compile(r"[\\`*<|~$&]|(?<![^\W_])_|_(?![^\W_])|(?<=\])[(\[]")
_SECRET_NAME = re.compile(r"key|token|secret|passw", re.IGNORECASE)
_SECRETS = [
    re.compile(pattern, re.IGNORECASE)
    for pattern in (
        r"(://)[^\s/@]+(?=@)",
        r"(\b[\w-]*(?:key|token|secret|password|passwd)\b['\"]?\s*[=:\s]\s*['\"]?)[^\s'\"]+",
        r"(\bBearer\s+)\S+",
        r"(\b(?:hf|sk|ghp|gho|pk)[_-])[\w-]{8,}",
    )
]
