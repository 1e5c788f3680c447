"""From a command's signature to tyro's parser, and from a parsed line to the call.

tyro makes a parser from a dataclass. Each command gets one, with a field for each parameter: those
before ``*`` are positional. ``**sections`` becomes a field ``config``, whose fields are flags, such
as ``--train.steps``; a recipe's values are their defaults.
"""

import dataclasses
import inspect
import io
import re
import sys
import textwrap
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext, redirect_stderr
from itertools import takewhile
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import tyro
from tyro.conf import Positional, arg, subcommand
from tyro.constructors import PrimitiveConstructorSpec

from paint.arguments import SettingsOf
from paint.cli.extension_flags import CONFIG, OPTION_FLAGS, with_declared_options
from paint.commands import Command
from paint.config.recipe import find_recipe, read_recipe
from paint.config.removed import require_no_removed_flag
from paint.config.schema import ConfigError, EvaluationConfig
from paint.configure import Recipe
from paint.core.errors import format_value, has_control_characters, sanitize_for_terminal
from paint.evaluation.defaults import defaults_of

SECTION = re.compile(r"^(Args|Returns|Raises):$", re.MULTILINE)
RECIPE = "recipe"
JSON = "json"
VERBOSE = "verbose"
VERBOSE_HELP = "Print all metrics of each step, in a long line, instead of four."
GROUPS = {"data": "Make or validate training data (docs/how-to/own-data.md)."}
"""Commands of two words, by the first one."""


@dataclasses.dataclass(frozen=True)
class Line:
    """A parsed command line."""

    command: Command
    options: Any  # an instance of ``options_of(command)``

    def call(self, **further: Any) -> Any:
        """Call the command's function with the options, and with further arguments."""
        positional: list[Any] = []
        keywords: dict[str, Any] = {}
        for parameter in _parameters(self.command).values():
            name = parameter.name
            if parameter.kind is parameter.VAR_KEYWORD:
                if _settings_of(self.command) is EvaluationConfig:
                    keywords |= _fields_of(self.options.config)
            elif name == RECIPE and _settings_of(self.command):
                recipe = Recipe(find_recipe(self.options.recipe), self.options.config)
                positional.append(recipe)
            elif parameter.kind is parameter.VAR_POSITIONAL:
                positional += getattr(self.options, name)
            elif parameter.kind is parameter.POSITIONAL_OR_KEYWORD:
                positional.append(getattr(self.options, name))
            elif hasattr(self.options, name):
                keywords[name] = getattr(self.options, name)
        return self.command.function(*positional, **{**keywords, **further})


def parse_line(line: Sequence[str], commands: Mapping[str, Command], about: str) -> Line:
    """Parse a command line; a recipe's values are the defaults of its settings.

    Raises:
        SystemExit: after help or completion with 0, after an error, which is printed, with 2.
        ConfigError: a control character, the argument --, or a recipe that cannot be read or stands
            after the flags.
    """
    for argument in line:
        if has_control_characters(argument):
            raise ConfigError(f"the argument {format_value(argument)} holds control characters")

    # Parse with the named command only, so that tyro's messages do not list the others.
    command = find_command(line, commands)
    if command is None:
        return _parse_without_command(line, commands, about)
    depth = len(command.name.split())
    words = _with_recipe(command, line[depth:])
    if "--" in words:
        raise ConfigError("the argument -- would hide the settings after it; leave it out")
    require_no_removed_flag(command.name, words)
    kind = command_options(command)
    default = _default(command, kind, words)
    if default is not None:
        default = with_declared_options(default, words)
    if {"-h", "--help"} & set(words):
        words = ["--help"]  # tyro's help lacks the positional arguments that were given
    options = _run_tyro(
        kind,
        words,
        prog=f"paint {command.name}",
        description=description_of(command),
        default=tyro.MISSING_NONPROP if default is None else default,
    )
    if hasattr(options, RECIPE) and default is None:
        raise ConfigError(
            f"the recipe {options.recipe} stands after the flags, whose defaults it sets; write "
            f"`paint {command.name} {options.recipe}` first"
        )
    return Line(command, options)


