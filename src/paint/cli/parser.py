"""From a command's signature to its flags, and from a line to the call.

``paint.cli.reader`` reads the line. tyro prints help and completion: it makes them of a dataclass,
with a field for each parameter; those before ``*`` are positional. ``**sections`` becomes a field
``config``, whose fields are flags, such as ``--train.steps``.
"""

import dataclasses
import inspect
import re
import textwrap
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from inspect import Parameter
from types import NoneType
from typing import Annotated, Any, Union, get_args, get_origin

import tyro
from tyro.conf import Positional, UseAppendAction, arg, subcommand
from tyro.constructors import ConstructorRegistry, StructConstructorSpec, StructTypeInfo

from paint.cli.reader import Flag, Words, positional_values, read_words, setting_flags
from paint.commands import Command, parameters_of, plain_type
from paint.commands.api.arguments import ByName, SettingsOf, TakesRun
from paint.commands.api.configure import Recipe, open_recipe
from paint.config.recipe import (
    apply_settings,
    executables_of,
    find_recipes,
    nested,
    read_recipe,
)
from paint.config.schema import Config, ConfigError, EvaluationConfig
from paint.core.errors import format_short
from paint.core.extensions import OptionTable, named_options, option_fields, values_of
from paint.core.trust import UntrustedError, trust_records, vouch_for
from paint.evaluation.defaults import defaults_of

CONFIG = "config"
"""Name of the field of a command whose fields are flags without its name before them."""
SECTION = re.compile(r"^(Args|Returns|Raises):$", re.MULTILINE)
RECIPE, RECIPES = "recipe", "recipes"
HELP = {"-h", "--help"}
# Fields of a command's options that are no parameters of its function.
JSON, VERBOSE = "json", "verbose"
TRUST = "trust"  # a parameter of commands that read the record of a run

_POSITIONAL = get_args(Positional[int])[1]  # the mark that Positional adds to a type
_REPEATED = get_args(UseAppendAction[int])[1]

WITHOUT_TABLES = ConstructorRegistry()
"""tyro's rules for help: a table of options has no flags."""


@WITHOUT_TABLES.struct_rule
def _table_rule(info: StructTypeInfo) -> StructConstructorSpec | None:
    if info.type is not OptionTable:
        return None
    return StructConstructorSpec(instantiate=lambda: info.default, fields=())


@dataclasses.dataclass(frozen=True)
class Line:
    """A line that was read."""

    command: Command
    options: Any  # an instance of ``command_options(command)``
    given: Mapping[str, Any]  # the settings that it names, by section
    recipe: Recipe | None

    def call(self, **further: Any) -> Any:
        """Call the command's function with the options, and with further arguments."""
        given = values_of(self.options)
        config = given.pop(CONFIG, None)
        if self.recipe is not None:
            given[RECIPE] = Recipe(self.recipe.path, config)
        elif config is not None:  # several recipes or targets, whose other settings stay
            given |= self.given
        targets: Sequence[Any] = ()
        for parameter in parameters_of(self.command.function):
            if parameter.kind is Parameter.VAR_POSITIONAL:
                targets = given.pop(parameter.name)
            if _has_note(parameter.annotation, ByName):
                given[parameter.name] = _values_by_name(parameter.name, given[parameter.name])
        for name in (JSON, VERBOSE):
            given.pop(name, None)
        return self.command.function(*targets, **{**given, **further})


def parse_line(line: Sequence[str], commands: Mapping[str, Command], about: str) -> Line:
    """Parse a command line; a recipe's values are the defaults of its settings.

    Raises SystemExit with 0 after help or completion, and ConfigError for a word that is no flag or
    no value of its flag, or a recipe that cannot be read.
    """
    command = find_command(line, commands)
    if command is None:
        return _parse_without_command(line, commands, about)
    words = list(line[len(command.name.split()) :])
    if HELP & set(words):
        _print_help(command, [word for word in words if word not in HELP])
    return _read_line(command, words)


