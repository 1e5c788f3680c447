"""Early checks of the files that a config names, before torch or a model is loaded.

Small files are read completely. Of others the first rows are read, by the code that reads all of
them later. Data sets of the hub are not checked here.
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
from paint.data.problems import DataError, ValidRows, read_problems
from paint.data.readers import NAME_IT, is_on_hub, read_rows
from paint.grading.graders import needs_answer

FIRST_ROWS = 100
SMALL_FILE = 2**24
"""Bytes of a file that is read in a fraction of a second: all of its rows are checked."""


def check_sources(config: Config, needs: Mapping[str, str]) -> ValidRows | None:
    """Read the training problems, and the files of context and validation.

    ``needs`` are the fields that every problem needs, with what needs them. Returns all rows, where
    their files are small; None where only the first were read. Raises PaintError if a file cannot
    be read, a row lacks a needed field, or a context is no function.
    """
    for source in config.context.source:
        if context_source(source).origin == "function":
            context_function(config.context, source)
    rows = None
    with naming("data.path"):
        if all(map(_is_small, config.data.paths)):
            rows = read_problems(config.data, needs=needs)
        # Each by itself: a problem that two sources hold is found when all rows are read.
        for source in config.data.paths if rows is None else ():
            if not is_on_hub(problems_path(source)):
                data = config.data.of(source)
                limit = min(data.limit or FIRST_ROWS, FIRST_ROWS)
                read_problems(
                    data if _is_small(source) else replace(data, limit=limit), needs=needs
                )
    _ = Contexts(config.context, rows.problems if rows else []).file_content  # reads the file
    if config.health.drift_path:
        with naming("health.drift_path"):
            require_readable(config.health.drift_path)
    # One grader that compares with answers is enough.
    has_gold = any(map(needs_answer, config.grading.grader))
    with naming("validation.path"):
        for spec in config.validation.paths:
            check_benchmark(spec, needs_answer=has_gold, trained_on=config.data)
        require_distinct(config.validation.paths)
    return rows


def check_benchmark(
    spec: str, *, needs_answer: bool = True, trained_on: DataConfig | None = None
) -> None:
    """Read the first problems of an evaluation set that is a file, as ``load_benchmark``."""
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


def _is_small(source: str) -> bool:
    path = Path(problems_path(source))
    with wrap_errors(cut(str(path)), DataError, NAME_IT):  # a name may be too long for the system
        return path.exists() and path.stat().st_size <= SMALL_FILE
