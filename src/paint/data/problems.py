"""Which problems does a run train on, and in which order?

`read_problems` takes the rows of a file or of a hub data set (paint.data.readers). It refuses every
row that would train on nothing, on the wrong thing, or twice on the same thing, or skips and counts
it.

`batch_indices` says which problems an optimizer step takes. It is a pure function of seed and step,
so a resumed run sees the same data.

Left out on purpose: prompt lengths, which need the model's tokenizer and are checked where prompts
are made; any change to the texts, which reach the prompts exactly as written.
"""

import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from paint.config.schema import DataConfig
from paint.core.storage import digest
from paint.data.readers import BadRow, DataError, Number, Row, kind_of, read_rows, shorten
from paint.demo.files import problems_path
from paint.grading.base import Item

__all__ = [
    "LABELS",
    "DataError",
    "Problem",
    "ValidRows",
    "batch_indices",
    "from_row",
    "item_of",
    "problems_digest",
    "read_problems",
    "to_row",
    "validate_rows",
]

LABELS = ("level", "subject")
"""Columns that sort problems into groups, each with a table of its own in an evaluation."""


@dataclass(frozen=True, slots=True)
class Problem:
    """A training example: x, y* and the gold answer, as text (paper: section 'Background').

    Attributes:
        also: further answers that are right.
        labels: its level and its subject, by name, where the data have them.
        row: its number in its source, from 1; 0 where that is unknown.
    """

    problem: str
    solution: str
    answer: str
    id: str
    also: tuple[str, ...] = ()
    labels: tuple[tuple[str, str], ...] = field(default=(), compare=False)
    row: int = field(default=0, compare=False)

    @property
    def answers(self) -> tuple[str, ...]:
        """Every answer that is right; at least one."""
        return (self.answer, *self.also)


@dataclass(frozen=True, slots=True)
class ValidRows:
    """The problems of the good rows, in file order; how many rows were skipped, by reason."""

    problems: list[Problem]
    skipped: dict[str, int]


DATA_FIELD = "set --data.{role}-field to the one that holds the {role}"
"""How a message says to choose another column, where `data` comes from a recipe and flags."""


def read_problems(
    data: DataConfig, *, solutions: bool = True, way_out: str = DATA_FIELD
) -> ValidRows:
    """The problems of `data.path`: a JSONL, CSV or Parquet file, a hub data set, or "demo".

    A good row has its problem, its solution and its answer as text that is not blank (an answer or
    an id may be a number, and several right answers are a list). It repeats neither the problem
    (white space aside) nor the id of an earlier good row. Its id is its row number where the source
    has none. With `data.limit`, reading stops at that many good rows.

    Without `solutions` the source is an evaluation set: a solution that is missing, null or blank
    becomes "", a problem may be posed twice, since a published set is evaluated as it is, and the
    list of several right answers may also be in a column `answers`.

    Args:
        data: the source, its columns, and what happens at a bad row.
        solutions: whether every problem needs a solution.
        way_out: how a message says to choose another column.

    Raises:
        DataError: the source cannot be read, or holds no good row; with on_bad_row "error", the
            first bad row.
    """
    source = problems_path(data.path)
    problems: list[Problem] = []
    skipped: dict[str, int] = {}
    for row, problem in validate_rows(
        read_rows(source), data, solutions=solutions, way_out=way_out
    ):
        if isinstance(problem, Problem):
            problems.append(problem)
            if len(problems) == data.limit:
                break
        elif data.on_bad_row == "error":
            skip = " or pass --data.on-bad-row skip" if solutions else ""
            raise DataError(f"{source} row {row}: {problem}; fix the row{skip}")
        else:
            skipped[problem.reason] = skipped.get(problem.reason, 0) + 1

    if not problems and skipped:
        reasons = "; ".join(f"{count} x {reason}" for reason, count in skipped.items())
        raise DataError(f"{source} holds no row that can be used ({reasons})")
    if not problems:
        raise DataError(f"{source} is empty; it must hold one problem a row")
    return ValidRows(problems, skipped)


def validate_rows(
    rows: Iterable[Row], data: DataConfig, *, solutions: bool = True, way_out: str = DATA_FIELD
) -> Iterator[tuple[int, Problem | BadRow]]:
    """The problem that each row holds, or why it holds none.

    What makes a row good, and the arguments, are those of `read_problems`.
    """
    first_rows: dict[tuple[str, str], int] = {}
    for row, fields in rows:
        try:
            if isinstance(fields, BadRow):
                raise fields
            problem = _problem(fields, row, data, solutions, way_out)
            keys = [("id", problem.id)]
            if solutions:
                keys.insert(0, ("problem", " ".join(problem.problem.split())))
            for role, text in keys:
                if (role, text) in first_rows:
                    detail = f", row {first_rows[role, text]} (value {shorten(text)})"
                    raise BadRow(f"same {role} as an earlier row", detail)
        except BadRow as bad:
            yield row, bad
            continue

        first_rows |= dict.fromkeys(keys, row)
        yield row, problem


def problems_digest(problems: Sequence[Problem]) -> str:
    """16 hexadecimal digits that differ where the problems, or their order, differ."""
    parts = [part for p in problems for part in (p.id, p.problem, p.solution, *p.answers)]
    return digest(*parts, "")[:16]


