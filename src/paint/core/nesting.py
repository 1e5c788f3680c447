"""JSON and TOML whose nesting is bounded before it is parsed.

Python's parsers recurse. At the interpreter's recursion limit any code may fail, a finalizer that
the garbage collector runs included, so no reader may come near it.
"""

import json
import re
import tomllib
from collections.abc import Mapping
from typing import Any

MAX_DEPTH = 100
"""Lists and objects within each other; a row has about five."""

STORED_DEPTH = 2 * MAX_DEPTH
"""The same in files of paint's own, where a row is within other objects."""

# Strings, closed or not, and the brackets outside of them. Possessive: no text takes long.
_JSON = re.compile(r'"(?:[^"\\]++|\\.)*+"?|[\[{]|[\]}]', re.DOTALL)
_TOML = re.compile(
    r'"""(?:[^"\\]++|\\.|"(?!""))*+(?:""")?|'
    r"'''(?:[^']++|'(?!''))*+(?:''')?|"
    r'"(?:[^"\\\n]++|\\.)*+"?|'
    r"'[^'\n]*+'?|"
    r"#[^\n]*+|"
    r"[\[{]|[\]}]",
    re.DOTALL,
)


def parse_json(text: str | bytes, *, max_depth: int = MAX_DEPTH, **options: Any) -> Any:
    """The value of JSON text, as of ``json.loads`` with the options.

    Raises:
        ValueError: it is not JSON in UTF-8, or nests deeper than ``max_depth``.
    """
    if isinstance(text, bytes):
        # Some editors put a byte order mark first.
        text = text.decode("utf-8-sig")
    _require_depth(text, _JSON, max_depth)
    return json.loads(text, **options)


def parse_toml(text: str) -> dict[str, Any]:
    """The table of TOML text. Raises ValueError if it is not TOML, or its brackets nest too deep.

    Names with dots nest without brackets: ``require_shallow`` checks the table.
    """
    _require_depth(text, _TOML, MAX_DEPTH)
    return tomllib.loads(text)


def require_shallow(value: object) -> None:
    """Raise ValueError if lists and dicts nest deeper than MAX_DEPTH, or hold themselves."""
    stack = [(value, 0)]  # depth first: what holds itself is soon too deep
    while stack:
        outer, depth = stack.pop()
        if not isinstance(outer, Mapping | list | tuple):
            continue
        if depth == MAX_DEPTH:
            raise ValueError(_describe(MAX_DEPTH))
        inner = outer.values() if isinstance(outer, Mapping) else outer
        stack += [(one, depth + 1) for one in inner]


def _require_depth(text: str, tokens: re.Pattern[str], max_depth: int) -> None:
    if text.count("[") + text.count("{") <= max_depth:
        return
    depth = 0
    for match in tokens.finditer(text):
        if match[0] in "[{":
            depth += 1
            if depth > max_depth:
                raise ValueError(_describe(max_depth))
        elif match[0] in "]}":
            depth -= 1


def _describe(max_depth: int) -> str:
    return f"lists and objects nest deeper than {max_depth}"
