"""What tools and environments return, as the text or the messages that a model reads.

A value that is no text becomes JSON: numbers and arrays of numpy, torch and pandas are numbers and
lists, tables are lists of records, and anything that JSON has no form of is refused. All of it is
limited in size before it is formatted: what is longer than any prompt would be tokenised in vain.
"""

import json
import math
from collections import deque
from collections.abc import ItemsView, Iterator, KeysView, Mapping, Sequence, Set, ValuesView
from dataclasses import fields, is_dataclass
from datetime import date, time, timedelta
from decimal import Decimal
from enum import Enum
from fractions import Fraction
from inspect import isawaitable, iscoroutine
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

_WRITTEN = (date, time, timedelta, Fraction, UUID, PurePath)
"""Types whose text is their value; a datetime is a date."""


class TooLongError(ValueError):
    """A result or an answer is longer than any prompt may be."""


def limited_text(text: str, tokens: float, what: str) -> str:
    """A text without values of the environment and without halves of surrogate pairs.

    Raises TooLongError, before anything else, for one that no prompt of ``tokens`` has room for.
    """
    most = tokens * CHARACTERS_PER_TOKEN
    if len(text) > most:
        raise TooLongError(f"{what} has {len(text):,} characters, over the limit of {most:,.0f}")
    return hide_values(replace_surrogates(text))


def result_text(value: Any, tokens: float) -> str:
    """What a model reads of a tool's result: a text as it is, anything else as JSON.

    Raises ValueError for what has no form in JSON, and for what is too long.
    """
    if not isinstance(value, str) or isinstance(value, Enum):
        plain = _Plain(tokens * CHARACTERS_PER_TOKEN).value(value)
        value = json.dumps(plain, ensure_ascii=False, allow_nan=False)
    return limited_text(str.__str__(value), tokens, "the result")


def read_messages(found: Any, tokens: float = TOKENS) -> tuple[ChatMessage, ...]:
    """Messages that an environment returned: a list of them, one, or a text of the user's.

    Raises ValueError for anything else, and for what is too long.
    """
    if isinstance(found, str):
        found = {"role": "user", "content": found}
    if isinstance(found, Mapping):
        found = [found]
    if not isinstance(found, list | tuple):
        raise ValueError(f"it returned an object {of_type(found)}, and no messages")
    if isinstance(found, tuple) and len(found) in (4, 5) and isinstance(found[1], int | float):
        raise ValueError(
            f"it returned a tuple of {len(found)} values, as a step of gymnasium does; return the "
            f"next messages, or None at the end, and set the attribute reward"
        )
    if len(found) > tokens:
        raise TooLongError(f"it returned {len(found):,} messages, over the limit of {tokens:,.0f}")
    plain = _Plain(tokens * CHARACTERS_PER_TOKEN)
    return tuple(_message(plain, message) for message in found)


def _message(plain: "_Plain", message: Any) -> ChatMessage:
    if not isinstance(message, Mapping):
        raise ValueError(
            f"it returned an object {of_type(message)} as a message, which is a dict with a role "
            f"and a content"
        )
    for name in ("role", "content"):
        if not isinstance(message.get(name), str):
            given = f"an object {of_type(message[name])}" if name in message else "missing"
            raise ValueError(f"it returned a message whose {name} is {given}, and no text")
    read: ChatMessage = plain.value(message)
    return read


