"""Declaration and validation of settings: sections, their fields' ranges, paths.

A section is a frozen dataclass that derives from ``Section``. Its ranges are in its fields:

    top_p: float = setting(0.95, within("(0, 1]"), "1 is off")
"""

import dataclasses
import math
import re
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin

from paint.core.credentials import secret_in
from paint.core.errors import (
    ConfigError,
    did_you_mean,
    format_short,
    format_value,
    has_control_characters,
    is_unicode,
)

MAX_COUNT = 10_000_000
"""Largest number of steps, rows, tokens or samples; more is a typo that would fill the memory."""

MAX_FLOAT = 2.0**128 - 2.0**104  # the largest number of float32


class Check(NamedTuple):
    """A condition on a value; messages say that it "must be" what is allowed."""

    allowed: str
    accepts: Callable[[Any], bool]


NOT_NEGATIVE = [Check("at least 0", lambda value: value >= 0)]
POSITIVE = [
    Check("at least 1", lambda value: value >= 1),
    Check(f"at most {MAX_COUNT}", lambda value: value <= MAX_COUNT),
]


def setting(default: Any, checks: Sequence[Check], note: str = "", help_text: str = "") -> Any:
    """Declare a field of a section with its range, which None and words of its type need not meet.

    ``note`` ends the message of a refusal; without one, the default does. ``help_text`` takes the
    place of the docstring below the field in help and reference.
    """
    metadata: dict[str, Any] = {"checks": checks, "note": note}
    if help_text:
        metadata["help"] = help_text
    return dataclasses.field(default=default, metadata=metadata)


def within(interval: str) -> Sequence[Check]:
    """Check that a value is in an interval, written as in mathematics: "(0, 1]"."""
    low, high = map(float, interval[1:-1].split(","))
    low_open, high_open = interval[0] == "(", interval[-1] == ")"

    def accepts(value: float) -> bool:
        is_outside = (low_open and value == low) or (high_open and value == high)
        return low <= value <= high and not is_outside

    return [Check(f"in {interval}", accepts)]


class Section:
    """A section of the settings, whose values are checked whenever one is built.

    Text has no control characters other than line ends and tabs. Integers fit in 64 bits. Floats
    are at most MAX_FLOAT, or infinite. Every field is in its range, or a ConfigError names it.
    """

    # Without it, sections with slots would have a __dict__ all the same.
    __slots__ = ()

    def __post_init__(self) -> None:
        section = section_name(type(self))
        for field in dataclasses.fields(self):  # type: ignore[arg-type]
            check_value(f"{section}.{field.name}", getattr(self, field.name), field)


def require_no_secret(name: str, value: Any) -> None:
    """Raise ConfigError, without the value, for a setting or an option that holds a secret."""
    if isinstance(value, Mapping):
        for key, option in value.items():
            require_no_secret(f"{name}.{key}", option)
        return
    found = secret_in(name, value)
    if found:
        way = f"{name} env:NAME" if "options." in name else "set it in the environment of paint"
        raise ConfigError(
            f"{name} seems to hold a secret ({found}), which run.json, logs and pages would show; "
            f"read it from the environment: {way}"
        )


def check_value(name: str, value: Any, field: dataclasses.Field[Any]) -> None:
    """Raise ConfigError for a value that no setting can have, or out of its field's range."""
    # First, as the other messages repeat the value.
    require_no_secret(name, value)
    for item in _several(value):
        if isinstance(item, str) and (has_control_characters(item) or not is_unicode(item)):
            allowed = "text in UTF-8 without control characters"
            raise ConfigError(_refusal(name, value, allowed, "line ends and tabs are allowed"))
        if isinstance(item, int) and abs(item) >= 2**63:
            raise ConfigError(_refusal(name, value, "below 2**63", "a number of 64 bits"))
        if isinstance(item, float) and MAX_FLOAT < abs(item) < math.inf:
            raise ConfigError(_refusal(name, value, "a number of 32 bits", "at most 3.4e38"))
    check_range(name, value, field)


def check_range(name: str, value: Any, field: dataclasses.Field[Any]) -> None:
    if value is None or value in _choices(field.type):
        return
    for allowed, accepts in field.metadata.get("checks", ()):
        if not accepts(value):
            note = field.metadata["note"] or f"default: {format_value(field.default)}"
            raise ConfigError(_refusal(name, value, allowed, note))


def _refusal(name: str, value: Any, allowed: str, note: str) -> str:
    return f"{name} must be {allowed}, got {format_short(value)} ({note})"


def require(section: object, key: str, is_allowed: bool, allowed: str, note: str) -> None:
    """Raise ConfigError with section.key, its value and the allowed ones, unless allowed."""
    if not is_allowed:
        name = f"{section_name(type(section))}.{key}"
        raise ConfigError(_refusal(name, getattr(section, key), allowed, note))


def require_default(section: Any, key: str, where: str, note: str) -> None:
    """Raise ConfigError unless a setting has its default, as it must where ``where`` says."""
    default = type(section).__dataclass_fields__[key].default
    shown = format_value(" ".join(default) if isinstance(default, tuple) else default)
    allowed = f"{shown} {where}" if shown.strip('"') else f"empty {where}"
    require(section, key, getattr(section, key) == default, allowed, note)


def is_folder_name(text: str) -> bool:
    """Return whether a text may name a folder: a printable line without slashes, and no flag."""
    is_relative = text.strip() in ("", ".", "..")
    return text.isprintable() and not is_relative and not re.search(r"^-|[/\\]", text)


