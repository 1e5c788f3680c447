"""How deep JSON, TOML and values may nest."""

import json
from typing import Any

import pytest

from paint.core.nesting import MAX_DEPTH, parse_json, parse_toml, require_shallow

TOO_DEEP = "lists and objects nest deeper than 100"


def nested(depth: int) -> Any:
    value: Any = []
    for number in range(depth - 1):
        value = [value] if number % 2 else {"a": value}
    return value


def test_parse_json_at_the_bound_is_read_and_beyond_it_refused() -> None:
    text = json.dumps(nested(MAX_DEPTH))
    assert parse_json(text) == json.loads(text)
    assert parse_json(b"\xef\xbb\xbf" + text.encode()) == json.loads(text)
    deeper = json.dumps(nested(MAX_DEPTH + 1))
    for refused in (deeper, "[" * 200_000, '{"a":' * 200_000):
        with pytest.raises(ValueError, match=TOO_DEEP):
            parse_json(refused)
    assert parse_json(deeper, max_depth=MAX_DEPTH + 1) == json.loads(deeper)
    assert parse_json(json.dumps(["[" * 200, "{" * 200])) == ["[" * 200, "{" * 200]


def test_parse_toml_deep_nesting_is_refused() -> None:
    assert parse_toml(f"a = '{'[' * 200}'")["a"] == "[" * 200
    for refused in (f"a = {'[' * 101}{']' * 101}", f"a = {'[' * 30_000}", f"a = {'{a=' * 15_000}"):
        with pytest.raises(ValueError, match=TOO_DEEP):
            parse_toml(refused)


def test_require_shallow_counts_lists_tuples_and_dicts() -> None:
    require_shallow([nested(MAX_DEPTH - 1), (nested(MAX_DEPTH - 2),), "text", 1])
    within_itself: list[Any] = []
    within_itself += [within_itself, within_itself]
    for value in [nested(MAX_DEPTH + 1), (nested(MAX_DEPTH),), nested(10_000), within_itself]:
        with pytest.raises(ValueError, match=TOO_DEEP):
            require_shallow(value)
