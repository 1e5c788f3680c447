"""Messages of chats as chat templates take them, and the calls of tools in them."""

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from chatforms.errors import MessageError, format_short, reason

Message = dict[str, Any]
"""A turn as chat templates take it: role and content, and a thought, calls of tools or a result."""

THOUGHT_FIELDS = "reasoning_content", "reasoning", "thinking"
"""Fields of messages in which chat templates look for a thought."""

MAX_DEPTH = 100
"""Lists and objects within each other. At the recursion limit of Python any code may fail."""

_STRING = re.compile(r'"(?:[^"\\]++|\\.)*+"?', re.DOTALL)

_EXAMPLE = "{'a': 2, 'b': 3}"


def call_parts(call: Any) -> tuple[str, dict[str, Any]]:
    """Return name and arguments of an entry of ``tool_calls``; arguments may be a JSON text.

    Raises MessageError where it has no name, or arguments that are no JSON object.
    """
    function = call.get("function", call) if isinstance(call, Mapping) else call
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise MessageError(
            f"the call {format_short(call)} has no name",
            f"write it as {{'type': 'function', 'function': {{'name': 'add', 'arguments': "
            f"{_EXAMPLE}}}}}",
        )
    arguments = function.get("arguments", {})
    try:
        if isinstance(arguments, str):
            _require_shallow_text(arguments)
            arguments = json.loads(arguments)
        else:
            _require_shallow(arguments)
    except ValueError as error:
        raise MessageError(
            f"the arguments of the call {format_short(call)} are no JSON: {reason(error)}",
            f"write them as an object, such as {_EXAMPLE}",
        ) from error
    if not isinstance(arguments, dict):
        raise MessageError(
            f"the arguments of the call {format_short(call)} are no object",
            f"write them as one, such as {_EXAMPLE}",
        )
    return function["name"], arguments


def texts_of(arguments: Mapping[str, Any]) -> Iterator[str]:
    """Yield the texts in a call's arguments, as they are and as JSON spells them."""
    yield json.dumps(arguments, ensure_ascii=False)
    stack: list[Any] = [arguments]
    while stack:
        value = stack.pop()
        if isinstance(value, str):
            yield value
        elif isinstance(value, Mapping):
            stack += [*value.keys(), *value.values()]
        elif isinstance(value, list | tuple):
            stack += value


def _require_shallow_text(text: str) -> None:
    """Raise ValueError if lists and objects of a JSON text nest deeper than MAX_DEPTH."""
    depth = 0
    for character in _STRING.sub("", text):
        depth += (character in "[{") - (character in "]}")
        if depth > MAX_DEPTH:
            raise ValueError(f"lists and objects nest deeper than {MAX_DEPTH}")


def _require_shallow(value: object) -> None:
    """Raise ValueError if lists and dicts nest deeper than MAX_DEPTH, or hold themselves."""
    stack = [(value, 0)]  # depth first: what holds itself is soon too deep
    while stack:
        outer, depth = stack.pop()
        if not isinstance(outer, Mapping | list | tuple):
            continue
        if depth == MAX_DEPTH:
            raise ValueError(f"lists and objects nest deeper than {MAX_DEPTH}")
        inner = outer.values() if isinstance(outer, Mapping) else outer
        stack += [(one, depth + 1) for one in inner]
