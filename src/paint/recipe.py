"""How does a recipe become a config, and a config a table?

A recipe is a TOML file with config's sections and names; what it leaves out keeps its default. The resolved config is
one flat table that is saved with the run.

Left out on purpose: recipes that include other recipes, variables from the environment, and any third-party library.
"""

import dataclasses
import difflib
import tomllib
import types
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin

from paint.config import Config, ConfigError, show

_RECIPES = Path(__file__).parent / "recipes"
_SECTIONS: dict[str, Any] = {section.name: section.type for section in dataclasses.fields(Config)}
_NAMES = {name: [key.name for key in dataclasses.fields(section)] for name, section in _SECTIONS.items()}


def shipped_recipes() -> list[str]:
    """The names of the recipes that come with the package, sorted."""
    return sorted(path.stem for path in _RECIPES.glob("*.toml"))


def find_recipe(name: str) -> Path:
    """The file that is meant: a path where `name` ends in .toml or has a slash, else a shipped recipe's name.

    Raises ConfigError for a name that is not shipped, with the nearest one that is.
    """
    if name.endswith(".toml") or "/" in name or "\\" in name:
        return Path(name)
    shipped = shipped_recipes()
    if name not in shipped:
        close = difflib.get_close_matches(name, shipped, n=1)
        hint = f"did you mean {close[0]}?" if close else f"there are {', '.join(shipped)}"
        raise ConfigError(f"unknown recipe {name}; {hint} (a file is named with its ending, .toml)")
    return _RECIPES / f"{name}.toml"


def read_recipe(path: str | Path) -> Config:
    """The config that a TOML recipe describes; what the recipe leaves out keeps the paper's setting.

    Raises ConfigError, naming the file, when it cannot be read, is not TOML (with line and column), or holds
    an unknown name (with the nearest known one), a wrong type or a value out of range.
    """
    try:
        table = tomllib.loads(Path(path).read_text(encoding="utf-8-sig"))
    except FileNotFoundError:
        raise ConfigError(f"{path} does not exist; name a recipe, a TOML file") from None
    except IsADirectoryError:
        raise ConfigError(f"{path} is a folder; name a recipe, a TOML file") from None
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is not UTF-8 text: {error.reason} at byte {error.start}") from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path} is not valid TOML: {error}") from None
    return from_table(table, source=str(path))


def to_table(config: Config) -> dict[str, dict[str, Any]]:
    """The config as nested plain dicts and lists, as JSON keeps them; `from_table` is the way back."""
    return {
        name: {
            key: list(value) if isinstance(value, tuple) else value
            for key, value in dataclasses.asdict(getattr(config, name)).items()
        }
        for name in _SECTIONS
    }


def from_table(table: Mapping[str, Any], *, source: str = "config") -> Config:
    """The config that nested dicts describe; what they leave out keeps its default.

    A whole number is taken where a real one is expected, a list where a tuple is; nothing else is converted.
    Raises ConfigError, starting with `source`, on an unknown name, a wrong type or a value out of range.
    """
    sections = {}
    for name, values in table.items():
        if name not in _SECTIONS:
            kind = "section" if isinstance(values, Mapping) else "key"
            raise ConfigError(f"{source}: unknown {kind} {name}{_nearest(name)}")
        if not isinstance(values, Mapping):
            raise ConfigError(f"{source}: {name} must be a section, got {show(values)}; write [{name}]")
        for key in values:
            if key not in _NAMES[name]:
                raise ConfigError(f"{source}: unknown key {name}.{key}{_nearest(f'{name}.{key}')}")
        try:
            sections[name] = _build(_SECTIONS[name], values)
        except ConfigError as error:
            raise ConfigError(f"{source}: {error}") from None
    try:
        return Config(**sections)
    except ConfigError as error:
        raise ConfigError(f"{source}: {error}") from None


def differences(a: Config, b: Config) -> list[str]:
    """One line for each setting in which two configs differ, such as `train.seed: 0 -> 1`, in tree order."""
    before, after = to_table(a), to_table(b)
    return [
        f"{name}.{key}: {show(before[name][key])} -> {show(after[name][key])}"
        for name, keys in _NAMES.items()
        for key in keys
        if before[name][key] != after[name][key]
    ]


def require_paths(config: Config) -> None:
    """Refuse to start without a model and data, the two settings that have no default. Raises ConfigError."""
    for name, what in (("model", "a folder or hub name"), ("data", "a file of problems")):
        if not getattr(config, name).path.strip():
            raise ConfigError(
                f'{name}.path is not set: pass --{name}.path with {what} (or "lab" for the embedded one), '
                f"or set path under [{name}] in the recipe"
            )


def require_trainable(config: Config) -> None:
    """Refuse to train what has no paths, or what would lose its steps. Raises ConfigError."""
    require_paths(config)
    if config.model.tuning == "full" and config.model.dtype != "float32":
        raise ConfigError(
            f'model.dtype must be "float32" with model.tuning "full", got {show(config.model.dtype)} '
            f"(a weight of 16 bits loses steps of {config.train.learning_rate:g}: docs/paper.md, D4)"
        )
    if config.model.tuning == "full" and config.rollout.engine != "local":
        raise ConfigError(
            f'rollout.engine must be "local" with model.tuning "full", got {show(config.rollout.engine)} '
            f"(servers are given adapters, and there is none)"
        )


def _build(section: Any, values: Mapping[str, Any]) -> Any:
    converted = {}
    for key in dataclasses.fields(section):
        if key.name not in values:
            continue
        value = values[key.name]
        if isinstance(value, list):
            value = tuple(value)
        elif type(value) is int and float in (key.type, *get_args(key.type)):
            value = float(value)
        if not _fits(value, key.type):
            name = f"{section.__name__.lower()}.{key.name}"
            raise ConfigError(f"{name} must be {_words(key.type)}, got {show(values[key.name])}")
        converted[key.name] = value
    return section(**converted)


def _nearest(name: str) -> str:
    """The known name that was probably meant: it stands in another section, or its spelling is close."""
    section, _, key = name.rpartition(".")
    keys = [(key, f"{section}.{key}") for section, keys in _NAMES.items() for key in keys]
    meant = [full for other, full in keys if other == key]
    if not meant:
        known = [(name, name) for name in _NAMES] if not section else []
        near = dict(known + [(other, full) for other, full in keys if full.startswith(section)])
        meant = [near[match] for match in difflib.get_close_matches(key, near, n=1)]
    if meant:
        return f"; did you mean {' or '.join(meant)}?"
    return f"; there are {', '.join(_NAMES[section] if section else _NAMES)}"


def _fits(value: object, annotation: Any) -> bool:
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        return isinstance(value, str) and value in arguments
    if origin in (Union, types.UnionType):
        return any(_fits(value, argument) for argument in arguments)
    if origin is tuple:
        return isinstance(value, tuple) and all(_fits(item, arguments[0]) for item in value)
    # bool is a subclass of int, and true is no number of steps.
    return type(value) is annotation


def _words(annotation: Any) -> str:
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        return "one of " + ", ".join(arguments)
    if origin in (Union, types.UnionType):
        return " or ".join(_words(argument) for argument in arguments)
    if origin is tuple:
        each = _words(arguments[0])
        return "a list of " + (f"values, each {each}" if get_origin(arguments[0]) is Literal else each)
    return {bool: "true or false", int: "an integer", float: "a number", str: "text", types.NoneType: "None"}[
        annotation
    ]
