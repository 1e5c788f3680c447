"""Reading, conversion and comparison of recipes and configs.

A recipe is a TOML file with the sections and names of ``Config``; what it omits keeps its default.
"""

import dataclasses
import difflib
import importlib.util
import tomllib
import types
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin

from paint.config.schema import Config
from paint.core.errors import ConfigError, format_value, wrap_errors
from paint.core.settings import MAX_FLOAT

# Recipes have about a thousand bytes. Longer ones can nest so deep that Python ends with a
# segmentation fault, or take hours.
RECIPE_BYTES = 2**16

_RECIPES = Path(__file__).parent / "recipes"
_SECTIONS: dict[str, Any] = {section.name: section.type for section in dataclasses.fields(Config)}
_NAMES = {
    name: [key.name for key in dataclasses.fields(section)] for name, section in _SECTIONS.items()
}


def shipped_recipes() -> list[str]:
    """List the names of the recipes that come with the package, sorted."""
    return sorted(path.stem for path in _RECIPES.glob("*.toml"))


def find_recipe(name: str) -> Path:
    """The path of a recipe: a file (ends in .toml or has a slash) or a shipped recipe, by name."""
    if name.endswith(".toml") or "/" in name or "\\" in name:
        return Path(name)
    shipped = shipped_recipes()
    if name not in shipped:
        close = difflib.get_close_matches(name, shipped, n=1)
        hint = f"did you mean {close[0]}?" if close else f"there are {', '.join(shipped)}"
        raise ConfigError(f"unknown recipe {name}; {hint} (give a file with its ending, .toml)")

    return _RECIPES / f"{name}.toml"


def read_recipe(path: str | Path, base: Config | None = None) -> Config:
    """Read a config from a TOML recipe; settings that it omits are the base's, or the paper's."""
    with wrap_errors(f"{path} cannot be read", ConfigError, "name a recipe, a TOML file"):
        try:
            if Path(path).stat().st_size > RECIPE_BYTES:
                raise ValueError(f"it is longer than {RECIPE_BYTES:,} bytes")
            # Not read_text, which would end lines at bare carriage returns; TOML has none.
            table = tomllib.loads(Path(path).read_bytes().decode("utf-8-sig"))
        except tomllib.TOMLDecodeError as error:
            raise ConfigError(f"{path} is not valid TOML: {error}") from None
    return from_table(table, source=str(path), base=base)


def to_table(config: Config) -> dict[str, dict[str, Any]]:
    """Convert a config to nested dicts and lists for JSON; `from_table` is the inverse."""
    return {
        name: {
            key: list(value) if isinstance(value, tuple) else value
            for key, value in dataclasses.asdict(getattr(config, name)).items()
        }
        for name in _SECTIONS
    }


def from_table(
    table: Mapping[str, Any], *, source: str = "config", base: Config | None = None
) -> Config:
    """Build a config from nested dicts; settings that they omit are the base's, or the defaults.

    Integers become floats, lists tuples and a text a list of one where needed, and nothing else is
    converted. Messages begin with ``source``.
    """
    base = base or Config()
    try:
        sections = {name: _section(name, values, base) for name, values in table.items()}
        return dataclasses.replace(base, **sections)
    except ConfigError as error:
        raise ConfigError(f"{source}: {error}") from None


def differences(a: Config, b: Config) -> list[str]:
    """List the settings that differ, such as `train.seed: 0 -> 1`, in the config's order."""
    before, after = to_table(a), to_table(b)
    return [
        f"{name}.{key}: {format_value(before[name][key])} -> {format_value(after[name][key])}"
        for name, keys in _NAMES.items()
        for key in keys
        if before[name][key] != after[name][key]
    ]