def _read_line(command: Command, line: Sequence[str]) -> Line:
    words = read_words(line, flags_of(command))
    vouch_for(code.name for code in executables_of(nested(words.settings)))
    if words.parameters.get(TRUST):  # before the record of a run is read
        trust_records()
    parameters = {one.name: one for one in parameters_of(command.function)}
    places = [
        (parameter, read_as(plain_type(parameter.annotation)))
        for parameter in parameters.values()
        if parameter.kind not in (Parameter.KEYWORD_ONLY, Parameter.VAR_KEYWORD)
    ]
    given = positional_values(places, words, f"paint {command.name}") | words.parameters
    settings, recipe = settings_type(command.function), None
    base: Any = Config()
    if settings is EvaluationConfig:
        base, targets = EvaluationConfig(), given["targets"]
        if targets:
            base = defaults_of(targets[0], words.settings.get("benchmarks", ()))
    elif settings and given.get(RECIPES):
        # Options of extensions have the types that the last recipe's have.
        base = read_recipe(find_recipes(given[RECIPES][-1])[-1])
    elif settings and RECIPE in parameters:
        parameter = parameters[RECIPE]
        takes_run = _has_note(parameter.annotation, TakesRun)
        recipe = open_recipe(given.setdefault(RECIPE, parameter.default), takes_run=takes_run)
        base = recipe.config
    config = apply_settings(base, words.settings)
    kind = command_options(command)
    for field in dataclasses.fields(kind):
        if field.name == CONFIG:
            given[CONFIG] = config
        elif dataclasses.is_dataclass(field.type):  # one section
            given[field.name] = getattr(config, field.name)
    return Line(command, kind(**given), _of_names(config, words), recipe)


def _of_names(config: Any, words: Words) -> dict[str, Any]:
    """Return the settings that a line names, by section, with their converted values."""
    found = {}
    for name in words.settings:
        value = config
        for part in name.split("."):
            value = value[part] if isinstance(value, Mapping) else getattr(value, part)
        found[name] = value
    return nested(found)


def flags_of(command: Command) -> dict[str, Flag]:
    """Return what a command's flags stand for, by their names."""
    found: dict[str, Flag] = {}
    for field in dataclasses.fields(command_options(command)):
        kind, notes = plain_type(field.type), _notes(field.type)
        if field.name == CONFIG:
            found |= setting_flags(kind)
        elif dataclasses.is_dataclass(kind):
            found |= setting_flags(kind, f"{field.name}.")
        elif _POSITIONAL not in notes:
            names = [note.name for note in notes if getattr(note, "name", None)]
            name = (names or [field.name])[0].replace("-", "_")
            is_repeated = _REPEATED in notes
            kind = tuple[str, ...] if is_repeated else kind
            found[name] = Flag(field.name, kind, is_repeated=is_repeated)
    return found


def _print_help(command: Command, words: Sequence[str]) -> None:
    """Print the help of a command, with the values of its recipe and line, and of extensions."""
    line, prog = None, f"paint {command.name}"
    with suppress(ConfigError):  # help of a wrong line is help, too
        line = _read_line(command, words)
    default = tyro.MISSING_NONPROP if line is None else line.options
    try:
        _run_tyro(command_options(command), ["--help"], prog, description_of(command), default)
    finally:
        if line is not None:
            with suppress(UntrustedError):  # what a stranger's run names is left out
                _print_option_help(line.options, prog)


def _print_option_help(options: Any, prog: str) -> None:
    sections, found = getattr(options, CONFIG, options), list[Any]()
    for field in dataclasses.fields(sections):
        section = getattr(sections, field.name)
        for key in option_fields(type(section)) if dataclasses.is_dataclass(section) else ():
            for declared in named_options(section, key, f"{field.name}."):
                kind: Any = type(declared)
                kind = Annotated[kind, arg(name=f"{field.name}.{key}")]
                # Numbered, as several extensions may share a table.
                found.append((f"of_{len(found)}", kind, dataclasses.field(default=declared)))
    if found:
        of_all = dataclasses.make_dataclass("Options", found)
        with suppress(SystemExit):
            _run_tyro(of_all, ["--help"], prog, "Options of the extensions that are named")


def find_command(line: Sequence[str], commands: Mapping[str, Command]) -> Command | None:
    """Return the command that the first one or two words name."""
    return commands.get(" ".join(line[:2])) or commands.get(" ".join(line[:1]))


def command_options(command: Command) -> type[Any]:
    """Return the dataclass of a command's options, with a field for each parameter."""
    helps = parameter_helps(command.function)
    settings = settings_type(command.function)
    fields: list[Any] = [
        _field_of(parameter, helps.get(parameter.name, ""))
        for parameter in parameters_of(command.function)
        if not is_short_form(parameter, settings)
    ]
    off = dataclasses.field(default=False)
    if command.report is not None:
        fields.append((JSON, Annotated[bool, arg(help="Print JSON.")], off))
    if command.has_steps:
        text = "Print all metrics of each step, in a long line, instead of four."
        fields.append((VERBOSE, Annotated[bool, arg(aliases=["-v"], help=text)], off))
    name = "".join(word.capitalize() for word in command.function.__name__.split("_"))
    # kw_only: a field without a default may follow one that has one.
    return dataclasses.make_dataclass(name, fields, kw_only=True, frozen=True)


