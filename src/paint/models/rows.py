"""Rows of token ids for a forward pass, of prompts and what follows them.

A prompt that begins with all of the row before it, as that of a later turn may, goes on in the same
row: the ids that they share are computed once, and every state is the same.
"""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class PassRow:
    """Token ids, and the positions whose states predict the tokens that are scored, in order."""

    ids: list[int]
    predicts: list[int]


def joined_rows(
    prompts: Sequence[Sequence[int]], completions: Sequence[Sequence[int]]
) -> list[PassRow]:
    """Return a row for each prompt and its completion, or for several that continue each other."""
    rows: list[PassRow] = []
    for prompt, completion in zip(prompts, completions, strict=True):
        ids = [*prompt, *completion]
        predicts = list(range(len(prompt) - 1, len(ids) - 1))
        last = rows[-1].ids if rows else None
        if last is not None and len(last) <= len(prompt) and ids[: len(last)] == last:
            predicts = [*rows.pop().predicts, *predicts]
        rows.append(PassRow(ids, predicts))
    return rows
