"""Which problems does an evaluation set hold?

A set is one that is known by name (its place on the hub, its columns, its size), a local copy of such a one,
or the user's own file. Either way: problems with a gold answer and an id of their own.

Left out on purpose: prompts, sampling and grading (paint.evaluation.stages, paint.grading.grader); a copy of any published
set in this package.
"""

import difflib
import re
from dataclasses import dataclass, replace
from pathlib import Path

from paint.config import Data
from paint.data.problems import Problem, read_problems
from paint.data.readers import DataError, HubError, data_files
from paint.lab.files import HELD_OUT_PROBLEMS, NAME


@dataclass(frozen=True, slots=True)
class Benchmark:
    """An evaluation set; the solution of a problem is "" where the set has none."""

    name: str
    problems: list[Problem]


@dataclass(frozen=True, slots=True)
class Published:
    """Where a known set comes from: a source as paint.data.readers reads it, its id column, its number of problems."""

    source: str
    id_field: str
    size: int


PUBLISHED = {
    "aime_2024": Published("HuggingFaceH4/aime_2024", "id", 30),
    "aime_2025": Published("MathArena/aime_2025", "problem_idx", 30),
    "aime_2026": Published("MathArena/aime_2026", "problem_idx", 30),
    "hmmt_feb_2025": Published("MathArena/hmmt_feb_2025", "problem_idx", 30),
    "hmmt_feb_2026": Published("MathArena/hmmt_feb_2026", "problem_idx", 33),
    "math_500": Published("HuggingFaceH4/MATH-500@test", "unique_id", 500),
    NAME: Published(str(HELD_OUT_PROBLEMS), "id", 200),
}
OTHER_COLUMNS = "name a file with other columns as FILE:problem,answer or FILE:problem,answer,id, by its own columns"
_COLUMNS = re.compile(r"(?P<path>.+):(?P<problem>[^:,/]+),(?P<answer>[^:,/]+)(?:,(?P<id>[^:,/]+))?")


def load_benchmark(spec: str, *, limit: int | None = None) -> Benchmark:
    """The evaluation set that `spec` names, or the first `limit` of its problems, at least 1.

    Args:
        spec: NAME, a known set, from the hub; NAME=PATH, a local copy of a known set, a file or the folder of
            a download; or FILE, the user's own, with columns problem, answer and, if ids are wanted, id. Other
            columns follow the file: FILE:problem_column,answer_column or FILE:problem_column,answer_column,id_column.
            The user's own may lie on the hub, as owner/name; its name is the file's without ending.

    Raises:
        DataError: a name that is not known, with the nearest that is; a hub that cannot be reached, with the way
            to name a local copy; a published set that is not whole; and what `paint.data.problems.read_problems` refuses.
    """
    name, local, copy = spec.partition("=")
    if name in PUBLISHED:
        return _published(name, copy if local else None, limit)
    if _is_plain_name(spec) or (local and _is_plain_name(name) and not Path(spec).exists()):
        near = difflib.get_close_matches(name.lower().replace("-", "_"), PUBLISHED, n=1)
        hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(PUBLISHED)}"
        raise DataError(
            f"unknown evaluation set {name}; {hint} (a file is named with its ending, such as .jsonl)"
        )
    columns = _COLUMNS.fullmatch(spec)
    source = columns["path"] if columns else spec
    data = Data(path=source, limit=limit)
    if columns:
        problem, answer, name_field = columns["problem"], columns["answer"], columns["id"] or "id"
        data = replace(data, problem_field=problem, answer_field=answer, id_field=name_field)
    found = read_problems(data, solutions=False, way_out=OTHER_COLUMNS)
    return Benchmark(Path(re.split(r"[:@]", source)[0]).stem, found.problems)


def _published(name: str, copy: str | None, limit: int | None) -> Benchmark:
    known = PUBLISHED[name]
    source = known.source
    if copy is not None:
        source, *others = map(str, data_files(Path(copy)))
        if others:
            raise DataError(f"{copy} holds {len(others) + 1} shards; {name} is one file")
    try:
        found = read_problems(
            Data(path=source, id_field=known.id_field, limit=limit),
            solutions=False,
            way_out=OTHER_COLUMNS,
        )
    except HubError as error:
        raise DataError(
            f"{name}: {error}; with a copy on this machine, write {name}=PATH"
        ) from None
    count = len(found.problems)
    if count != known.size if limit is None else count < min(limit, known.size):
        raise DataError(
            f"{source} holds {count} problems, and {name} has {known.size}: figures would not compare. "
            f"Mend the copy, or evaluate it as a file of your own ({OTHER_COLUMNS})"
        )
    return Benchmark(name, found.problems)


def _is_plain_name(text: str) -> bool:
    return re.fullmatch(r"[\w-]+", text) is not None
