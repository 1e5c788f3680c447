"""Sweeps: a row of a comparison for every combination of the values of some settings.

{"train.learning_rate": [2e-4, 6e-4]}  ->  learning_rate=2e-4, learning_rate=6e-4
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from itertools import product
from typing import Any

from paint.config.recipe import SETTINGS, nearest_setting, varied_settings
from paint.config.schema import Config
from paint.core.errors import ConfigError, format_short

FIXED = (
    *("data", "grading", "conversation", "log", "validation"),
    *("model.path", "model.dtype", "model.date", "train.seed"),
)
"""Settings, and sections, that cannot differ between the rows of a comparison."""

NAME_BYTES = 150  # a row's name is that of a folder, which has 255 at most


def sweep_combinations(sweep: Any) -> list[dict[str, Any]]:
    """Return every combination of the values of a dict, the last setting's varying fastest.

    Raises ConfigError for what is no setting or cannot be swept, and for a setting without values.
    """
    if not isinstance(sweep, Mapping) or not all(isinstance(name, str) for name in sweep):
        raise ConfigError(
            f"sweep must be a dict of settings and lists of their values, such as "
            f'{{"train.learning_rate": [2e-4, 6e-4]}}, got {format_short(sweep)}'
        )
    values: dict[str, list[Any]] = {}
    for given, several in sweep.items():
        name = given.strip().replace("-", "_")
        _require_sweepable(name)
        if name in values:
            raise ConfigError(f"sweep: {name} is named twice; give all of its values at once")
        if isinstance(several, str | Mapping) or not isinstance(several, Iterable):
            raise ConfigError(f"sweep: {name} needs a list of values, got {format_short(several)}")
        # Numbers of NumPy become Python's.
        values[name] = [one.tolist() if hasattr(one, "tolist") else one for one in several]
        if not values[name]:
            raise ConfigError(f"sweep: {name} has no values; write them after its name")
    return [
        dict(zip(values, combination, strict=True)) for combination in product(*values.values())
    ]


def _require_sweepable(name: str) -> None:
    setting = ".".join(name.split(".")[:2])
    is_option = setting != name
    if setting not in SETTINGS or setting.endswith("options") != is_option:
        raise ConfigError(f"sweep: unknown setting {name}{nearest_setting(name)}")
    if {setting.partition(".")[0], setting} & set(FIXED):
        raise ConfigError(
            f"sweep: {name} cannot differ between rows, which share model, problems, grader, "
            f"environment, evaluation, folder and seeds"
        )


def row_name(settings: Mapping[str, Any]) -> str:
    """Return a row's name, also that of its folder, such as learning_rate=2e-4,lora_rank=8.

    "" where it would be too long.
    """
    last_parts = [name.rpartition(".")[2] for name in settings]
    parts = []
    for name, value in settings.items():
        short = name.rpartition(".")[2]
        if last_parts.count(short) > 1:
            short = name
        text = re.sub(r"[^\w.+-]+", "-", value_text(value))[:32]
        parts.append(f"{short}={text}")
    name = ",".join(parts)
    return name if len(name.encode()) <= NAME_BYTES else ""


def value_text(value: Any) -> str:
    """Return a setting's value as a table shows it: 2e-4, true, solution+feedback."""
    if value is None or isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        number = Decimal(repr(value)).normalize()
        return min(f"{number:f}", f"{number:e}", key=len)
    if isinstance(value, list | tuple):
        return "+".join(map(value_text, value))
    return str(value)


def names_of(configs: Sequence[Config]) -> list[str]:
    """Return names of configs that have none, by the settings in which they differ."""
    varied = varied_settings(configs)
    names = [
        row_name({name: values[i] for name, values in varied.items()}) for i in range(len(configs))
    ]
    return distinct_names(names)


def distinct_names(names: Sequence[str]) -> list[str]:
    """Return the names, with a number where two are equal, or where a name is empty."""
    return [
        name if name and names.count(name) == 1 else f"{name or 'row'}-{number}"
        for number, name in enumerate(names, start=1)
    ]
