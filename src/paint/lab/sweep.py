"""Sweeps: a row of a comparison for every combination of the values of some settings.

{"train.learning_rate": [2e-4, 6e-4]}  ->  learning_rate=2e-4, learning_rate=6e-4
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from itertools import product
from typing import Any

from paint.config.recipe import nearest_setting, varied_settings
from paint.config.schema import Config
from paint.core.errors import ConfigError, format_short
from paint.core.extensions import OptionTable

FIXED = {
    "data": "all rows train on the same problems",
    "grading": "one grader says what is right in all rows",
    "conversation": "one environment rewards, and the same tools answer, in all rows",
    "log": "runs of a comparison have their own folders; set --output-dir",
    "validation": "all rows are evaluated on the same problems; set --benchmark and --samples",
    "model.path": "all rows have the same base model",
    "model.dtype": "all rows have the same base model",
    "model.date": "all rows have the same prompts",
    "train.seed": "every row has the same seeds; set --seed and --seeds",
}
"""Settings, and sections, that cannot differ between rows of one comparison, with the reason."""

NAME_BYTES = 150  # a row's name is that of a folder, which has 255 at most


def sweep_combinations(sweep: Any) -> list[dict[str, Any]]:
    """Every combination of the values of a dict, the last setting's varying fastest.

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
        # Arrays and numbers of NumPy become Python's.
        plain = several.tolist() if hasattr(several, "tolist") else list(several)
        values[name] = [one.tolist() if hasattr(one, "tolist") else one for one in plain]
        if not values[name]:
            raise ConfigError(f"sweep: {name} has no values; write them after its name")
    return [
        dict(zip(values, combination, strict=True)) for combination in product(*values.values())
    ]


def _require_sweepable(name: str) -> None:
    """Raise ConfigError unless a name is that of a setting that may differ between rows."""
    sections = Config.__dataclass_fields__
    section, _, key = name.partition(".")
    first, _, option = key.partition(".")
    if section in sections and not key:
        raise ConfigError(
            f"sweep: {name} is a section; name a setting, such as train.learning_rate"
        )
    if section not in sections:
        raise ConfigError(f"sweep: unknown setting {name}{nearest_setting(key or section)}")
    fields = getattr(Config(), section).__dataclass_fields__
    if first not in fields:
        near = nearest_setting(f"{section}.{first}")
        raise ConfigError(f"sweep: unknown setting {name}{near}")
    for fixed in (section, f"{section}.{first}"):
        if fixed in FIXED:
            raise ConfigError(f"sweep: {name} cannot differ between rows: {FIXED[fixed]}")
    is_table = fields[first].type is OptionTable
    if is_table != bool(option):
        hint = f"name one of its options, as {name}.NAME" if is_table else "it has no options"
        raise ConfigError(f"sweep: {name} cannot be swept; {hint}")


def row_name(settings: Mapping[str, Any]) -> str:
    """A row's name, which is that of its folder, too: learning_rate=2e-4,lora_rank=8.

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
    """A setting's value as a table shows it: 2e-4, true, solution+feedback."""
    if value is None or isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        number = Decimal(repr(value)).normalize()
        return min(f"{number:f}", f"{number:e}", key=len)
    if isinstance(value, list | tuple):
        return "+".join(map(value_text, value))
    return str(value)


def names_of(configs: Sequence[Config]) -> list[str]:
    """Names of configs that have none, by the settings in which they differ."""
    varied = varied_settings(configs)
    names = [
        row_name({name: values[i] for name, values in varied.items()}) for i in range(len(configs))
    ]
    return distinct_names(names)


def distinct_names(names: Sequence[str]) -> list[str]:
    """The names, with a number where two are one, or where a name is empty."""
    return [
        name if name and names.count(name) == 1 else f"{name or 'row'}-{number}"
        for number, name in enumerate(names, start=1)
    ]
