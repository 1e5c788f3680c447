"""Results of tools and messages of environments: their JSON, their limits, and what is refused."""

import collections
import json
import math
import time
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from enum import Enum, StrEnum
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from paint.core.extensions import of_type
from paint.inference.environment_results import TooLongError, read_messages, result_text

EXAMPLES = 50
LIMIT = 8_192
"""Tokens."""


class Color(Enum):
    RED = "red"
    THREE = np.int64(3)


class Word(StrEnum):
    YES = "yes"


@dataclass
class Point:
    x: int
    y: Any


FRAME = pd.DataFrame({"city": ["a", "b"], "value": [1.5, math.nan]})
JSON: dict[str, tuple[Any, Any]] = {
    "other alphabets": ({"city": "東京", "😀": "é"}, {"city": "東京", "😀": "é"}),
    "half of a pair": (["a\ud800b", {"\udc00": 1}], ["a?b", {"?": 1}]),
    "number of numpy": ({"mean": np.float32(0.5), "n": np.int64(3)}, {"mean": 0.5, "n": 3}),
    "flag of numpy": (np.bool_(True), True),
    "array": (np.arange(2000).reshape(2, 1000), [list(range(1000)), list(range(1000, 2000))]),
    "array of texts": (np.array(["a"]), ["a"]),
    "array of objects": (np.array([{"a": 1}, None], dtype=object), [{"a": 1}, None]),
    "times": (np.array(["2026-01-02"], dtype="datetime64[D]"), ["2026-01-02"]),
    "times in nanoseconds": (
        np.array(["2026-01-02"], dtype="datetime64[ns]"),
        ["2026-01-02T00:00:00.000000000"],
    ),
    "tensor": (torch.arange(3), [0, 1, 2]),
    "tensor with a gradient": (torch.ones(1, dtype=torch.bfloat16, requires_grad=True), [1.0]),
    "table": (FRAME, [{"city": "a", "value": 1.5}, {"city": "b", "value": None}]),
    "table with names": (
        FRAME.groupby("city").sum(),
        [{"city": "a", "value": 1.5}, {"city": "b", "value": 0.0}],
    ),
    "row": (FRAME.iloc[0], {"city": "a", "value": 1.5}),
    "series": (pd.Series([1, 2]), [1, 2]),
    "missing values": ([pd.NA, pd.NaT, None], [None, None, None]),
    "times of pandas": (pd.date_range("2026-01-02", periods=1), ["2026-01-02"]),
    "arrow": (pa.table({"a": [1, None]}), [{"a": 1}, {"a": None}]),
    "not finite": ([math.nan, math.inf, -math.inf], ["NaN", "Infinity", "-Infinity"]),
    "decimal": ([Decimal("1.10"), Decimal(100)], ["1.10", "100"]),
    "fraction": (Fraction(1, 3), "1/3"),
    "datetime": (datetime(2026, 1, 2, tzinfo=UTC), "2026-01-02 00:00:00+00:00"),
    "duration": (timedelta(hours=5), "5:00:00"),
    "path": (Path("/a/b"), "/a/b"),
    "bytes": ([b"abc", bytearray(b"d")], ["abc", "d"]),
    "set": ({3, 1, 2}, [1, 2, 3]),
    "enum": ([Color.RED, Color.THREE, Word.YES], ["red", 3, "yes"]),
    "dataclass": (Point(1, np.int8(2)), {"x": 1, "y": 2}),
    "tuple": ((1, (2,)), [1, [2]]),
    "keys": ({1: 2, None: 3}, {"1": 2, "null": 3}),
    "views": ([{"b": 1, "a": 2}.keys(), {"b": 1}.items()], [["b", "a"], [["b", 1]]]),
    "collections": (
        [collections.deque([1]), collections.Counter("a"), collections.UserDict(a=1), range(2)],
        [[1], {"a": 1}, {"a": 1}, [0, 1]],
    ),
    "nothing": (None, None),
}


