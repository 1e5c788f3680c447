"""Reading, conversion and comparison of recipes and configs.

A recipe is a TOML file with the sections and names of ``Config``; what it omits keeps its default.
"""

import dataclasses
import difflib
import importlib.util
import json
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from operator import attrgetter
from pathlib import Path
from typing import Any, TypeVar, get_type_hints

from paint.config.other_names import OTHER_NAMES
from paint.config.schema import Config, RolloutConfig
from paint.core.errors import ConfigError, did_you_mean, format_value, naming, wrap_errors
from paint.core.extensions import (
    OptionTable,
    is_spec,
    named_options,
    option_fields,
    plain_options,
)
from paint.core.nesting import parse_toml, require_shallow
from paint.core.recipe_packages import is_shipped, recipe_folders
from paint.core.settings import convert_value, value_of_text, value_of_words
from paint.core.trust import Executable, vouch_for

RECIPE_BYTES = 2**16  # recipes have about a thousand; much longer ones take hours

_RECIPES = Path(__file__).parent / "recipes"
_SECTIONS: dict[str, Any] = {section.name: section.type for section in dataclasses.fields(Config)}
SETTINGS = tuple(
    f"{name}.{key.name}" for name, kind in _SECTIONS.items() for key in dataclasses.fields(kind)
)
"""The full names of all settings of a training."""

Settings = TypeVar("Settings", bound=Any)

# Settings of command lines and of addresses, which get the key of servers, with what is none.
_STARTED = {"rollout.server": RolloutConfig().server, "rollout.server_args": "", "rollout.urls": ""}

# Settings that name objects: extensions' own, and their options, such as a divergence.
_OF_OBJECTS = {"conversation.tools"}
for _name, _kind in _SECTIONS.items():
    for _pair in option_fields(_kind).items():
        _OF_OBJECTS |= {f"{_name}.{_key}" for _key in _pair}

# Settings that take objects of one class alone, so that of the package none but extensions.
_OF_A_CLASS = ("train.method", "train.optimizer", "objective.divergence", "rollout.engine")


def shipped_recipes() -> list[str]:
    """List the names of all recipes that are installed, sorted, without folders'."""
    return [name for name in _shipped() if "/" not in name]


def shipped_folders() -> list[str]:
    return sorted({name.rpartition("/")[0] for name in _shipped() if "/" in name})


def find_recipe(name: str) -> Path:
    """Return the path of one recipe: a shipped one by name, or a file (.toml or with a slash)."""
    paths = find_recipes(name)
    if name not in _shipped() and paths != [Path(name)]:
        raise ConfigError(
            f"{name} is a folder of recipes, which `paint compare` trains; here name one of them"
        )
    return paths[0]


def find_recipes(name: str) -> list[Path]:
    """Return the path of a recipe, or those of the TOML files of a folder, sorted by name.

    A folder is a shipped one by name, such as ablations/mask-ratio, or a path.

    Raises ConfigError if there is no such recipe, or the folder has none or cannot be read.
    """
    shipped, plain = _shipped(), name.rstrip("/")
    places = shipped.get(name, {})
    if len(places) > 1:
        raise ConfigError(
            f"{name} is a recipe of {' and of '.join(places)}; name the file of one: "
            f"{', '.join(map(str, places.values()))}"
        )
    if places:
        return list(places.values())
    if plain in shipped_folders():
        return [find_recipe(other) for other in shipped if other.rpartition("/")[0] == plain]
    with wrap_errors(f"{name} cannot be read", ConfigError, "name a recipe, a TOML file"):
        is_folder = bool(plain) and Path(name).is_dir()
        # Hidden files are copies that editors and systems keep.
        files = [path for path in Path(name).glob("[!.]*.toml") if not path.is_dir()]
    if not is_folder:
        return [_file_of(name)]
    if (Path(name) / "run.json").exists():
        raise ConfigError(
            f"{name} is a run, and no recipe; `paint config {name} > FILE.toml` writes one of it"
        )
    if not files:
        raise ConfigError(f"{name} is a folder without recipes; name a TOML file, or their folder")
    return sorted(files, key=lambda path: path.stem)


