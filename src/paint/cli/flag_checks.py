"""Checks of a line's flags before tyro parses it, whose messages repeat values and name no flag."""

import dataclasses
import re
from collections.abc import Collection, Sequence
from typing import Annotated, Any, Literal, get_args, get_origin

from paint.config.other_names import OTHER_NAMES
from paint.core.credentials import flag_values
from paint.core.errors import ConfigError, format_short
from paint.core.settings import require_no_secret

_FLAG = re.compile(r"--?[A-Za-z]")  # a negative number is none


def require_no_secrets(words: Sequence[str]) -> None:
    """Raise ConfigError for a flag whose value seems to be a secret."""
    for flag, value in flag_values(words):
        if flag:
            require_no_secret(flag, value)


def require_own_names(words: Sequence[str], kinds: Collection[str]) -> None:
    """Raise ConfigError for a flag by the name that a setting has in TRL, transformers or peft.

    Args:
        kinds: the names of the command's flags.
    """
    for word in words:
        flag, _, _ = word.partition("=")
        name = flag.removeprefix("--").replace("-", "_")
        own = OTHER_NAMES.get(name.rpartition(".")[2], "")
        if flag.startswith("--") and name not in kinds and own in kinds:
            raise ConfigError(f"{flag} is --{own.replace('_', '-')} here")


def require_values(words: Sequence[str], kinds: dict[str, Any], *, takes_more: bool) -> None:
    """Raise ConfigError, which names the flag, for a word that is no value of the flag before it.

    Args:
        words: of a line, from the first flag on.
        kinds: the types of the flags' values, by name.
        takes_more: whether positional arguments may follow the flags.
    """
    flag, count = "", 0
    for word in words:
        value = word
        if _FLAG.match(word):
            flag, equals, value = word.partition("=")
            count = 0
            if not equals:
                continue
        name = flag.removeprefix("--").replace("-", "_")
        *section, key = name.split(".")
        if name not in kinds:  # perhaps a switch that is turned off
            key = key.removeprefix("no_")
        kind = kinds.get(".".join([*section, key]))
        count += 1
        if kind is None:  # of an extension, or unknown
            continue
        is_extra = not takes_more or word != value
        if kind is bool and is_extra:
            names = [".".join([*section, word]).replace("_", "-") for word in (key, f"no_{key}")]
            raise ConfigError(
                f"{flag} is a switch, got {format_short(value)}; write --{names[0]} or --{names[1]}"
            )
        if count > 1 and is_extra and not _takes_several(kind):
            raise ConfigError(f"{flag} takes one value, got {format_short(value)} after it, too")
        if _is_number(kind) and _is_written_otherwise(value):
            raise ConfigError(
                f"{flag} must be a number in the digits 0 to 9, got {format_short(value)}"
            )


def flag_kinds(options: type[Any], unnamed: str) -> dict[str, Any]:
    """The types of a line's flags by name, such as train.steps, from a command's dataclass.

    Args:
        unnamed: the field whose fields are flags without its name before them.
    """
    kinds: dict[str, Any] = {}
    for field in dataclasses.fields(options):
        kind: Any = field.type
        if get_origin(kind) is Annotated:
            kind = get_args(kind)[0]
        if not dataclasses.is_dataclass(kind):
            kinds[field.name] = kind
            continue
        prefix = "" if field.name == unnamed else f"{field.name}."
        for name, inner in flag_kinds(kind, unnamed).items():  # type: ignore[arg-type]
            kinds[f"{prefix}{name}"] = inner
    return kinds


def _takes_several(kind: Any) -> bool:
    """Whether a flag takes a tuple of values, or no value in its place."""
    return any(get_origin(member) is tuple for member in (kind, *get_args(kind)))


def _is_number(kind: Any) -> bool:
    """Whether a value is a number, or one of several numbers or words."""
    if get_origin(kind) is Literal:
        return False
    if get_args(kind):
        members = [member for member in get_args(kind) if member is not Ellipsis]
        return str not in members and any(map(_is_number, members))
    return kind in (int, float)


def _is_written_otherwise(value: str) -> bool:
    """Whether Python reads a text as a number that is not written in the digits 0 to 9 alone."""
    if value.isascii() and "_" not in value:
        return False
    try:
        float(value)
    except ValueError:
        return False
    return True
