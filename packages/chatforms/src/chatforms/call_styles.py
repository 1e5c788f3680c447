"""How chat templates spell a call of a tool, found by rendering one.

The marks are what the template writes around the call, such as <tool_call> and [TOOL_CALLS]; what
is between them is one of four spellings (``chatforms.spellings``).
"""

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from transformers import PreTrainedTokenizerBase

from chatforms.chat_template import TRIAL_TOOL, ToolTurns, tool_turns, trial_call
from chatforms.conventions import (
    RENDERING_ERRORS,
    common_length,
    render_turns,
    thought_field,
    thought_tags,
)
from chatforms.errors import FIX, ChatFormError
from chatforms.messages import Message
from chatforms.rendering import by_template
from chatforms.spellings import (
    ANY,
    Literals,
    LiteralSpelling,
    NamedSpelling,
    ObjectSpelling,
    Spelling,
    TagSpelling,
    UnreadCall,
    flexible,
)
from strictgrade.thoughts import ThoughtTags

_QUESTION, _ANSWER = "trial-question", "zz-answer"
_NAMES = "trial_tool_1", "trial_tool_2"
_KEYS, _VALUES = ("trialkey1", "trialkey2"), ("trialvalue1", "trialvalue2")
_ARGUMENTS = dict(zip(_KEYS, _VALUES, strict=True))
_MIXED: Mapping[str, Any] = {_KEYS[0]: 'a "b"\nc', "number": 3, "switch": True, "list": ["d"]}

_NAME_KEYS = "name", "function", "tool", "tool_name", "function_name"
"""Keys by which models name the tool of a call."""