class _Plain:
    """Makes values of texts, numbers, lists and dicts alone, up to a number of characters."""

    def __init__(self, most: float) -> None:
        self._most = self._left = most

    def value(self, value: Any) -> Any:
        """Raises ValueError for what has no form in JSON."""
        self._take(1)
        if value is None or type(value) is bool:
            return value
        if isinstance(value, Enum):
            return self.value(value.value)
        if isinstance(value, str):
            return self._text(str.__str__(value))
        if isinstance(value, int | float | Decimal):
            return _number(value)
        if isinstance(value, bytes | bytearray):
            return self._bytes(value)
        if isinstance(value, _WRITTEN):
            # A missing time of pandas is not equal to itself.
            return self._text(str(value)) if value == value else None
        if is_dataclass(value) and not isinstance(value, type):
            return {field.name: self.value(getattr(value, field.name)) for field in fields(value)}
        if isinstance(value, Mapping):
            return {self._key(key): self.value(item) for key, item in value.items()}
        if isinstance(value, Sequence | KeysView | ItemsView | ValuesView | deque):
            return [self.value(item) for item in value]
        if isinstance(value, Set):
            return _in_order([self.value(item) for item in value])
        return self._of_library(value)

    def _bytes(self, value: bytes | bytearray) -> str:
        self._take(len(value))
        try:
            return self._text(value.decode())
        except UnicodeDecodeError:
            raise ValueError("it returned bytes that are no UTF-8; return a text") from None

    def _of_library(self, value: Any) -> Any:
        """A value of numpy, torch, pandas, polars, pyarrow or pydantic, which are not imported."""
        if type(value).__name__ == "NAType":  # of pandas
            return None
        count = math.prod(getattr(value, "shape", ()))
        if 2 * count > self._left:  # a value, and a comma
            raise TooLongError(
                f"what it returned has {count:,} values, over the limit of {self._most:,.0f} "
                f"characters"
            )
        index = getattr(value, "index", None)
        if hasattr(index, "is_unique"):
            return self._of_pandas(value, index)
        if getattr(getattr(value, "dtype", None), "kind", "") in ("m", "M") and count != 0:
            value = value.astype(str)  # numpy's times in nanoseconds would be integers
        for method in ("tolist", "to_dicts", "to_pylist", "to_list", "as_py", "model_dump"):
            if callable(getattr(type(value), method, None)):
                return self.value(getattr(value, method)())
        raise _refused(value)

    def _of_pandas(self, value: Any, index: Any) -> Any:
        """The records of a table, or the values of a series; with the names of rows, if any.

        A missing value is null.
        """
        value = value.astype(object).where(value.notna(), None)
        if type(index).__name__ != "RangeIndex":
            if not hasattr(value, "columns") and index.is_unique:
                return self.value(value.to_dict())
            value = value.reset_index()
        return self.value(value.to_dict("records") if hasattr(value, "columns") else value.tolist())

    def _key(self, key: Any) -> Any:
        plain = self.value(key)
        if isinstance(plain, list | dict):
            raise ValueError(f"a dict has a key {of_type(key)}, which is no text")
        return plain

    def _text(self, text: str) -> str:
        self._take(len(text))
        return hide_values(replace_surrogates(text))

    def _take(self, count: int) -> None:
        self._left -= count
        if self._left < 0:
            raise TooLongError(f"what it returned has over {self._most:,.0f} characters, the limit")


def _number(value: Any) -> int | float | str:
    """A number of JSON; a text for what JSON has no number of, and for digits beyond a float's."""
    if isinstance(value, int):
        return value
    if not math.isfinite(value):
        return "NaN" if value != value else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, Decimal):
        whole = value == value.to_integral_value() and abs(value) < 10**18
        number = int(value) if whole else float(value)
        return number if whole or Decimal(repr(number)) == value else str(value)
    return value  # type: ignore[no-any-return]


def _in_order(items: list[Any]) -> list[Any]:
    try:
        return sorted(items)
    except TypeError:
        return sorted(items, key=json.dumps)


def _refused(value: Any) -> ValueError:
    hint = "return a text, numbers, lists or dicts"
    if iscoroutine(value):
        value.close()  # else Python warns that it was never awaited
    if isawaitable(value):
        hint = "await it"
    elif isinstance(value, Iterator):
        hint = "return a list"
    return ValueError(f"it returned an object {of_type(value)}, which JSON has no form of; {hint}")
