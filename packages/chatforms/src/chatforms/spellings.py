"""How a call of a tool is spelled between its marks, and readers of each spelling.

    {"name": "add", "arguments": {"a": 2}}       an object: Hermes, Qwen, Llama, Mistral
    add {"a": 2}                                 a name and an object: DeepSeek, gpt-oss, Mistral
    add> <parameter=a> 2 </parameter>            a name and tags: Qwen3-Coder, GLM
    add(a=2)   add{a:2}                          a name and literals: LFM2, Gemma 4

What models write is read loosely: with other spaces, with Python's literals in place of JSON's.
"""

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from math import isfinite
from typing import Any

from chatforms.messages import MAX_DEPTH

_ANY_TEXT = r"\S{1,99}?"
ANY = "\0"  # a part of marks that differs from call to call, such as an id

_NAME = re.compile(r"[^\s<>{}()\[\]\"'|=,;:]+")
_BARE_KEY = re.compile(r"[\w$.-]+")
_ATOM = re.compile(r"[^\s,\[\]{}():\"'<>]+")
_INTEGER, _FLOAT = re.compile(r"-?\d+"), re.compile(r"-?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?")
_CONSTANTS = {"true": True, "false": False, "null": None} | {
    "True": True,
    "False": False,
    "None": None,
}
_DOUBLE = re.compile(r'"(?:[^"\\]++|\\.)*+"', re.DOTALL)
# LFM2's template escapes no quotes: within a text is one that ends nothing.
_SINGLE = re.compile(r"'((?:[^'\\]++|\\.|'(?!\s*(?:[,:)\]}]|$)))*+)'", re.DOTALL)
_ESCAPE = re.compile(
    r"\\(?:u([0-9a-fA-F]{4})|x([0-9a-fA-F]{2})|U(00(?:0[0-9a-fA-F]|10)[0-9a-fA-F]{4})|(.))",
    re.DOTALL,
)
_ESCAPED = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f"} | {c: c for c in "'\"\\/"}

_MOST_DIGITS = 400

CUT_OFF, UNCLOSED = "it is cut off", "a text in it has no quotation mark behind it"
"""Why a call cannot be read: the text ends within it, or a text in it does not end."""

Typed = Callable[[str, str, str], Any]
"""The value of a text, by the names of the tool and the argument."""


class UnreadCall(Exception):
    """A call cannot be read; the message says why, for the model."""