@dataclass(frozen=True)
class CallStyle:
    """How a model's chat template spells calls and thoughts, and what it takes of them."""

    spelling: Spelling
    before: str  # all calls of a turn
    opening: str  # of each call
    closing: str
    after: str  # all calls of a turn
    between: str  # two calls, beside their marks
    header: str  # what begins an assistant's turn
    example: str  # a turn with one call
    turns: ToolTurns
    tags: tuple[ThoughtTags, ...]  # of thoughts
    thought_field: str  # of a message; "" if thoughts stay in its content
    tokenizer: PreTrainedTokenizerBase = field(repr=False, compare=False)

    @cached_property
    def entry(self) -> re.Pattern[str]:
        """What begins the first call."""
        if self.is_bare:
            start = rf"^[ \t]*(?:`{{3}}\w*[ \t]*)?{self._tokens}{self._before}"
            begins = [rf"{start}(?={self._body})"]
            if isinstance(self.spelling, ObjectSpelling):
                # A list of objects; or Python's call, which is read to be told.
                begins[0] = rf"{start}(?:\[\s*)?(?={self._body})"
                begins.append(rf"{start}(?:(?<=>)|\[\s*)(?=[\w.]+\()")
            return re.compile("|".join(begins), re.MULTILINE)
        return re.compile(rf"{_optional(self.header)}{self._before}{flexible(self.opening)}")

    @cached_property
    def again(self) -> re.Pattern[str]:
        """What begins a further call behind another one."""
        # White space is taken at once: tried in all ways, a page of it would take minutes.
        between = rf"\s*+{_optional(self.between)}"
        if self.is_bare and isinstance(self.spelling, ObjectSpelling):
            return re.compile(rf"{between}[,;]?\s*+{self._tokens}(?={self._body})")
        if self.opening.strip():
            # A model that writes calls without marks between them writes the opening mark.
            return re.compile(rf"{between}[,;]?\s*+{self.entry.pattern}")
        # Objects behind a mark may follow each other in lines, as MiniMax's.
        is_optional = isinstance(self.spelling, ObjectSpelling)
        return re.compile(rf"{between}[,;]{'?' * is_optional}\s*+(?={self._body})")

    @cached_property
    def inner(self) -> re.Pattern[str]:
        """What begins a further call within the marks of another one."""
        if self.is_bare:
            return re.compile(r"(?!)")  # ``again`` finds it
        passed = [*map(re.escape, self.closing.split()[:-1]), r"[\s,;]"]
        mark = flexible(self.opening.rpartition(">")[2].strip())  # as <function=, or call:
        if self.opening.strip().endswith("]"):  # no part of it belongs to the call
            mark = ""
        body = self._body
        if isinstance(self.spelling, NamedSpelling):
            body = rf"[^\W\d][\w.-]*\s*{flexible(self.spelling.middle)}"
        elif isinstance(self.spelling, TagSpelling):
            body = r"[^\W\d]" if mark else r"(?!)"
        return re.compile(rf"(?:{'|'.join(passed)})*+{mark}(?={body})")

    @cached_property
    def closing_mark(self) -> re.Pattern[str]:
        """What ends each call, if anything does."""
        return re.compile(flexible(self.closing) or r"(?!)")

    @cached_property
    def end(self) -> re.Pattern[str]:
        """What ends each call, at its end."""
        # Models close one bracket too much.
        return re.compile(rf"(?:[\s\]}}]*{self.closing_mark.pattern})?")

    def last(self, opened: str) -> re.Pattern[str]:
        """What follows the last call of those that begin with a text."""
        if self.is_bare:
            return re.compile(r"\s*\]" if opened.rstrip().endswith("[") else r"\s*")
        return re.compile(rf"\s*{_optional(self.after)}")

    def ends(self, opened: str, *, is_closed: bool, is_last: bool) -> list[re.Pattern[str]]:
        """The marks that are still to follow calls that begin with a text.

        ``is_closed`` and ``is_last``: whether those of the last call and of all calls are there.
        """
        is_list = opened.rstrip().endswith("[")
        marks = [] if is_closed else [self.closing]
        if not is_last:
            marks.append(self.after if self.before.strip() else "]" * (is_list and self.is_bare))
        # The last part of each: models leave out what is before it, such as a bracket.
        parts = [mark.split()[-1].lstrip("]`") or "]" * is_list for mark in marks if mark.strip()]
        return [re.compile(flexible(part)) for part in parts if part]

    @property
    def is_bare(self) -> bool:
        """Whether calls have no mark, so that they are told by their form at a line's beginning."""
        return not re.search(r"\w", self.before + self.opening)

    def is_meant(self, text: str, place: int, names: Collection[str]) -> bool:
        """Whether what cannot be read as a call without a mark is meant as one.

        It names a tool, or begins as a call does; an answer may be an object, too.
        """
        if not isinstance(self.spelling, ObjectSpelling):
            return True
        named = re.compile(r"([\w.]+)\(").match(text, place)
        if named:
            return not {*named[1].split(".")}.isdisjoint(names)
        begins = re.compile(rf"\{{\s*[\"']{re.escape(self.spelling.name_key)}[\"']\s*:\s*").match(
            text, place
        )
        if begins and self.spelling.arguments_key in text[place:]:
            return True
        value = _value_at(text, place)
        if isinstance(value, Mapping):
            inner: list[Any] = [value]
            for part in value.values():
                inner += part if isinstance(part, list) else [part]
            return any(_names_tool(part, names) for part in inner if isinstance(part, Mapping))
        name = _value_at(text, begins.end()) if begins else None
        return isinstance(name, str) and name in names

    @property
    def _before(self) -> str:
        mark = self.before.strip()
        if self.opening.strip() or self.is_bare:
            return _optional(mark)
        if mark.endswith("["):  # of a list, which a model may leave out
            return rf"{flexible(mark[:-1])}\s*\[?\s*"
        return rf"{flexible(mark)}\s*"

    @property
    def _body(self) -> str:
        if isinstance(self.spelling, ObjectSpelling):
            return r"\{"
        opening = getattr(self.spelling, "opening", "{")
        return rf"[^\W\d][\w.]*\s*{re.escape(opening)}"

    @property
    def _tokens(self) -> str:
        """Special tokens and other marks before a call that has none: Llama's <|python_tag|>."""
        tokens = self.tokenizer.added_tokens_decoder.values()
        special = [re.escape(str(token)) for token in tokens if token.special]
        each = "|".join([*special, r"<[^<>\s]{1,40}>"])
        return rf"(?:(?:{each})\s*+){{0,4}}"


def _names_tool(value: Mapping[str, Any], names: Collection[str]) -> bool:
    """Whether an object has the name of a tool where models write it."""
    found = [value.get(key) for key in _NAME_KEYS]
    if len(value) == 1:  # {"add": {"a": 2}}
        found += [key for key, part in value.items() if isinstance(part, Mapping)]
    return any(isinstance(name, str) and name in names for name in found)


def _optional(mark: str) -> str:
    return rf"(?:{flexible(mark)}\s*+)?" if mark.strip() else ""


