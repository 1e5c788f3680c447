"""JSON and TOML whose nesting is bounded, so that what walks the values may recurse."""

import json
import tomllib
from collections.abc import Callable, Mapping
from typing import Any

MAX_DEPTH = 100
"""Lists and objects within each other; a row has about five."""

STORED_DEPTH = 2 * MAX_DEPTH
"""The same in files of paint's own, where a row is within other objects."""


def parse_json(text: str | bytes, *, max_depth: int = MAX_DEPTH, **options: Any) -> Any:
    """Return the value of JSON text, as of ``json.loads`` with the options.

    Raises ValueError for what is not JSON in UTF-8, or nests deeper than ``max_depth``.
    """
    if isinstance(text, bytes):
        # Some editors put a byte order mark first.
        text = text.decode("utf-8-sig")
    return _parse(lambda text: json.loads(text, **options), text, max_depth)


def parse_toml(text: str) -> Any:
    """Return the table of TOML text. Raises ValueError if it is not TOML, or nests too deep."""
    return _parse(tomllib.loads, text, MAX_DEPTH)


def _parse(parse: Callable[[str], Any], text: str, max_depth: int) -> Any:
    try:
        value = parse(text)
    except RecursionError:
        raise ValueError(_too_deep(max_depth)) from None
    if text.count("[") + text.count("{") > max_depth:
        require_shallow(value, max_depth)
    return value


def require_shallow(value: object, max_depth: int = MAX_DEPTH) -> None:
    """Raise ValueError if lists and dicts nest deeper than ``max_depth``, or hold themselves."""
    stack = [(value, 0)]  # depth first: what holds itself is soon too deep
    while stack:
        outer, depth = stack.pop()
        if not isinstance(outer, Mapping | list | tuple):
            continue
        if depth == max_depth:
            raise ValueError(_too_deep(max_depth))
        inner = outer.values() if isinstance(outer, Mapping) else outer
        stack += [(one, depth + 1) for one in inner]


def _too_deep(max_depth: int) -> str:
    return f"lists and objects nest deeper than {max_depth}"
