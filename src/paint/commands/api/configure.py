"""Recipe and arguments of a call to one config: sections, objects in place of names, rows."""

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paint.config.recipe import (
    executables_of,
    find_recipe,
    from_table,
    read_recipe,
    require_one_length,
)
from paint.config.run_folder import ROWS, RunError, read_run, run_of
from paint.config.schema import Config
from paint.core.errors import format_value, naming, reason, wrap_errors
from paint.core.extensions import spec_of
from paint.core.nesting import require_shallow
from paint.core.storage import digest, write_jsonl
from paint.core.trust import vouch_for
from paint.data.readers import DataError
from paint.objective.divergences import Divergence, divergence_name
from paint.resolve.check import Resolved, check_config

RUN = "run.json"
"""File of a recipe that is a run's record."""


@dataclass(frozen=True)
class Recipe:
    """A recipe that was read: its file, and the settings to start from."""

    path: Path
    config: Config


def open_recipe(recipe: str | Path | Config, *, takes_run: bool = False) -> Recipe:
    """Read a recipe by name or path; a Config counts as the recipe paint with other settings.

    With ``takes_run`` also the folder of a run, whose settings are in its run.json.
    """
    if takes_run and not isinstance(recipe, Config):
        folder = run_of(Path(recipe))
        if folder is not None:
            return Recipe(folder / RUN, read_run(folder))
    if isinstance(recipe, Config):
        return Recipe(find_recipe("paint"), recipe)
    path = find_recipe(str(recipe))
    return Recipe(path, read_recipe(path))


def configure(config: Config, folder: Path, sections: Mapping[str, Any]) -> tuple[Config, Resolved]:
    """Return the config with the arguments of a call, as given and as resolved; store rows.

    Args:
        folder: where rows are stored, once the settings are found to be right.
        sections: settings by section; objects and functions stand for their names, and the sections
            model and data may be a path, or rows (paint.commands.api.arguments.Sections).
    """
    given = {name: value for name, value in sections.items() if value is not None}
    if isinstance(given.get("model"), str | Path):
        given["model"] = {"path": given["model"]}
    rows = None
    if "data" in given:
        _require_one_split(given["data"])
        rows = rows_of(given["data"])
        given["data"] = _data_section(given["data"])
    if rows is not None:
        given["data"] |= {"path": folder / ROWS}
    config = with_sections(config, given)
    # First, so that wrong settings leave no file of rows.
    run = check_config(config)
    if rows is not None:
        with naming("data"):
            write_rows(rows, folder, ROWS)
    return config, run


def rows_of(data: Any) -> Any:
    """Return the rows of an argument for the section data; None where it names none, or a place."""
    path = _data_section(data).get("path")
    several = path if isinstance(path, list | tuple) and path else [path]
    are_places = all(isinstance(one, str | Path) for one in several)
    return None if are_places else path


def _data_section(data: Any) -> dict[str, Any]:
    if isinstance(data, Mapping) and not is_columns(data):
        return dict(data)
    return {"path": data}


def with_sections(config: Config, sections: Mapping[str, Any]) -> Config:
    """Return the config with some settings replaced and checked, as those of a recipe are."""
    table = {}
    for name, settings in sections.items():
        if isinstance(settings, Mapping):
            settings = {key: as_named(value) for key, value in settings.items()}
        table[name] = settings
    require_one_length(table)
    changed = from_table(table, source="settings", base=config)
    vouch_for(code.name for code in executables_of(table))
    return changed


def as_named(value: Any) -> Any:
    """Return a setting as a recipe holds it: objects by their names, paths as text."""
    if isinstance(value, Divergence):
        return divergence_name(value)
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, list | tuple):
        return [as_named(one) for one in value]
    if isinstance(value, Mapping):  # a section of an evaluation
        return {key: as_named(one) for key, one in value.items()}
    if callable(value):
        return spec_of(value)
    return value


