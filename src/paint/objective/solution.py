"""Solutions on the page: the masked part, and the positions of anchors.

An anchor's position in a text is the shortest span whose normalized form contains it.
"""

import re
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from paint.objective.anchors import boxed_anchors, contains
from paint.objective.masking import MARKER
from strictgrade.text import normalize

_NO_LETTER = re.compile("[\udc80-\udcff]")


@dataclass(frozen=True)
class Anchor:
    """An anchor of the solution; spans are [start, end), and None if none is found."""

    text: str  # normalized, as compared
    boxed: bool  # it is inside a box
    found: bool  # the completion contains it
    place: tuple[int, int] | None  # its span in the solution
    met: tuple[int, int] | None  # its span in the completion


def anchors_of(solution: str, completion: str) -> list[Anchor]:
    """Every anchor of a solution, in order; the overlap counts those with ``found``."""
    written = normalize(completion)
    anchors: list[Anchor] = []
    for text, boxed, place in _placed_anchors(solution):
        found = contains(written, text)
        met = locate(text, completion) if found else None
        anchors.append(Anchor(text, boxed, found, place, met))
    return anchors


# A page shows many completions of a problem.
@lru_cache(maxsize=10_000)
def _placed_anchors(solution: str) -> tuple[tuple[str, bool, tuple[int, int] | None], ...]:
    found = boxed_anchors(solution)
    return tuple((text, boxed, locate(text, solution)) for text, boxed in found.items())


def locate(anchor: str, text: str) -> tuple[int, int] | None:
    """The span [start, end) of an anchor in a text, or None."""
    start = text.find(anchor)
    while start >= 0:
        end = start + len(anchor)
        # With the neighbouring characters, so that 12 is not found in 312.
        if contains(normalize(text[max(start - 8, 0) : end + 8]), anchor):
            return start, end
        start = text.find(anchor, start + 1)

    if not contains(normalize(text), anchor):
        return None

    def is_in(start: int, end: int) -> bool:
        return contains(normalize(text[start:end]), anchor)

    end = 1 + bisect_left(range(1, len(text)), True, key=lambda end: is_in(0, end))
    start = bisect_left(range(1, end), True, key=lambda start: not is_in(start, end))
    if is_in(start, end):
        return (start, end)
    return None


def hidden_part(solution: str, context: str | None) -> tuple[int, int] | None:
    """The masked span [start, end) of a solution, all of it without a context; None if unknown."""
    if context is None:
        return 0, len(solution)
    if context == solution:
        return 0, 0

    lead = len(solution) - len(solution.lstrip())
    text = solution.strip()
    for match in re.finditer(re.escape(MARKER), context):
        before, after = context[: match.start()].rstrip(), context[match.end() :].lstrip()
        if text.startswith(before) and text.endswith(after):
            return lead + len(before), lead + len(text) - len(after)
    return None


def written(pieces: Sequence[bytes]) -> tuple[str, list[int]]:
    """The text of some tokens, and the index of the token in which each character begins."""
    starts = []
    for i, piece in enumerate(pieces):
        starts.extend([i] * len(piece))  # one for each byte
    text = b"".join(pieces).decode("utf-8", "surrogateescape")
    owners: list[int] = []
    position = 0
    for letter in text:
        owners.append(starts[position])
        position += len(letter.encode("utf-8", "surrogateescape"))
    return _NO_LETTER.sub("�", text), owners