def to_row(problem: Problem) -> dict[str, Any]:
    """A problem as an evaluation stores it, without its solution; a list of several answers."""
    answer = list(problem.answers) if problem.also else problem.answer
    return {
        "id": problem.id,
        "problem": problem.problem,
        "answer": answer,
        **dict(problem.labels),
    }


def from_row(row: dict[str, Any]) -> Problem:
    """The problem of such a row. Raises KeyError, TypeError or ValueError where it is none."""
    answers = row["answer"] if isinstance(row["answer"], list) else [row["answer"]]
    answer, *also = dict.fromkeys(map(str, answers))
    labels = tuple((name, str(row[name])) for name in LABELS if name in row)
    return Problem(str(row["problem"]), "", answer, str(row["id"]), tuple(also), labels)


def item_of(problem: Problem, text: str, *, truncated: bool) -> Item:
    """A completion of a problem as graders take it, with the problem's fields as its row."""
    row = {
        "id": problem.id,
        "problem": problem.problem,
        "solution": problem.solution,
        "answer": problem.answer,
        "answers": list(problem.answers),
        **dict(problem.labels),
    }
    return Item(text, problem.answers, truncated, row)


def batch_indices(count: int, batch_size: int, step: int, seed: int) -> list[int]:
    """The indices, in [0, count), of the `batch_size` problems of optimizer step `step` (from 0).

    Epochs are seeded permutations of all problems, laid end to end. Nothing repeats within an
    epoch, nothing is left out, and a step may straddle epochs (or hold several, when the batch is
    larger than the data). The result depends on the arguments alone, on every Python version.

    Source: Algorithm 'complete adaptive privileged re-scoring recipe', 'Sample a minibatch'.

    Raises:
        ValueError: count or batch_size below 1, or step below 0.
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
    fields: dict[str, object], row: int, data: DataConfig, solutions: bool, way_out: str
) -> Problem:
    problem = _text(fields, data.problem_field, "problem", way_out)
    written = fields.get(_column(fields, data.solution_field) or "")
    is_unsolved = not solutions and _is_blank(written)
    solution = "" if is_unsolved else _text(fields, data.solution_field, "solution", way_out)
    has_more = not solutions and data.answer_field == "answer"
    answer, *also = _answers(fields, data.answer_field, has_more, way_out)
    # A row may lack the default id column. One that was asked for by another name must be there.
    is_numbered = data.id_field == "id" and _column(fields, "id") is None
    name = str(row) if is_numbered else _text(fields, data.id_field, "id", way_out)
    return Problem(problem, solution, answer, name, tuple(also), _labels(fields), row)


def _answers(fields: dict[str, object], wanted: str, has_more: bool, way_out: str) -> list[str]:
    """All right answers of a row, each once; with `has_more`, a column `answers` may hold them.

    Raises BadRow where one is no answer.
    """
    name = _column(fields, wanted) or wanted
    several = _column(fields, "answers") if has_more else None
    if several and isinstance(fields[several], list):
        if name in fields:
            detail = f" (value {shorten(fields[several])}); keep one of them, or rename it"
            raise BadRow(f'fields "{name}" and "{several}" both hold answers', detail)
        name = several

    value = fields.get(name)
    if not isinstance(value, list):
        return [_text(fields, name, "answer", way_out)]
    if not value:
        raise BadRow(f'field "{name}" is empty', f" (value {shorten(value)})")
    texts = [Number(one) if type(one) in (int, float) else one for one in value]  # of Parquet
    return list(dict.fromkeys(_text({name: text}, name, "answer", way_out) for text in texts))


def _labels(fields: dict[str, object]) -> tuple[tuple[str, str], ...]:
    columns = {name: fields.get(_column(fields, name) or "") for name in LABELS}
    return tuple(
        (name, " ".join(value.split()))
        for name, value in columns.items()
        if isinstance(value, str) and value.strip()
    )


def _column(fields: dict[str, object], name: str) -> str | None:
    """The column of that name, or else the only one that differs from it in nothing but case."""
    if name in fields:
        return name
    near = [column for column in fields if column.casefold() == name.casefold()]
    return near[0] if len(near) == 1 else None


def _is_blank(value: object) -> bool:
    return value is None or (isinstance(value, str) and not value.strip())


def _text(fields: dict[str, object], wanted: str, role: str, way_out: str) -> str:
    """The text of a column, as it stands in the file. Raises BadRow where there is none."""
    name = _column(fields, wanted)
    if name is None:
        columns = [column if len(column) <= 60 else shorten(column) for column in fields]
        detail = (
            f" (fields of the row: {', '.join(columns) or 'none'}); {way_out.format(role=role)}"
        )
        raise BadRow(f'field "{wanted}" is missing', detail)

    value = fields[name]
    if not isinstance(value, str) or (isinstance(value, Number) and role not in ("answer", "id")):
        detail = f" but {kind_of(value)} (value {shorten(value)})"
        raise BadRow(f'field "{name}" is not text', detail)
    if not value.strip():
        raise BadRow(f'field "{name}" is empty', f" (value {shorten(value)})")

    try:
        value.encode("utf-8")
    except UnicodeEncodeError as error:
        detail = f": half a surrogate pair at character {error.start + 1}"
        raise BadRow(f'field "{name}" is not valid Unicode', detail) from None
    return str(value)
