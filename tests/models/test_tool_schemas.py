"""Python functions as tools, and calls that fit them or not."""

from collections.abc import Callable
from functools import partial
from typing import Any, Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paint.models.call_styles import ToolCall
from paint.models.tool_schemas import ToolError, check_call, tool_schemas, typed_text


def find(
    text: str,
    count: int = 1,
    limit: float | None = None,
    *,
    exact: bool = False,
    kind: Literal["word", "line"] = "word",
    words: list[str] | None = None,
    options: dict[str, int] | None = None,
    either: int | str = 0,
    pair: tuple[int, str] = (0, ""),
) -> str:
    """Find a text.

    Args:
        text: What.
        count: How often.
        limit: How far.
        exact: Whether case matters.
        kind: What is counted.
        words: Other words.
        options: Numbers by name.
        either: A number or a text.
        pair: A number and a text.
    """
    raise NotImplementedError


def now() -> str:
    """Tell the time."""
    raise NotImplementedError


SCHEMAS = tool_schemas([find, now])


class Shop:
    """Tools of an environment are its methods."""

    async def buy(self, item: str) -> str:
        """Buy something.

        Args:
            item: What.
        """
        raise NotImplementedError


def test_tool_schemas_are_those_that_transformers_makes() -> None:
    function = SCHEMAS[0]["function"]
    assert (function["name"], function["description"]) == ("find", "Find a text.")
    assert function["parameters"]["required"] == ["text"]
    assert function["parameters"]["properties"]["kind"] == {
        "type": "string",
        "enum": ["word", "line"],
        "description": "What is counted.",
    }
    (schema,) = tool_schemas([Shop().buy])
    assert [*schema["function"]["parameters"]["properties"]] == ["item"]


def no_docstring(text: str) -> str:
    raise NotImplementedError


def not_described(text: str, count: int) -> str:
    """Find.

    Args:
        text: What.
        count (int): How often.
    """
    raise NotImplementedError


def not_annotated(text) -> str:  # type: ignore[no-untyped-def]
    """Find.

    Args:
        text: What.
    """
    raise NotImplementedError


def unnamed(*texts: str) -> str:
    """Find.

    Args:
        texts: What.
    """
    raise NotImplementedError


def unknown_type(text: "Missing") -> str:  # type: ignore[name-defined]
    """Find.

    Args:
        text: What.
    """
    raise NotImplementedError


@pytest.mark.parametrize(
    ("functions", "fault"),
    [
        ([no_docstring], r"tool no_docstring has no docstring.* write one with a section Args"),
        ([not_described], r"tool not_described: .* the parameter count; add a line 'count: what"),
        ([not_annotated], r"tool not_annotated: the parameter text has no type; .*text: str"),
        ([unnamed], r"tool unnamed: the parameter \*texts: str has no name of its own"),
        ([unknown_type], r"tool unknown_type: .*Missing.*; use types such as"),
        ([partial(now)], r"has no name by which a model could call it; define"),
        ([lambda: 1], r"has no name by which"),
        ([now, now], r"2 tools have the name now; rename"),
    ],
)
def test_tool_schemas_error_names_function_parameter_and_fix(
    functions: list[Callable[..., Any]], fault: str
) -> None:
    with pytest.raises(ToolError, match=fault):
        tool_schemas(functions)


@pytest.mark.parametrize(
    "arguments",
    [
        {"text": "a"},
        {"text": "", "count": 3, "limit": 3},
        {"text": "a", "limit": None, "words": None, "exact": True, "kind": "line"},
        {"text": "a", "words": [], "options": {"b": 1}, "either": "c", "pair": [1, "b"]},
        {"text": "a", "words": ["b"], "either": 3},
    ],
)
def test_check_call_that_fits_is_right(arguments: dict[str, Any]) -> None:
    assert check_call(SCHEMAS, ToolCall("find", arguments)) is None
    assert check_call(SCHEMAS, ToolCall("now", {})) is None


@pytest.mark.parametrize(
    ("name", "arguments", "fault"),
    [
        ("fnd", {}, "there is no tool fnd; did you mean find?; the tools are find, now"),
        ("find", {}, "find needs text"),
        ("now", {"text": "a"}, "now takes no text; it takes nothing"),
        ("find", {"text": "a", "cuont": 3}, "find takes no cuont; did you mean count?"),
        ("find", {"text": 3}, "text is 3, but it must be string"),
        ("find", {"text": None}, "text is null, but it must be string"),
        ("find", {"text": "a", "count": "3"}, "count is '3', but it must be integer"),
        ("find", {"text": "a", "count": 3.0}, "count is 3.0, but it must be integer"),
        ("find", {"text": "a", "count": True}, "count is true, but it must be integer"),
        ("find", {"text": "a", "exact": "yes"}, "exact is 'yes', but it must be boolean"),
        ("find", {"text": "a", "kind": "page"}, "must be one of 'word', 'line'"),
        ("find", {"text": "a", "words": ["b", 3]}, "words[1] is 3, but it must be string"),
        ("find", {"text": "a", "words": "b"}, "words is 'b', but it must be array"),
        ("find", {"text": "a", "options": {"b": "c"}}, "b is 'c', but it must be integer"),
        ("find", {"text": "a", "either": 1.5}, "either is 1.5, but it must be integer or string"),
        ("find", {"text": "a", "pair": [1]}, "pair has 1 items, but it must have 2"),
        ("find", {"text": "a", "pair": ["b", "c"]}, "pair[0] is 'b', but it must be integer"),
    ],
)
def test_check_call_that_does_not_fit_says_why(
    name: str, arguments: dict[str, Any], fault: str
) -> None:
    assert fault in (check_call(SCHEMAS, ToolCall(name, arguments)) or "")


@pytest.mark.parametrize(
    ("argument", "text", "value"),
    [
        ("text", "3", "3"),
        ("text", "null", "null"),
        ("count", " 3\n", 3),
        ("count", "three", "three"),
        ("count", "3 4", "3 4"),
        ("limit", "null", None),
        ("limit", "2", 2),
        ("exact", "True", True),
        ("exact", "true", True),
        ("exact", "1", "1"),
        ("words", '["a", 1]', ["a", 1]),  # its fault is told by check_call
        ("words", "['a']", ["a"]),
        ("options", "{}", {}),
        ("either", "3", 3),
        ("either", "a", "a"),
        ("unknown", "3", "3"),
    ],
)
def test_typed_text_is_of_the_schemas_type(argument: str, text: str, value: Any) -> None:
    found = typed_text(SCHEMAS, "find", argument, text)
    assert (found, type(found)) == (value, type(value))
    assert typed_text(SCHEMAS, "unknown", argument, text) == text


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=4,
)
NAMES = st.sampled_from(["text", "count", "words", "options", "pair", "kind"]) | st.text(max_size=3)


@settings(max_examples=30)
@given(arguments=st.dictionaries(NAMES, VALUES, max_size=4))
def test_check_call_never_raises(arguments: dict[str, Any]) -> None:
    fault = check_call(SCHEMAS, ToolCall("find", arguments))
    assert fault is None or fault