class Literals:
    """A reader of JSON's and Python's values, from a place of a text on."""

    def __init__(self, text: str, place: int = 0, quote: str = '"') -> None:
        self.text = text
        self.place = place
        # Another quotation mark, as Gemma's <|"|>; then keys have none.
        self._quote = quote if quote not in ("'", '"') else ""
        self._is_python = quote == "'"

    def value(self, depth: int = 0) -> Any:
        """Return the value at this place, which is then behind it."""
        if depth > MAX_DEPTH:
            raise UnreadCall(f"its lists and objects nest deeper than {MAX_DEPTH}")
        self.skip_space()
        if self.take("{"):
            return self.members("}", ":", depth + 1)
        for opening, closing in (("[", "]"), ("(", ")")):
            if self.take(opening):
                return self._items(closing, depth + 1)
        if self._at_quote():
            return self._string()
        return self._atom()

    def members(self, closing: str, equals: str, depth: int = 1) -> dict[str, Any]:
        """Return names and values up to the closing bracket."""
        found: dict[str, Any] = {}
        while not self.take(closing):
            key = self._key(is_bare=bool(self._quote) or equals != ":")
            self.require(equals)
            found[key] = self.value(depth)
            if not self.take(","):
                self.require(closing)
                break
        return found

    def take(self, piece: str) -> bool:
        """Return whether a piece is next, which is then passed."""
        self.skip_space()
        is_next = self.text.startswith(piece, self.place)
        self.place += len(piece) * is_next
        return is_next

    def require(self, piece: str) -> None:
        """Pass a piece. Raises UnreadCall where another text is next."""
        if not self.take(piece):
            raise self.fault(f"{piece} is missing")

    def skip_space(self) -> None:
        """Pass white space."""
        while self.text[self.place : self.place + 1].isspace():
            self.place += 1

    def fault(self, why: str) -> UnreadCall:
        """Return the error for this place."""
        if not self.text[self.place :].strip():
            return UnreadCall(CUT_OFF)
        return UnreadCall(f"{why} before {self.text[self.place : self.place + 20]!r}")

    def _items(self, closing: str, depth: int) -> list[Any]:
        found = []
        while not self.take(closing):
            found.append(self.value(depth))
            if not self.take(","):
                self.require(closing)
                break
        return found

    def _key(self, *, is_bare: bool) -> str:
        self.skip_space()
        if self._at_quote():
            return self._string()
        key = _BARE_KEY.match(self.text, self.place) if is_bare else None
        if key is None:
            raise self.fault("a name in quotes is missing")
        self.place = key.end()
        return key[0]

    def _at_quote(self) -> bool:
        own = bool(self._quote) and self.text.startswith(self._quote, self.place)
        return own or self.text[self.place : self.place + 1] in ("'", '"')

    def _string(self) -> str:
        if self._quote and self.text.startswith(self._quote, self.place):
            start = self.place + len(self._quote)
            end = self.text.find(self._quote, start)
            if end < 0:
                raise UnreadCall(UNCLOSED)
            self.place = end + len(self._quote)
            return self.text[start:end]
        pattern = _DOUBLE if self.text[self.place] == '"' else _SINGLE
        found = pattern.match(self.text, self.place)
        if found is None:
            raise UnreadCall(UNCLOSED)
        self.place = found.end()
        if pattern is _SINGLE:
            return _ESCAPE.sub(_unescape, found[1])
        try:
            return str(json.loads(found[0], strict=False))
        except ValueError as error:
            if self._is_python:  # which puts a text with ' in it into "", and escapes as within ''
                return _ESCAPE.sub(_unescape, found[0][1:-1])
            raise UnreadCall("a backslash in a text escapes nothing; write two") from error

    def _atom(self) -> Any:
        found = _ATOM.match(self.text, self.place)
        if found is None:
            raise self.fault("a value is missing")
        self.place, word = found.end(), found[0]
        if word in _CONSTANTS:
            return _CONSTANTS[word]
        if len(word) > _MOST_DIGITS:
            raise UnreadCall("a number is too long")
        if _INTEGER.fullmatch(word):
            return int(word)
        number = float(word) if _FLOAT.fullmatch(word) else float("nan")
        if not isfinite(number):
            raise UnreadCall(f"{word[:20]!r} is no value; write texts in quotes")
        return number


def _unescape(found: re.Match[str]) -> str:
    if found[4] is not None:
        return _ESCAPED.get(found[4], found[0])
    return chr(int(found[1] or found[2] or found[3], 16))


@dataclass(frozen=True)
class ToolCall:
    """What a completion asks for."""

    name: str
    arguments: dict[str, Any]
    call_id: str = ""  # that the completion gave it, as Mistral's do


@dataclass(frozen=True)
class ObjectSpelling:
    """An object with a name and arguments, which may be in an inner object."""

    name_key: str
    arguments_key: str
    inner_key: str = ""

    def read(self, text: str, place: int, typed: Typed) -> tuple[ToolCall, int]:
        """Return the call at a place, and where it ends. Raises UnreadCall."""
        reader = Literals(text, place)
        reader.require("{")
        outer = reader.members("}", ":")
        inner = outer.get(self.inner_key, outer) if self.inner_key else outer
        if not isinstance(inner, dict) or not isinstance(inner.get(self.name_key), str):
            raise UnreadCall(f'it has no "{self.name_key}"')
        if self.arguments_key not in inner:
            raise UnreadCall(f'it has no "{self.arguments_key}"')
        arguments = inner[self.arguments_key]
        if isinstance(arguments, str):
            arguments = _whole_object(arguments)
        if not isinstance(arguments, dict):
            raise UnreadCall(f'its "{self.arguments_key}" are no object')
        call_id = outer.get("id")
        known = call_id if isinstance(call_id, str) else ""
        return ToolCall(inner[self.name_key], arguments, known), reader.place


@dataclass(frozen=True)
class NamedSpelling:
    """A name and an object, with a text in between."""

    middle: str

    def read(self, text: str, place: int, typed: Typed) -> tuple[ToolCall, int]:
        """Return the call at a place, and where it ends. Raises UnreadCall."""
        name, place = _name(text, place)
        pattern = flexible(self.middle).replace(_ANY_TEXT, f"({_ANY_TEXT})")
        middle = re.compile(rf"\s*{pattern}\s*").match(text, place)
        if middle is None:
            # In words: special tokens are dropped from what the model reads.
            what = "its id" if ANY in self.middle else "the mark behind its name"
            raise Literals(text, place).fault(f"{what} is missing")
        call_id = middle[1] if middle.re.groups else ""
        reader = Literals(text, middle.end())
        if reader.text[reader.place : reader.place + 1] in ("'", '"'):
            arguments = _whole_object(reader.value())
        else:
            reader.require("{")
            arguments = reader.members("}", ":")
        return ToolCall(name, arguments, call_id), reader.place


