"""What can go wrong in every part of paint, and how it is said.

Four doors. ``explained`` turns whatever a library raises into an error that the user can act on;
``require`` refuses a setting that is out of range; ``plain`` and ``cell`` let text from outside
into messages, tables and terminals as text; ``unexpected`` keeps what nobody expected.
"""

import dataclasses
import json
import math
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
from importlib.metadata import PackageNotFoundError, version

MAX_REASON_CHARACTERS = 300
"""How much of a library's message is passed on."""

SHOWN_CHARACTERS = 200
"""How much of a setting's value is shown."""

MAX_FLOAT = 2.0**128 - 2.0**104
"""The largest number of float32."""

NAME_BYTES, PATH_BYTES = 255, 4095
"""What Linux and macOS take as a name, and Linux as a path."""


class PaintError(Exception):
    """Something that the user can mend; the message says what is wrong, where, and the way out."""


class ConfigError(PaintError, ValueError):
    """A setting is unknown, missing, of the wrong type or out of range; the message says which."""


class NonFiniteError(PaintError):
    """The policy's numbers are no longer finite."""


class Interrupted(Exception):
    """A signal stopped the run, which has saved its state; the message says how to go on."""

    def __init__(self, message: str, signal_number: int) -> None:
        super().__init__(message)
        self.signal_number = signal_number


class PeerExit(Exception):
    """Another rank ended the run and reports why, so this one ends quietly.

    Args:
        status: the exit status with which all of them end.
    """

    def __init__(self, status: int) -> None:
        super().__init__(f"another rank ended the work of all, with status {status}")
        self.status = status


def require(section: object, key: str, is_allowed: bool, allowed: str, note: str) -> None:
    """Raise ConfigError that names section.key, its value and what is allowed, unless it is."""
    if not is_allowed:
        name, value = section_name(type(section)), format_short(getattr(section, key))
        raise ConfigError(f"{name}.{key} must be {allowed}, got {value} ({note})")


def section_name(section: type) -> str:
    """The name of a settings record in a recipe: RolloutConfig is [rollout]."""
    return section.__name__.removesuffix("Config").lower()


def validate_common(section: object) -> None:
    """Require what every setting of a section needs, whatever it means.

    Text has no control characters, which would steer terminals and end names. Whole numbers have 64
    bits. Real ones are not above those of 32 bits, in which models compute.

    Raises:
        ConfigError: naming the setting.
    """
    assert dataclasses.is_dataclass(section)
    for field in dataclasses.fields(section):
        value = getattr(section, field.name)
        texts = value if isinstance(value, tuple) else (value,)
        are_plain = not any(
            isinstance(text, str) and has_control_characters(text) for text in texts
        )
        allowed = "text without control characters"
        require(section, field.name, are_plain, allowed, "only line ends and tabs may stand in it")
        is_number = not isinstance(value, int) or abs(value) < 2**63
        require(section, field.name, is_number, "below 2**63", "a number of 64 bits")
        is_real = isinstance(value, float) and math.isfinite(value)
        has_range = not is_real or abs(value) <= MAX_FLOAT
        require(section, field.name, has_range, "a number of 32 bits", "at most 3.4e38")


def validate_path(section: object, key: str, note: str) -> None:
    """Raise ConfigError that names section.key unless it is text that can name a file."""
    path = getattr(section, key)
    if path and (wrong := path_error(path)):
        name = f"{section_name(type(section))}.{key}"
        raise ConfigError(
            f"{name} must be a path, got {format_short(path)}, which {wrong} ({note})"
        )


def path_error(path: str) -> str:
    """Why no file can have this path: half a sentence, or nothing where one can."""
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
    """A value as a TOML recipe writes it, where it is text; otherwise as Python does."""
    return json.dumps(value, ensure_ascii=False) if isinstance(value, str) else repr(value)


def format_short(value: object) -> str:
    """The same for a message, which a value must not fill."""
    shown = format_value(value)
    return shown if len(shown) <= SHOWN_CHARACTERS else f"{shown[: SHOWN_CHARACTERS - 3]}..."


