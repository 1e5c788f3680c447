"""Help: what a command, its parameters and its settings are, with the values that they have."""

import ast
import dataclasses
import inspect
import re
import shutil
import textwrap
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from itertools import pairwise
from operator import attrgetter
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from paint.cli.reader import Flag
from paint.commands import Command
from paint.core.errors import sanitize_for_terminal
from paint.core.extensions import OptionTable, named_options, option_fields

_SECTION = re.compile(r"^(Args|Returns|Raises):$", re.MULTILINE)
_WIDTH = 100  # at most


def description_of(command: Command) -> str:
    """Return the docstring up to its sections, one line for each paragraph."""
    text = _SECTION.split(inspect.getdoc(command.function) or "")[0].replace("``", "`")
    paragraphs = text.strip().split("\n\n")
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)


def parameter_helps(function: Callable[..., Any]) -> dict[str, str]:
    """Return the entries of "Args:" in a docstring, by the parameter's name."""
    parts = _SECTION.split(inspect.getdoc(function) or "")
    helps = {}
    for title, body in zip(parts[1::2], parts[2::2], strict=True):
        if title != "Args":
            continue
        for entry in re.split(r"\n(?=\S)", textwrap.dedent(body.strip("\n"))):
            name, _, text = entry.partition(": ")
            helps[name.strip()] = " ".join(text.replace("``", "`").split())
    return helps


def field_helps(kind: type[Any]) -> dict[str, str]:
    """Return the docstrings below the fields of a dataclass, by name; {} without its source."""
    helps: dict[str, str] = {}
    for base in filter(dataclasses.is_dataclass, reversed(kind.__mro__)):
        with suppress(OSError, SyntaxError):  # of a class that was made without a file
            [node] = ast.parse(textwrap.dedent(inspect.getsource(base))).body
            body = getattr(node, "body", [])
            for field, after in pairwise(body):
                text = ast.get_docstring(ast.Module([after], []))
                if isinstance(field, ast.AnnAssign) and text:
                    helps[ast.unparse(field.target)] = " ".join(text.split())
    for field in dataclasses.fields(kind):
        if field.metadata.get("help"):
            helps[field.name] = field.metadata["help"]
    return helps


def spelled(kind: Any, quote: str = "") -> str:
    """Return the values that a flag of this type takes, after a space; "" for a switch."""
    origin, inner = get_origin(kind), get_args(kind)
    if kind is bool:
        return ""
    if kind is OptionTable:
        return " a table"
    if origin is Literal:
        return " " + " or ".join(f"{quote}{value}{quote}" for value in inner)
    if origin is tuple:
        return f"{spelled(inner[0], quote)} ..."
    if origin in (Union, UnionType):
        kinds = [Literal[True, False] if one is bool else one for one in inner]
        return " " + " or ".join(
            spelled(one, quote).strip() for one in kinds if one is not NoneType
        )
    return f" {kind.__name__.upper()}"


def shown(value: Any) -> str:
    """Return a default as it is typed."""
    if isinstance(value, tuple):
        return " ".join(map(str, value)) or "empty"
    if isinstance(value, bool):
        return "on" if value else "off"
    return {None: "None", "": "empty"}.get(value, str(value))


def print_commands(commands: Mapping[str, Command], about: str) -> None:
    """Print the names of all commands, each with the first sentence of its help."""
    lines = ["usage: paint COMMAND ...", "", about, ""]
    for name, command in commands.items():
        lines += _entry(name, description_of(command).partition("\n")[0])
    _print(lines)


def print_help(command: Command, flags: Mapping[str, Flag], settings: Any) -> None:
    """Print the help of a command, with the values that its settings have.

    ``settings`` is None where the command has none. Flags without a name before them come first.
    """
    places = [name.upper() for name, flag in flags.items() if flag.is_positional]
    usage = " ".join(["usage: paint", command.name, *places, "[FLAGS]"])
    lines = [usage, "", description_of(command)]
    section, helps = None, dict[str, str]()
    for name, flag in flags.items():
        if flag.kind is OptionTable:
            continue
        if flag.section is None:
            lines += ["", *_entry(_spelling(name, flag), flag.help, flag.default)]
            continue
        if flag.section is not section:
            section, helps = flag.section, field_helps(flag.section)
            title = " ".join((inspect.getdoc(section) or "").split())
            lines += ["", *textwrap.wrap(title, _width())]
        value = attrgetter(flag.target)(settings)
        key = flag.target.rpartition(".")[2]
        lines += ["", *_entry(_spelling(name, flag), helps.get(key, ""), value)]
    _print(lines)


def print_option_help(sections: Any) -> None:
    """Print the options of the extensions that the sections of a config name."""
    lines = []
    for field in dataclasses.fields(sections):
        section = getattr(sections, field.name)
        for key in option_fields(type(section)) if dataclasses.is_dataclass(section) else ():
            place = f"{field.name}.{key}"
            for options, values in named_options(section, key, f"{field.name}."):
                kinds, helps = get_type_hints(options), field_helps(options)
                for name, value in values.items():
                    words = _spelling(f"{place}.{name}", Flag("", kinds[name]))
                    lines += ["", *_entry(words, helps.get(name, ""), value)]
    if lines:
        _print(["", "Options of the extensions that are named", *lines])


def _spelling(name: str, flag: Flag) -> str:
    if flag.is_positional:
        return name.upper()
    *outer, key = name.replace("_", "-").split(".")
    if flag.is_repeated:
        return f"--{name} NAME VALUE ..."
    if flag.kind is not bool:
        return f"--{'.'.join([*outer, key])}{spelled(flag.kind)}"
    short = "-v, " if name == "verbose" else ""
    return f"{short}--{'.'.join([*outer, key])}, --{'.'.join([*outer, f'no-{key}'])}"


def _entry(words: str, text: str, *value: Any) -> Iterator[str]:
    default = [f"(default: {shown(one)})" for one in value if one is not inspect.Parameter.empty]
    yield f"  {words}"
    margin = " " * 8
    # No word of a text is cut, as a flag in it may be copied.
    yield from textwrap.wrap(
        " ".join([text, *default]),
        _width(),
        initial_indent=margin,
        subsequent_indent=margin,
        break_long_words=False,
        break_on_hyphens=False,
    )


def _width() -> int:
    return min(shutil.get_terminal_size().columns, _WIDTH)


def _print(lines: list[str]) -> None:
    print(sanitize_for_terminal("\n".join(lines)))
