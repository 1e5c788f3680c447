"""Calls of tools in an assistant's turn, and the turns that answer them.

    call_style(tokenizer); read_reply(style, text) -> Reply; answer_calls(style, reply, results)

The spelling is the chat template's (``chatforms.call_styles``). Whatever a text is, it is read:
a call that cannot be read is a fault, in words for the model.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

from chatforms.call_styles import CallStyle
from chatforms.messages import Message, texts_of
from chatforms.special_tokens import drop_special_text, special_text
from chatforms.spellings import CUT_OFF, UNCLOSED, ToolCall, UnreadCall
from chatforms.tool_schemas import name_of_schema, typed_text
from strictgrade.thoughts import ThoughtScan

_ONE_A_MARK = "write each call between marks of its own"
_ONE_CALL = "a turn of yours has one call, so only the first was made"

_SEPARATORS = " \t\r\n,;]})`"
"""What may stand between a call and the end of its marks."""

_MOST_SHOWN = 60
"""Characters of a text that a fault quotes."""

_MOST_FAULTS = 8
"""Calls of a text that cannot be read before the rest of it is not read for calls."""


_MOST_OBJECTS = 200
"""Objects of a text that are no calls, though calls have no mark, before the rest is not read."""


@dataclass(frozen=True)
class Reply:
    """An assistant's turn, read from its text."""

    content: str
    """The text outside of calls, without thought and special tokens. Calls that cannot be read are
    in it."""
    thought: str | None
    """The thought, if the template has a field for it and the text has one."""
    calls: tuple[ToolCall, ...] = ()
    faults: tuple[str, ...] = ()
    """What is wrong with each call that cannot be read, for the model."""
    thought_field: str = field(default="", repr=False)

    def message(self) -> Message:
        """Return the assistant's message for the chat template."""
        message: Message = {"role": "assistant", "content": self.content}
        if self.thought is not None and self.thought_field:
            message[self.thought_field] = self.thought
        if self.calls:
            message["tool_calls"] = [_entry(call) for call in self.calls]
        return message


def _entry(call: ToolCall) -> Message:
    known = {"id": call.call_id} if call.call_id else {}
    function = {"name": call.name, "arguments": call.arguments}
    return {**known, "type": "function", "function": function}


def read_reply(
    style: CallStyle,
    text: str,
    schemas: Sequence[Mapping[str, Any]] = (),
    *,
    opened: str = "",
) -> Reply:
    """Read an assistant's turn from its text, special tokens included. Never raises.

    Args:
        text: the completion; what ends the turn may be in it.
        schemas: the tools' schemas, by which arguments of spellings that have but texts, such as
            Qwen3-Coder's, become numbers, lists and so on.
        opened: the tag of the thought that the prompt leaves open (``Conventions.opened``).
    """
    # A text without half of a surrogate pair, which no tokenizer takes.
    whole = (opened + text).encode("utf-8", "replace").decode()
    groups, scan = _find_groups(style, whole, schemas)
    left = [span for group in groups for span in group.read] + [(0, len(opened))]
    thought = None
    if style.thought_field:
        inner = [(one.text_start, one.text_end) for one in scan.thoughts]
        left += [(one.start, one.end) for one in scan.thoughts]
        if scan.open_at is not None:
            inner.append((scan.text_at, len(whole)))
            left.append((scan.open_at, len(whole)))
        if inner:
            parts = [_plain(style, whole[start:end]).strip() for start, end in inner]
            thought = "\n\n".join(filter(None, parts))
    content = _plain(style, _without(whole, left))
    if groups or thought is not None:
        content = content.strip()
    calls = tuple(call for group in groups for call in group.calls)
    faults = tuple(fault for group in groups for fault in group.faults)
    if not style.turns.several and len(calls) > 1:
        calls, faults = calls[:1], (*faults, _ONE_CALL)
    return Reply(content, thought, calls, faults, style.thought_field)


def tool_message(style: CallStyle, call: ToolCall, result: str) -> Message:
    """Return the turn with the result of a call, without special tokens in it."""
    known = {"tool_call_id": call.call_id} if call.call_id else {}
    text = result.encode("utf-8", "replace").decode()
    return {"role": "tool", "name": call.name, "content": _plain(style, text), **known}


def answer_calls(style: CallStyle, reply: Reply, results: Sequence[str]) -> list[Message]:
    """Return the turns that answer a reply: a result of each call, and its faults.

    Faults are told behind the last result, or in a turn of the user where no call was read, as
    templates take results behind calls alone. [] for a reply without both.
    """
    faults = [f"A call cannot be read: {fault}." for fault in reply.faults]
    if not reply.calls:
        return [{"role": "user", "content": "\n".join(faults)}] if faults else []
    answered = zip(reply.calls, results, strict=True)
    turns = [tool_message(style, call, result) for call, result in answered]
    turns[-1] = tool_message(style, reply.calls[-1], "\n".join([results[-1], *faults]))
    return turns


class _Group(NamedTuple):
    """Calls that follow each other without text in between."""

    start: int
    end: int
    calls: list[ToolCall]
    faults: list[str]
    read: list[tuple[int, int]]  # places of the calls that were read, with their marks


