"""The one reader of a line: its words by the types of a command's parameters and settings.

The type of an option, such as --train.options.epsilon, is known once its extension is.
"""

import dataclasses
import re
from collections.abc import Mapping, Sequence
from inspect import Parameter
from typing import Any, NamedTuple

from paint.config.recipe import nearest_setting
from paint.core.errors import ConfigError, cut, format_short
from paint.core.extensions import OptionTable
from paint.core.settings import convert_value, require_no_secret, takes_several, value_of_words

_FLAG = re.compile(r"--+[A-Za-z]|-(?!inf$)[A-Za-z]")  # a negative number is none


class Flag(NamedTuple):
    """What a flag stands for: a setting by its full name, or a parameter of the command."""

    target: str
    kind: Any
    section: Any = None  # of a setting: the dataclass that has it, with its help and default
    help: str = ""
    default: Any = None
    is_repeated: bool = False  # each time with a list of values
    is_positional: bool = False


class Words(NamedTuple):
    """A line's words. Those of settings are not converted yet."""

    positional: list[str]
    parameters: dict[str, Any]
    settings: dict[str, list[str]]


def setting_flags(kind: Any, prefix: str = "") -> dict[str, Flag]:
    """Return the flags of the fields of a section, or of a dataclass of sections, by name."""
    found: dict[str, Flag] = {}
    for field in dataclasses.fields(kind):
        name = f"{prefix}{field.name}"
        if dataclasses.is_dataclass(field.type):
            found |= setting_flags(field.type, f"{name}.")
        else:
            found[name] = Flag(name, field.type, kind)
    return found


def read_words(words: Sequence[str], flags: Mapping[str, Flag]) -> Words:
    """Divide a line into positional words, parameters and settings; the last of a flag counts."""
    found = Words([], {}, {})
    rest = list(words)
    while rest:
        word = rest.pop(0)
        if not _FLAG.match(word):
            found.positional.append(word)
            continue
        before, equals, value = word.partition("=")
        flag, is_off = _find(before, flags)
        values = [value] if equals else _values_after(before, flag.kind, rest, is_off=is_off)
        for text in values:
            require_no_secret(flag.target, text)
        if is_off and values:
            raise ConfigError(f"{before} takes no value, got {format_short(values[0])}")
        if is_off:
            values = ["false"]
        if flag.section is not None:
            found.settings[flag.target] = values
        elif flag.is_repeated:
            found.parameters.setdefault(flag.target, []).append(tuple(values))
        else:
            read = value_of_words(list(values), flag.kind)
            found.parameters[flag.target] = convert_value(before, read, flag.kind)
    return found


def _find(word: str, flags: Mapping[str, Flag]) -> tuple[Flag, bool]:
    """Return what a flag stands for, and whether it turns a switch off."""
    name = "verbose" if word == "-v" else word.removeprefix("--").replace("-", "_")
    outer, _, key = name.rpartition(".")
    switch = ".".join(filter(None, [outer, key.removeprefix("no_")]))
    if name in flags and flags[name].kind is not OptionTable:
        return flags[name], False
    if switch in flags and flags[switch].kind is bool:
        return flags[switch], True
    if outer in flags and flags[outer].kind is OptionTable:
        return Flag(name, None, flags[outer].section), False
    known = [name for name, flag in flags.items() if flag.kind is not OptionTable]
    raise ConfigError(f"unknown flag {cut(word)}{nearest_setting(name, known)}")


def _values_after(flag: str, kind: Any, rest: list[str], *, is_off: bool) -> list[str]:
    values: list[str] = []
    if is_off:
        return values
    if kind is bool:
        if rest and rest[0].lower() in ("true", "false"):
            values.append(rest.pop(0))
        return values
    is_one = kind is not None and not takes_several(kind)  # of an option, all that follow
    while rest and not _FLAG.match(rest[0]) and not (is_one and values):
        values.append(rest.pop(0))
    if is_one and not values:
        raise ConfigError(f"{flag} needs a value")
    return values


def positional_values(
    parameters: Sequence[tuple[Parameter, Any]], words: Words, command: str
) -> dict[str, Any]:
    """Return the values of a command's positional parameters, each given with its type."""
    found: dict[str, Any] = {}
    rest = list(words.positional)
    missing = []
    for parameter, kind in parameters:
        if parameter.kind is Parameter.VAR_POSITIONAL or takes_several(kind):
            found[parameter.name] = tuple(rest)
            rest = []
        elif rest:
            word = rest.pop(0)
            name = parameter.name.upper()
            found[parameter.name] = convert_value(name, value_of_words([word], kind), kind)
        elif parameter.default is Parameter.empty:
            missing.append(parameter.name.upper())
    if missing:
        raise ConfigError(f"missing: {' and '.join(missing)}; `{command} --help` explains")
    if rest:
        raise ConfigError(
            f"{format_short(rest[0])} is one value too many; `{command} --help` explains"
        )
    return found
