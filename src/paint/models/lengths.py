"""Which of many rows are measured, and how many together."""

from collections.abc import Iterator, Sequence
from typing import TypeVar

T = TypeVar("T")

CHUNK = 256
"""Rows that are measured together."""

MANY, SAMPLED = 10_000, 2_000
"""Of more rows than MANY, what is a statistic is that of about SAMPLED rows."""


def chunks(rows: Sequence[T]) -> Iterator[Sequence[T]]:
    for start in range(0, len(rows), CHUNK):
        yield rows[start : start + CHUNK]


def spaced(rows: Sequence[T]) -> Sequence[T]:
    """Return all rows, or of more than MANY about SAMPLED at equal distances."""
    return rows[:: len(rows) // SAMPLED] if len(rows) > MANY else rows
