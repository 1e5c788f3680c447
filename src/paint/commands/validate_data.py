from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from paint.commands.api import arguments
from paint.commands.api.configure import configure, open_recipe, rows_of
from paint.core.errors import ConfigError
from paint.data.sources import require_readable
from paint.resolve.check import require_paths

if TYPE_CHECKING:
    from paint.lab.validate import FileCheck

NAME = "data validate"


def validate_data(
    data: Any, recipe: arguments.AnyRecipe = "paint", **sections: arguments.Sections
) -> "FileCheck":
    """Count the rows of a file that are good, bad, long, doubled or without a verified answer.

    Checks and prompts are those of a run of the recipe. The exit status is 1 if a run would refuse
    the file, or can grade no completion of some rows.

    Example: paint data validate demo demo-paint --data.limit 50

    Args:
        data: JSONL, CSV or Parquet file, a hub data set (owner/name), or demo; in Python also rows,
            or the settings of the section data.

    Raises:
        PaintError: the data cannot be read, or the tokenizer cannot be loaded.
    """
    from paint.core.display import Display

    is_file = rows_of(data) is None
    # Rows that are passed in Python need a file while they are read.
    with TemporaryDirectory() as folder:
        given = {**sections, "data": data}
        _, run = configure(open_recipe(recipe).config, Path(folder), given)
        require_paths(run.config)
        source = run.config.data
        if len(source.paths) > 1:
            raise ConfigError(f"one source is validated at a time, got {source.place}")
        require_readable(source.place)

        from paint.lab.validate import check_file, print_check

        check = check_file(run)
    if not is_file:
        check.path = "rows"  # not the temporary file
    print_check(check, Display().console)
    return check


def status(result: "FileCheck") -> int:
    return 1 if result.bad or result.too_long or result.ungradable else 0
