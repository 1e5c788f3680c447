"""A grader as one that asks an endpoint: it fails on every third completion, by its text."""

from collections.abc import Mapping
from typing import Any


def grade(completion: str, row: Mapping[str, Any]) -> float:
    number = sum(map(ord, completion))
    if number % 3 == 0:
        raise RuntimeError("429")
    return float(number % 2)