def find_command(line: Sequence[str], commands: Mapping[str, Command]) -> Command | None:
    """The command that the first one or two words name."""
    return commands.get(" ".join(line[:2])) or commands.get(" ".join(line[:1]))


def command_options(command: Command) -> type[Any]:
    """The dataclass of a command's options, with a field for each parameter."""
    settings = _settings_of(command)
    helps = parameter_helps(command.function)
    fields: list[Any] = []
    for parameter in _parameters(command).values():
        if parameter.kind is parameter.VAR_KEYWORD:
            config = dataclasses.field(default_factory=settings)
            fields.append((CONFIG, Annotated[settings, arg(name="")], config))
            continue
        if is_short_form(parameter, settings):
            continue
        notes = _notes(parameter)
        sections = []
        for note in notes:
            if isinstance(note, SettingsOf):
                sections.append(note)
        if sections:
            section = sections[0].kind
            fields.append((parameter.name, section, dataclasses.field(default_factory=section)))
            continue
        kind = plain_type(parameter.annotation)
        if any(isinstance(note, PrimitiveConstructorSpec) for note in notes):
            kind = Any  # the note says how it is read
        elif parameter.name == RECIPE:
            kind = str
        if parameter.name in helps:
            notes.append(arg(help=helps[parameter.name]))
        if parameter.kind is not parameter.KEYWORD_ONLY:
            notes += get_args(Positional[int])[1:]
        default = parameter.default
        if parameter.kind is parameter.VAR_POSITIONAL:
            default = ()
        field = dataclasses.field()
        if default is not parameter.empty:
            field = dataclasses.field(default=default)
        annotated = Annotated[(kind, *notes)] if notes else kind
        fields.append((parameter.name, annotated, field))
    if command.report is not None:
        fields.append(
            (JSON, Annotated[bool, arg(help="Print JSON.")], dataclasses.field(default=False))
        )
    if command.has_steps:
        note = arg(aliases=["-v"], help=VERBOSE_HELP)
        fields.append((VERBOSE, Annotated[bool, note], dataclasses.field(default=False)))
    name = "".join(word.capitalize() for word in command.function.__name__.split("_"))
    return dataclasses.make_dataclass(name, fields, kw_only=True, frozen=True)


def is_short_form(parameter: inspect.Parameter, settings: type[Any] | None) -> bool:
    """Whether a parameter stands for a section or a setting that the command line has as flags."""
    if settings is None or parameter.kind is not parameter.KEYWORD_ONLY:
        return False
    return parameter.name in [field.name for field in dataclasses.fields(settings)]


def plain_type(annotation: Any) -> Any:
    """A type without its annotations."""
    if get_origin(annotation) is Annotated:
        return get_args(annotation)[0]
    return annotation


def description_of(command: Command) -> str:
    """The docstring up to its sections, one line for each paragraph; tyro wraps the lines."""
    text = SECTION.split(inspect.getdoc(command.function) or "")[0].replace("``", "`")
    paragraphs = text.strip().split("\n\n")
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)


def parameter_helps(function: Callable[..., Any]) -> dict[str, str]:
    """The entries of "Args:" in a docstring, by the parameter's name."""
    parts = SECTION.split(inspect.getdoc(function) or "")
    helps = {}
    for title, body in zip(parts[1::2], parts[2::2], strict=True):
        if title != "Args":
            continue
        for entry in re.split(r"\n(?=\S)", textwrap.dedent(body.strip("\n"))):
            name, _, text = entry.partition(": ")
            helps[name.strip()] = " ".join(text.replace("``", "`").split())
    return helps


def settings_type(function: Callable[..., Any]) -> type[Any] | None:
    """The dataclass whose fields are a function's ``**sections``; None without."""
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind is parameter.VAR_KEYWORD:
            [found] = [n for n in get_args(parameter.annotation) if isinstance(n, SettingsOf)]
            kind: type[Any] = found.kind
            return kind
    return None


def _settings_of(command: Command) -> Any:
    return settings_type(command.function)


def _parameters(command: Command) -> Mapping[str, inspect.Parameter]:
    return inspect.signature(command.function).parameters


def _notes(parameter: inspect.Parameter) -> list[Any]:
    """What ``Annotated`` adds to the type of a parameter."""
    if get_origin(parameter.annotation) is not Annotated:
        return []
    return list(get_args(parameter.annotation)[1:])


