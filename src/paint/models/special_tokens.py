"""Detection of control text, such as special tokens, in problems and solutions.

A tokenizer turns ``<|im_end|>`` into a control token anywhere, also inside a problem or a solution;
so does any server that renders the same chat template. Such text could end a turn and start
another one. Rows that contain it are refused.

Control text is every special token of the tokenizer, and the text that the chat template writes
between two turns. Tokens such as ``<think>`` belong to a turn, are not special, and are allowed in
references.

Control text is not escaped by other tokens: a server would tokenise the same row differently.
"""

import re
from collections.abc import Callable
from contextlib import suppress
from functools import lru_cache
from typing import NamedTuple

from jinja2 import TemplateError
from transformers import PreTrainedTokenizerBase

from paint.grading.thoughts import is_thought_tag

REASON = "text that the chat format takes for control"
"""Reason for which a row with control text is refused."""

_MARK = re.compile(r"<\|?[^<>\s]{1,60}>|<<[^<>\s]{1,60}>>|\[/?[A-Z_]{2,40}\]")
"""Marks of turns in chat templates: <|user|>, <start_of_turn>, <<SYS>>, [/INST]."""


def special_text(tokenizer: PreTrainedTokenizerBase, text: str) -> str | None:
    """First piece of control text in a text, or None."""
    control = _control(tokenizer, str(tokenizer.chat_template), len(tokenizer))
    found = control.pattern.search(text) or control.pattern.search(control.normalize(text))
    if found:
        return found[0]
    return None


def drop_special_text(tokenizer: PreTrainedTokenizerBase, text: str) -> str:
    """Remove control text from a text, also control text that a removal creates."""
    while piece := special_text(tokenizer, text):
        if piece not in text:  # it exists only after the tokenizer's normalisation
            text = _control(tokenizer, str(tokenizer.chat_template), len(tokenizer)).normalize(text)
        text = text.replace(piece, "")
    return text


def special_text_finder(tokenizer: PreTrainedTokenizerBase, **texts: str) -> str | None:
    """Describe control text in the named texts, as a continuation of ``REASON``; None if none."""
    found = {name: special_text(tokenizer, text) for name, text in texts.items()}
    pieces = []
    for name, piece in found.items():
        if piece:
            pieces.append(f"{piece!r} in its {name}")
    if pieces:
        return f": {', '.join(pieces)}"
    return None


class _Control(NamedTuple):
    pattern: re.Pattern[str]
    normalize: Callable[[str], str]


# Template and vocabulary size are in the cache's key, as they may change after the first call.
@lru_cache(maxsize=8)
def _control(tokenizer: PreTrainedTokenizerBase, template: str, size: int) -> _Control:
    """Pattern of control text, before and after the tokenizer's normalisation."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    normalizer = getattr(backend, "normalizer", None)
    normalize = normalizer.normalize_str if normalizer is not None else str

    pieces = {*_special_tokens(tokenizer), *_turn_delimiters(tokenizer)}
    pieces |= {normalize(piece) for piece in pieces}
    longest_first = sorted((piece for piece in pieces if piece.strip()), key=len, reverse=True)
    matches_nothing = r"(?!)"
    pattern = "|".join(map(re.escape, longest_first)) or matches_nothing
    return _Control(re.compile(pattern), normalize)


def _special_tokens(tokenizer: PreTrainedTokenizerBase) -> set[str]:
    """Special tokens that are not ordinary words of the vocabulary, such as a padding token "!"."""
    tokens = {str(token) for token in tokenizer.added_tokens_decoder.values() if token.special}

    def is_control(token: str) -> bool:
        ids, as_text = (
            tokenizer.encode(token, add_special_tokens=False, split_special_tokens=split)
            for split in (False, True)
        )
        return bool(ids != as_text)

    return set(filter(is_control, tokens | set(tokenizer.all_special_tokens)))


def _turn_delimiters(tokenizer: PreTrainedTokenizerBase) -> set[str]:
    """Text that the chat template writes between turns to separate them, token or not."""
    contents = ["paint-says-1", "paint-says-2", "paint-says-3"]
    roles = ["user", "assistant", "user"]
    messages = [{"role": role, "content": text} for role, text in zip(roles, contents, strict=True)]
    text = ""
    with suppress(TemplateError):  # a template for a single turn has no text between turns
        text = tokenizer.apply_chat_template(messages, tokenize=False)
    places = []
    for part in contents:
        places.append(text.find(part))
    if -1 in places:
        return set()

    within_turns = set()
    for t in tokenizer.added_tokens_decoder.values():
        if not t.special:
            within_turns.add(str(t))
    delimiters = set()
    for i in (0, 1):
        between = text[places[i] + len(contents[i]) : places[i + 1]]
        found = set(_MARK.findall(between)) - within_turns
        found = {mark for mark in found if not is_thought_tag(mark)}
        delimiters |= found or {between.rstrip()}
    return delimiters
