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


def read_words(
    line: Sequence[str], flags: Mapping[str, Flag], command: str
) -> tuple[dict[str, Any], dict[str, list[str]]]:
    """Return a line's parameters, and words by settings, unconverted; the last of a flag counts."""
    parameters: dict[str, Any] = {}
    settings: dict[str, list[str]] = {}
    positional, rest = [], list(line)
    while rest:
        word = rest.pop(0)
        if not _FLAG.match(word):
            positional.append(word)
            continue
        before, equals, value = word.partition("=")
        flag, is_off = _find(before, flags)
        if is_off and equals:
            raise ConfigError(f"{before} takes no value")
        if is_off:
            values = ["false"]
        else:
            values = [value] if equals else _values_after(before, flag.kind, rest)
        for text in values:
            require_no_secret(flag.target, text)
        if flag.section is not None:
            settings[flag.target] = values
        elif flag.is_repeated:
            _add_by_name(parameters.setdefault(flag.target, {}), before, values)
        else:
            read = value_of_words(list(values), flag.kind)
            parameters[flag.target] = convert_value(before, read, flag.kind)
    return parameters | _positional(positional, flags, command), settings


def _find(word: str, flags: Mapping[str, Flag]) -> tuple[Flag, bool]:
    """Return what a flag stands for, and whether it turns a switch off."""
    flags = {name: flag for name, flag in flags.items() if not flag.is_positional}
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


def _values_after(flag: str, kind: Any, rest: list[str]) -> list[str]:
    values: list[str] = []
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


def _add_by_name(found: dict[str, list[str]], flag: str, words: Sequence[str]) -> None:
    name, *values = words or [""]
    if not values:
        raise ConfigError(
            f"{flag} needs a name and its values, as {flag} train.learning_rate 2e-4 6e-4; got "
            f"{format_short(name)}"
        )
    if name in found:
        raise ConfigError(f"{flag} {name} is given twice; give all values at once")
    found[name] = values


def _positional(words: list[str], flags: Mapping[str, Flag], command: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    missing = []
    for name, flag in flags.items():
        if not flag.is_positional:
            continue
        if takes_several(flag.kind):
            found[flag.target] = tuple(words)
            words = []
        elif words:
            read = value_of_words(words[:1], flag.kind)
            found[flag.target] = convert_value(name.upper(), read, flag.kind)
            words = words[1:]
        elif flag.default is Parameter.empty:
            missing.append(name.upper())
    if missing:
        raise ConfigError(f"missing: {' and '.join(missing)}; `{command} --help` explains")
    if words:
        raise ConfigError(
            f"{format_short(words[0])} is one value too many; `{command} --help` explains"
        )
    return found