@by_template()
def call_style(tokenizer: PreTrainedTokenizerBase) -> CallStyle:
    """Return how the chat template of a tokenizer spells calls of tools.

    Raises ChatFormError for a template without calls and results, or with an unknown spelling.
    """
    whose = f"the chat template of {tokenizer.name_or_path}"
    advice = f"use a model whose template has tools, such as Qwen2.5, or {FIX}"
    turns = tool_turns(tokenizer)
    if turns is None:
        raise ChatFormError(f"{whose} has no calls of tools, or no results of them; {advice}")
    trial = _Trial(tokenizer, turns)
    shown = repr(trial.one.replace(ANY, "..."))
    try:
        spelling, back = _spelling(trial)
        style = CallStyle(
            spelling=spelling,
            **_marks(trial, spelling, back),
            header=trial.header,
            example=trial.one,
            turns=turns,
            tags=thought_tags(tokenizer),
            thought_field=thought_field(tokenizer),
            tokenizer=tokenizer,
        )
        # Without a mark, a call must be told from other text by its form.
        is_told = not style.is_bare or isinstance(spelling, ObjectSpelling | LiteralSpelling)
        is_known = is_told and _reads(style, trial)
    except UnreadCall:
        is_known = False
    if not is_known:
        raise ChatFormError(f"{whose} spells calls in an unknown way: {shown}; {advice}")
    return style


def _reads(style: CallStyle, trial: "_Trial") -> bool:
    """Whether calls with values of several types are read as they were given."""

    def typed(name: str, key: str, text: str) -> Any:
        return text if key == _KEYS[0] else Literals(text).value()

    names = _NAMES if style.turns.several else _NAMES[:1]
    text = trial.calls(names, _MIXED)
    mark = style.entry.search(text)
    for name in names:
        if mark is None:
            return False
        call, place = style.spelling.read(text, mark.end(), typed)
        if (call.name, call.arguments) != (name, _MIXED):
            return False
        end = style.end.match(text, place)
        mark = style.again.match(text, end.end() if end else place)
    return True


