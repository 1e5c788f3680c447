"""Checks of a line's flags before tyro parses it, whose messages repeat values and name no flag."""

import dataclasses
import difflib
import re
from collections.abc import Collection, Sequence
from types import NoneType
from typing import Annotated, Any, Literal, get_args, get_origin

from paint.config.other_names import OTHER_NAMES
from paint.core.credentials import flag_values
from paint.core.errors import ConfigError, cut, format_short
from paint.core.extensions import OptionTable
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


def require_known(words: Sequence[str], kinds: Collection[str], command: str) -> None:
    """Raise ConfigError, with the closest one, for a flag that the command does not have.

    Args:
        kinds: the names of the command's flags.
        command: such as "paint train", for messages.
    """
    for word in words:
        flag = word.partition("=")[0]
        name = flag.removeprefix("--").replace("-", "_")
        if not flag.startswith("-") or _is_float(word) or name.startswith("tyro_"):
            continue
        is_short = flag == "-v" and "verbose" in kinds
        if is_short or (flag.startswith("--") and name in _spelled_flags(kinds)):
            continue
        raise ConfigError(f"unknown flag {cut(flag)}{_closest_flag(name, kinds, command)}")


def _spelled_flags(kinds: Collection[str]) -> set[str]:
    switched_off = {
        ".".join([*name.split(".")[:-1], f"no_{name.split('.')[-1]}"]) for name in kinds
    }
    return {*kinds, *switched_off}


def _closest_flag(name: str, kinds: Collection[str], command: str) -> str:
    """A hint for an unknown flag: the same key in other sections, or a similar name."""
    of_section = [one for one in kinds if one.startswith(f"{name}.")]
    if of_section:
        return f"; it is a section, of flags such as --{of_section[0].replace('_', '-')}"
    key = name.rpartition(".")[2]
    found = [one for one in kinds if one.rpartition(".")[2] == key]
    if not found:
        found = difflib.get_close_matches(name, list(kinds), n=1)
    if not found:
        by_key = {one.rpartition(".")[2]: one for one in kinds}
        found = [by_key[close] for close in difflib.get_close_matches(key, list(by_key), n=1)]
    if not found:
        return f"; `{command} --help` lists its flags"
    flags = [f"--{one.replace('_', '-')}" for one in found[:3]]
    return f"; did you mean {' or '.join(flags)}?"


def require_values(words: Sequence[str], kinds: dict[str, Any], *, takes_more: bool) -> None:
    """Raise ConfigError, which names the flag, for a word that is no value of the flag before it.

    Args:
        words: of a line, from the first flag on.
        kinds: the types of the flags' values, by name.
        takes_more: whether positional arguments may follow the flags.
    """
    flag, count = "", 0
    for place, word in enumerate(words):
        value = word
        if _FLAG.match(word):
            flag, equals, value = word.partition("=")
            count = 0
            if not equals:
                _require_a_value(flag, kinds, words[place + 1 : place + 2])
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
        # Behind the first value may be a positional argument.
        if _is_number(kind) and (count == 1 or is_extra):
            _require_number(flag, value, kind)


def _require_a_value(flag: str, kinds: dict[str, Any], following: Sequence[str]) -> None:
    kind = kinds.get(flag.removeprefix("--").replace("-", "_"))
    if kind in (None, bool) or _takes_several(kind):
        return
    if not following or (_FLAG.match(following[0]) and not _is_float(following[0])):
        raise ConfigError(f"{flag} needs a value")


def _require_number(flag: str, value: str, kind: Any) -> None:
    if _is_written_otherwise(value):
        raise ConfigError(
            f"{flag} must be a number in the digits 0 to 9, got {format_short(value)}"
        )
    members = set(get_args(kind) or (kind,))
    if NoneType in members and value == "None":
        return
    if any(value in get_args(member) for member in members if get_origin(member) is Literal):
        return  # a word that stands for a number, such as auto
    # Of a list of numbers, each is checked.
    numbers = {one for member in members for one in (get_args(member) or (member,))}
    try:
        float(value) if float in numbers else int(value)
    except ValueError:
        wanted = "a number" if float in numbers else "a whole number"
        wanted += " or None" if NoneType in members else ""
        raise ConfigError(f"{flag} must be {wanted}, got {format_short(value)}") from None


def _is_float(word: str) -> bool:
    """Whether a word is a number, such as -3 or -inf, and no flag."""
    try:
        float(word)
    except ValueError:
        return False
    return True


def flag_kinds(options: type[Any], unnamed: str) -> dict[str, Any]:
    """The types of a line's flags by name, such as train.steps, from a command's dataclass.

    Args:
        unnamed: the field whose fields are flags without its name before them.
    """
    kinds: dict[str, Any] = {}
    for field in dataclasses.fields(options):
        kind: Any = field.type
        flag = field.name
        if get_origin(kind) is Annotated:
            kind, *notes = get_args(kind)
            named = [note.name for note in notes if getattr(note, "name", None)]
            flag = named[0].replace("-", "_") if named else flag
        if kind is OptionTable:  # its options are flags
            continue
        if not dataclasses.is_dataclass(kind):
            kinds[flag] = kind
            continue
        prefix = "" if field.name == unnamed else f"{field.name}."
        for name, inner in flag_kinds(kind, unnamed).items():  # type: ignore[arg-type]
            kinds[f"{prefix}{name}"] = inner
    return kinds


def _takes_several(kind: Any) -> bool:
    """Whether a flag takes a tuple of values, or no value in its place."""
    return any(get_origin(member) is tuple for member in (kind, *get_args(kind)))


def _is_number(kind: Any) -> bool:
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