def _field_of(parameter: Parameter, help_text: str) -> tuple[str, Any, Any]:
    kind, notes = read_as(plain_type(parameter.annotation)), _notes(parameter.annotation)
    for note in notes:
        if isinstance(note, SettingsOf):
            default = dataclasses.field(default_factory=note.kind)
            if parameter.kind is Parameter.VAR_KEYWORD:
                return CONFIG, Annotated[note.kind, arg(name="")], default
            return parameter.name, note.kind, default
    default = dataclasses.field()
    if parameter.default is not Parameter.empty:
        default = dataclasses.field(default=parameter.default)
    if _has_note(parameter.annotation, ByName):
        notes.append(_REPEATED)
        return parameter.name, Annotated[(tuple[tuple[str, ...], ...], *notes)], ()
    if help_text:
        notes.append(arg(help=help_text))
    if parameter.kind is not Parameter.KEYWORD_ONLY:
        notes += [_POSITIONAL, arg(metavar=parameter.name.upper())]
    if parameter.kind is Parameter.VAR_POSITIONAL:
        kind, default = _several(kind), dataclasses.field(default=())
    return parameter.name, Annotated[(kind, *notes)] if notes else kind, default


def is_short_form(parameter: Parameter, settings: type[Any] | None) -> bool:
    """Return whether a parameter stands for settings that the command line has as flags."""
    if settings is None or parameter.kind is not Parameter.KEYWORD_ONLY:
        return False
    return parameter.name in [field.name for field in dataclasses.fields(settings)]


def _values_by_name(parameter: str, flags: Sequence[Sequence[str]]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for words in flags:
        name, *values = words or [""]
        if not values:
            raise ConfigError(
                f"--{parameter} needs a name and its values, as --{parameter} train.learning_rate "
                f"2e-4 6e-4; got {format_short(name)}"
            )
        if name in found:
            raise ConfigError(f"--{parameter} {name} is given twice; give all values at once")
        found[name] = values
    return found


def read_as(kind: Any) -> Any:
    """Return the type that the command line reads for a type in Python.

    It is text where a text may name an object.
    """
    members = get_args(kind)
    if get_origin(kind) is Sequence:
        return _several(read_as(members[0]))
    read: Any = str if kind is Any or str in members else kind
    for member in members:
        if get_origin(member) is Sequence:  # one or several: the line always gives several
            read = read_as(member)
    return read | None if NoneType in members else read


def _several(kind: Any) -> Any:
    return tuple[kind, ...]  # in a function, as type checkers take no variable for a type


def description_of(command: Command) -> str:
    """Return the docstring up to its sections, one line for each paragraph."""
    text = SECTION.split(inspect.getdoc(command.function) or "")[0].replace("``", "`")
    paragraphs = text.strip().split("\n\n")
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)


def parameter_helps(function: Callable[..., Any]) -> dict[str, str]:
    """Return the entries of "Args:" in a docstring, by the parameter's name."""
    parts = SECTION.split(inspect.getdoc(function) or "")
    helps = {}
    for title, body in zip(parts[1::2], parts[2::2], strict=True):
        if title != "Args":
            continue
        for entry in re.split(r"\n(?=\S)", textwrap.dedent(body.strip("\n"))):
            name, _, text = entry.partition(": ")
            helps[name.strip()] = " ".join(text.replace("``", "`").split())
    return helps


def settings_type(function: Callable[..., Any]) -> Any:
    """Return the dataclass whose fields are a function's ``**sections``; None without."""
    for parameter in parameters_of(function):
        if parameter.kind is Parameter.VAR_KEYWORD:
            notes = _notes(parameter.annotation)
            return next(note.kind for note in notes if isinstance(note, SettingsOf))
    return None


def _notes(annotation: Any) -> list[Any]:
    return list(get_args(annotation)[1:]) if get_origin(annotation) is Annotated else []


def _has_note(annotation: Any, kind: type[Any]) -> bool:
    return any(isinstance(note, kind) for note in _notes(annotation))


def _parse_without_command(
    line: Sequence[str], commands: Mapping[str, Command], about: str
) -> Line:
    """Print help or completion of all commands, each with the first line of its help."""
    options = []
    for name, command in commands.items():
        note = subcommand(name, description=description_of(command).partition("\n")[0])
        options.append(Annotated[command_options(command), note])
    words = list(line)
    if not line or HELP & set(line):
        words = ["--help"]
    _run_tyro(Union[tuple(options)], words, "paint", about)  # noqa: UP007
    raise AssertionError("tyro parses no command that is not in the table")


def _run_tyro(
    kind: Any, words: list[str], prog: str, description: str, default: Any = tyro.MISSING_NONPROP
) -> None:
    registry = WITHOUT_TABLES
    tyro.cli(
        kind, prog=prog, description=description, args=words, default=default, registry=registry
    )