def _fields_of(config: Any) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    for field in dataclasses.fields(config):
        fields[field.name] = getattr(config, field.name)
    return fields


def _before_recipe(command: Command) -> list[str]:
    """The names of the positional parameters up to the recipe; none without a recipe."""
    names = list(_parameters(command))
    if RECIPE in names:
        return names[: names.index(RECIPE) + 1]
    return []


def _with_recipe(command: Command, words: Sequence[str]) -> list[str]:
    """The words with the default recipe, where the command has one and it was left out."""
    names = _before_recipe(command)
    if not names or _parameters(command)[RECIPE].default is inspect.Parameter.empty:
        return list(words)
    given = list(takewhile(lambda word: not word.startswith("-"), words))
    if len(given) != len(names) - 1:
        return list(words)
    return [*given, _parameters(command)[RECIPE].default, *words[len(given) :]]


def _default(command: Command, kind: type[Any], words: Sequence[str]) -> Any:
    """The options with the values of the recipe or run before the flags; None without."""
    if _settings_of(command) is EvaluationConfig:
        if not words:
            return None
        return kind(targets=(), config=defaults_of(words[0], _words_of("benchmarks", words)))
    names = _before_recipe(command)
    if not names:
        fields = dataclasses.fields(kind)
        has_section = any(field.default_factory is not dataclasses.MISSING for field in fields)
        if has_section:
            return kind()
        return None
    first = words[: len(names)]
    if len(first) < len(names) or any(word.startswith("-") for word in first):
        return None
    for name, word in zip(names, first, strict=True):
        choices = plain_type(_parameters(command)[name].annotation)
        if get_origin(choices) is Literal and word not in get_args(choices):
            return None  # tyro names the choices
    given = dict(zip(names, first, strict=True))
    return kind(**given, config=read_recipe(find_recipe(first[-1])))


def _words_of(name: str, words: Sequence[str]) -> list[str]:
    """The values of a flag that takes several."""
    for place, word in enumerate(words):
        if word.startswith(f"--{name}="):
            return [word.partition("=")[2]]
        if word == f"--{name}":
            return list(takewhile(lambda value: not value.startswith("--"), words[place + 1 :]))
    return []


def _parse_without_command(
    line: Sequence[str], commands: Mapping[str, Command], about: str
) -> Line:
    """Print help, completion or tyro's message about a command that does not exist."""
    group = line[0] if line and line[0] in GROUPS else ""
    depth = 1 if group else 0
    words = list(line[depth:])
    if {"-h", "--help"} & set(words) or not line:
        words = ["--help"]
    tree: dict[str, Any] = {}
    for name, command in commands.items():
        first, _, second = name.partition(" ")
        if second:
            tree.setdefault(first, {})[second] = command
        else:
            tree[first] = command
    _run_tyro(
        _union(tree[group] if group else tree),
        words,
        prog=" ".join(["paint", *line[:depth]]),
        description=GROUPS[group] if group else about,
        default=tyro.MISSING_NONPROP,
    )
    raise AssertionError("tyro parses no command that is not in the table")


def _union(tree: Mapping[str, Any]) -> Any:
    """tyro's union of subcommands, each with the first line of its help."""
    options = []
    for name, command in tree.items():
        if isinstance(command, Command):
            kind, summary = command_options(command), description_of(command).partition("\n")[0]
        else:
            kind, summary = _union(command), GROUPS[name]
        options.append(Annotated[kind, subcommand(name, description=summary)])
    return Union[tuple(options)]  # noqa: UP007


def _run_tyro(kind: Any, words: Sequence[str], *, prog: str, description: str, default: Any) -> Any:
    """Parse by tyro."""
    messages = io.StringIO()  # they repeat arguments as they are, marks that reorder text included
    is_plain = all(word == sanitize_for_terminal(word) for word in words)
    try:
        with nullcontext() if is_plain else redirect_stderr(messages):
            return tyro.cli(
                kind,
                prog=prog,
                description=description,
                args=list(words),
                default=default,
                registry=OPTION_FLAGS,
            )
    finally:
        sys.stderr.write(sanitize_for_terminal(messages.getvalue()))
