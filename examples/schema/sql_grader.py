"""Grade a SQLite query by what it returns: the rows of the gold query, as a multiset.

    paint eval MODEL --benchmarks questions.jsonl --grading.grader sql_grader:grade

The database's file is the environment variable SQL_DATABASE. It is opened read-only, and a query
ends after a million of SQLite's steps or 10,000 rows.
"""

import os
import re
import sqlite3
from collections import Counter
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import paint

STEPS, ROWS = 1_000_000, 10_000
FENCE = re.compile(r"```(?:sql\w*)?\s*(.*?)(?:```|\Z)", re.S | re.I)


class TooLong(Exception):
    """A query returns too many rows."""


def grade(completion: str, row: Mapping[str, Any]) -> paint.Grade:
    """Reward 1 for the gold query's rows; the metric runs is 1 for a query that SQLite executes."""
    database = os.environ["SQL_DATABASE"]
    try:
        found = result(database, query_in(completion))
    except (sqlite3.Error, sqlite3.Warning) as error:
        reason = f"SQLite: {error}"
        return paint.Grade(0, "does not run", feedback=reason, metrics={"runs": 0.0})
    except TooLong:
        return paint.Grade(0, "too many rows", metrics={"runs": 1.0})
    is_right = found == result(database, row["answer"])
    return paint.Grade(is_right, "right" if is_right else "other rows", metrics={"runs": 1.0})


def query_in(text: str) -> str:
    """The text up to its first semicolon, or that of its first fenced block."""
    fenced = FENCE.search(text)
    query = fenced[1] if fenced else text
    return query.split(";")[0].strip()


@lru_cache(maxsize=10_000)
def result(database: str, query: str) -> Counter[tuple[str, ...]]:
    """The rows that a query returns, each value as text without case; raises sqlite3.Error."""
    connection = sqlite3.connect(f"{Path(database).resolve().as_uri()}?mode=ro", uri=True)
    try:
        connection.set_progress_handler(lambda: 1, STEPS)
        rows = connection.execute(query).fetchmany(ROWS + 1)
    finally:
        connection.close()
    if len(rows) > ROWS:
        raise TooLong
    return Counter(tuple(comparable(value) for value in row) for row in rows)


def comparable(value: Any) -> str:
    """A number without the difference of 3 and 3.0, a text without case."""
    return f"{value:.6g}" if isinstance(value, int | float) else str(value).casefold()
