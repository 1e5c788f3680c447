"""A context of one's own: the solutions of all rows before this one."""

from collections.abc import Mapping, Sequence
from typing import Any


def earlier(row: Mapping[str, Any], rows: Sequence[Mapping[str, Any]], seed: int) -> str:
    """What was solved before, or the row's own hint."""
    before = [other["solution"] for other in rows if int(other["id"]) < int(row["id"])]
    return "\n".join(before) or row["hint"]
