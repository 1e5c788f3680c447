"""From a command's signature to tyro's parser, and from a parsed line to the call.

tyro makes a parser from a dataclass. Each command gets one, with a field for each parameter: those
before ``*`` are positional. ``**sections`` becomes a field ``config``, whose fields are flags, such
as ``--train.steps``; a recipe's values are their defaults.
"""

import dataclasses
import inspect
import io
import re
import textwrap
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stderr, suppress
from inspect import Parameter
from itertools import dropwhile, takewhile
from types import NoneType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import tyro
from tyro.conf import Positional, UseAppendAction, arg, subcommand

from paint.cli.extension_flags import CONFIG, WITHOUT_TABLES, split_options, with_options
from paint.cli.flag_checks import (
    flag_kinds,
    require_known,
    require_no_secrets,
    require_own_names,
    require_values,
)
from paint.cli.flag_values import with_plain_values
from paint.commands import Command, parameters_of, plain_type
from paint.commands.api.arguments import ByName, SettingsOf, TakesRun
from paint.commands.api.configure import Recipe, open_recipe
from paint.config.recipe import (
    find_recipes,
    from_table,
    may_name_code,
    read_recipe,
    require_one_length,
)
from paint.config.schema import Config, ConfigError, EvaluationConfig
from paint.core.errors import (
    format_short,
    format_value,
    has_control_characters,
)
from paint.core.extensions import values_of
from paint.core.settings import Check
from paint.core.trust import UntrustedError, trust_records, vouch_for
from paint.evaluation.defaults import defaults_of

SECTION = re.compile(r"^(Args|Returns|Raises):$", re.MULTILINE)
COLOURS = re.compile(r"\x1b\[[0-9;]*m")
RECIPE, RECIPES = "recipe", "recipes"
HELP = {"-h", "--help"}
# Fields of a command's options that are no parameters of its function.
JSON = "json"
VERBOSE = "verbose"
TRUST = "trust"  # a parameter of commands that read the record of a run
# Settings that take the place of others, and those.
REPLACING = {"train": ("steps", "epochs"), "data": ("path", "weights")}
GROUPS = {"data": "Make or validate training data (docs/how-to/own-data.md)."}
"""Commands of two words, by the first one."""


@dataclasses.dataclass(frozen=True)
class Line:
    """A parsed command line."""

    command: Command
    options: Any  # an instance of ``command_options(command)``
    words: Sequence[str]  # of the line, without the command

    def call(self, **further: Any) -> Any:
        """Call the command's function with the options, and with further arguments."""
        given = values_of(self.options)
        config = given.pop(CONFIG, None)
        if isinstance(config, EvaluationConfig):
            given |= values_of(config)
            # What is not named may differ between targets, which is refused.
            named = given_settings(config, self.words)
            given |= {section: named.get(section, {}) for section in ("conversation", "grading")}
        elif config is not None and RECIPES in given:
            given |= given_settings(config, self.words)
        elif config is not None:
            config = _without_replaced(config, self.words)
            opened = _open_recipe(self.command, given[RECIPE])
            given[RECIPE] = Recipe(opened.path, config)
        targets: Sequence[Any] = ()
        for parameter in _parameters(self.command):
            if parameter.kind is Parameter.VAR_POSITIONAL:
                targets = given.pop(parameter.name)
            if any(isinstance(note, ByName) for note in _notes(parameter)):
                given[parameter.name] = _values_by_name(parameter.name, given[parameter.name])
        for name in (JSON, VERBOSE):
            given.pop(name, None)
        return self.command.function(*targets, **{**given, **further})


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
    words = _with_recipe(command, line[len(command.name.split()) :])
    if "--" in words:
        raise ConfigError("the argument -- would hide the settings after it; leave it out")
    vouch_for(_named_code(words))
    require_no_secrets(words)
    kind, prog = command_options(command), f"paint {command.name}"
    words = with_plain_values(kind, words)
    if f"--{TRUST}" in words:  # before the record of a run is read
        trust_records()
    default = _default(command, kind, words)
    all_words = words
    words, option_words = split_options(all_words)
    _require_values(command, kind, words)

    def parse(words: Sequence[str]) -> Any:
        text = description_of(command)
        return _run_tyro(kind, words, prog=prog, description=text, default=default)

    if HELP & set(words):
        _print_help(parse, words, default, prog)
    options = parse(words)
    _check(command, options)
    if default is not None:
        options = with_options(options, default, option_words, prog)
        return Line(command, options, all_words)
    if hasattr(options, RECIPE):
        raise ConfigError(
            f"the recipe {options.recipe} stands after the flags, whose defaults it sets; write "
            f"`{prog} {options.recipe}` first"
        )
    return Line(command, options, all_words)