class _Trial:
    """Renderings of assistant's turns with calls, without what ends such a turn."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, turns: ToolTurns) -> None:
        self._tokenizer, self._turns = tokenizer, turns
        plain = self._turn({"content": _ANSWER})
        self._tail = plain.partition(_ANSWER)[2].strip()
        self._plain = plain.partition(_ANSWER)[0] + _ANSWER
        asked = self._render([])
        prompt = self._render([], begins_reply=True)
        self.header = prompt.removeprefix(asked).strip() if prompt.startswith(asked) else ""
        self.one = self.calls(_NAMES[:1])
        self.two = self.calls(_NAMES) if turns.several else ""
        self.empty = self.calls(_NAMES[:1], {})

    def calls(self, names: Sequence[str], arguments: Mapping[str, Any] = _ARGUMENTS) -> str:
        """A turn with calls, without their ids; "" where the template refuses it."""
        calls = [trial_call(name, arguments) for name in names]
        try:
            turn = self._turn({"content": "", "tool_calls": calls})
        except RENDERING_ERRORS:
            return ""
        start = common_length(turn, self._plain)
        shared = turn[:start]
        if shared.rfind("<") > shared.rfind(">"):  # within a mark
            start = shared.rfind("<")
        turn = re.sub(r"call0000\d", ANY, turn)
        return turn[start:].strip().removesuffix(self._tail).strip()

    def _turn(self, message: Message) -> str:
        return self._render([{"role": "assistant", **message}])

    def _render(self, messages: Sequence[Message], *, begins_reply: bool = False) -> str:
        """What follows the question."""
        chat = self._turns.messages([{"role": "user", "content": _QUESTION}, *messages])
        text = render_turns(
            self._tokenizer, chat, thinking=True, tools=[TRIAL_TOOL], begins_reply=begins_reply
        )
        return text.partition(_QUESTION)[2]


def _spelling(trial: _Trial) -> tuple[Spelling, int]:
    """The spelling of the trial's call, and how far before its name it begins.

    Raises UnreadCall for a spelling that is not known.
    """
    text = trial.one
    key, value = text.find(_KEYS[0]), text.find(_VALUES[0])
    at = text.rfind(_NAMES[0], 0, max(key, 0))
    if min(at, key, value) < 0:
        raise UnreadCall("it has no name before its arguments")
    for start in (m.start() for m in re.finditer(r"\{", text[:at])):
        found = _object_spelling(text, start)
        if found:
            return found, at - start
    behind = at + len(_NAMES[0])
    start = text.find("{", behind)
    if start >= 0 and _value_at(text, start) == _ARGUMENTS:
        return NamedSpelling(text[behind:start]), 0
    second, last = text.find(_KEYS[1]), text.find(_VALUES[1])
    head, equals = text[behind:key], text[key + len(_KEYS[0]) : value]
    between = text[value + len(_VALUES[0]) : second]
    rest = text[last + len(_VALUES[1]) :]
    literal = _literal_spelling(head, equals, between, rest)
    if literal:
        return literal, 0
    return _tag_spelling(head, equals, between, rest, trial.empty), 0


def _value_at(text: str, start: int) -> Any:
    try:
        return Literals(text, start).value()
    except UnreadCall:
        return None


def _object_spelling(text: str, start: int) -> ObjectSpelling | None:
    """The spelling of a call as an object that begins at a place."""
    outer = _value_at(text, start)
    if not isinstance(outer, dict):
        return None
    inner_keys = [key for key, value in outer.items() if isinstance(value, dict)]
    for inner_key in ("", *inner_keys):
        inner = outer[inner_key] if inner_key else outer
        names = [key for key, value in inner.items() if value == _NAMES[0]]
        arguments = [
            key
            for key, value in inner.items()
            if value == _ARGUMENTS or (isinstance(value, str) and _value_at(value, 0) == _ARGUMENTS)
        ]
        if names and arguments:
            return ObjectSpelling(names[0], arguments[0], inner_key)
    return None


def _literal_spelling(head: str, equals: str, between: str, rest: str) -> LiteralSpelling | None:
    """The spelling of a call with bracketed arguments, whose texts are in quotes."""
    opening, sign, quote = head.strip(), equals.strip()[:1], equals.strip()[1:].strip()
    closing = {"{": "}", "(": ")"}.get(opening)
    separator = between.removeprefix(quote).strip()
    if not closing or not quote or sign not in (":", "=") or separator != ",":
        return None
    if not rest.removeprefix(quote).strip().startswith(closing):
        return None
    return LiteralSpelling(opening, sign, closing, quote)


def _tag_spelling(head: str, equals: str, between: str, rest: str, empty: str) -> TagSpelling:
    """The spelling of a call with tagged arguments, from one with two and one with none.

    Raises UnreadCall where it is no such spelling.
    """
    alone = empty[empty.rfind(_NAMES[0]) + len(_NAMES[0]) :] if _NAMES[0] in empty else ""
    shared = alone[: common_length(alone, head)]
    if shared.rfind("<") > shared.rfind(">"):  # within a tag
        shared = shared[: shared.rfind("<")]
    tail, key_mark = alone[len(shared) :], head[len(shared) :]
    value_end = rest.removesuffix(tail)
    is_whole = bool(tail.strip() and key_mark.strip() and equals.strip() and value_end.strip())
    if not is_whole or not rest.endswith(tail) or between != value_end + key_mark:
        raise UnreadCall("its arguments are spelled in another way")
    return TagSpelling(shared, key_mark, equals, value_end, tail)


def _marks(trial: _Trial, spelling: Spelling, back: int) -> dict[str, str]:
    """The marks around calls, from a turn with one and a turn with two."""

    def region(text: str, number: int) -> tuple[int, int]:
        keys = [m.start() for m in re.finditer(_KEYS[0], text)]
        start = text.rfind(_NAMES[number], 0, keys[number]) - back
        return start, spelling.read(text, start, lambda *texts: texts[2])[1]

    start, end = region(trial.one, 0)
    before = trial.one[:start].replace(_NAMES[0], ANY)
    after = trial.one[end:]
    if not trial.two:
        return {"before": "", "opening": before, "closing": after, "after": "", "between": ""}
    first, second = region(trial.two, 0), region(trial.two, 1)
    between = trial.two[first[1] : second[0]].replace(_NAMES[1], ANY)
    opening = before[len(before) - common_length(before[::-1], between[::-1]) :]
    if -1 < opening.find(">") < (opening.find("<") % (len(opening) + 1)):  # within a mark
        opening = opening[opening.find(">") + 1 :]
    closing = after[: common_length(after, between)]
    if closing.rfind("<") > closing.rfind(">"):
        closing = closing[: closing.rfind("<")]
    middle = between[len(closing) : max(len(closing), len(between) - len(opening))]
    return {
        "before": before[: len(before) - len(opening)],
        "opening": opening,
        "closing": closing,
        "after": after[len(closing) :],
        "between": middle,
    }
