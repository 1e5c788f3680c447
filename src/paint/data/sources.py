"""Early checks of the files that a config names, before torch or a model is loaded.

They read the first rows by the code that reads all of them later. Data sets of the hub are not
checked here.
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from paint.config.context_sources import context_source
from paint.config.schema import Config, DataConfig
from paint.core.demo_files import problems_path
from paint.core.errors import cut, naming, wrap_errors
from paint.data.benchmarks import PUBLISHED, load_benchmark, require_distinct
from paint.data.contexts import Contexts, context_function
from paint.data.problems import DataError, read_problems
from paint.data.readers import NAME_IT, is_on_hub, read_rows
from paint.grading.graders import needs_answer

FIRST_ROWS = 100
SMALL_FILE = 2**24
"""Bytes of a file that is read in a fraction of a second: all of its rows are checked."""


def check_sources(config: Config, needs: Mapping[str, str]) -> None:
    """Read the first training problems, and the files of context and validation.

    Args:
        needs: the fields that every problem needs, with what needs them.

    Raises:
        PaintError: a file is missing or cannot be read, a row lacks a needed field, or a context is
            no function.
    """
    for source in config.context.source:
        if context_source(source).origin == "function":
            context_function(config.context, source)
    first = []
    # Each by itself: a problem that two sources hold is found when all rows are read.
    for source in config.data.paths:
        with naming("data.path"):
            if not is_on_hub(problems_path(source)):
                first += read_problems(_first(config.data.of(source)), needs=needs).problems
    if first:
        _ = Contexts(config.context, first).file_content  # reads the file, if a source names one
    if config.health.drift_path:
        with naming("health.drift_path"):
            require_readable(config.health.drift_path)
    # One grader that compares with answers is enough.
    has_gold = any(map(needs_answer, config.grading.grader))
    with naming("validation.path"):
        for spec in config.validation.paths:
            check_benchmark(spec, needs_answer=has_gold, trained_on=config.data)
        require_distinct(config.validation.paths)


def check_benchmark(
    spec: str, *, needs_answer: bool = True, trained_on: DataConfig | None = None
) -> None:
    """Read the first problems of an evaluation set that is a file, by the arguments of
    ``load_benchmark``. Raises DataError.
    """
    name, has_copy, _ = spec.partition("=")
    source = spec.partition(":")[0]
    if (name in PUBLISHED and not has_copy) or is_on_hub(source):
        return
    load_benchmark(spec, limit=FIRST_ROWS, needs_answer=needs_answer, trained_on=trained_on)


def require_readable(path: str) -> None:
    """Read the first row of a file of problems. Raises DataError if it cannot be read."""
    source = problems_path(path)
    if not is_on_hub(source):
        next(iter(read_rows(source)), None)


def _first(data: DataConfig) -> DataConfig:
    path = Path(problems_path(data.place))
    with wrap_errors(cut(str(path)), DataError, NAME_IT):  # a name may be too long for the system
        if path.exists() and path.stat().st_size <= SMALL_FILE:
            return data
    return replace(data, limit=min(data.limit or FIRST_ROWS, FIRST_ROWS))
