"""What can go wrong in every part of paint, and how it is said.

Three doors. ``explained`` turns whatever a library raises into an error that the user can act on;
``require`` refuses a setting that is out of range; ``plain`` lets text from outside into messages,
tables and terminals as text.
"""

import json
import os
import re
import unicodedata
from collections.abc import Iterator
from contextlib import contextmanager

REASON_CHARACTERS = 300
"""How much of a library's message is passed on."""


class PaintError(Exception):
    """Something that the user can mend; the message says what is wrong, where, and the way out."""


class ConfigError(PaintError, ValueError):
    """A setting is unknown, missing, of the wrong type or out of range; the message says which."""


class Diverged(PaintError):
    """The policy's numbers are no longer finite."""


class Stopped(Exception):
    """A signal stopped the run, which has saved its state; the message says how to go on."""

    def __init__(self, message: str, signal_number: int) -> None:
        super().__init__(message)
        self.signal_number = signal_number


def require(section: object, key: str, is_allowed: bool, allowed: str, note: str) -> None:
    """Raise ConfigError that names section.key, its value and what is allowed, unless it is."""
    if not is_allowed:
        name, value = type(section).__name__.lower(), show(getattr(section, key))
        raise ConfigError(f"{name}.{key} must be {allowed}, got {value} ({note})")


def show(value: object) -> str:
    """A value as a TOML recipe writes it, where it is text; otherwise as Python does."""
    return json.dumps(value, ensure_ascii=False) if isinstance(value, str) else repr(value)


@contextmanager
def explained(place: object, kind: type[PaintError], advice: str) -> Iterator[None]:
    """Turn whatever a library raises in the block into a ``kind``: place, reason, way out.

    The block holds calls of libraries and of the system alone: a slip of our own would be told as
    a fault of the file. Errors that are explained already pass as they are.

    Args:
        place: the file, folder, address or setting that is worked on.
        advice: what the user can do about it.
    """
    try:
        yield
    except (PaintError, Stopped):
        raise
    except Exception as error:
        raise kind(f"{place}: {reason(error)}; {advice}") from error


def reason(error: BaseException) -> str:
    """What an error says, in one line: libraries add pages of advice that is not for our users."""
    if isinstance(error, OSError) and error.errno:
        return os.strerror(error.errno)
    if isinstance(error, MemoryError):
        return "there is not enough memory"

    lines = str(error).strip().splitlines()
    said = lines[0][:REASON_CHARACTERS] if lines else ""
    # A KeyError says the key alone.
    return said if " " in said else f"{type(error).__name__}: {said}"


def plain(text: str) -> str:
    """Text from outside as text: what would steer a terminal is written out, as ``\\x1b``.

    Line ends and tabs stay. Control characters, those that change the direction of writing or
    show nothing, and halves of surrogate pairs are spelt as Python spells them.
    """
    return "".join(
        character
        if character in "\n\t" or unicodedata.category(character) not in _UNSEEN
        else character.encode("unicode_escape", "backslashreplace").decode("ascii")
        for character in text
    )


def cell(text: str) -> str:
    """Text from outside as one cell of a Markdown table, which shows it as it is, in one line.

    What Markdown would read as a mark, a tag, a formula or the cell's end is escaped; underscores
    within words and lone brackets, which figures and names are full of, mean nothing to it.
    """
    return _MARKS.sub(r"\\\g<0>", " ".join(plain(text).split()))


_UNSEEN = {"Cc", "Cf", "Cs", "Zl", "Zp"}
_MARKS = re.compile(r"[\\`*<>|~$&]|(?<![^\W_])_|_(?![^\W_])|(?<=\])[(\[]")
