"""A judge outside of the package whose scores are known: the row's, less as a judge fails."""

from collections.abc import Mapping
from typing import Any


def grade(completion: str, row: Mapping[str, Any]) -> float:
    if row["score"] == "fails":
        raise ConnectionError("HTTP 429")
    return float(row["score"])
