"""The one table of results: measured values, and how they are shown.

A result is a list of ``Measurement``: one row of a policy, a benchmark and a metric, or of the
difference of two policies. Evaluation, comparison, advice and bake all make such rows, and a
``Report`` of them. A report is shown on a terminal, as Markdown, as JSON and on a page:

    NAME.json    all rows, unrounded; the tables, charts and lines of the page
    NAME.md      the tables

Rows have no NaN and no infinity: what has no value has no row, and an end of an interval without
bound is None.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from rich.console import Console
from rich.table import Table as RichTable

from paint.core import storage
from paint.core.errors import PaintError, escape_markdown_cell, wrap_errors
from paint.evaluation.intervals import FEW, Interval, interval_text

if TYPE_CHECKING:
    import pandas as pd

Unit = Literal["%", "hundredths", "points", "", "signed", "tokens", "count", "time"]
"""Shares are shown in percent, rewards in hundredths, differences of both in points with a sign,
seconds as h:mm:ss."""

FORMS: dict[Unit, tuple[str, float]] = {
    "%": (".1f", 100),
    "hundredths": (".1f", 100),
    "points": ("+.1f", 100),
    "": (".3g", 1),
    "signed": ("+.3g", 1),
    "tokens": (",.0f", 1),
    "count": (",.0f", 1),
}
"""Format and factor of each unit."""


@dataclass(frozen=True)
class Measurement:
    """One row: a metric of a policy on a benchmark, or its difference to another policy."""

    policy: str
    benchmark: str  # "macro" is the mean over several
    metric: str
    mean: float
    low: float | None = None  # of the 95 % interval; None without one, or without bound
    high: float | None = None
    n: int | None = None  # problems
    group: str = ""  # part of the benchmark, such as "level 3"
    step: int | None = None  # of a checkpoint
    against: str = ""  # of a difference: the policy that is subtracted
    p: float | None = None  # two-sided p-value of a difference
    corrected_p: float | None = None  # by Holm's correction
    detectable: float | None = None  # smallest difference that so many problems can show

    @property
    def column(self) -> str:
        """Its column in a table: the metric, or ``metric less policy`` of a difference."""
        return f"{self.metric} less {self.against}" if self.against else self.metric

    def text(self, unit: Unit) -> str:
        """Return it with the interval, such as ``83.1 [78.9, 87.0]``."""
        if unit == "time":
            return str(timedelta(seconds=round(self.mean)))
        form, scale = FORMS[unit]
        return interval_text(self.mean, self.low, self.high, form, scale)


COLUMNS = [column.name for column in fields(Measurement)]
REQUIRED = COLUMNS[:6]  # up to the interval: that every row and every DataFrame has


def to_measurement(
    policy: str,
    benchmark: str,
    metric: str,
    value: Interval | float | None,
    n: int | None = None,
    **columns: Any,
) -> list[Measurement]:
    """Return the row of a value; none if the value is None or not a number."""
    if value is None:
        return []
    # A plain number has no interval: its infinite ends become None below.
    found = value if isinstance(value, Interval) else Interval(float(value), math.inf, math.inf)
    if not math.isfinite(found.mean):
        return []  # JSON has no NaN, and a table no place for it
    low = found.low if math.isfinite(found.low) else None
    high = found.high if math.isfinite(found.high) else None
    return [Measurement(policy, benchmark, metric, found.mean, low, high, n, **columns)]


def select_rows(rows: Iterable[Measurement], **columns: Any) -> list[Measurement]:
    """Return the rows with these values, such as ``metric="avg_at_k"``; ``...`` is any value.

    Differences are selected only by ``against``, and parts of a benchmark only by ``group``.
    """
    wanted = {"against": "", "group": "", **columns}
    return [
        row
        for row in rows
        if all(value is ... or getattr(row, name) == value for name, value in wanted.items())
    ]


def interval_note(rows: Iterable[Measurement]) -> str:
    """Return how a title says that values have intervals, and where the problems are too few."""
    rows = list(rows)
    if any(row.low is not None or row.high is not None for row in rows):
        counts = [row.n for row in rows if row.n is not None]
        fewest = min(counts, default=FEW)
        if fewest < FEW:
            return f" with 95 % interval; {fewest} problems are too few"
        return " with 95 % interval"
    return "; too few problems for an interval"


def to_frame(rows: Sequence[Measurement]) -> "pd.DataFrame":
    """Return the rows as a DataFrame, without columns that are empty in all."""
    # Imported here, since rows and tables do without pandas.
    import pandas as pd

    frame = pd.DataFrame([asdict(row) for row in rows], columns=COLUMNS)
    is_empty = frame.isin(["", None]).all()
    return frame.drop(columns=is_empty.index[is_empty].difference(REQUIRED))


@dataclass(frozen=True)
class Table:
    """Cells as they are shown. Columns without a name are labels, on the left."""

    title: str
    columns: list[str]
    rows: list[list[str]]


@dataclass(frozen=True)
class Chart:
    """Intervals of one metric, drawn on the page: one a policy."""

    title: str
    metric: str
    unit: Unit = ""
    note: str = ""  # what the values are
    benchmark: str = ""
    is_difference: bool = False  # of the differences that have a p-value


@dataclass(frozen=True)
class Report:
    rows: list[Measurement]
    tables: list[Table]
    charts: list[Chart] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)  # findings in words


def table_of(
    rows: Sequence[Measurement],
    title: str,
    columns: Mapping[str, tuple[str, Unit]],
    *,
    labels: Callable[[Measurement], tuple[str, ...]] = lambda row: (row.policy,),
    column_of: Callable[[Measurement], str] = lambda row: row.column,
) -> Table:
    """Return rows as a table: a line for each label, a column for each metric.

    ``columns`` are the head and unit by ``column_of`` of a row; rows of others are left out.
    ``labels`` are the cells on the left of a row's line.
    """
    lines: dict[tuple[str, ...], dict[str, str]] = {}
    for row in rows:
        column = column_of(row)
        if column in columns:
            lines.setdefault(labels(row), {})[column] = row.text(columns[column][1])
    used = [name for name in columns if any(name in cells for cells in lines.values())]
    width = max((len(label) for label in lines), default=1)
    heads = [""] * width + [columns[name][0] for name in used]
    body = [[*label, *(cells.get(name, "") for name in used)] for label, cells in lines.items()]
    return Table(title, heads, body)


def to_terminal(tables: Sequence[Table], console: Console) -> None:
    """Print tables; cells of one that is too wide are folded."""
    for table in tables:
        rich_table = RichTable(title=table.title, title_justify="left")
        for column in table.columns:
            rich_table.add_column(column, justify="right" if column else "left", overflow="fold")
        for row in table.rows:
            rich_table.add_row(*row)
        console.print(rich_table)


def to_markdown(tables: Sequence[Table]) -> str:
    parts = []
    for table in tables:
        rule = ["---:" if column else "---" for column in table.columns]
        lines = [
            f"| {' | '.join(map(escape_markdown_cell, cells))} |"
            for cells in (table.columns, rule, *table.rows)
        ]
        parts.append("\n".join([f"**{escape_markdown_cell(table.title)}**", "", *lines]))
    return "\n\n".join(parts) + "\n"


def write_report(folder: Path, name: str, report: Report, error: type[PaintError]) -> None:
    """Write NAME.json and NAME.md. Raises ``error`` if that fails."""
    with wrap_errors(folder / name, error, "what they are made of is kept"):
        storage.write_json(folder / f"{name}.json", asdict(report))
        text = to_markdown(report.tables)
        if report.lines:
            text += "\n" + "".join(f"- {line}\n" for line in report.lines)
        storage.write_atomic(folder / f"{name}.md", text)


def read_report(path: Path, hint: str) -> Report:
    """Read NAME.json. Raises CorruptFileError, with the hint, if that fails."""
    table = storage.read_json(path, hint)
    with wrap_errors(path, storage.CorruptFileError, hint):
        return Report(
            rows=[Measurement(**row) for row in table["rows"]],
            tables=[Table(**row) for row in table["tables"]],
            charts=[Chart(**row) for row in table["charts"]],
            lines=list(table["lines"]),
        )
