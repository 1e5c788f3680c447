"""What the tokens of a solution are: its last box, numbers, formulas, words of style."""

import re
from collections.abc import Sequence

from paint.objective.solution import written

KINDS = ("other", "answer", "number", "formula", "style")
"""Kinds of tokens."""

_STYLE = """
so therefore thus hence then now first second next finally lastly let we wait hmm okay ok
alternatively but however since because note check actually maybe perhaps indeed clearly recall
suppose consider given also the is get and of to that this which
"""
# Words of style without mathematics; the list is ours.
STYLE = frozenset(_STYLE.split())

_WORD = re.compile(r"(?<!\\)\b[A-Za-z]+\b")
_NUMBER = re.compile(r"\d+(?:\.\d+)?")
_FORMULA = re.compile(r"\\[A-Za-z]+|[-+*/^_=<>{}\\]")


def kinds_of(text: str) -> list[int]:
    """The kind of each character, as an index into KINDS."""
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
    """The kind of each token: the most frequent one of its characters, without blanks."""
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
