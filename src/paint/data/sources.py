"""Early checks of the files that a config names, before torch or a model is loaded.

Data sets of the hub are not checked here.
"""

from collections.abc import Mapping

from paint.config.context_sources import context_source
from paint.config.schema import Config, DataConfig
from paint.core.demo_files import problems_path
from paint.core.errors import naming
from paint.data.benchmarks import PUBLISHED, load_benchmark, require_distinct
from paint.data.contexts import Contexts, context_function
from paint.data.problems import ValidRows, read_problems
from paint.data.readers import is_on_hub, read_rows
from paint.grading.graders import needs_answer

FIRST_ROWS = 100
"""Rows of an evaluation set that are checked."""


def check_sources(config: Config, needs: Mapping[str, str]) -> ValidRows | None:
    """Read the training problems, and the files of context and validation.

    ``needs`` are the fields that every problem needs, with what needs them. Returns all rows; None
    where a source is on the hub. Raises PaintError if a file cannot be read, a row lacks a needed
    field, or a context is no function.
    """
    for source in config.context.source:
        if context_source(source).origin == "function":
            context_function(config.context, source)
    rows = None
    with naming("data.path"):
        if not any(is_on_hub(problems_path(source)) for source in config.data.paths):
            rows = read_problems(config.data, needs=needs)
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
