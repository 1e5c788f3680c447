"""A context of one's own: the solutions of the rows before this one."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from paint.core.settings import POSITIVE, setting


@dataclass(frozen=True)
class EarlierOptions:
    most: int = setting(100, POSITIVE, "rows; default: 100")
    """Most solutions that are shown: the last ones."""


def earlier(
    row: Mapping[str, Any],
    rows: Sequence[Mapping[str, Any]],
    seed: int,
    options: EarlierOptions,
) -> str:
    """What was solved before, or the row's own hint."""
    before = [other["solution"] for other in rows if int(other["id"]) < int(row["id"])]
    return "\n".join(before[-options.most :]) or row["hint"]
