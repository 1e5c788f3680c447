"""Contexts that a teacher may read in place of the solution, to see what it takes from it."""

import random
import re
from collections.abc import Mapping, Sequence
from typing import Any

NUMBER = re.compile(r"\d+(?:,\d{3})*(?:\.\d+)?")


def numbers_shifted(row: Mapping[str, Any], rows: Sequence[Mapping[str, Any]], seed: int) -> str:
    """The solution with every number changed, the same one alike wherever it stands."""
    del rows, seed  # the row decides, so that every rollout of it has the same
    return with_wrong_numbers(row["solution"], str(row["id"]), share=1.0)


def first_step(row: Mapping[str, Any], rows: Sequence[Mapping[str, Any]], seed: int) -> str:
    """The first line of the solution."""
    del rows, seed
    return str(row["solution"]).strip().split("\n", 1)[0]


def with_wrong_numbers(text: str, key: str, *, share: float) -> str:
    """The text with the last ``share`` of its numbers changed by 1 to 9, up or down.

    A number is changed in the same way wherever it stands in that part, so that the text agrees
    with itself. ``key`` seeds the draw. Numbers stay at least 0.
    """
    found = list(NUMBER.finditer(text))
    kept = round((1 - share) * len(found))
    draw = random.Random(f"wrong:{key}")
    wrong: dict[str, str] = {}
    pieces, end = [], 0
    for match in found[kept:]:
        if match[0] not in wrong:
            wrong[match[0]] = _another(match[0], draw)
        pieces += [text[end : match.start()], wrong[match[0]]]
        end = match.end()
    return "".join([*pieces, text[end:]])


def _another(number: str, draw: random.Random) -> str:
    digits = number.replace(",", "")
    decimals = len(digits.partition(".")[2])
    value = float(digits)
    change = draw.randint(1, 9) * draw.choice((-1, 1))
    if value + change < 0:
        change = -change
    return f"{value + change:.{decimals}f}"