def _require_values(command: Command, kind: type[Any], words: Sequence[str]) -> None:
    given = list(takewhile(lambda word: not word.startswith("-"), words))
    positional: list[Any] = [
        parameter.kind
        for parameter in _parameters(command)
        if parameter.kind not in (Parameter.KEYWORD_ONLY, Parameter.VAR_KEYWORD)
    ]
    takes_more = len(given) < len(positional) or Parameter.VAR_POSITIONAL in positional
    flags = words[len(given) :]
    kinds = flag_kinds(kind, CONFIG)
    require_own_names(flags, kinds)
    if not HELP & set(words):  # help of a wrong line is help, too
        require_known(flags, kinds, f"paint {command.name}")
    require_values(flags, kinds, takes_more=takes_more)


def _named_code(words: Sequence[str]) -> list[str]:
    """The values of the flags of a line that may name code."""
    found, may_name = [], False
    for word in words:
        flag, _, value = word.partition("=")
        if flag.startswith("--"):
            setting = flag[2:].replace("-", "_")
            may_name = may_name_code(".".join(setting.split(".")[:2]))
        else:
            value = word
        if may_name and value:
            found.append(value)
    return found


def _check(command: Command, options: Any) -> None:
    """Raise ConfigError for an argument that is out of its parameter's range."""
    for parameter in _parameters(command):
        for note in _notes(parameter):
            if not isinstance(note, Check):  # tyro's
                continue
            value = getattr(options, parameter.name)
            if not note.accepts(value):
                flag = parameter.name.replace("_", "-")
                raise ConfigError(f"--{flag} must be {note.allowed}, got {format_short(value)}")


def _print_help(
    parse: Callable[[Sequence[str]], Any], words: Sequence[str], default: Any, prog: str
) -> None:
    """Print the help of a command, and of the extensions that its recipe or the line names."""
    options = default
    with suppress(SystemExit, ConfigError):  # help of a wrong line is help, too
        options = parse([word for word in words if word not in HELP])
    try:
        parse(["--help"])  # alone: tyro's help lacks the positional arguments that were given
    except SystemExit:
        if default is not None:
            with suppress(UntrustedError):  # the help of what a stranger's run names is left out
                with_options(options, default, ["--help"], prog)
        raise


def find_command(line: Sequence[str], commands: Mapping[str, Command]) -> Command | None:
    """The command that the first one or two words name."""
    return commands.get(" ".join(line[:2])) or commands.get(" ".join(line[:1]))


