"""Options of extensions: settings that a class or function outside of the package declares.

It declares them by annotating ``options`` with a frozen dataclass:

    @dataclass(frozen=True)
    class RlsdOptions:
        epsilon: float = setting(0.2, within("[0, 1]"), "paper: 0.2")
        '''Largest relative change of a token's advantage (paper: Eq. 5).'''

    class Rlsd(Algorithm):
        options: RlsdOptions                          # self.options

    def grade(completion, row, options: GradeOptions):  # an argument of this name

A config holds them as a table (``OptionTable``), so that it can be read where the extension is not
installed. Where the extension is loaded, ``build_options`` makes the dataclass of the table.
"""

import ast
import dataclasses
import difflib
import inspect
import sys
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import pairwise
from typing import Any, get_type_hints

from paint.core.errors import ConfigError, PaintError, format_short, wrap_errors
from paint.core.plugins import load_object
from paint.core.settings import check_value, convert_value, is_setting_type


class OptionTable(Mapping[str, Any]):
    """Options by name, as a recipe holds them. It cannot be changed, and has a hash."""

    def __init__(self, values: Mapping[str, Any] | None = None) -> None:
        self._values = dict(values or {})

    def __getitem__(self, name: str) -> Any:
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __hash__(self) -> int:
        return hash(frozenset(self._values.items()))

    def __repr__(self) -> str:
        return repr(self._values)


NO_OPTIONS = OptionTable()


def options_of(owner: str, **built_in: str) -> dict[str, Any]:
    """The metadata of a section's field that holds the options of what ``owner`` names.

    ``built_in`` are the values of ``owner`` that have options, each with its "module:name".
    """
    return {"options_of": owner, "built_in": built_in}


def option_fields(section: type) -> dict[str, str]:
    """The fields of a section that hold options, each with the setting that they belong to."""
    fields: dict[str, str] = {}
    for field in dataclasses.fields(section):
        if "options_of" in field.metadata:
            fields[field.name] = field.metadata["options_of"]
    return fields


def plain_options(name: str, table: Any) -> OptionTable:
    """Check a table of options as far as that is possible without the extension.

    Args:
        name: of the setting, such as train.options, for messages.
        table: a mapping, or an instance of the extension's dataclass.
    """
    if dataclasses.is_dataclass(table) and not isinstance(table, type):
        table = dataclasses.asdict(table)
    if not isinstance(table, Mapping):
        raise ConfigError(f"{name} must be a table, got {format_short(table)}; write [{name}]")
    plain = {}
    for key, value in table.items():
        if not isinstance(key, str) or not key.isidentifier():
            raise ConfigError(f"{name} has {format_short(key)}, which is no name of an option")
        if isinstance(value, list):
            value = tuple(value)
        items = value if isinstance(value, tuple) else (value,)
        if not all(item is None or isinstance(item, bool | int | float | str) for item in items):
            raise ConfigError(
                f"{name}.{key} must be a number, text, true, false, or a list of them, got "
                f"{format_short(value)}"
            )
        plain[key] = value
    return OptionTable(plain)


def declared_options(extension: Any, setting: str) -> type | None:
    """The dataclass with which an extension annotates ``options``; None if it declares none.

    Args:
        extension: a class, a function, or any other object, which declares none.
        setting: what names the extension, for messages.

    Raises:
        ConfigError: the annotation is no frozen dataclass of types that a setting can have, or a
            field has no default.
    """
    annotation = _annotation_of_options(extension, setting)
    if annotation in (None, Any):
        return None
    if not (isinstance(annotation, type) and dataclasses.is_dataclass(annotation)):
        raise ConfigError(
            f"{setting}: options is annotated with {format_short(annotation)}; annotate it with a "
            f"frozen dataclass"
        )
    if not annotation.__dataclass_params__.frozen:  # type: ignore[attr-defined]
        raise ConfigError(
            f"{setting}: {annotation.__name__} is not frozen; write @dataclass(frozen=True)"
        )
    for field in dataclasses.fields(annotation):
        if field.default is dataclasses.MISSING:
            raise ConfigError(
                f"{setting}: {annotation.__name__}.{field.name} has no default; every option has "
                f"one"
            )
    for name, kind in option_types(annotation, setting).items():
        if not is_setting_type(kind):
            raise ConfigError(
                f"{setting}: {annotation.__name__}.{name} is annotated with {format_short(kind)}; "
                f"an option is a bool, int, float or str, a Literal of texts, a tuple[..., ...] of "
                f"these, or a union of them with None"
            )
    return annotation


def option_types(kind: type, setting: str) -> dict[str, Any]:
    """The types of a dataclass's fields by name, of annotations written as text, too."""
    with wrap_errors(f"{setting}: {kind.__name__}", ConfigError, "correct its annotations"):
        hints = get_type_hints(kind)
    types: dict[str, Any] = {}
    for field in dataclasses.fields(kind):
        types[field.name] = hints[field.name]
    return types


def field_helps(kind: type) -> dict[str, str]:
    """The docstrings below the fields of a dataclass, each in one line; none without its source."""
    helps: dict[str, str] = {}
    for base in reversed(kind.__mro__):
        if not dataclasses.is_dataclass(base):
            continue
        try:
            [node] = ast.parse(textwrap.dedent(inspect.getsource(base))).body
        except (OSError, TypeError, SyntaxError):
            continue
        if not isinstance(node, ast.ClassDef):
            continue
        for field, after in pairwise(node.body):
            if not (isinstance(field, ast.AnnAssign) and isinstance(after, ast.Expr)):
                continue
            if isinstance(after.value, ast.Constant):
                helps[ast.unparse(field.target)] = " ".join(str(after.value.value).split())
    return helps


