"""Where a completion's thought ends and its answer begins, in the spellings that models use.

    <think> ... </think>   [THINK] ... [/THINK]   <|begin_of_thought|> ... <|end_of_thought|>
    ◁think▷ ... ◁/think▷   <seed:think> ... </seed:think>   <|channel>thought ... <channel|>
    <|channel|>analysis<|message|> ... <|end|><|start|>assistant<|channel|>final<|message|>

A bracketed name is a tag if one of its parts is a word such as "think". Tags that are spelled in
another way are those of a model's template, and are given with a completion.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

WORDS = frozenset(
    (
        *("think", "thinking", "thought", "thoughts", "reason", "reasoning", "analysis"),
        *("scratchpad", "ponder", "pondering", "reflect", "reflection"),
    )
)
"""Words of which one is a part of a tag's name, as in ``<seed:think>`` and ``[BEGIN_THINK]``."""

_BEGIN = frozenset(("begin", "start", "of"))
_END = frozenset(("end", "stop"))
_NOT = frozenset(("no", "non", "not"))  # but <think_never_used_...> opens a thought

_BRACKETED = re.compile(r"[<\[◁][^<>\[\]◁▷\n]{1,100}(?:[>▷]|\](?!\())")  # no link of Markdown
_TAG = re.compile(  # the bar is narrow or wide
    r"(?P<bracket><|\[|◁)(?P<slash>/?)[|\uff5c]?(?P<inner_slash>/?)"
    r"(?P<name>[A-Za-z][\w:.-]*)(?:\s+[\w-]+\s*=.*)?\s?[|\uff5c]?(?:>|\]|▷)"
)


@dataclass(frozen=True)
class ThoughtTags:
    """The text that opens a thought, and the text that closes it."""

    opening: str
    closing: str

    def __str__(self) -> str:
        return f"{self.opening} ... {self.closing}"

    @property
    def is_known(self) -> bool:
        """True if this spelling is known without a model's template."""
        return bool(open_thought(self.opening)) and not open_thought(self.opening + self.closing)


class ThoughtSplit(NamedTuple):
    """A completion's thought and its answer."""

    thought: str  # with its tags; "" without one
    answer: str | None  # None if the thought is still open


class Thought(NamedTuple):
    """The places of a closed thought in a text."""

    start: int
    text_start: int  # behind its opening tag
    text_end: int
    end: int  # behind its closing tag


class _Spelling(NamedTuple):
    """A spelling that is no bracketed name, as patterns."""

    opening: str
    closing: str  # closes this thought
    answer_pattern: str = r"(?!)"  # of ``closing``, what follows a thought also without its opening


_FINAL_CHANNEL = (
    r"(?:<\|(?:end|call)\|>\s*)?(?:<\|start\|>\s*assistant\s*)?"
    r"<\|channel\|>\s*final[^<]{0,40}(?:<\|constrain\|>[^<]{0,40})?<\|message\|>"
)
_SPELLINGS = (
    _Spelling(  # of gpt-oss
        r"<\|channel\|>\s*(?:analysis|commentary)",
        rf"{_FINAL_CHANNEL}|<\|(?:end|call|return)\|>",
        _FINAL_CHANNEL,
    ),
    _Spelling(r"<\|channel>", r"<channel\|>", r"<channel\|>"),  # of Gemma 4
    _Spelling(r"<\|inner_prefix\|>", r"<\|inner_suffix\|>", r"<\|inner_suffix\|>"),  # of Apertus
    _Spelling(r"<unused94>", r"<unused95>", r"<unused95>"),  # of MedGemma
)


class _Tag(NamedTuple):
    """A tag in a text: the kind of thought that it opens or closes."""

    kind: object
    start: int
    end: int
    opens: bool
    needs_opening: bool = False  # it closes nothing but an open thought of its kind


def split_thought(text: str, tags: Sequence[ThoughtTags] = ()) -> ThoughtSplit:
    """Split a completion, special tokens included, behind its last closed thought.

    A closing tag without an opening one ends a thought, too, which the prompt opened. Where the
    prompt opens the thought, the caller puts its tag in front; otherwise
    an answer in a thought that was cut off would count. ``tags`` are the model's own.
    """
    begin, open_at = _scan(text, tags)
    if open_at is not None:
        return ThoughtSplit(text[open_at:], None)
    return ThoughtSplit(text[:begin], text[begin:])


def open_thought(text: str, tags: Sequence[ThoughtTags] = ()) -> str:
    """The end of a text from the tag that leaves a thought open; "" if none is open."""
    _, open_at = _scan(text, tags)
    if open_at is None:
        return ""
    return text[open_at:]


def is_thought_tag(text: str) -> bool:
    """True if a text is an opening or closing tag of a known spelling."""
    found = _tags(text, ())
    return len(found) == 1 and (found[0].start, found[0].end) == (0, len(text))


