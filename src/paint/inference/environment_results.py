"""What tools and environments return, as the text or the messages that a model reads.

A value that is no text becomes JSON: numbers and arrays of numpy, torch and pandas are numbers and
lists, tables are lists of records, and anything that JSON has no form of is refused. All of it is
limited in size before it is tokenised, since no prompt has room for a longer one.
"""

import json
import math
from collections.abc import Callable, ItemsView, KeysView, Mapping, Sequence, Set, ValuesView
from dataclasses import fields, is_dataclass
from datetime import date, time, timedelta
from decimal import Decimal
from enum import Enum
from fractions import Fraction
from pathlib import PurePath
from typing import Any
from uuid import UUID

from paint.core.credentials import hide_values
from paint.core.errors import replace_surrogates
from paint.core.extensions import of_type
from paint.inference.environment import ChatMessage

CHARACTERS_PER_TOKEN = 32
"""Most characters of a token, on average, in a text that is no waste; prose has 4, code 3."""

TOKENS = 131_072
"""Limit of a text where no limit of prompts is given."""

_WRITTEN = (date, time, timedelta, Decimal, Fraction, UUID, PurePath)
"""Types whose text is their value; a datetime is a date."""


class TooLongError(ValueError):
    """A result or an answer is longer than any prompt may be."""


def limited_text(text: str, tokens: float, what: str) -> str:
    """Return a text without values of the environment and without halves of surrogate pairs.

    Raises TooLongError, before anything else, for one that no prompt of ``tokens`` has room for.
    """
    most = tokens * CHARACTERS_PER_TOKEN
    if len(text) > most:
        raise TooLongError(f"{what} has {len(text):,} characters, over the limit of {most:,.0f}")
    return _hide(text)


def result_text(value: Any, tokens: float) -> str:
    """Return what a model reads of a tool's result: a text as it is, anything else as JSON.

    Raises ValueError or TypeError for what has no form in JSON, and for what is too long.
    """
    if not isinstance(value, str) or isinstance(value, Enum):
        value = json.dumps(_plain(value, tokens), ensure_ascii=False, allow_nan=False)
    return limited_text(str.__str__(value), tokens, "the result")


def read_messages(found: Any, tokens: float = TOKENS) -> tuple[ChatMessage, ...]:
    """Return the messages that an environment returned: a list of them, one, or a user's text.

    Raises ValueError or TypeError for anything else, and for what is too long.
    """
    if isinstance(found, str):
        found = {"role": "user", "content": found}
    if isinstance(found, Mapping):
        found = [found]
    if not isinstance(found, list | tuple):
        raise ValueError(f"it returned an object {of_type(found)}, and no messages")
    if len(found) > tokens:
        raise TooLongError(f"it returned {len(found):,} messages, over the limit of {tokens:,.0f}")
    for message in found:
        if not isinstance(message, Mapping):
            raise ValueError(
                f"it returned an object {of_type(message)} as a message, which is a dict with a "
                f"role and a content"
            )
        for name in ("role", "content"):
            if not isinstance(message.get(name), str):
                given = f"an object {of_type(message[name])}" if name in message else "missing"
                raise ValueError(f"it returned a message whose {name} is {given}, and no text")
    return tuple(_plain(list(found), tokens))


def _plain(value: Any, tokens: float) -> Any:
    """The value as texts, numbers, lists and dicts alone, up to a number of characters."""
    most = tokens * CHARACTERS_PER_TOKEN
    encoder = json.JSONEncoder(
        ensure_ascii=False, separators=(",", ":"), default=lambda inner: _known(inner, most)
    )
    parts, length = [], 0
    # Piece by piece: a long value is not written to its end.
    for part in encoder.iterencode(value):
        length += len(part)
        if length > most:
            raise TooLongError(f"what it returned has over {most:,.0f} characters, the limit")
        parts.append(part)
    # NaN and infinity have no number in JSON: they become their names.
    return map_texts(json.loads("".join(parts), parse_constant=str), _hide)


def map_texts(value: Any, change: Callable[[str], str]) -> Any:
    """Return texts, lists and dicts with all texts changed."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        return {map_texts(k, change): map_texts(v, change) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [map_texts(item, change) for item in value]
    return value


def _hide(text: str) -> str:
    return hide_values(replace_surrogates(text))


def _known(value: Any, most: float) -> Any:
    """A value that the json module does not know, by one step nearer to what it does."""
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, bytes | bytearray):
        return value.decode()
    if isinstance(value, _WRITTEN):
        # A missing time of pandas is not equal to itself.
        return str(value) if value == value else None
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in fields(value)}
    if isinstance(value, Mapping):
        return dict(value)
    is_items = isinstance(value, Sequence | Set | KeysView | ItemsView | ValuesView)
    count = len(value) if is_items else math.prod(getattr(value, "shape", ()))
    if 2 * count > most:  # a value, and a comma
        raise TooLongError(
            f"what it returned has {count:,} values, over the limit of {most:,.0f} characters"
        )
    if is_items:
        is_set = isinstance(value, set | frozenset)
        return sorted(value, key=lambda v: (type(v).__name__, v)) if is_set else list(value)
    # Of numpy, torch, pandas, polars, pyarrow or pydantic, which are not imported.
    if type(value).__name__ == "NAType":
        return None
    if hasattr(getattr(value, "index", None), "is_unique"):
        return _of_pandas(value)
    if getattr(getattr(value, "dtype", None), "kind", "") in ("m", "M") and count != 0:
        value = value.astype(str)  # numpy's times in nanoseconds would be integers
    for method in ("tolist", "to_dicts", "to_pylist", "to_list", "as_py", "model_dump"):
        if callable(getattr(type(value), method, None)):
            return getattr(value, method)()
    raise ValueError(
        f"it returned an object {of_type(value)}, which JSON has no form of; return a text, "
        f"numbers, lists or dicts"
    )


def _of_pandas(value: Any) -> Any:
    """The records of a table, or the values of a series; with the names of rows, if any."""
    value = value.astype(object).where(value.notna(), None)
    if type(value.index).__name__ != "RangeIndex":
        if not hasattr(value, "columns") and value.index.is_unique:
            return value.to_dict()
        value = value.reset_index()
    return value.to_dict("records") if hasattr(value, "columns") else value.tolist()