def _annotation_of_options(extension: Any, setting: str) -> Any:
    if isinstance(extension, type):
        for base in extension.__mro__:
            annotations = inspect.get_annotations(base)
            if "options" in annotations:
                module = sys.modules.get(base.__module__)
                return _evaluated(annotations["options"], vars(module) if module else {}, setting)
        return None
    if not callable(extension):
        return None
    try:
        parameter = inspect.signature(extension).parameters.get("options")
    except ValueError:  # of some functions written in C
        return None
    if parameter is None:
        return None
    function = inspect.unwrap(extension)
    names = getattr(function, "__globals__", {})
    if parameter.annotation is inspect.Parameter.empty:
        raise ConfigError(
            f"{setting}: its parameter options has no annotation; annotate it with a frozen "
            f"dataclass"
        )
    return _evaluated(parameter.annotation, names, setting)


def _evaluated(annotation: Any, names: dict[str, Any], setting: str) -> Any:
    """An annotation, which ``from __future__ import annotations`` leaves as text."""
    if not isinstance(annotation, str):
        return annotation
    with wrap_errors(f"{setting}: options: {annotation}", ConfigError, "correct the annotation"):
        return eval(annotation, names)


def build_options(extension: Any, table: Mapping[str, Any], name: str, setting: str) -> Any:
    """Make the options that an extension declares from a table; None where it declares none.

    Args:
        table: the options that are set; others keep the defaults of the dataclass. Those of other
            extensions in the same table are passed over; ``complete_options`` refuses any that is
            nobody's.
        name: of the table, such as train.options, for messages.
        setting: what names the extension, such as 'train.method "mine:Rlsd"', for messages.

    Raises:
        ConfigError: an option is of another type or out of its range.
    """
    kind = declared_options(extension, setting)
    if kind is None:
        return None
    types = option_types(kind, setting)
    own = getattr(extension, "options", None)  # a class may have own defaults
    values = values_of(own) if isinstance(own, kind) else {}
    for field in dataclasses.fields(kind):
        full_name = f"{name}.{field.name}"
        if field.name in table:
            value = convert_value(full_name, table[field.name], types[field.name])
            check_value(full_name, value, field)
            values[field.name] = value
    try:
        with wrap_errors(name, ConfigError, "change it"):
            return kind(**values)
    except PaintError as error:  # of the dataclass, which does not know the name of the table
        message = str(error)
        if not message.startswith(name):
            message = f"{name}: {message}"
        raise ConfigError(message) from None


def values_of(options: Any) -> dict[str, Any]:
    """The options of an instance by name."""
    values: dict[str, Any] = {}
    for field in dataclasses.fields(options):
        values[field.name] = getattr(options, field.name)
    return values


def bind_options(
    function: Callable[..., Any], table: Mapping[str, Any], name: str, setting: str
) -> Callable[..., Any]:
    """A function with its argument ``options`` given, as ``build_options`` makes it."""
    options = build_options(function, table, name, setting)
    if options is None:
        return function
    return partial(function, options=options)


def complete_options(section: Any, prefix: str) -> Any:
    """The section with all options that its extensions declare, by their values and defaults.

    A run records them: the extension may change its defaults later.

    Several extensions in one setting share its table; each takes the options that it declares.

    Args:
        prefix: what names of its settings begin with, such as "train.".

    Raises:
        ConfigError: an extension cannot be loaded, or an option is refused.
    """
    changes = {}
    for key, owner in option_fields(type(section)).items():
        table = getattr(section, key)
        complete: dict[str, Any] = {}
        named = getattr(section, owner)
        for spec in extensions_of(type(section), key, named):
            setting = f"{prefix}{owner} {spec}"
            extension = load_object(spec, f"{prefix}{owner}", ())
            options = build_options(extension, table, f"{prefix}{key}", setting)
            if options is not None:
                complete |= values_of(options)
        for name in table:
            if name not in complete:
                names = " ".join(named) if isinstance(named, tuple) else named
                raise ConfigError(
                    f"unknown option {prefix}{key}.{name} of {prefix}{owner} {names}; "
                    f"{_hint(name, list(complete))}"
                )
        changes[key] = OptionTable(complete)
    return dataclasses.replace(section, **changes)


def _hint(name: str, options: Sequence[str]) -> str:
    """What to write in place of an option that there is not."""
    close = difflib.get_close_matches(name, options, n=1)
    if close:
        return f"did you mean {close[0]}?"
    if options:
        return f"there are {', '.join(options)}"
    return "it has none, remove it"


def extensions_of(section: type, key: str, named: str | tuple[str, ...]) -> list[str]:
    """What may have options, as "module:name", in the value of the setting that names it.

    Args:
        section, key: the field that holds the options.
    """
    [field] = [field for field in dataclasses.fields(section) if field.name == key]
    extensions: list[str] = []
    for name in named if isinstance(named, tuple) else (named,):
        spec = field.metadata["built_in"].get(name, name)
        if ":" in spec:
            extensions.append(spec)
    return extensions