def write_rows(rows: Any, folder: Path, name: str = "") -> str:
    """Write rows as JSONL and return the path; without a name, the file is named by its content.

    Raises DataError if a row is no dict, or holds a value that JSON has not.
    """
    _require_one_split(rows)
    if hasattr(rows, "to_dict") and hasattr(rows, "columns"):  # a pandas.DataFrame
        rows = rows.to_dict("records")
    if is_columns(rows):
        with wrap_errors("rows", DataError, "give columns of one length"):
            values = list(zip(*rows.values(), strict=True))
        rows = [dict(zip(rows, row, strict=True)) for row in values]
    if isinstance(rows, Mapping) or not isinstance(rows, Iterable):
        raise DataError(
            f"rows must be a list of dicts, a dict of lists, a Dataset or a DataFrame, got "
            f"{format_value(rows)}"
        )
    lines = []
    for number, row in enumerate(rows, start=1):
        if not isinstance(row, Mapping):
            raise DataError(f"row {number} is {format_value(row)}; each row must be a dict")
        lines.append({str(key): _cell(value, key, number) for key, value in row.items()})
    if not lines:
        raise DataError("there are no rows; pass at least one dict")

    name = name or f"rows-{digest(*(json.dumps(line, sort_keys=True) for line in lines))[:8]}.jsonl"
    with wrap_errors(folder / name, RunError, "choose another output_dir"):
        folder.mkdir(parents=True, exist_ok=True)
        write_jsonl(folder / name, lines)
    return str(folder / name)


def _require_one_split(data: Any) -> None:
    """Raise DataError for a dict of tables, such as a DatasetDict."""
    if not isinstance(data, Mapping) or "path" in data:
        return
    splits = [
        name
        for name, table in data.items()
        if hasattr(table, "column_names") or hasattr(table, "columns")
    ]
    if splits:
        raise DataError(
            f"the data are a dict of splits ({', '.join(map(str, splits))}); pass one of them, "
            f"such as data[{splits[0]!r}]"
        )


def is_columns(data: Any) -> bool:
    """Return whether rows are a dict of columns: {"problem": [...], "answer": [...]}."""
    if not isinstance(data, Mapping) or not data or "path" in data:
        return False
    return all(hasattr(value, "__len__") and not isinstance(value, str) for value in data.values())


def _cell(value: Any, field_name: str, row: int) -> Any:
    """Return a cell as JSON takes it; missing numbers of pandas become null."""
    try:
        require_shallow(value)
    except ValueError as error:
        raise DataError(f'row {row}: field "{field_name}": {error}; convert it to text') from None
    try:
        value = _plain(value)
        if isinstance(value, float) and math.isnan(value):
            return None
        json.dumps(value, ensure_ascii=False).encode("utf-8")  # no half of a surrogate pair
    except (TypeError, ValueError) as error:
        raise DataError(
            f'row {row}: field "{field_name}" is {format_value(value)} ({reason(error)}); convert '
            f"it to text, numbers, lists or dicts"
        ) from None
    return value


def _plain(value: Any, *, is_array: bool = False, is_struct: bool = False) -> Any:
    """Return a value without numbers and arrays of NumPy.

    Raises ValueError for 5.0 in an object (``is_struct``) of an array (``is_array``): as pandas
    reads them from Parquet, it was 5 or 5.0.
    """
    kind = getattr(getattr(value, "dtype", None), "kind", "")
    # Times of NumPy would become numbers.
    if hasattr(value, "tolist") and kind not in ("M", "m"):  # without importing NumPy
        is_array = is_array or hasattr(value, "__len__")
        value = value.tolist()
    if is_struct and isinstance(value, float) and not value % 1:
        raise ValueError(
            f"{value} may be an integer that pandas made a fraction, as another object has none; "
            f"pass the Parquet file itself"
        )
    if isinstance(value, Mapping):
        return {
            key: _plain(item, is_array=is_array, is_struct=is_array) for key, item in value.items()
        }
    if isinstance(value, list | tuple):
        return [_plain(item, is_array=is_array, is_struct=is_struct) for item in value]
    return value