def closing_spellings(opening: str) -> list[str]:
    """Closing tags that would fit an opening one, the most usual first; [] if it has no name."""
    found = _TAG.fullmatch(opening)
    if found is None:
        return []
    bracket, name = found.end("bracket"), found.start("name")
    spellings = [f"{opening[:bracket]}/{opening[bracket:]}"]
    if name > bracket:  # the slash of <|think|> is on either side of the bar
        spellings.append(f"{opening[:name]}/{opening[name:]}")
    for begin, end in (("begin", "end"), ("start", "end"), ("BEGIN", "END"), ("START", "END")):
        if begin in opening:
            spellings.insert(0, opening.replace(begin, end))
    return spellings


def unopened_tags(text: str) -> ThoughtTags | None:
    """The tags of a thought that a text closes without opening one; None if it does not.

    Of spellings whose opening tag is unknown from the closing one, None, too.
    """
    first = next(iter(_tags(text, ())), None)
    if first is None or first.opens:
        return None
    closing = text[first.start : first.end]
    opening = closing.replace("/", "", 1)
    if opening == closing or not open_thought(opening):
        return None
    return ThoughtTags(opening, closing)


class ThoughtScan:
    """The thoughts of a text, read from left to right, so that parts of it can be passed over."""

    def __init__(self, text: str, tags: Sequence[ThoughtTags] = ()) -> None:
        self.answer = 0
        """Where the answer begins behind the thoughts so far."""
        self.open_at: int | None = None
        """Where the thought begins that is open; None outside of thoughts."""
        self.text_at = 0
        """Where the text of the last opened thought begins, behind its tag."""
        self.thoughts: list[Thought] = []
        """The closed thoughts so far."""
        self._kind: object = None
        self._rest = iter(_tags(text, tags))
        self._next = next(self._rest, None)

    def read(self, place: int) -> None:
        """Read the tags that begin before a place."""
        while self._next and self._next.start < place:
            self._read(self._next)
            self._next = next(self._rest, None)

    def skip(self, place: int) -> None:
        """Pass over the tags that begin before a place: they are text, as in a call of a tool."""
        while self._next and self._next.start < place:
            self._next = next(self._rest, None)

    def _read(self, tag: _Tag) -> None:
        if self.open_at is None:
            if tag.opens:
                self.open_at, self.text_at, self._kind = tag.start, tag.end, tag.kind
            elif not tag.needs_opening:
                self.thoughts = [Thought(0, 0, tag.start, tag.end)]
                self.answer = tag.end
        # Within a thought, tags of another kind are text.
        elif tag.kind == self._kind and not tag.opens:
            self.thoughts.append(Thought(self.open_at, self.text_at, tag.start, tag.end))
            self.answer, self.open_at = tag.end, None


def _scan(text: str, tags: Sequence[ThoughtTags]) -> tuple[int, int | None]:
    """Where the answer begins, and where the thought begins that is still open, if one is."""
    scan = ThoughtScan(text, tags)
    scan.read(len(text))
    return scan.answer, scan.open_at


def _tags(text: str, own: Sequence[ThoughtTags]) -> list[_Tag]:
    """All tags in a text, in its order; the model's own ones before others at the same place."""
    found: list[_Tag] = []
    for number, pair in enumerate(pair for pair in own if not pair.is_known):
        for literal, opens in ((pair.opening, True), (pair.closing, False)):
            # Without a slash it may be a text that stands elsewhere, too: alone it ends no thought.
            is_plain = not opens and "/" not in literal
            found.extend(
                _Tag(f"own {number}", m.start(), m.end(), opens, is_plain)
                for m in re.finditer(re.escape(literal), text)
            )
    # Each of these has a "<", and most texts have none. Files of 200,000 rows are searched.
    spellings = _SPELLINGS if "<" in text else ()
    for number, spelling in enumerate(spellings):
        found.extend(
            _Tag(number, m.start(), m.end(), opens=True)
            for m in re.finditer(spelling.opening, text)
        )
        for m in re.finditer(spelling.closing, text):
            is_plain = re.fullmatch(spelling.answer_pattern, m[0]) is None
            found.append(_Tag(number, m.start(), m.end(), opens=False, needs_opening=is_plain))
    for m in _BRACKETED.finditer(text):
        known = _known_tag(m[0])
        if known is not None:
            kind, opens = known
            found.append(_Tag(kind, m.start(), m.end(), opens))
    # sorted is stable: of tags at one place, the one that was found first stays first.
    return sorted(found, key=lambda tag: tag.start)


@lru_cache(maxsize=1024)
def _known_tag(text: str) -> tuple[object, bool] | None:
    """The kind of a bracketed name and whether it opens a thought; None if it is no tag."""
    found = _TAG.fullmatch(text)
    if found is None:
        return None
    name, bracket = found["name"], found["bracket"]
    parts = [part for part in re.split(r"[^a-z0-9]+", name.lower()) if part]
    if WORDS.isdisjoint(parts) or not _NOT.isdisjoint(parts):
        return None
    if bracket == "[" and not name.isupper() and "think" not in parts:
        return None  # [Reasoning] is a heading
    closes = bool(found["slash"] or found["inner_slash"]) or not _END.isdisjoint(parts)
    kind = bracket, *(part for part in parts if part not in _BEGIN | _END)
    return kind, not closes
