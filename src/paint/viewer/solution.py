"""The solution beside the completion: what was hidden, and where each anchor is found.

Anchors live in normalised texts. Where one stands in the text as it was written is searched for:
the shortest piece of it whose normalised form holds the anchor.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from paint.objective.anchors import boxed_anchors, contains, normalize
from paint.objective.masking import MARKER

KINDS = ("other", "answer", "number", "formula", "style")
"""What a token belongs to."""

_STYLE = """
so therefore thus hence then now first second next finally lastly let we wait hmm okay ok
alternatively but however since because note check actually maybe perhaps indeed clearly recall
suppose consider given also the is get and of to that this which
"""
STYLE = frozenset(_STYLE.split())
"""Words that carry a style and no mathematics; the list is ours."""

_WORD = re.compile(r"(?<!\\)\b[A-Za-z]+\b")
_NUMBER = re.compile(r"\d+(?:\.\d+)?")
_NO_LETTER = re.compile("[\udc80-\udcff]")
_FORMULA = re.compile(r"\\[A-Za-z]+|[-+*/^_=<>{}\\]")


@dataclass(frozen=True)
class Anchor:
    """A piece of the solution.

    Attributes:
        text: as it is compared, normalised.
        boxed: whether a box holds it.
        found: whether the completion has it.
        place: first and last character, and one beyond, in the solution; None where it has no
            place of its own.
        met: the same in the completion.
    """

    text: str
    boxed: bool
    found: bool
    place: tuple[int, int] | None
    met: tuple[int, int] | None


def anchors_of(solution: str, completion: str) -> list[Anchor]:
    """Every anchor of a solution, in order; ``found`` is what the overlap counts."""
    written = normalize(completion)
    return [
        Anchor(
            text,
            boxed,
            contains(written, text),
            locate(text, solution),
            locate(text, completion) if contains(written, text) else None,
        )
        for text, boxed in boxed_anchors(solution).items()
    ]


def locate(anchor: str, text: str) -> tuple[int, int] | None:
    """Where a text holds an anchor: the piece of it, or None where none is found."""
    start = text.find(anchor)
    while start >= 0:
        end = start + len(anchor)
        # With what stands beside it: 12 is not in 312.
        if contains(normalize(text[max(start - 8, 0) : end + 8]), anchor):
            return start, end
        start = text.find(anchor, start + 1)

    if not contains(normalize(text), anchor):
        return None
    end = _first(1, len(text), lambda end: contains(normalize(text[:end]), anchor))
    start = _first(1, end, lambda less: not contains(normalize(text[less:end]), anchor)) - 1
    is_there = contains(normalize(text[start:end]), anchor)
    return (start, end) if is_there else None


def hidden_part(solution: str, context: str | None) -> tuple[int, int] | None:
    """First character of the hidden part, and one beyond; None where it cannot be told.

    All is hidden where nothing is shown, and nothing where the context is the solution.
    """
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


def kinds_of(text: str) -> list[int]:
    """What each character belongs to, as an index into KINDS."""
    kinds = [0] * len(text)

    def mark(kind: str, start: int, end: int) -> None:
        kinds[start:end] = [KINDS.index(kind)] * (end - start)

    for match in _FORMULA.finditer(text):
        mark("formula", *match.span())
    for match in _NUMBER.finditer(text):
        mark("number", *match.span())
    for match in _WORD.finditer(text):
        if match[0].lower() in STYLE:
            mark("style", *match.span())
    start = text.rfind("\\boxed{")
    if start >= 0:
        depth, end = 0, start
        for end in range(start, len(text)):
            depth += {"{": 1, "}": -1}.get(text[end], 0)
            if text[end] == "}" and not depth:
                break
        mark("answer", start, end + 1)
    return kinds


def kinds_of_tokens(pieces: Sequence[bytes]) -> list[int]:
    """What each token belongs to: what most of its characters that are no blanks do."""
    text, owners = written(pieces)
    kinds = kinds_of(text)
    counts = [[0] * len(KINDS) for _ in pieces]
    for letter, owner, kind in zip(text, owners, kinds, strict=True):
        if not letter.isspace():
            counts[owner][kind] += 1
    return [
        max(range(len(KINDS)), key=lambda kind: (count[kind], kind)) if any(count) else 0
        for count in counts
    ]


def written(pieces: Sequence[bytes]) -> tuple[str, list[int]]:
    """The text of some tokens, and which token each character begins in.

    A byte that is no letter is one replacement character.
    """
    starts = [i for i, piece in enumerate(pieces) for _ in piece]
    text = b"".join(pieces).decode("utf-8", "surrogateescape")
    owners: list[int] = []
    position = 0
    for letter in text:
        owners.append(starts[position])
        position += len(letter.encode("utf-8", "surrogateescape"))
    return _NO_LETTER.sub("�", text), owners


def _first(low: int, high: int, holds: Callable[[int], bool]) -> int:
    """The first number in [low, high] for which something holds; ``high`` where none does."""
    while low < high:
        middle = (low + high) // 2
        if holds(middle):
            high = middle
        else:
            low = middle + 1
    return high
