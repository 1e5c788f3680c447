"""Text that a model would read as control: it could end a problem's turn, and speak for others.

A tokenizer makes a control token of ``<|im_end|>`` wherever it stands, also inside a problem or a
solution; so does any server that renders the same chat template. Such rows are refused: a prompt
must be what a server makes of it, and must not hold another conversation than it says.

Control is every special token of the tokenizer, and what the chat template writes between two
turns. Tokens such as ``<think>`` belong to a turn, are not special, and may stand in references.

Left out on purpose: spelling such text with other tokens. The same row would be read otherwise in
training than on a server.
"""

import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache

from jinja2 import TemplateError
from transformers import PreTrainedTokenizerBase

REASON = "text that the chat format takes for control"
"""What is wrong with a row that holds some."""

_MARK = re.compile(r"<\|?[^<>\s]{1,60}>|<<[^<>\s]{1,60}>>|\[/?[A-Z_]{2,40}\]")
"""How templates mark turns: <|user|>, <start_of_turn>, <<SYS>>, [/INST]."""


def special_text(tokenizer: PreTrainedTokenizerBase, text: str) -> str | None:
    """The first piece of a text that tokenizer or chat template take for control, if there is one.

    Text without such a piece gets no control token, wherever it stands in a prompt.
    """
    control = _control(tokenizer, str(tokenizer.chat_template), len(tokenizer))
    found = control.pattern.search(text) or control.pattern.search(control.normalize(text))
    return found[0] if found else None


def drop_special_text(tokenizer: PreTrainedTokenizerBase, text: str) -> str:
    """The text without such pieces, and without those that appear where one is taken out."""
    while piece := special_text(tokenizer, text):
        if piece not in text:  # it is there for the tokenizer only
            text = _control(tokenizer, str(tokenizer.chat_template), len(tokenizer)).normalize(text)
        text = text.replace(piece, "")
    return text


def special_text_finder(tokenizer: PreTrainedTokenizerBase, **texts: str) -> str | None:
    """Which of the named texts hold such a piece, to stand after ``REASON``; None where none do."""
    found = {name: special_text(tokenizer, text) for name, text in texts.items()}
    pieces = [f"{piece!r} in its {name}" for name, piece in found.items() if piece]
    return f": {', '.join(pieces)}" if pieces else None


@dataclass(frozen=True)
class _Control:
    pattern: re.Pattern[str]
    normalize: Callable[[str], str]


@lru_cache(maxsize=8)
def _control(tokenizer: PreTrainedTokenizerBase, template: str, size: int) -> _Control:
    """What to look for, before and after the tokenizer's own normalisation.

    Template and size are in the cache's key: they may be changed after the tokenizer was used.
    """
    backend = getattr(tokenizer, "backend_tokenizer", None)
    normalizer = getattr(backend, "normalizer", None)
    normalize = normalizer.normalize_str if normalizer is not None else _as_it_is

    pieces = {*_special_tokens(tokenizer), *_turn_marks(tokenizer)}
    pieces |= {normalize(piece) for piece in pieces}
    longest_first = sorted((piece for piece in pieces if piece.strip()), key=len, reverse=True)
    nothing = r"(?!)"
    return _Control(re.compile("|".join(map(re.escape, longest_first)) or nothing), normalize)


def _special_tokens(tokenizer: PreTrainedTokenizerBase) -> set[str]:
    """Special tokens that are more than a word of the vocabulary, as a padding token "!" is not."""
    tokens = {str(token) for token in tokenizer.added_tokens_decoder.values() if token.special}

    def ids(token: str, *, as_text: bool) -> list[int]:
        found: list[int] = tokenizer.encode(
            token, add_special_tokens=False, split_special_tokens=as_text
        )
        return found

    return {
        token
        for token in tokens | set(tokenizer.all_special_tokens)
        if ids(token, as_text=False) != ids(token, as_text=True)
    }


def _turn_marks(tokenizer: PreTrainedTokenizerBase) -> set[str]:
    """What the chat template writes between turns to tell them apart, be it a token or not."""
    said = ["paint-says-1", "paint-says-2", "paint-says-3"]
    roles = ["user", "assistant", "user"]
    messages = [{"role": role, "content": text} for role, text in zip(roles, said, strict=True)]
    text = ""
    with suppress(TemplateError):  # a template for one turn only has nothing between two
        text = tokenizer.apply_chat_template(messages, tokenize=False)
    places = [text.find(part) for part in said]
    if -1 in places:
        return set()

    within_turns = {str(t) for t in tokenizer.added_tokens_decoder.values() if not t.special}
    within_turns |= {"<think>", "</think>"}
    marks = set()
    for i in (0, 1):
        between = text[places[i] + len(said[i]) : places[i + 1]]
        marks |= set(_MARK.findall(between)) - within_turns or {between.rstrip()}
    return marks


def _as_it_is(text: str) -> str:
    return text
