"""Which problems does a run train on, and in which order?

`read_problems` takes the rows of a file or of a hub's data set (paint.data.readers) and refuses, or skips and counts,
every one that would train on nothing, on the wrong thing, or twice on the same thing. `batch_indices` says
which problems an optimizer step takes: a pure function of seed and step, so that a resumed run sees the same
data.

Left out on purpose: prompt lengths, which need the model's tokenizer and are checked where prompts are made;
any change to the texts, which reach the prompts exactly as written.
"""

import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from paint.config import Data
from paint.data.readers import BadRow, DataError, Number, Row, kind_of, read_rows, shorten
from paint.files import digest
from paint.lab.files import problems_path

__all__ = [
    "DataError",
    "Problem",
    "GoodRows",
    "batch_indices",
    "judge",
    "problems_digest",
    "read_problems",
]


@dataclass(frozen=True, slots=True)
class Problem:
    """One training example: x, y* and the final gold answer, as text (paper: section 'Background')."""

    problem: str
    solution: str
    answer: str
    id: str


@dataclass(frozen=True, slots=True)
class GoodRows:
    """The good rows in file order, and how many rows were skipped for each reason."""

    problems: list[Problem]
    skipped: dict[str, int]


DATA_FIELD = "set --data.{role}-field to the one that holds the {role}"


def read_problems(data: Data, *, solutions: bool = True, way_out: str = DATA_FIELD) -> GoodRows:
    """The problems of `data.path`: a JSONL, CSV or Parquet file, a data set of the hub (paint.data.readers), or "lab".

    A good row has its problem, its solution and its answer as text that is not blank (an answer or an id may
    be a number), and repeats neither the problem (white space aside) nor the id of an earlier good row. Its
    id is its row number where the source has none. With `data.limit`, reading stops at that many good rows.

    Without `solutions` the source is an evaluation set: a solution that is missing, null or blank becomes "",
    and a problem may be posed twice, since a published set is evaluated as it is. `way_out` tells, in messages,
    how another column is chosen.

    Raises DataError when the source cannot be read, when it holds no good row, and, with on_bad_row "error",
    at the first bad row.
    """
    source = problems_path(data.path)
    found = GoodRows([], {})
    for row, problem in judge(read_rows(source), data, solutions=solutions, way_out=way_out):
        if isinstance(problem, Problem):
            found.problems.append(problem)
            if len(found.problems) == data.limit:
                break
        elif data.on_bad_row == "error":
            skip = " or pass --data.on-bad-row skip" if solutions else ""
            raise DataError(f"{source} row {row}: {problem}; fix the row{skip}")
        else:
            found.skipped[problem.reason] = found.skipped.get(problem.reason, 0) + 1
    if not found.problems and found.skipped:
        reasons = "; ".join(f"{count} x {reason}" for reason, count in found.skipped.items())
        raise DataError(f"{source} holds no row that can be used ({reasons})")
    if not found.problems:
        raise DataError(f"{source} is empty; it must hold one problem a row")
    return found


def judge(
    rows: Iterable[Row], data: Data, *, solutions: bool = True, way_out: str = DATA_FIELD
) -> Iterator[tuple[int, Problem | BadRow]]:
    """The problem that each row holds, or why it holds none; what makes a row good is `read_problems`' business."""
    seen: dict[tuple[str, str], int] = {}
    for row, fields in rows:
        try:
            if isinstance(fields, BadRow):
                raise fields
            problem = _problem(fields, row, data, solutions, way_out)
            keys = [("id", problem.id)]
            if solutions:
                keys.insert(0, ("problem", " ".join(problem.problem.split())))
            for what, text in keys:
                if (what, text) in seen:
                    detail = f", row {seen[what, text]} (value {shorten(text)})"
                    raise BadRow(f"same {what} as an earlier row", detail)
        except BadRow as bad:
            yield row, bad
            continue
        seen |= dict.fromkeys(keys, row)
        yield row, problem


def problems_digest(problems: Sequence[Problem]) -> str:
    """What tells these problems, in this order, from others."""
    parts = [part for p in problems for part in (p.id, p.problem, p.solution, p.answer)]
    return digest(*parts, "")[:16]


def batch_indices(count: int, batch_size: int, step: int, seed: int) -> list[int]:
    """The indices, in [0, count), of the `batch_size` problems that optimizer step `step` (from 0) trains on.

    Epochs are seeded permutations of all problems laid end to end: nothing repeats within an epoch, nothing
    is left out, and a step may straddle epochs (or hold several, when the batch is larger than the data). The
    result depends on the arguments alone, on every Python version. Raises ValueError when count or batch_size
    is below 1 or step below 0. (paper: Algorithm 'complete adaptive privileged re-scoring recipe', 'Sample a
    minibatch')
    """
    if count < 1 or batch_size < 1 or step < 0:
        limits = "count and batch_size must be at least 1 and step at least 0"
        raise ValueError(f"{limits}, got count {count}, batch_size {batch_size}, step {step}")
    first, end = step * batch_size, (step + 1) * batch_size
    epochs = range(first // count, (end - 1) // count + 1)
    laid_out = [index for epoch in epochs for index in _permutation(count, f"{seed}/{epoch}")]
    skip = first - epochs[0] * count
    return laid_out[skip : skip + batch_size]


def _permutation(count: int, seed: str) -> list[int]:
    # Python promises the same random() in every version, not the same shuffle().
    rng = random.Random(seed)
    keys = [rng.random() for _ in range(count)]
    return sorted(range(count), key=keys.__getitem__)


def _problem(
    fields: dict[str, object], row: int, data: Data, solutions: bool, way_out: str
) -> Problem:
    # The default name is optional; a name that was chosen and is not there is a slip of the pen.
    numbered = data.id_field == "id" and _column(fields, "id") is None
    unsolved = not solutions and _blank(fields.get(_column(fields, data.solution_field) or ""))
    return Problem(
        problem=_text(fields, data.problem_field, "problem", way_out),
        solution="" if unsolved else _text(fields, data.solution_field, "solution", way_out),
        answer=_text(fields, data.answer_field, "answer", way_out),
        id=str(row) if numbered else _text(fields, data.id_field, "id", way_out),
    )


def _column(fields: dict[str, object], name: str) -> str | None:
    """The column of that name, or else the only one that differs from it in nothing but case."""
    if name in fields:
        return name
    near = [column for column in fields if column.casefold() == name.casefold()]
    return near[0] if len(near) == 1 else None


def _blank(value: object) -> bool:
    return value is None or (isinstance(value, str) and not value.strip())


def _text(fields: dict[str, object], wanted: str, role: str, way_out: str) -> str:
    name = _column(fields, wanted)
    if name is None:
        there = (
            ", ".join(column if len(column) <= 60 else shorten(column) for column in fields)
            or "none"
        )
        detail = f" (fields of the row: {there}); {way_out.format(role=role)}"
        raise BadRow(f'field "{wanted}" is missing', detail)
    value = fields[name]
    if not isinstance(value, str) or (isinstance(value, Number) and role not in ("answer", "id")):
        raise BadRow(
            f'field "{name}" is not text', f" but {kind_of(value)} (value {shorten(value)})"
        )
    if not value.strip():
        raise BadRow(f'field "{name}" is empty', f" (value {shorten(value)})")
    try:
        value.encode("utf-8")
    except UnicodeEncodeError as error:
        detail = f": half a surrogate pair at character {error.start + 1}"
        raise BadRow(f'field "{name}" is not valid Unicode', detail) from None
    return str(value)