@dataclass(frozen=True)
class LiteralSpelling:
    """A name and bracketed arguments, as Python's call and Gemma's."""

    opening: str
    equals: str
    closing: str
    quote: str

    def read(self, text: str, place: int, typed: Typed) -> tuple[ToolCall, int]:
        """Return the call at a place, and where it ends. Raises UnreadCall."""
        name, place = _name(text, place)
        reader = Literals(text, place, self.quote)
        reader.require(self.opening)
        return ToolCall(name, reader.members(self.closing, self.equals)), reader.place


@dataclass(frozen=True)
class TagSpelling:
    """A name and tagged arguments, whose values are texts."""

    head: str  # behind the name
    key_mark: str  # before an argument's name
    equals: str  # between name and value
    value_end: str
    tail: str  # behind all arguments

    def read(self, text: str, place: int, typed: Typed) -> tuple[ToolCall, int]:
        """Return the call at a place, and where it ends. Raises UnreadCall."""
        name, place = _name(text, place)
        arguments: dict[str, Any] = {}
        place = self._head.match(text, place).end()  # type: ignore[union-attr]  # may be empty
        while key := self._key.match(text, place):
            argument, start = key[1].strip(), key.end()
            end = self._value_end.search(text, start) or self._any_value_end.search(text, start)
            if end is None:
                raise UnreadCall(f"its {argument!r} is not closed by {self.value_end.strip()!r}")
            arguments[argument] = typed(name, argument, text[start : end.start()])
            place = end.end()
        if not self._tail.match(text, place):
            raise Literals(text, place).fault(f"{self._ends[0]!r} is missing")
        return ToolCall(name, arguments), place

    @cached_property
    def _head(self) -> re.Pattern[str]:
        return re.compile(rf"\s*(?:{flexible(self.head)})?")

    @cached_property
    def _key(self) -> re.Pattern[str]:
        space = re.escape(self.equals[len(self.equals.rstrip()) :])
        between = flexible(self.equals)
        return re.compile(rf"\s*{flexible(self.key_mark)}([^\n]*?){between}(?:{space})?")

    @cached_property
    def _any_value_end(self) -> re.Pattern[str]:
        space = re.escape(self.value_end[: -len(self.value_end.lstrip())])
        return re.compile(rf"(?:{space})?{flexible(self.value_end)}")

    @cached_property
    def _value_end(self) -> re.Pattern[str]:
        """A value may hold what ends it: behind the end is another name, or the end of the call."""
        behind = rf"{flexible(self.key_mark)}|{self._any_tail}|$"
        return re.compile(rf"{self._any_value_end.pattern}(?=\s*(?:{behind}))")

    @cached_property
    def _tail(self) -> re.Pattern[str]:
        return re.compile(rf"\s*(?:{self._any_tail})")

    @property
    def _any_tail(self) -> str:
        return "|".join(map(flexible, self._ends))

    @property
    def _ends(self) -> list[str]:
        """The marks of the tail: one of them is enough, as calls may follow each other in it."""
        return re.split(r"\s+|(?<=>)(?=<)", self.tail.strip())


Spelling = ObjectSpelling | NamedSpelling | LiteralSpelling | TagSpelling
"""How a call is spelled between its marks."""


def _name(text: str, place: int) -> tuple[str, int]:
    """The name at a place, and where it ends."""
    reader = Literals(text, place)
    reader.skip_space()
    found = _NAME.match(text, reader.place)
    if found is None:
        raise reader.fault("its name is missing")
    return found[0], found.end()


def _whole_object(text: Any) -> dict[str, Any]:
    """The object that a text spells; an empty one where it is empty."""
    if not str(text).strip():
        return {}
    reader = Literals(str(text))
    reader.require("{")
    found = reader.members("}", ":")
    reader.skip_space()
    if reader.place < len(reader.text):
        raise UnreadCall("its arguments are followed by other text")
    return found


def flexible(mark: str) -> str:
    """Return a pattern of a mark with any white space, and any text without one for ANY."""
    spaced = r"\s*".join(map(re.escape, mark.split()))
    return spaced.replace(re.escape(ANY), _ANY_TEXT)
