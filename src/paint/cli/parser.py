"""From a command's signature to its flags, and from a line to the call.

Parameters before ``*`` are positional, the others are flags. ``**sections`` stands for the flags of
all settings, such as ``--train.steps``. ``paint.cli.reader`` reads the words.
"""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from inspect import Parameter
from types import GenericAlias, NoneType
from typing import Annotated, Any, get_args, get_origin

from paint.cli.help import parameter_helps, print_help, print_option_help
from paint.cli.reader import Flag, read_words, setting_flags
from paint.commands import Command, parameters_of, plain_type
from paint.commands.api.arguments import ByName, SettingsOf, Spelled
from paint.commands.api.configure import open_recipe
from paint.config.recipe import apply_settings, executables_of, find_recipes, nested, read_recipe
from paint.config.schema import Config, ConfigError, EvaluationConfig
from paint.core.trust import UntrustedError, trust_records, vouch_for
from paint.evaluation.defaults import defaults_of

RECIPE, RECIPES = "recipe", "recipes"
HELP = {"-h", "--help"}
# Flags of commands that are no parameters of their functions.
JSON, VERBOSE = "json", "verbose"
TRUST = "trust"  # a parameter of commands that read the record of a run


@dataclasses.dataclass(frozen=True)
class Line:
    command: Command
    parameters: Mapping[str, Any]  # that the line gives, and JSON and VERBOSE
    config: Any  # all settings, with those of the recipe; the class is the command's
    given: Mapping[str, Any]  # the settings that the line names, by section

    def call(self) -> Any:
        named = {key: one for key, one in self.parameters.items() if key not in (JSON, VERBOSE)}
        targets: Sequence[Any] = ()
        for parameter in parameters_of(self.command.function):
            if parameter.kind is Parameter.VAR_POSITIONAL:
                targets = named.pop(parameter.name)
        given = dict(self.given)
        for name in named.keys() & given.keys():  # `data validate FILE`, with --data.limit
            if "path" in given[name]:
                raise ConfigError(f"{name}.path is given twice; leave out --{name}.path")
            named[name] = {**given.pop(name), "path": named[name]}
        return self.command.function(*targets, **named, **given)


def find_command(line: Sequence[str], commands: Mapping[str, Command]) -> Command | None:
    return commands.get(" ".join(line[:2])) or commands.get(" ".join(line[:1]))


def read_line(command: Command, line: Sequence[str]) -> Line:
    """Read a command's line; a recipe's values are the defaults of its settings.

    Raises ConfigError for a word that is no flag or no value of its flag, or a recipe that cannot
    be read.
    """
    flags = flags_of(command)
    words = line[len(command.name.split()) :]
    given, settings = read_words(words, flags, f"paint {command.name}")
    vouch_for(code.name for code in executables_of(nested(settings)))
    if given.get(TRUST):  # before the record of a run is read
        trust_records()
    kind = settings_type(command)
    base: Any = Config()
    if kind is EvaluationConfig:
        base, targets = EvaluationConfig(), given["targets"]
        if targets:
            base = defaults_of(targets[0], settings.get("benchmarks", ()))
    elif kind and given.get(RECIPES):
        # Options of extensions have the types that the last recipe's have.
        base = read_recipe(find_recipes(given[RECIPES][-1])[-1])
    elif kind and RECIPE in flags:
        base = open_recipe(given.get(RECIPE, flags[RECIPE].default), takes_run=True).config
    config = apply_settings(base, settings)
    return Line(command, given, config, _of_names(config, settings))


def _of_names(config: Any, names: Iterable[str]) -> dict[str, Any]:
    """Return the settings of these full names, by section."""
    found = {}
    for name in names:
        value = config
        for part in name.split("."):
            value = value[part] if isinstance(value, Mapping) else getattr(value, part)
        found[name] = value
    return nested(found)


def flags_of(command: Command) -> dict[str, Flag]:
    """Return what a command's flags and positional words stand for, by their names."""
    helps = parameter_helps(command.function)
    found: dict[str, Flag] = {}
    of_settings: dict[str, Flag] = {}
    for parameter in parameters_of(command.function):
        name, settings = parameter.name, note_of(parameter, SettingsOf)
        if settings is not None:
            is_one = parameter.kind is Parameter.KEYWORD_ONLY
            of_settings |= setting_flags(settings.kind, f"{name}." if is_one else "")
        else:
            is_repeated = note_of(parameter, ByName) is not None
            kind = tuple[str, ...] if is_repeated else read_as(plain_type(parameter.annotation))
            if parameter.kind is Parameter.VAR_POSITIONAL:
                kind = GenericAlias(tuple, (kind, ...))
            spelled = note_of(parameter, Spelled) or Spelled(name)
            found[spelled.name] = Flag(
                name,
                kind,
                help=helps.get(name) or note_of(parameter, str) or "",
                default=parameter.default,
                is_repeated=is_repeated,
                is_positional=parameter.kind is not Parameter.KEYWORD_ONLY,
            )
    if command.report is not None:
        found[JSON] = Flag(JSON, bool, help="Print JSON.", default=False)
    if command.has_steps:
        text = "Print all metrics of each step, in a long line, instead of four."
        found[VERBOSE] = Flag(VERBOSE, bool, help=text, default=False)
    return found | of_settings


def explain(command: Command, line: Sequence[str]) -> None:
    """Print the help of a command, with the values of its recipe and line, and of extensions."""
    read = None
    with suppress(ConfigError):  # help of a wrong line is help, too
        read = read_line(command, [word for word in line if word not in HELP])
    if read is not None:
        print_help(command, flags_of(command), read.config)
        with suppress(UntrustedError):  # what a stranger's run names is left out
            print_option_help(read.config)
    else:
        kind = settings_type(command) or Config
        print_help(command, flags_of(command), kind())


def read_as(kind: Any) -> Any:
    """Return the type that the command line reads for a type in Python.

    It is text where a text may name an object.
    """
    members = get_args(kind)
    if get_origin(kind) is Sequence:
        return GenericAlias(tuple, (read_as(members[0]), ...))
    read: Any = str if kind is Any or str in members else kind
    for member in members:
        if get_origin(member) is Sequence:  # one or several: the line always gives several
            read = read_as(member)
    return read | None if NoneType in members else read


def settings_type(command: Command) -> Any:
    """Return the dataclass whose fields are a command's ``**sections``; None without."""
    for parameter in parameters_of(command.function):
        settings = note_of(parameter, SettingsOf)
        if parameter.kind is Parameter.VAR_KEYWORD and settings is not None:
            return settings.kind
    return None


def note_of(parameter: Parameter, kind: type[Any]) -> Any:
    """Return what is of a class in a parameter's ``Annotated`` type; None where nothing is."""
    if get_origin(parameter.annotation) is not Annotated:
        return None
    notes = get_args(parameter.annotation)[1:]
    return next((note for note in notes if isinstance(note, kind)), None)
