"""Lengths of many texts in tokens: all at once, and a bound that needs no tokens."""

from collections.abc import Sequence

from transformers import PreTrainedTokenizerBase

from chatforms.rendering import by_template
from chatforms.special_tokens import normalized

SLACK = 16
"""Tokens beyond its bytes that a tokenizer may make of a text, such as a blank before it."""


def token_lengths(tokenizer: PreTrainedTokenizerBase, texts: Sequence[str]) -> list[int]:
    """Return the tokens of each text, without those that a tokenizer would add around it."""
    if not texts:
        return []
    # All at once: a fast tokenizer uses all cores.
    ids = tokenizer(list(texts), add_special_tokens=False, return_attention_mask=False)["input_ids"]
    return list(map(len, ids))


def most_tokens(tokenizer: PreTrainedTokenizerBase, text: str) -> int:
    """Return a bound on the tokens of a text, many times faster than tokens: by its bytes.

    Each token has at least one byte of what the tokenizer's normalizer makes of the text. The
    number is exact for a tokenizer whose normalizer is not known.
    """
    if not hasattr(tokenizer, "backend_tokenizer"):
        return token_lengths(tokenizer, [text])[0]
    size = len(normalized(tokenizer, text).encode())
    return _tokens_a_byte(tokenizer) * size + SLACK


@by_template()
def _tokens_a_byte(tokenizer: PreTrainedTokenizerBase) -> int:
    # A blank may be added after each added token, which counts for one of the token's bytes.
    added = tokenizer.added_tokens_decoder.values()
    return 2 if any(len(str(token).encode()) < 2 for token in added) else 1