def check_argument(name: str, value: Any, annotation: Any) -> None:
    """Raise ConfigError for an argument of a command that its type's checks do not accept."""
    if get_origin(annotation) is not Annotated:
        return
    kind, *notes = get_args(annotation)
    for note in notes:
        if isinstance(note, Check):
            converted = convert_value(name, value, kind)
            if converted is not None and not note.accepts(converted):
                raise ConfigError(f"{name} must be {note.allowed}, got {format_short(value)}")


def section_name(section: type) -> str:
    """Return the name of a config class in a recipe: "rollout" for RolloutConfig."""
    return section.__name__.removesuffix("Config").lower()


def convert_value(name: str, value: Any, annotation: Any) -> Any:
    """Convert a value of a table to a setting's type; raise ConfigError for one of another type.

    Integers become floats, lists tuples and a text a list of one where needed, and nothing else is
    converted: TOML has no tuples, and people write 1 for 1.0.
    """
    converted = value
    if isinstance(value, list):
        is_of_floats = get_args(annotation)[:1] == (float,)
        converted = tuple(
            float(item) if is_of_floats and type(item) is int else item for item in value
        )
    elif isinstance(value, str) and get_origin(annotation) is tuple:
        converted = (value,)
    elif type(value) is int and float in (annotation, *get_args(annotation)):
        # A larger integer would overflow; it stays one, and is refused as such.
        converted = float(value) if abs(value) <= MAX_FLOAT else value
    if not _fits(converted, annotation):
        choices = _choices(annotation)
        wrong = [one for one in _several(converted) if one not in choices]
        hints = [did_you_mean(one, choices) for one in wrong]
        raise ConfigError(
            f"{name} must be {_words(annotation)}, got {format_value(value)}"
            f"{next(filter(None, hints), '')}"
        )
    return converted


_INTEGER = re.compile(r"[+-]?[0-9]{1,100}")
_NUMBER = re.compile(r"[+-]?(([0-9]+\.?[0-9]*|\.[0-9]+)(e[+-]?[0-9]{1,9})?|inf)", re.IGNORECASE)


def value_of_text(text: str, annotation: Any) -> Any:
    """Read a text as a value of a setting's type: "2e-4" as a number, "a,b" as a list.

    A text that is no value of the type stays as it is; ``convert_value`` refuses it by name.
    """
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is tuple:
        return [value_of_text(part.strip(), arguments[0]) for part in text.split(",")]
    kinds = arguments if origin in (Union, types.UnionType) else (annotation,)
    if bool in kinds and text.lower() in ("true", "false"):
        return text.lower() == "true"
    if types.NoneType in kinds and text.lower() == "none":
        return None
    if int in kinds and _INTEGER.fullmatch(text):
        return int(text)
    if float in kinds and _NUMBER.fullmatch(text):
        return float(text)
    return text


def takes_several(annotation: Any) -> bool:
    return any(get_origin(kind) is tuple for kind in (annotation, *get_args(annotation)))


def value_of_words(words: list[Any], annotation: Any) -> Any:
    """Read words of a command line as a value of a type; ``convert_value`` checks it.

    A switch needs no word. More than one word stay a list, also where the type has none.
    """
    if not words and annotation is bool:
        return True
    lists = [kind for kind in (annotation, *get_args(annotation)) if get_origin(kind) is tuple]
    is_one = len(words) == 1 and isinstance(words[0], str)
    if is_one and annotation not in lists:
        one = value_of_text(words[0], annotation)
        # A text where the type has texts, and None.
        if not lists or not isinstance(one, str) or str in get_args(annotation):
            return one
    kind = get_args(lists[0])[0] if lists else str
    return [value_of_text(word, kind) if isinstance(word, str) else word for word in words]


def is_setting_type(annotation: Any) -> bool:
    """Return whether ``convert_value`` takes a type."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin in (Union, types.UnionType):
        return all(map(is_setting_type, arguments))
    if origin is tuple:
        return arguments[1:] == (...,) and is_setting_type(arguments[0])
    is_choice = origin is Literal and all(isinstance(argument, str) for argument in arguments)
    return is_choice or annotation in _KINDS


def _fits(value: object, annotation: Any) -> bool:
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        return isinstance(value, str) and value in arguments
    if origin in (Union, types.UnionType):
        return any(_fits(value, argument) for argument in arguments)
    if origin is tuple:
        return isinstance(value, tuple) and all(_fits(item, arguments[0]) for item in value)
    # Not isinstance: bool is a subclass of int, and true is not a number of steps.
    return type(value) is annotation


_KINDS: dict[Any, str] = {
    bool: "true or false",
    int: "an integer",
    float: "a number",
    str: "text",
    types.NoneType: "None",
}


def _several(value: Any) -> tuple[Any, ...]:
    return value if isinstance(value, tuple) else (value,)


def _choices(annotation: Any) -> list[str]:
    if get_origin(annotation) is Literal:
        return list(get_args(annotation))
    return [text for argument in get_args(annotation) for text in _choices(argument)]


def _words(annotation: Any) -> str:
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        return "one of " + ", ".join(arguments)
    if origin in (Union, types.UnionType):
        return " or ".join(_words(argument) for argument in arguments)
    if origin is tuple:
        return f"a list of values, each {_words(arguments[0])}"
    return _KINDS[annotation]