def _file_of(name: str) -> Path:
    hint = did_you_mean(name, [*shipped_folders(), *_shipped()])
    is_path = "/" in name or "\\" in name
    if name.endswith(".toml") or (is_path and (Path(name).exists() or not hint)):
        return Path(name)
    hint = hint or f"; there are {', '.join([*shipped_recipes(), *shipped_folders()])}"
    if not recipe_folders():
        hint += "; `pip install 'paint-distill[variants]'` brings more"
    raise ConfigError(f"unknown recipe {name}{hint} (give a file with its ending, .toml)")


def _shipped() -> dict[str, dict[str, Path]]:
    """Return the recipes of paint and of installed packages by name, each by its package.

    Those of folders are called FOLDER/NAME.
    """
    found: dict[str, dict[str, Path]] = {}
    for package, folder in {"paint": _RECIPES, **recipe_folders()}.items():
        for path in folder.rglob("*.toml"):
            name = path.relative_to(folder).as_posix().removesuffix(".toml")
            found.setdefault(name, {})[package] = path
    return dict(sorted(found.items()))


def read_recipe(path: str | Path, base: Config | None = None) -> Config:
    """Read a config from a TOML recipe; settings that it omits are the base's, or the paper's."""
    with wrap_errors(f"{path} cannot be read", ConfigError, "name a recipe, a TOML file"):
        try:
            if Path(path).stat().st_size > RECIPE_BYTES:
                raise ValueError(f"it is longer than {RECIPE_BYTES:,} bytes")
            # Not read_text, which would end lines at bare carriage returns; TOML has none.
            # utf-8-sig: some editors write a byte order mark.
            table = parse_toml(Path(path).read_bytes().decode("utf-8-sig"))
        except tomllib.TOMLDecodeError as error:
            raise ConfigError(f"{path} is not valid TOML: {error}") from None
    with naming(str(path)):
        require_one_length(table)
    config = from_table(table, source=str(path), base=base)
    # The user names the recipe, and so what is in it.
    vouch_for(code.name for code in executables_of(table))
    return config


def to_table(config: Config) -> dict[str, dict[str, Any]]:
    """Convert a config to nested dicts and lists for JSON; `from_table` is the inverse."""
    return nested({name: _plain(attrgetter(name)(config)) for name in SETTINGS})


def _plain(value: Any) -> Any:
    if isinstance(value, OptionTable):
        return {name: _plain(option) for name, option in value.items()}
    if isinstance(value, tuple):
        return list(value)
    return value


def executables_of(table: Mapping[str, Any]) -> list[Executable]:
    """Return what settings name that may run or be connected to, and is not shipped."""
    found = []
    for section, settings in table.items():
        # Of an evaluation, some settings are in no section.
        for key, value in settings.items() if isinstance(settings, Mapping) else ():
            setting = f"{section}.{key}"
            found += [Executable(setting, text) for text in _texts(value) if _runs(setting, text)]
    return found


def _runs(setting: str, text: str) -> bool:
    if setting in _STARTED:
        return text != _STARTED[setting]
    is_of_package = setting in _OF_A_CLASS and text.startswith("paint.")
    # Not an engine, whose options may be addresses.
    is_method = setting == "train.method" and is_shipped(text)
    return setting in _OF_OBJECTS and is_spec(text) and not (is_of_package or is_method)


def _texts(value: Any) -> list[str]:
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, list | tuple):
        return [text for part in value for text in _texts(part)]
    return [value] if isinstance(value, str) else []


def toml_of(value: Any) -> str:
    """Return a value of ``to_table`` as TOML, which has no None."""
    if isinstance(value, dict):  # options of an extension
        inner = [f"{name} = {toml_of(one)}" for name, one in value.items() if one is not None]
        return f"{{ {', '.join(inner)} }}"
    if isinstance(value, list):
        return f"[{', '.join(map(toml_of, value))}]"
    if isinstance(value, bool | str):  # TOML writes both as JSON does
        return json.dumps(value, ensure_ascii=False)
    return str(value)


