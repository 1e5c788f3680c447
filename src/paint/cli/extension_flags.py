"""Flags of options that extensions declare (paint.core.options), such as --train.options.epsilon.

tyro makes flags of types. A table of options has none, and what it may hold depends on another
setting, which the recipe or the line names:

    default = with_declared_options(default, words)         loads the extensions that are named
    tyro.cli(..., default=default, registry=OPTION_FLAGS)   a flag for each field of their options

They are loaded only for help, or where the line has such a flag.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from tyro.constructors import (
    ConstructorRegistry,
    StructConstructorSpec,
    StructFieldSpec,
    StructTypeInfo,
)

from paint.core.options import (
    NO_OPTIONS,
    OptionTable,
    build_options,
    extensions_of,
    field_helps,
    option_fields,
    option_types,
    values_of,
)
from paint.core.plugins import load_object

CONFIG = "config"
"""Name of the field of a command whose fields are flags without its name before them."""


class _DeclaredTable(OptionTable):
    """A table with the types, defaults and helps of the options that it may hold, by name."""

    def __init__(
        self, values: Mapping[str, Any], types: Mapping[str, Any], helps: Mapping[str, str]
    ) -> None:
        super().__init__(values)
        self.types = types
        self.helps = helps

    # tyro keeps what it found for equal defaults, whatever their types.
    __eq__ = object.__eq__
    __hash__ = object.__hash__


OPTION_FLAGS = ConstructorRegistry()


@OPTION_FLAGS.struct_rule
def _option_flags(info: StructTypeInfo) -> StructConstructorSpec | None:
    """Tell tyro the flags of a table: those of the options that it may hold, or none."""
    if not (isinstance(info.type, type) and issubclass(info.type, OptionTable)):
        return None
    table = info.default
    if not isinstance(table, _DeclaredTable):
        known = table if isinstance(table, OptionTable) else NO_OPTIONS
        return StructConstructorSpec(instantiate=lambda: known, fields=())
    fields = []
    for name, kind in table.types.items():
        fields.append(StructFieldSpec(name, kind, table[name], table.helps.get(name)))

    def instantiate(**values: Any) -> OptionTable:
        return OptionTable({**table, **values})

    return StructConstructorSpec(instantiate=instantiate, fields=tuple(fields))


def with_declared_options(command: Any, words: Sequence[str]) -> Any:
    """Replace the tables of a command's settings by those of which ``OPTION_FLAGS`` makes flags.

    Args:
        command: a dataclass; settings are the fields that are dataclasses themselves.
        words: the line, which may name another extension than the settings do.
    """
    changes = {}
    for field in dataclasses.fields(command):
        settings = getattr(command, field.name)
        if dataclasses.is_dataclass(settings) and not isinstance(settings, type):
            prefix = "" if field.name == CONFIG else f"{field.name}."
            changes[field.name] = _with_declared(settings, words, prefix)
    return dataclasses.replace(command, **changes)


def _with_declared(value: Any, words: Sequence[str], prefix: str) -> Any:
    """Do so in a section, or in a dataclass of sections, whose flags begin with ``prefix``."""
    changes: dict[str, Any] = {}
    owners = option_fields(type(value))
    for name, owner in owners.items():
        changes[name] = _declared(value, name, owner, words, prefix)
    for field in dataclasses.fields(value):
        inner = getattr(value, field.name)
        if dataclasses.is_dataclass(inner) and not isinstance(inner, type):
            changes[field.name] = _with_declared(inner, words, f"{prefix}{field.name}.")
    return dataclasses.replace(value, **changes)


def _declared(
    section: Any, name: str, owner: str, words: Sequence[str], prefix: str
) -> OptionTable:
    """The table of a field with the dataclass of the extension that recipe or line name."""
    table: OptionTable = getattr(section, name)
    setting, named = f"{prefix}{owner}", getattr(section, owner)
    given = _values_of(f"--{setting}", words)
    if given and given != (named if isinstance(named, tuple) else (named,)):
        named, table = given, NO_OPTIONS  # the recipe's options are those of another extension
    flags = f"--{prefix}{name}.".replace("_", "-")
    is_used = any(word.replace("_", "-").startswith(flags) for word in words)
    if not is_used and not {"-h", "--help"} & set(words):
        return table  # the command reports an extension that cannot be loaded
    values = dict(table)  # with names that nobody declares, which the command refuses
    types: dict[str, Any] = {}
    helps: dict[str, str] = {}
    for spec in extensions_of(type(section), name, named):
        extension, place = load_object(spec, setting, ()), f"{setting} {spec}"
        options = build_options(extension, table, f"{prefix}{name}", place)
        if options is not None:
            values |= values_of(options)
            types |= option_types(type(options), place)
            helps |= field_helps(type(options))
    return _DeclaredTable(values, types, helps)


def _values_of(flag: str, words: Sequence[str]) -> tuple[str, ...]:
    """The values that a line gives a flag, the last time it stands there; () where it does not."""
    values: tuple[str, ...] = ()
    for index, word in enumerate(words):
        name, is_joined, value = word.partition("=")
        if name != flag:
            continue
        if is_joined:
            values = (value,)
            continue
        following = []
        for after in words[index + 1 :]:
            if after.startswith("--"):
                break
            following.append(after)
        values = tuple(following)
    return values
