"""How deep JSON, TOML and values may nest."""

import json
import time
import tomllib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paint.core.nesting import MAX_DEPTH, parse_json, parse_toml, require_shallow

TOO_DEEP = "lists and objects nest deeper than 100"


def nested(depth: int) -> Any:
    value: Any = []
    for number in range(depth - 1):
        value = [value] if number % 2 else {"a": value}
    return value


@pytest.mark.parametrize("around", ["{}", '["[[", {}, "]"]', '["\\\\", {}, "\\"["]'])
def test_parse_json_at_the_bound_is_read_and_beyond_it_refused(around: str) -> None:
    depth = MAX_DEPTH - (around != "{}")
    text = around.replace("{}", json.dumps(nested(depth)))
    assert parse_json(text) == json.loads(text)
    assert parse_json(b"\xef\xbb\xbf" + text.encode()) == json.loads(text)

    deeper = around.replace("{}", json.dumps(nested(depth + 1)))
    with pytest.raises(ValueError, match=TOO_DEEP):
        parse_json(deeper)
    assert parse_json(deeper, max_depth=MAX_DEPTH + 1) == json.loads(deeper)


@pytest.mark.parametrize(
    "line",
    ["# [[[ \" '", "a = '[[\"'", 'a = "\\"[["', "a = '''\n[['[['''", 'a = """[["[\\""""', "a = ''"],
)
def test_parse_toml_at_the_bound_is_read_and_beyond_it_refused(line: str) -> None:
    brackets = "[" * MAX_DEPTH, "]" * MAX_DEPTH
    at_bound = f"{line}\nb = {brackets[0]}{brackets[1]}\n[c]\n{line}\n"
    assert parse_toml(at_bound) == tomllib.loads(at_bound)
    with pytest.raises(ValueError, match=TOO_DEEP):
        parse_toml(f"{line}\nb = [{brackets[0]}{brackets[1]}]\n")


@given(st.recursive(st.none() | st.text("[]{}\"\\'#\n a"), lambda inner: st.lists(inner)))
def test_parse_json_any_shallow_value_is_read(value: Any) -> None:
    text = json.dumps([value] * 40)  # enough brackets to be counted
    assert parse_json(text) == json.loads(text)


@pytest.mark.parametrize("unit", ["[", '{"a":', '"[', '["\\', "[]", '"\\"'])
def test_parse_json_any_long_text_is_refused_in_little_time(unit: str) -> None:
    began = time.process_time()
    with pytest.raises(ValueError):  # noqa: PT011 - JSON's own message, or ours
        parse_json(unit * 200_000)
    assert time.process_time() - began < 2


def test_require_shallow_counts_lists_tuples_and_dicts() -> None:
    require_shallow([nested(MAX_DEPTH - 1), (nested(MAX_DEPTH - 2),), "text", 1])
    within_itself: list[Any] = []
    within_itself += [within_itself, within_itself]
    for value in [nested(MAX_DEPTH + 1), (nested(MAX_DEPTH),), nested(10_000), within_itself]:
        with pytest.raises(ValueError, match=TOO_DEEP):
            require_shallow(value)