def command_options(command: Command) -> type[Any]:
    """The dataclass of a command's options, with a field for each parameter."""
    helps = parameter_helps(command.function)
    settings = settings_type(command.function)
    fields: list[Any] = [
        _field_of(parameter, helps.get(parameter.name, ""))
        for parameter in _parameters(command)
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
    kind, notes = read_as(plain_type(parameter.annotation)), _notes(parameter)
    if any(isinstance(note, ByName) for note in notes):
        # The mark that lets a flag be given several times.
        notes += get_args(UseAppendAction[int])[1:]
        return parameter.name, Annotated[(tuple[tuple[str, ...], ...], *notes)], ()
    for note in notes:
        if isinstance(note, SettingsOf):
            default = dataclasses.field(default_factory=note.kind)
            if parameter.kind is Parameter.VAR_KEYWORD:
                return CONFIG, Annotated[note.kind, arg(name="")], default
            return parameter.name, note.kind, default
    if help_text:
        notes.append(arg(help=help_text))
    if parameter.kind is not Parameter.KEYWORD_ONLY:
        # The mark that Positional adds to a type, to stand beside the other notes.
        notes += [*get_args(Positional[int])[1:], arg(metavar=parameter.name.upper())]
    default = dataclasses.field()
    if parameter.kind is Parameter.VAR_POSITIONAL:
        kind, default = _several(kind), dataclasses.field(default=())
    elif parameter.default is not Parameter.empty:
        default = dataclasses.field(default=parameter.default)
    return parameter.name, Annotated[(kind, *notes)] if notes else kind, default


def is_short_form(parameter: Parameter, settings: type[Any] | None) -> bool:
    """Whether a parameter stands for a section or a setting that the command line has as flags."""
    if settings is None or parameter.kind is not Parameter.KEYWORD_ONLY:
        return False
    return parameter.name in [field.name for field in dataclasses.fields(settings)]


def _values_by_name(parameter: str, flags: Sequence[Sequence[str]]) -> dict[str, list[str]]:
    """The values of such a flag, which was given once for each name."""
    found: dict[str, list[str]] = {}
    for words in flags:
        name, *values = words or [""]
        if not values:
            raise ConfigError(
                f"--{parameter} needs a name and its values, as --{parameter} train.learning_rate "
                f"2e-4 6e-4; got {format_short(name)}"
            )
        if name in found:
            raise ConfigError(
                f"--{parameter} {name} is given twice; give all of its values at once"
            )
        found[name] = values
    return found


def read_as(kind: Any) -> Any:
    """The type that the command line reads for a type in Python: text for what text may name."""
    members = get_args(kind)
    if get_origin(kind) is Sequence:
        read: Any = read_as(members[0])
        return _several(read)
    read = str if kind is Any or str in members else kind
    for member in members:
        if get_origin(member) is Sequence:  # one or several: the line always gives several
            read = read_as(member)
    if NoneType in members:
        return read | None
    return read


def _several(kind: Any) -> Any:
    return tuple[kind, ...]  # in a function, as type checkers take no variable for a type


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


def settings_type(function: Callable[..., Any]) -> Any:
    """The dataclass whose fields are a function's ``**sections``; None without."""
    for parameter in parameters_of(function):
        if parameter.kind is Parameter.VAR_KEYWORD:
            [found] = [note for note in _notes(parameter) if isinstance(note, SettingsOf)]
            return found.kind
    return None


def _parameters(command: Command) -> Sequence[Parameter]:
    return parameters_of(command.function)


def _notes(parameter: Parameter) -> list[Any]:
    """What ``Annotated`` adds to the type of a parameter."""
    if get_origin(parameter.annotation) is not Annotated:
        return []
    return list(get_args(parameter.annotation)[1:])


def given_settings(config: Any, words: Sequence[str]) -> dict[str, dict[str, Any]]:
    """The settings that a line names, by section, with their parsed values.

    They are given to several recipes, whose other settings stay as they are.
    """
    given: dict[str, dict[str, Any]] = {}
    for word in words:
        flag = word.partition("=")[0].replace("-", "_")
        if not flag.startswith("__") or "." not in flag:
            continue
        section, name, *option = flag[2:].split(".")
        values = getattr(config, section)
        if not hasattr(values, name):  # a switch that is turned off
            name = name.removeprefix("no_")
        value = getattr(values, name)
        settings = given.setdefault(section, {})
        if option:  # of an extension: the recipes keep its other options
            settings.setdefault(name, {})[option[0]] = value[option[0]]
        else:
            settings[name] = value
    return given


def _without_replaced(config: Config, words: Sequence[str]) -> Config:
    """The config without what a line's settings take the place of: of steps the recipe's epochs, of
    sources its weights.
    """
    table = {}
    for section, settings in given_settings(config, words).items():
        kept = {name: settings[name] for name in REPLACING.get(section, ()) if name in settings}
        if kept:
            table[section] = kept
    require_one_length(table)
    return from_table(table, base=config)


def _until_recipe(command: Command) -> list[Parameter]:
    """The positional parameters up to the recipe; none without a recipe."""
    parameters = _parameters(command)
    for place, parameter in enumerate(parameters, start=1):
        if parameter.name == RECIPE:
            return list(parameters[:place])
    return []


def _with_recipe(command: Command, words: Sequence[str]) -> list[str]:
    """The words with the default recipe, where the command has one and it was left out."""
    parameters = _until_recipe(command)
    given = list(takewhile(lambda word: not word.startswith("-"), words))
    if not parameters or len(given) != len(parameters) - 1:
        return list(words)
    default = parameters[-1].default
    if default is Parameter.empty:
        return list(words)
    return [*given, default, *words[len(given) :]]


def _default(command: Command, kind: type[Any], words: Sequence[str]) -> Any:
    """The options with the values of the recipe or run before the flags; None without."""
    settings = settings_type(command.function)
    if settings is EvaluationConfig:
        if not words:
            return None
        return kind(targets=(), config=defaults_of(words[0], _words_of("benchmarks", words)))
    if settings and RECIPES in [parameter.name for parameter in _parameters(command)]:
        recipes = tuple(takewhile(lambda word: not word.startswith("-"), words))
        if not recipes:
            return None
        # Options of extensions have the types that the last recipe's have.
        return kind(recipes=recipes, config=read_recipe(find_recipes(recipes[-1])[-1]))
    parameters = _until_recipe(command)
    if not parameters:
        fields = dataclasses.fields(kind)
        if any(field.default_factory is not dataclasses.MISSING for field in fields):
            return kind()  # the section grading of `paint grade`
        return None
    first = words[: len(parameters)]
    if len(first) < len(parameters) or any(word.startswith("-") for word in first):
        return None
    given = {}
    for parameter, word in zip(parameters, first, strict=True):
        choices = plain_type(parameter.annotation)
        if get_origin(choices) is Literal and word not in get_args(choices):
            return None  # tyro names the choices
        given[parameter.name] = word
    return kind(**given, config=_open_recipe(command, first[-1]).config)


def _open_recipe(command: Command, word: str) -> Recipe:
    """The recipe that a line names; of some commands, also a run."""
    notes = _notes(_until_recipe(command)[-1])
    return open_recipe(word, takes_run=any(isinstance(note, TakesRun) for note in notes))


def _words_of(name: str, words: Sequence[str]) -> list[str]:
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
    words, prog, description = list(line), "paint", about
    tree: Any = {}
    for name, command in commands.items():
        first, _, second = name.partition(" ")
        if second:
            tree.setdefault(first, {})[second] = command
        else:
            tree[first] = command
    if line and line[0] in GROUPS:
        tree, prog, description = tree[line[0]], f"paint {line[0]}", GROUPS[line[0]]
        words = words[1:]
    if HELP & set(words) or not line:
        words = ["--help"]
    _run_tyro(_union(tree), words, prog=prog, description=description, default=None)
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
    messages = io.StringIO()
    try:
        with redirect_stderr(messages):
            return tyro.cli(
                kind,
                prog=prog,
                description=description,
                args=list(words),
                # tyro's own default; None would be a value.
                default=tyro.MISSING_NONPROP if default is None else default,
                registry=WITHOUT_TABLES,
            )
    except SystemExit as ended:
        if not isinstance(ended.code, int) or ended.code == 0:  # after help, or completion
            raise
        raise ConfigError(f"{_first_part(messages.getvalue())}; `{prog} --help` explains") from None


def _first_part(box: str) -> str:
    """What tyro says is wrong, in one line, from the box of lines that it prints."""
    # A title, and parts that rules of ─ (where stdout is not UTF-8, of -) divide.
    lines = [line.strip("│ ") for line in COLOURS.sub("", box).splitlines()[1:]]
    begun = dropwhile(lambda line: line.startswith("--"), lines)
    part = list(takewhile(lambda line: line and not line.startswith(("──", "--")), begun))
    if part and part[0].startswith("Missing from"):
        # Each argument is followed by its help.
        missing = [line for line in part[1:] if line.isupper()]
        return f"{' and '.join(missing)} {'is' if len(missing) == 1 else 'are'} missing"
    return " ".join(part).rstrip(".").replace("Unrecognized options:", "it takes no")