@contextmanager
def wrap_errors(place: object, kind: type[PaintError], advice: str) -> Iterator[None]:
    """Turn whatever a library raises in the block into a ``kind``: place, reason, way out.

    The block holds calls of libraries and of the system alone: a slip of our own would be told as
    a fault of the file. Errors that are explained already pass as they are.

    Args:
        place: the file, folder, address or setting that is worked on.
        advice: what the user can do about it.
    """
    try:
        yield
    except (PaintError, Interrupted):
        raise
    except Exception as error:
        raise kind(f"{place}: {reason(error)}; {advice}") from error


def reason(error: BaseException) -> str:
    """What an error says, in one line: libraries add pages of advice that is not for our users."""
    if isinstance(error, OSError) and error.errno:
        return os.strerror(error.errno)
    if isinstance(error, MemoryError):
        return "there is not enough memory"

    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    # "Errors in loading:" is a heading, and what it heads is the reason.
    count = 1 + next((i for i, line in enumerate(lines) if not line.endswith(":")), 0)
    said = " ".join(lines[:count])[:MAX_REASON_CHARACTERS]
    # A KeyError says the key alone.
    return said if " " in said else f"{type(error).__name__}{': ' if said else ''}{said}"


def crash_report(error: Exception, command: Sequence[str]) -> str:
    """What is said of an error that nobody expected, whose traceback is kept for who can mend it.

    It is kept in a new file in the folder for temporary files, with the command and the versions of
    what runs, and without secrets.
    """
    said = f"{reason(error)} ({type(error).__name__}, which paint did not expect)"
    names = ("paint", "torch", "transformers", "peft", "accelerate", "tokenizers", "pyarrow")
    told = [
        f"command: paint {shlex.join(command)}",
        f"python {platform.python_version()} on {platform.platform()}",
        *(f"{name} {_version(name)}" for name in names),
        "",
        *traceback.format_exception(error),
    ]
    try:
        handle, path = tempfile.mkstemp(prefix="paint-error-", suffix=".txt")
        with os.fdopen(handle, "wb") as file:
            file.write(without_secrets("\n".join(told)).encode("utf-8", "backslashreplace"))
    except OSError as full:
        return f"{said}; its traceback could not be kept: {reason(full)}"
    return f"{said}; please report it with its traceback, {path}"


def without_secrets(text: str) -> str:
    """Text without the passwords, keys and tokens that can be told from it or the environment."""
    for name, value in os.environ.items():
        if _SECRET_NAME.search(name) and len(value) >= 6:
            text = text.replace(value, "***")
    for secret in _SECRETS:
        text = secret.sub(r"\1***", text)
    return text


def is_output_unread() -> bool:
    """Whether stdout is a pipe that nobody reads, as in `paint ... | head`; then it is silenced."""
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
    """Text from outside as text: what would steer a terminal is written out, as ``\\x1b``.

    Line ends and tabs stay. Control characters, those that change the direction of writing or
    show nothing, those that no Unicode of today knows, marks with no letter before them to sit
    on, and halves of surrogate pairs are spelt as Python spells them.
    """
    return "".join(
        character.encode("unicode_escape", "backslashreplace").decode("ascii")
        if character not in "\n\t"
        and (unicodedata.category(character) in _UNSEEN or (before.isspace() and _sits(character)))
        else character
        for before, character in zip("\n" + text, text, strict=False)
    )


def _sits(character: str) -> bool:
    """Whether it is drawn on the character before it and takes no place of its own."""
    return unicodedata.category(character)[0] == "M" or bool(_SYLLABLES_OR_SKIN.match(character))


def escape_markdown_cell(text: str) -> str:
    """Text from outside as one cell of a Markdown table, which shows it as it is, in one line.

    What Markdown would read as a mark, a tag, a formula or the cell's end is escaped; underscores
    within words and lone brackets, which figures and names are full of, mean nothing to it.
    """
    return _MARKS.sub(r"\\\g<0>", " ".join(sanitize_for_terminal(text).split()))


_UNSEEN = {"Cc", "Cf", "Cn", "Cs", "Zl", "Zp"}
_SYLLABLES_OR_SKIN = re.compile(r"[\u1160-\u11ff\u3164\ud7b0-\ud7ff\uffa0\U0001f3fb-\U0001f3ff]")
_MARKS = re.compile(r"[\\`*<>|~$&]|(?<![^\W_])_|_(?![^\W_])|(?<=\])[(\[]")
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


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "is not installed"