@pytest.mark.parametrize("name", JSON)
def test_result_text_of_a_value_is_its_json(name: str) -> None:
    value, expected = JSON[name]
    text = result_text(value, LIMIT)
    assert json.loads(text) == expected
    assert text == json.dumps(expected, ensure_ascii=False)


def test_result_text_of_a_text_is_the_text() -> None:
    assert result_text("a\ud800 東京", LIMIT) == "a? 東京"
    assert result_text(np.str_("a"), LIMIT) == "a"
    assert len(result_text("x" * 262_144, LIMIT)) == 262_144


@pytest.mark.parametrize(
    "value",
    [object(), object, print, 1j, (i for i in "ab"), {(1, 2): 3}, b"\xff", ValueError("x")],
    ids=of_type,
)
def test_result_text_of_what_has_no_json_is_refused_without_its_content(value: Any) -> None:
    with pytest.raises((ValueError, TypeError), match=r"it returned|keys must|utf-8") as refused:
        result_text([value], LIMIT)
    assert repr(value) not in str(refused.value)


def test_result_text_of_what_holds_itself_is_refused() -> None:
    value: list[Any] = []
    value.append(value)
    with pytest.raises(ValueError, match="Circular"):
        result_text(value, LIMIT)


plain = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    # Without halves of pairs, which are replaced.
    | st.text(st.characters(codec="utf-8")),
    lambda inner: st.lists(inner) | st.dictionaries(st.text('aé\n"\\', max_size=3), inner),
    max_leaves=10,
)


@given(plain)
@settings(max_examples=EXAMPLES, deadline=None)
def test_result_text_of_json_is_the_same_value(value: Any) -> None:
    text = result_text(value, LIMIT)
    assert text == value or text == json.dumps(value, ensure_ascii=False)


@given(st.from_type(object) | st.from_type(type))
@settings(max_examples=EXAMPLES, deadline=None)
def test_result_text_of_anything_is_a_text_or_refused(value: Any) -> None:
    try:
        text = result_text(value, LIMIT)
    except Exception:
        return
    assert text.encode().decode() == text


LONG: dict[str, Any] = {
    "text": "x" * 50_000_000,
    "bytes": b"x" * 50_000_000,
    "list": [0] * 5_000_000,
    "array": np.zeros(50_000_000, dtype=np.int8),
    "table": pd.DataFrame(np.zeros((1_000_000, 4))),
    "range": range(10**15),
    "escapes": ["\x00" * 200_000],
}


@pytest.mark.parametrize("name", LONG)
def test_result_text_over_the_limit_is_refused_at_once(name: str) -> None:
    began = time.process_time()
    with pytest.raises(TooLongError, match=r"[\d,]{7,} (characters|values)"):
        result_text(LONG[name], LIMIT)
    assert time.process_time() - began < 2


USER = {"role": "user", "content": "x"}


@pytest.mark.parametrize(
    "found",
    [
        [USER] * 200_000,
        [USER | {"content": "x" * 5_000}] * 8_000,
        "x" * 50_000_000,
        USER | {"further": ["x"] * 1_000_000},
    ],
    ids=["many", "long together", "text", "further"],
)
def test_read_messages_over_the_limit_are_refused_at_once(found: Any) -> None:
    began = time.process_time()
    with pytest.raises(TooLongError):
        read_messages(found, LIMIT)
    assert time.process_time() - began < 2


def test_read_messages_have_no_half_of_a_pair_and_are_json() -> None:
    message = {"role": "u\ud800", "content": "\udfff", "tool_calls": [{"n": np.int64(1)}]}
    assert read_messages([message]) == ({"role": "u?", "content": "?", "tool_calls": [{"n": 1}]},)


@pytest.mark.parametrize(
    "found",
    [
        5,
        [{"role": "user"}],
        [USER | {"content": [1]}],
        [["user", "x"]],
        ("observation", {}),
        [USER | {"further": object()}],
    ],
)
def test_read_messages_of_something_else_is_refused(found: Any) -> None:
    with pytest.raises(ValueError, match="it returned"):
        read_messages(found)
