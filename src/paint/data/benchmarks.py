"""Evaluation sets: known benchmarks, local copies of them, and the user's own files.

Every problem of a set has a unique id. This package contains no copy of a published set.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

from paint.config.schema import DataConfig
from paint.core.demo_files import HELD_OUT_PROBLEMS, NAME, NEW_RULES, NEW_RULES_PROBLEMS
from paint.core.errors import did_you_mean
from paint.core.settings import is_folder_name
from paint.data.problems import OTHER_COLUMNS, Problem, read_problems, with_nested
from paint.data.readers import ENDINGS, BadRow, DataError, read_rows, shorten


@dataclass(frozen=True, slots=True)
class Benchmark:
    """An evaluation set.

    ``notes`` say how the file was read, and ``grader`` is that of a published set.
    """

    name: str
    problems: list[Problem]
    notes: tuple[str, ...] = ()
    grader: str = field(default="", compare=False)


class Published(NamedTuple):
    """A known benchmark: source for paint.data.readers, id column, number of problems, grader.

    Competition mathematics is evaluated by the paper's protocol.
    """

    source: str
    id_field: str
    size: int
    grader: str = "math"
    competition: bool = False


# By its size an incomplete copy is seen, whose scores would not be comparable.
PUBLISHED = {
    "aime_2024": Published("HuggingFaceH4/aime_2024", "id", 30, competition=True),
    "aime_2025": Published("MathArena/aime_2025", "problem_idx", 30, competition=True),
    "aime_2026": Published("MathArena/aime_2026", "problem_idx", 30, competition=True),
    "hmmt_feb_2025": Published("MathArena/hmmt_feb_2025", "problem_idx", 30, competition=True),
    "hmmt_feb_2026": Published("MathArena/hmmt_feb_2026", "problem_idx", 33, competition=True),
    "math_500": Published("HuggingFaceH4/MATH-500@test", "unique_id", 500, competition=True),
    "gsm8k": Published("openai/gsm8k:main@test", "id", 1319),
    "mbpp": Published("google-research-datasets/mbpp:full@test", "id", 500, "code"),
    "humaneval": Published("openai/openai_humaneval@test", "id", 164, "code"),
    NAME: Published(str(HELD_OUT_PROBLEMS), "id", 200),
    NEW_RULES: Published(str(NEW_RULES_PROBLEMS), "id", 200),
}

# Without a slash, so that a path behind a colon is no name of a column.
_COLUMN = "[^:,/]+"
_FILE_AND_COLUMNS = re.compile(
    f"(?P<file>.+):(?P<problem>{_COLUMN}),(?P<answer>{_COLUMN})(?:,(?P<id>{_COLUMN}))?"
)

COMPETITIONS = tuple(name for name, known in PUBLISHED.items() if known.competition)
"""Known sets of competition mathematics."""


def is_competition(spec: str) -> bool:
    """Return whether a spec names a known set of competition mathematics, or a copy of one."""
    return spec.partition("=")[0] in COMPETITIONS


def load_benchmark(
    spec: str,
    *,
    limit: int | None = None,
    needs_answer: bool = True,
    trained_on: DataConfig | None = None,
) -> Benchmark:
    """Load the evaluation set that `spec` names, or its first `limit` (at least 1) problems.

    Args:
        spec: NAME, a known set on the hub; NAME=FILE, a local copy of it; or a file or hub data set
            of the user's own, which may be followed by other columns than problem, answer and id:
            FILE:problem_column,answer_column[,id_column].
        needs_answer: False if rows of a file may lack an answer, since the grader needs none.
        trained_on: settings of a run's training rows. A file that names no columns, and has the
            training's problem column, is read by the training's columns.

    Raises DataError for an unknown name, an incomplete set, or what `read_problems` refuses.
    """
    name, has_copy, copy = spec.partition("=")
    if name in PUBLISHED:
        return _published_set(name, copy if has_copy else None, limit)
    # A name without an ending means a known set. A file may have an equals sign in its name.
    if _is_plain_name(spec) or (has_copy and _is_plain_name(name) and not Path(spec).exists()):
        near = did_you_mean(name.lower().replace("-", "_"), PUBLISHED)
        raise DataError(
            f"unknown evaluation set {name}; there are {', '.join(PUBLISHED)}, and files, which "
            f"are named with their ending{near}"
        )
    return _own_set(spec, limit, needs_answer, trained_on)


def _published_set(name: str, copy: str | None, limit: int | None) -> Benchmark:
    known = PUBLISHED[name]
    source = known.source if copy is None else copy
    data = DataConfig(path=source, id_field=known.id_field, limit=limit)
    needs = {"tests": f"the grader {known.grader}"} if known.grader == "code" else {"answer": ""}
    problems = read_problems(data, needs=needs, solutions=False).problems
    count = len(problems)
    is_complete = count == known.size if limit is None else count >= min(limit, known.size)
    if not is_complete:
        raise DataError(
            f"{source} holds {count} problems, and {name} has {known.size}: "
            f"scores would not be comparable. Fix the copy, or evaluate it as your own file "
            f"({OTHER_COLUMNS})"
        )
    return Benchmark(name, problems, grader=known.grader)


def _own_set(
    spec: str, limit: int | None, needs_answer: bool, trained_on: DataConfig | None
) -> Benchmark:
    columns = _FILE_AND_COLUMNS.fullmatch(spec)
    source = columns["file"] if columns else spec
    data = DataConfig(path=source, limit=limit)
    if columns:
        data = replace(
            data,
            problem_field=columns["problem"],
            answer_field=columns["answer"],
            id_field=columns["id"] or "id",
        )
    elif trained_on is not None and _has_column(source, trained_on.problem_field):
        # A row is never skipped: scores of two policies would be of other problems.
        data = replace(trained_on.of(source), limit=limit, on_bad_row="error")

    name = folder_name(_stem(source), f"the evaluation set {shorten(spec)}")
    needs = {"answer": ""} if needs_answer else {}
    found = read_problems(data, needs=needs, solutions=False)
    notes = tuple(f"{name}: {note}" for note in found.notes)
    return Benchmark(name, found.problems, notes)


def require_distinct(specs: Sequence[str]) -> None:
    """Raise DataError for two sets of one name, which would share a folder."""
    found: dict[str, str] = {}
    for spec in specs:
        known, columns = spec.partition("=")[0], _FILE_AND_COLUMNS.fullmatch(spec)
        name = known if known in PUBLISHED else _stem(columns["file"] if columns else spec)
        if name in found:
            raise DataError(
                f"{found[name]} and {spec} are both named {name}; rename one, or link to it by "
                f"another name"
            )
        found[name] = spec


def _stem(source: str) -> str:
    is_file = Path(source).suffix.lower() in ENDINGS
    # A file may have a colon in its name, a hub data set has none in its own.
    return Path(source if is_file else re.split("[:@]", source)[0]).stem  # owner/name:config@split


def _has_column(source: str, column: str) -> bool:
    _, fields = next(iter(read_rows(source)), (1, {}))
    return not isinstance(fields, BadRow) and column in with_nested(fields, [column])


def folder_name(name: str, what: str) -> str:
    """Return a name that is valid for a folder; else raise DataError, which says what has it."""
    if not is_folder_name(name):
        raise DataError(f"{what} is named {shorten(name)}, which is no folder name; rename it")
    return name


def _is_plain_name(text: str) -> bool:
    return re.fullmatch(r"[\w-]+", text) is not None
