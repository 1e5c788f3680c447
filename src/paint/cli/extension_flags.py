"""Flags of options that extensions declare, such as --train.options.epsilon.

Which there are depends on the extension that the recipe or the line names. So these flags are taken
out of a line; when the rest is parsed, tyro parses them by the extensions' dataclasses.
"""

import dataclasses
import re
from collections.abc import Sequence
from typing import Annotated, Any

import tyro
from tyro.conf import arg
from tyro.constructors import ConstructorRegistry, StructConstructorSpec, StructTypeInfo

from paint.cli.flag_checks import require_known, require_values
from paint.cli.flag_values import with_plain_values
from paint.core.extensions import (
    NO_OPTIONS,
    OptionTable,
    named_options,
    option_fields,
    option_types,
    values_of,
)

CONFIG = "config"
"""Name of the field of a command whose fields are flags without its name before them."""

_FLAG = re.compile(r"--?[A-Za-z]")  # a negative number is none
_OPTION_FLAG = re.compile(r"--\w+\.(\w+[-_])?options\.")

WITHOUT_TABLES = ConstructorRegistry()
"""tyro's rules for the rest of a line: a table of options has no flags."""


@WITHOUT_TABLES.struct_rule
def _table_rule(info: StructTypeInfo) -> StructConstructorSpec | None:
    if info.type is not OptionTable:
        return None
    return StructConstructorSpec(instantiate=lambda: info.default, fields=())


def split_options(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """The words of a line without the flags of options, and these flags with their values."""
    rest: list[str] = []
    options: list[str] = []
    words_of_flag = rest
    for word in words:
        if _FLAG.match(word):
            words_of_flag = options if _OPTION_FLAG.match(word) else rest
        words_of_flag.append(word)
    return rest, options


def with_options(command: Any, default: Any, words: Sequence[str], prog: str) -> Any:
    """A command's parsed settings with their tables of options as the line has them.

    Args:
        default: the same with the recipe's settings. Its options are those of its extensions, and
            are dropped where the line names others.
        words: the flags of options, or --help.

    Raises:
        SystemExit: after help with 0, after an error, which is printed, with 2.
        ConfigError: an extension cannot be loaded.
    """
    sections, before = getattr(command, CONFIG, command), getattr(default, CONFIG, default)
    fields: list[Any] = []
    places: list[tuple[str, str]] = []
    kinds: dict[str, Any] = {}
    for field in dataclasses.fields(sections):
        section = getattr(sections, field.name)
        if not dataclasses.is_dataclass(section):
            continue
        for key, owner in option_fields(type(section)).items():
            if getattr(section, owner) != getattr(getattr(before, field.name), owner):
                sections = _with_table(sections, field.name, key, NO_OPTIONS)
            if not words:
                continue
            prefix = f"{field.name}."
            for options in named_options(getattr(sections, field.name), key, prefix):
                kind: Any = type(options)
                kind = Annotated[kind, arg(name=f"{prefix}{key}")]
                # Numbered, as several extensions may share a table.
                fields.append((f"of_{len(fields)}", kind, dataclasses.field(default=options)))
                places.append((field.name, key))
                for name, kind_of_value in option_types(type(options), owner).items():
                    kinds[f"{prefix}{key}.{name}"] = kind_of_value
    if fields or (words and words != ["--help"]):
        of_all = dataclasses.make_dataclass("Options", fields)
        description = "Options of the extensions that are named"
        if words != ["--help"]:
            require_known(words, kinds, prog)
        plain = with_plain_values(of_all, words)
        require_values(plain, kinds, takes_more=False)
        given: Any = tyro.cli(of_all, args=plain, prog=prog, description=description)
        for (name, key), options in zip(places, values_of(given).values(), strict=True):
            table = getattr(getattr(sections, name), key)
            table = OptionTable({**table, **values_of(options)})
            sections = _with_table(sections, name, key, table)
    if hasattr(command, CONFIG):
        return dataclasses.replace(command, **{CONFIG: sections})
    return sections


def _with_table(sections: Any, name: str, key: str, table: OptionTable) -> Any:
    section = dataclasses.replace(getattr(sections, name), **{key: table})
    return dataclasses.replace(sections, **{name: section})
