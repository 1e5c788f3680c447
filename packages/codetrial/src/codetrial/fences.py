"""Fenced blocks of Markdown, as CommonMark reads them, in time linear in the text's length.

A fence is opened by three or more backticks or tildes, and closed by as many or more of the same
sign alone, indented by at most three columns more than the opening. Ours: a fence may be opened at
any indentation, and behind the mark of a list item; a block that is not closed is none, since its
text is cut; and a fence that stands within a string of Python does not close its block.
"""

import ast
import re
import textwrap
from collections.abc import Iterator, Sequence
from typing import NamedTuple

NO_PARSE = (SyntaxError, ValueError, RecursionError, MemoryError)
"""What Python's parser raises for a text that is no Python."""

MOST_STRINGS = 20
"""Blocks of a text whose fences are looked at for strings: each may read the text to its end."""

MOST_COLUMNS = 3  # that the closing fence is indented more than the opening

_OPENING = re.compile(
    r"(?P<indent>[ \t]*(?:(?:[-*+]|[0-9]{1,9}[.)])[ \t]+)?)(?P<fence>`{3,}|~{3,})(?P<info>.*)"
)
_PYTHON = re.compile(r"(?:i?python|py)(?:[0-9]+(?:\.[0-9]+)*)?")
_TAG = re.compile(r"[\s{]*\.?([^\s{}:=,(]*)")  # of "python", "{.python}", "{python}", "py:main.py"
_TRIPLE = ('"""', "'''")
_TOKEN = re.compile(
    r'"""|' r"'''" r'|"(?:[^"\\]|\\.)*"?' r"|'(?:[^'\\]|\\.)*'?" r"|#.*"
)  # a triple quote, a string within a line, a comment
_STRING_END = {quote: re.compile(rf"(?:[^\\]|\\.)*?{quote}") for quote in _TRIPLE}


class Block(NamedTuple):
    """A fenced block."""

    tag: str  # the language; "python" whatever Python is called
    code: str


class _Opening(NamedTuple):
    columns: int  # of its indentation
    fence: str
    tag: str


def blocks_of(text: str) -> Iterator[Block]:
    """The fenced blocks of a text; one that is not closed is none."""
    lines = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    looks = MOST_STRINGS
    start = 0
    while start < len(lines):
        opening = _opening(lines[start])
        start += 1
        if opening is None:
            continue
        end = _closing(lines, start, opening)
        if end is None:
            return
        if opening.tag in ("python", "") and looks and _open_string(lines[start:end]):
            looks -= 1
            end = _closing_outside_strings(lines, start, opening) or end
        yield Block(opening.tag, _content(lines[start:end], opening))
        start = end + 1


def _opening(line: str) -> _Opening | None:
    found = _OPENING.fullmatch(line)
    if found is None or (found["fence"][0] == "`" and "`" in found["info"]):
        return None
    tag = _TAG.match(found["info"])
    name = tag[1].lower() if tag else ""
    if _PYTHON.fullmatch(name):
        name = "python"
    return _Opening(len(found["indent"].expandtabs(4)), found["fence"], name)


def _closes(line: str, opening: _Opening) -> bool:
    fence = line.strip(" \t")
    if not fence.startswith(opening.fence) or fence.strip(opening.fence[0]):
        return False
    return len(_indent(line).expandtabs(4)) <= opening.columns + MOST_COLUMNS


def _closing(lines: Sequence[str], start: int, opening: _Opening) -> int | None:
    """The number of the line that closes a block; None where none does."""
    for number in range(start, len(lines)):
        if _closes(lines[number], opening):
            return number
    return None


def _closing_outside_strings(lines: Sequence[str], start: int, opening: _Opening) -> int | None:
    """The first closing fence in no string of Python, if what it closes is Python."""
    quote = ""
    for number in range(start, len(lines)):
        if not quote and _closes(lines[number], opening):
            try:
                ast.parse(_content(lines[start:number], opening))
            except NO_PARSE:
                return None
            return number
        quote = _quote_after(lines[number], quote)
    return None


def _open_string(lines: Sequence[str]) -> bool:
    """Whether lines of Python end within a string of three quotes."""
    quote = ""
    for line in lines:
        quote = _quote_after(line, quote)
    return bool(quote)


def _quote_after(line: str, quote: str) -> str:
    """The three quotes of the string that is open at the end of a line; "" for none.

    Args:
        quote: that at its beginning.
    """
    at = 0
    while True:
        if quote:
            end = _STRING_END[quote].match(line, at)
            if end is None:
                return quote
            at, quote = end.end(), ""
        token = _TOKEN.search(line, at)
        if token is None:
            return ""
        at = token.end()
        if token[0] in _TRIPLE:
            quote = token[0]


def _content(lines: Sequence[str], opening: _Opening) -> str:
    """The lines of a block without the indentation of its fence."""
    first = next((line for line in lines if line.strip(" \t")), "")
    # Code at the margin behind a fence that is indented keeps its own indentation.
    columns = min(opening.columns, len(_indent(first).expandtabs(4)))
    if columns:
        lines = [_indent(line).expandtabs(4)[columns:] + line.lstrip(" \t") for line in lines]
    code = "".join(f"{line}\n" for line in lines)
    if columns and code.lstrip("\n")[:1] in (" ", "\t"):  # it is indented more than the fence
        code = textwrap.dedent(code)
    return code


def _indent(line: str) -> str:
    return line[: len(line) - len(line.lstrip(" \t"))]