def _find_groups(
    style: CallStyle, whole: str, schemas: Sequence[Mapping[str, Any]]
) -> tuple[list[_Group], ThoughtScan]:
    """The calls of a text outside of its thoughts, and the thoughts."""
    scan, groups, place = ThoughtScan(whole, style.tags), list[_Group](), 0
    passed, faults = 0, 0  # what was no call, and the faults so far
    while faults < _MOST_FAULTS and passed < _MOST_OBJECTS:
        found = style.entry.search(whole, place)
        if found is None:
            break
        scan.read(found.start())
        group = None
        if scan.open_at is None:
            group = _read_group(style, whole, found, schemas)
            passed += group is None
        if group is None:
            place = max(found.end(), found.start() + 1)
            continue
        scan.skip(group.end)
        groups.append(group)
        faults += len(group.faults)
        place = max(group.end, found.start() + 1)
    scan.read(len(whole))
    # A closing tag alone ends a thought that began before these calls.
    begin = scan.thoughts[0].end if scan.thoughts and not scan.thoughts[0].start else 0
    return [group for group in groups if group.start >= begin], scan


def _read_group(
    style: CallStyle, whole: str, found: re.Match[str], schemas: Sequence[Mapping[str, Any]]
) -> _Group | None:
    """The calls from a mark on; None if what follows is not meant as one."""
    group = _Group(found.start(), 0, [], [], [])
    names = {name_of_schema(schema) for schema in schemas}
    start, place = found.span()
    before, is_closed = place, True  # where the last call ends, and whether its mark is closed
    while True:
        try:
            call, place = style.spelling.read(whole, place, partial(typed_text, schemas))
            end = style.end.match(whole, place)
            is_closed = bool(end and end[0])
            place = end.end() if end else place
            fault = _fault(style, call)
        except UnreadCall as unread:
            if style.is_bare and not style.is_meant(whole, place, names):
                if not group.calls and not group.faults:
                    return None
                place = before  # what follows the call is text
                break
            place, has_end = _behind(style, whole, place)
            is_cut = str(unread) == UNCLOSED and not has_end
            fault = CUT_OFF if is_cut else _plain(style, str(unread))
            is_closed = True  # what is between its marks is told of
        if fault:
            group.faults.append(fault)
        else:
            group.calls.append(call)
            group.read.append((start, place))
        before = place
        if len(group.faults) == _MOST_FAULTS:
            break
        again = style.again.match(whole, place)
        if again is None and not is_closed:
            again = style.inner.match(whole, place)
        if again is None:
            break
        start, place = again.span()
    last = style.last(found[0]).match(whole, place)
    if last and group.read and group.read[-1][1] == place:
        group.read.append(last.span())
    place, is_last = (last.end(), bool(last[0].strip())) if last else (place, False)
    for mark in style.ends(found[0], is_closed=is_closed, is_last=is_last):
        left, place = _left_before(style, whole, place, mark)
        if left:
            shown = _plain(style, left)[:_MOST_SHOWN]
            group.faults.append(
                f"behind a call, between its marks, stands {shown!r}; {_ONE_A_MARK}"
            )
    return group._replace(end=place)


def _left_before(
    style: CallStyle, whole: str, place: int, mark: re.Pattern[str]
) -> tuple[str, int]:
    """The text from a place to a mark, without separators, and where the mark ends.

    "" and the same place where no such mark follows before the next call.
    """
    following = style.entry.search(whole, place)
    closing = mark.search(whole, place, following.start() if following else len(whole))
    if closing is None:
        return "", place
    left = whole[place : closing.start()]
    for part in style.closing.split():
        left = left.replace(part, "")
    return (left.strip(), closing.end()) if left.strip(_SEPARATORS) else ("", place)


def _behind(style: CallStyle, whole: str, place: int) -> tuple[int, bool]:
    """Where a call ends that cannot be read, and whether a closing mark is there.

    It ends behind that mark, else before the next call, else with the text.
    """
    following = style.entry.search(whole, place + style.is_bare)  # such a call begins at its place
    limit = following.start() if following else len(whole)
    closing = style.closing_mark.search(whole, place, limit)
    return (closing.end(), True) if closing else (limit, following is not None)


def _fault(style: CallStyle, call: ToolCall) -> str:
    """Why a call cannot stand in a conversation; "" if it can."""
    if not call.name.strip():
        return "its name is empty"
    for text in (call.name, *texts_of(call.arguments)):
        if text != text.encode("utf-8", "replace").decode():
            return "a text in it has half of a surrogate pair"
        if special_text(style.tokenizer, text):
            return "a text in it has a special token"
    return ""


def _plain(style: CallStyle, text: str) -> str:
    return drop_special_text(style.tokenizer, text)


def _without(text: str, spans: Sequence[tuple[int, int]]) -> str:
    """A text without parts of it, which may overlap."""
    kept, place = [], 0
    for start, end in sorted(spans):
        kept.append(text[place : max(place, start)])
        place = max(place, end)
    return "".join([*kept, text[place:]])