WRITTEN_HINT = "; if another version of paint wrote it, use that one, or start in another folder"
"""The end of a refusal of settings that a run or an experiment recorded."""


def from_table(
    table: Mapping[str, Any], *, source: str = "config", base: Config | None = None, hint: str = ""
) -> Config:
    """Build a config from nested dicts; settings that they omit are the base's, or the defaults.

    Integers become floats, lists tuples and a text a list of one where needed, and nothing else is
    converted. Messages begin with ``source`` and end with ``hint``.
    """
    with wrap_errors(source, ConfigError, "options are numbers, texts and lists of them"):
        require_shallow(table)
    try:
        return with_table(base or Config(), table)
    except ConfigError as error:
        raise ConfigError(f"{source}: {error}{hint}") from None


def with_table(base: Settings, table: Mapping[str, Any], prefix: str = "") -> Settings:
    """Replace settings by those of nested dicts, which are converted as by ``from_table``."""
    kinds: dict[str, Any] = {field.name: field.type for field in dataclasses.fields(base)}
    for key, value in table.items():
        if key not in kinds:
            what = "section" if isinstance(value, Mapping) and not prefix else "key"
            raise ConfigError(f"unknown {what} {prefix}{key}{nearest_setting(prefix + key)}")
    if prefix == "data." and "path" in table:  # the base's weights are of other sources
        table = {"weights": (), **table}
    elif prefix == "train." and "steps" in table:  # they take the place of the base's epochs
        table = {"epochs": None, **table}
    changes: dict[str, Any] = {}
    for key, value in table.items():
        kind = kinds[key]
        if kind is OptionTable:
            continue
        if not dataclasses.is_dataclass(kind):
            changes[key] = convert_value(prefix + key, value, kind)
        elif isinstance(value, Mapping):
            changes[key] = with_table(getattr(base, key), value, f"{key}.")
        elif isinstance(kind, type) and isinstance(value, kind):
            changes[key] = value
        else:
            raise ConfigError(f"{key} must be a section, got {format_value(value)}; write [{key}]")
    for key, owner in option_fields(type(base)).items():
        # The options of another extension are none of this one.
        is_same = changes.get(owner, getattr(base, owner)) == getattr(base, owner)
        before = getattr(base, key) if is_same else {}
        given = plain_options(prefix + key, table.get(key, {}))
        changes[key] = OptionTable({**before, **given})
    return dataclasses.replace(base, **changes)


def apply_settings(base: Settings, given: Mapping[str, Any]) -> Settings:
    """Replace settings by their full names; a text, or a list of them, is read by the type."""
    options = {name: value for name, value in given.items() if name.count(".") > 1}
    # First, as they may name the extensions whose options the others are.
    plain = {name: value for name, value in given.items() if name not in options}
    for settings in filter(None, (plain, options)):
        table = nested({name: _typed(name, value, base) for name, value in settings.items()})
        require_one_length(table)
        base = with_table(base, table)
        # The user names the values.
        vouch_for(code.name for code in executables_of(table))
    return base


