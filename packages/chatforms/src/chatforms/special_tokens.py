"""Detection of control text, such as special tokens, in texts that others wrote.

A tokenizer turns ``<|im_end|>`` into a control token anywhere, also inside a question or an answer;
so does any server that renders the same chat template. Such text could end a turn and start
another one. It is not escaped by other tokens, since a server would tokenise the same text
differently: a prompt that contains it is refused.

Control text is every special token of the tokenizer, and the text that the chat template writes
between two turns. Tokens such as ``<think>`` belong to a turn, are not special, and are allowed.
"""

import re
from contextlib import suppress
from typing import NamedTuple

from jinja2 import TemplateError
from tokenizers.normalizers import NFC, NFD, NFKC, NFKD
from transformers import PreTrainedTokenizerBase

from chatforms.errors import ChatFormError
from chatforms.rendering import by_template, render_chat
from strictgrade.thoughts import is_thought_tag

_MARK = re.compile(r"<\|?[^<>\s]{1,60}>|<<[^<>\s]{1,60}>>|\[/?[A-Z_]{2,40}\]")
"""Marks of turns in chat templates: <|user|>, <start_of_turn>, <<SYS>>, [/INST]."""


_UNICODE_FORMS = NFC, NFD, NFKC, NFKD


def special_text(tokenizer: PreTrainedTokenizerBase, text: str) -> str | None:
    """Return the first piece of control text in a text, or None."""
    control = _control(tokenizer).pattern
    found = control.search(text) or control.search(normalized(tokenizer, text))
    if found:
        return found[0]
    return None


def require_no_control(tokenizer: PreTrainedTokenizerBase, text: str) -> None:
    """Raise ChatFormError for a text with control text, which would change the conversation."""
    piece = special_text(tokenizer, text)
    if piece:
        raise ChatFormError(
            f"a text contains {piece!r}, which the model's chat format takes for control; it "
            f"would change the conversation; spell it differently ({text[:60]!r} ...)"
        )


def drop_special_text(tokenizer: PreTrainedTokenizerBase, text: str) -> str:
    """Return a text without control text, also without what a removal creates."""
    control = _control(tokenizer)
    while True:
        text = control.removed_from(text)
        form = normalized(tokenizer, text)
        if control.pattern.search(form) is None:
            return text
        text = form


class _Control(NamedTuple):
    """The pieces of control text of a tokenizer."""

    pattern: re.Pattern[str]
    longest: int
    """The length of the longest piece."""

    def removed_from(self, text: str) -> str:
        """Return the text without its first piece, and so on until it has none.

        Takes time in proportion to the text's length, however pieces are nested.
        """
        kept, place = list[str](), 0  # the characters that stay, and where the rest begins
        while found := self.pattern.search(text, place):
            kept.extend(text[place : found.start()])
            place = found.end()
            while True:  # what stands on both sides of a removed piece may be a piece, too
                before = "".join(kept[-self.longest :])
                joined = self.pattern.search(before + text[place : place + self.longest])
                if joined is None or joined.start() >= len(before):
                    break
                del kept[len(kept) - len(before) + joined.start() :]
                place += joined.end() - len(before)
        return "".join(kept) + text[place:]


@by_template()
def _control(tokenizer: PreTrainedTokenizerBase) -> _Control:
    pieces = _turn_delimiters(tokenizer)
    special = [str(token) for token in tokenizer.added_tokens_decoder.values() if token.special]
    for token in {*special, *tokenizer.all_special_tokens}:
        as_text = tokenizer.encode(token, add_special_tokens=False, split_special_tokens=True)
        # A special token may be a word of the vocabulary, such as a padding token "!".
        if as_text != tokenizer.encode(token, add_special_tokens=False):
            pieces.add(token)
    pieces |= {normalized(tokenizer, piece) for piece in pieces}
    # Of alternatives, re takes the first that matches, not the longest.
    longest_first = sorted((piece for piece in pieces if piece.strip()), key=len, reverse=True)
    matches_nothing = r"(?!)"
    pattern = re.compile("|".join(map(re.escape, longest_first)) or matches_nothing)
    return _Control(pattern, max(map(len, longest_first), default=1))


def normalized(tokenizer: PreTrainedTokenizerBase, text: str) -> str:
    """Return what the tokenizer's normalizer makes of a text; the text itself without one."""
    # Some tokenizers look for special tokens in what they normalised: <END> may be <end> to them.
    backend = getattr(tokenizer, "backend_tokenizer", None)
    normalizer = getattr(backend, "normalizer", None)
    # It takes longer than all else that is asked of a text, and ASCII is what Unicode's forms keep.
    if normalizer is None or (text.isascii() and isinstance(normalizer, _UNICODE_FORMS)):
        return text
    return str(normalizer.normalize_str(text))


def _turn_delimiters(tokenizer: PreTrainedTokenizerBase) -> set[str]:
    """Text that the chat template writes between turns to separate them, token or not."""
    turns = [("user", "trial-says-1"), ("assistant", "trial-says-2"), ("user", "trial-says-3")]
    text = ""
    with suppress(TemplateError):  # a template for a single turn has no text between turns
        chat = [{"role": role, "content": content} for role, content in turns]
        text = render_chat(tokenizer, chat)
    within_turns = set()
    for token in tokenizer.added_tokens_decoder.values():
        if not token.special:
            within_turns.add(str(token))
    delimiters = set()
    for between in re.findall(r"(?s)trial-says-[12](.*?)(?=trial-says-[23])", text):
        found = set()
        for mark in _MARK.findall(between):
            if mark not in within_turns and not is_thought_tag(mark):
                found.add(mark)
        delimiters |= found or {between.rstrip()}
    return delimiters
