"""Lengths of many texts in tokens: in batches, and a bound that needs no tokens."""

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import TypeVar

from transformers import PreTrainedTokenizerBase

from paint.models.special_tokens import normalized

T = TypeVar("T")

CHUNK = 256
"""Rows that are measured together."""

MANY, SAMPLED = 10_000, 2_000
"""Of more rows than MANY, what is a statistic is that of about SAMPLED rows."""

SLACK = 16
"""Tokens beyond its bytes that a tokenizer may make of a text, such as a blank before it."""


def chunks(rows: Sequence[T]) -> Iterator[Sequence[T]]:
    """The rows, CHUNK at a time."""
    for start in range(0, len(rows), CHUNK):
        yield rows[start : start + CHUNK]


def spaced(rows: Sequence[T]) -> Sequence[T]:
    """All rows, or of more than MANY about SAMPLED at equal distances."""
    return rows[:: len(rows) // SAMPLED] if len(rows) > MANY else rows


def token_lengths(tokenizer: PreTrainedTokenizerBase, texts: Sequence[str]) -> list[int]:
    """Tokens of each text, without tokens that a tokenizer would add around it."""
    if not texts:
        return []
    # All at once: a fast tokenizer uses all cores.
    ids = tokenizer(list(texts), add_special_tokens=False, return_attention_mask=False)["input_ids"]
    return list(map(len, ids))


def most_tokens(tokenizer: PreTrainedTokenizerBase, text: str) -> int:
    """A bound on the tokens of a text, many times faster than tokens: its bytes.

    Each token has at least one byte of what the tokenizer's normalizer makes of the text. The
    number is exact for a tokenizer whose normalizer is not known.
    """
    if not hasattr(tokenizer, "backend_tokenizer"):
        return token_lengths(tokenizer, [text])[0]
    size = len(normalized(tokenizer, text).encode())
    return _tokens_a_byte(tokenizer, len(tokenizer)) * size + SLACK


# The vocabulary's size is in the cache's key, as it may change after the first call.
@lru_cache(maxsize=8)
def _tokens_a_byte(tokenizer: PreTrainedTokenizerBase, size: int) -> int:
    # A blank may be added after each added token, which counts for one of the token's bytes.
    added = tokenizer.added_tokens_decoder.values()
    return 2 if any(len(str(token).encode()) < 2 for token in added) else 1