def nested(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings by their full names as nested dicts; inverse of ``settings_by_name``."""
    table: dict[str, Any] = {}
    for name, value in settings.items():
        *outer, key = name.split(".")
        place = table
        for part in outer:
            place = place.setdefault(part, {})
        place[key] = value
    return table


def _typed(name: str, value: Any, base: Any) -> Any:
    section_name, *rest = name.split(".", 2)
    owner = getattr(base, section_name) if rest else base
    if len(rest) < 2:
        kind = owner.__dataclass_fields__[(rest or [section_name])[0]].type
    else:
        key, option = rest
        kinds: dict[str, Any] = {}
        for options, _ in named_options(owner, key, f"{section_name}."):
            kinds |= get_type_hints(options)
        if option not in kinds:
            raise ConfigError(
                f"unknown option {name}{did_you_mean(option, kinds)}; there are "
                f"{', '.join(kinds) or 'none'}"
            )
        kind = kinds[option]
    if isinstance(value, str):
        return value_of_text(value, kind)
    return value_of_words(value, kind) if isinstance(value, list) else value


def differences(a: Config, b: Config) -> list[str]:
    """List the settings that differ, such as `train.seed: 0 -> 1`, in the config's order."""
    varied = varied_settings([a, b])
    return [f"{name}: {' -> '.join(map(format_value, both))}" for name, both in varied.items()]


def varied_settings(configs: Sequence[Config]) -> dict[str, list[Any]]:
    """Return the settings that are not the same in all configs, in the config's order."""
    tables = [settings_by_name(config) for config in configs]
    names = dict.fromkeys(chain.from_iterable(tables))  # in the order of the config
    found = {name: [table.get(name) for table in tables] for name in names}
    return {name: values for name, values in found.items() if any(v != values[0] for v in values)}


def settings_by_name(config: Config) -> dict[str, Any]:
    """Return all settings by their full names, each option of an extension by its own."""
    found: dict[str, Any] = {}
    for name in SETTINGS:
        value = _plain(attrgetter(name)(config))
        if isinstance(value, dict):
            found |= {f"{name}.{option}": one for option, one in value.items()}
        else:
            found[name] = value
    return found


def flags(config: Config, default: Config) -> list[str]:
    """List the flags of `paint train` that turn the recipe's config, the default, into this one."""
    before, words = settings_by_name(default), []
    for name, value in settings_by_name(config).items():
        is_replaced = name == "train.steps" and config.train.epochs is not None
        if is_replaced or (name in before and value == before[name]):
            continue
        flag = f"--{name}".replace("_", "-")
        texts = list(map(str, value if isinstance(value, list) else [value]))
        # With =, as a value that begins with a dash would be read as a flag.
        words += [f"{flag}={texts[0]}"] if len(texts) == 1 else [flag, *texts]
    return words


def require_package(setting: str, package: str) -> None:
    """Raise ConfigError unless the package that a setting with this value needs is installed."""
    if importlib.util.find_spec(package) is None:
        raise ConfigError(
            f"{setting} needs {package}, which is not installed: pip install {package}, or leave "
            f"the setting out"
        )


def require_one_length(table: Mapping[str, Any]) -> None:
    """Raise ConfigError for settings that give both steps and epochs."""
    train = table.get("train")
    if not isinstance(train, Mapping) or "steps" not in train or train.get("epochs") is None:
        return
    raise ConfigError(
        f"train.steps {format_value(train['steps'])} and train.epochs "
        f"{format_value(train['epochs'])} are both given; leave one out"
    )


def nearest_setting(name: str, known: Iterable[str] = SETTINGS) -> str:
    """Return a hint for an unknown name: the same key elsewhere, its name here, or a similar one.

    ``known`` are full names, such as train.steps.
    """
    known = list(known)
    section, _, key = name.rpartition(".")
    same = [other for other in known if other.rpartition(".")[2] == key]
    if same:
        return f"; did you mean {' or '.join(same)}?"
    if OTHER_NAMES.get(key) in known:
        return f"; it is {OTHER_NAMES[key]} here"
    for other in known:
        if other.startswith(f"{name}."):
            return f"; it is a section, of settings such as {other}"
    inside = {other.rpartition(".")[2]: other for other in known if other.startswith(f"{section}.")}
    sections = {other.partition(".")[0]: other.partition(".")[0] for other in known}
    keys = {other.rpartition(".")[2]: other for other in known}
    places = inside or sections | keys
    for close in difflib.get_close_matches(key, places, n=1):
        return f"; did you mean {places[close]}?"
    return f"; there are {', '.join(inside or sections)}"
