"""Messages of chats in rows: the keys that are read, the turns that are learned, and plain values.

    {"role": "assistant", "content": "4", "name": null, "weight": false}
        -> {"role": "assistant", "content": "4", "weight": 0}

A key that nothing reads is refused, since it may say how its message is to be used. An entry of an
object that is null counts as missing, in every kind of file: Arrow (Parquet, data sets of the hub)
gives each object the keys of all others of its column, and null where it has none of its own.
"""

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any, TypeGuard

from chatforms.messages import THOUGHT_FIELDS
from paint.data.readers import BadRow, Number, is_text, kind_of, shorten

WEIGHT = "weight"
"""Key by which a message says whether it is learned: 0 or 1, true or false."""

_CHAT_KEYS = ("role", "content", WEIGHT)
_CONVERSATION_KEYS = (*_CHAT_KEYS, "name", "tool_calls", "tool_call_id", *THOUGHT_FIELDS)
_CALL_KEYS = ("id", "type", "function", "name", "arguments")


def is_chat(value: object) -> TypeGuard[list[dict[str, Any]]]:
    """Return whether a value is a list of chat messages, as TRL takes them."""
    return isinstance(value, list) and bool(value) and all(isinstance(m, dict) for m in value)


def read_chat(messages: Sequence[Mapping[str, Any]], name: str) -> list[tuple[str, str]]:
    """Return role and text of the chat messages in field `name`. Raises BadRow for others."""
    turns = []
    for number, message in enumerate(messages, start=1):
        given = _given(message)
        role, content = given.get("role"), message.get("content")
        calls = "; calls of tools are read with data.turns all" if "tool_calls" in given else ""
        if not (is_text(role) and is_text(content)) or calls:
            detail = f": message {number} is {shorten(message)}; it must be a role and a content"
            raise BadRow(f'field "{name}" is no chat', f"{detail}, both text{calls}")
        _require_known_keys(given, _CHAT_KEYS, f'field "{name}"', f"message {number}")
        is_marked_learned(message, name, number)
        require_unicode(content, name)
        turns.append((role, content))
    return turns


def read_conversation_messages(
    messages: Sequence[Mapping[str, Any]], name: str, before: int = 0
) -> list[Mapping[str, Any]]:
    """Return the messages of field `name` that may call tools, with a text as content.

    A turn that is not to be learned has a weight of 0; other weights are left out. ``before`` are
    messages before them, for errors. Raises BadRow for what is none, and where no turn is learned.
    """
    later: list[Mapping[str, Any]] = []
    for number, message in enumerate(messages, start=before + 1):
        given = _given(message)
        calls = given.get("tool_calls", [])
        is_said = is_text(given.get("content")) or (bool(calls) and "content" not in given)
        # A tool may have found nothing.
        is_said = is_said or (message.get("role") == "tool" and message.get("content") == "")
        if not is_text(given.get("role")) or not is_said or not isinstance(calls, list):
            detail = f": message {number} is {shorten(message)}; it must be a role and a content"
            raise BadRow(f'field "{name}" is no chat', f"{detail}, both text, or tool_calls")
        _require_known_keys(given, _CONVERSATION_KEYS, f'field "{name}"', f"message {number}")
        for call in calls:
            _require_known_call(call, f'field "{name}"', f"a call of message {number}")
        mark = {} if is_marked_learned(message, name, number) else {WEIGHT: 0}
        said = {key: value for key, value in given.items() if key != WEIGHT}
        later.append({"content": "", **json_value(said, name), **mark})
    if not any(map(is_learned, later)):
        raise BadRow(f'field "{name}" has no turn to learn', ": all have the weight 0")
    return later


def is_learned(message: Mapping[str, Any]) -> bool:
    """Return whether a message of ``read_conversation_messages`` is a turn that is learned."""
    return bool(message["role"] == "assistant" and message.get(WEIGHT, 1))


def is_marked_learned(message: Mapping[str, Any], name: str, number: int) -> bool:
    """Return False for a message of field `name` that says that it is not to be learned.

    Raises BadRow for a weight that is neither 0 nor 1, and for another's turn than the assistant's
    that is to be learned.
    """
    weight = message.get(WEIGHT)
    if weight is None:
        return True
    value = json_value(weight, name)
    if not isinstance(value, int | float) or value not in (0, 1):
        detail = f': message {number} has "weight" {shorten(weight)}; it must be 0 or 1'
        raise BadRow(f'field "{name}" weighs a turn', f"{detail}, or true or false")
    if value and message.get("role") != "assistant":
        detail = f': message {number} has "weight" {shorten(weight)}; leave it out'
        raise BadRow(f"field \"{name}\" has others' turns to learn than the assistant's", detail)
    return bool(value)


def _given(message: Mapping[str, Any]) -> dict[str, Any]:
    """What a message says: null, an empty list, as of tool_calls, and an empty text say nothing."""
    return {key: value for key, value in message.items() if value not in (None, [], "")}


def _require_known_call(call: Any, field: str, place: str) -> None:
    if not isinstance(call, Mapping):
        return  # refused where calls are rendered
    _require_known_keys(_given(call), _CALL_KEYS, field, place)
    if isinstance(call.get("function"), Mapping):
        _require_known_keys(_given(call["function"]), ("name", "arguments"), field, place)


def _require_known_keys(
    given: Mapping[str, Any], known: Sequence[str], field: str, place: str
) -> None:
    for key, value in given.items():
        if key not in known:
            hint = "leave it out, or write it as one that is read: " + ", ".join(known)
            if key in _CONVERSATION_KEYS:
                hint = "it is read from the first turn of the assistant on, with data.turns all"
            detail = f': {place} has a key "{key}" (value {shorten(value)}); {hint}'
            raise BadRow(f"{field} has a key that is not read", detail)


def json_value(value: Any, name: str) -> Any:
    """Return a value of field `name` as JSON has it, without entries of objects that are null.

    Raises BadRow for what JSON does not have, such as dates and numbers that are not finite.
    """
    if isinstance(value, Number):
        try:
            value = json.loads(value)
        except ValueError:  # more digits than Python converts
            raise _no_json(value, name) from None
    if isinstance(value, Mapping):
        for key in value:
            require_unicode(str(key), name)
        return {key: json_value(item, name) for key, item in value.items() if item is not None}
    if isinstance(value, list):
        return [json_value(item, name) for item in value]
    if isinstance(value, str):
        require_unicode(value, name)
        return value
    is_finite = isinstance(value, int) or (isinstance(value, float) and math.isfinite(value))
    if not (value is None or is_finite):
        raise _no_json(value, name)
    return value


def _no_json(value: Any, name: str) -> BadRow:
    detail = f": {kind_of(value)} (value {shorten(value)}); convert it to text"
    return BadRow(f'field "{name}" holds a value that JSON does not have', detail)


def require_unicode(text: str, name: str) -> None:
    """Raise BadRow for text of field `name` that has no UTF-8."""
    try:
        # JSON can spell half of a surrogate pair (\ud83d), which is no text: it has no UTF-8.
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        detail = f": half a surrogate pair at character {error.start + 1}"
        raise BadRow(f'field "{name}" is not valid Unicode', detail) from None