def flags(config: Config, default: Config) -> list[str]:
    """List the flags of `paint train` that turn the recipe's config, the default, into this one."""
    before, words = to_table(default), []
    for section, settings in to_table(config).items():
        kinds = {field.name: field.type for field in dataclasses.fields(_SECTIONS[section])}
        for key, value in settings.items():
            if value != before[section][key]:
                is_switch = kinds[key] is bool
                no = "no-" if is_switch and not value else ""
                flag = f"--{section}.{no}{key.replace('_', '-')}"
                values = value if isinstance(value, list) else [value]
                texts = [] if is_switch else list(map(str, values))
                # A separate argument that starts with a dash would be parsed as a flag.
                is_dashed = len(texts) == 1 and texts[0].startswith("-")
                words += [f"{flag}={texts[0]}"] if is_dashed else [flag, *texts]
    return words


def require_paths(config: Config) -> None:
    """Raise ConfigError unless model.path and data.path, which have no default, are set."""
    for name, what in (("model", "a folder or hub name"), ("data", "a file of problems")):
        if not getattr(config, name).path.strip():
            raise ConfigError(
                f"{name}.path is not set: pass --{name}.path with {what} "
                f'(or "demo" for the embedded one), or set path under [{name}] in the recipe'
            )


def require_bitsandbytes(setting: str) -> None:
    """Require the package that a setting with this value needs. Raises ConfigError."""
    if importlib.util.find_spec("bitsandbytes") is None:
        raise ConfigError(
            f"{setting} needs bitsandbytes, which is not installed: pip install bitsandbytes, or "
            f"leave the setting out"
        )


def _section(name: str, table: Any, base: Config) -> Any:
    """Replace a section's settings; raise ConfigError for an unknown key or a wrong type."""
    if name not in _SECTIONS:
        kind = "section" if isinstance(table, Mapping) else "key"
        raise ConfigError(f"unknown {kind} {name}{_nearest(name)}")
    if not isinstance(table, Mapping):
        raise ConfigError(f"{name} must be a section, got {format_value(table)}; write [{name}]")
    for key in table:
        if key not in _NAMES[name]:
            raise ConfigError(f"unknown key {name}.{key}{_nearest(f'{name}.{key}')}")

    values = {}
    for field in dataclasses.fields(_SECTIONS[name]):
        if field.name not in table:
            continue
        value = table[field.name]
        # TOML has no tuples, and people write 1 for 1.0.
        if isinstance(value, list):
            is_of_floats = get_args(field.type)[:1] == (float,)
            value = tuple(float(one) if is_of_floats and type(one) is int else one for one in value)
        elif isinstance(value, str) and get_origin(field.type) is tuple:
            value = (value,)
        elif type(value) is int and float in (field.type, *get_args(field.type)):
            value = float(value) if abs(value) <= MAX_FLOAT else value
        if not _fits(value, field.type):
            got = format_value(table[field.name])
            raise ConfigError(f"{name}.{field.name} must be {_words(field.type)}, got {got}")
        values[field.name] = value
    return dataclasses.replace(getattr(base, name), **values)


def _nearest(name: str) -> str:
    """Format a hint at the key of the same name in another section, or at a similar one."""
    section, _, key = name.rpartition(".")
    known = [(part, other) for part, keys in _NAMES.items() for other in keys]
    near = {other: f"{part}.{other}" for part, other in known if section in ("", part)}
    near |= {} if section else {part: part for part in _NAMES}
    matches = [f"{part}.{other}" for part, other in known if other == key]
    matches = matches or [near[other] for other in difflib.get_close_matches(key, near, n=1)]
    if matches:
        return f"; did you mean {' or '.join(matches)}?"
    return f"; there are {', '.join(_NAMES[section] if section else _NAMES)}"


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


def _words(annotation: Any) -> str:
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        return "one of " + ", ".join(arguments)
    if origin in (Union, types.UnionType):
        return " or ".join(_words(argument) for argument in arguments)
    if origin is tuple:
        item = _words(arguments[0])
        is_choice = get_origin(arguments[0]) is Literal
        return "a list of " + (f"values, each {item}" if is_choice else item)
    names = {
        bool: "true or false",
        int: "an integer",
        float: "a number",
        str: "text",
        types.NoneType: "None",
    }
    return names[annotation]
