"""Python functions as tools, and calls that fit them or not."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from enum import Enum
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal, TypedDict
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chatforms.errors import ToolError
from chatforms.spellings import ToolCall
from chatforms.tool_schemas import check_call, fit_arguments, tool_schemas, typed_text


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
    for method in (Shop().buy, Shop.buy):  # of a class of TRL's, its tools are read as functions
        (schema,) = tool_schemas([method])
        assert [*schema["function"]["parameters"]["properties"]] == ["item"]


def no_docstring(text: str) -> str:
    raise NotImplementedError


def not_described(text: str, count: int) -> str:
    """Find.

    Args:
        text (str): What.
    """
    raise NotImplementedError


def no_summary(text: str) -> str:
    """Args:
    text: What.
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
        ([not_described], r"not_described: .* of the parameter count .* indented line 'count: "),
        ([no_summary], r"tool no_summary: its docstring does not say what the tool does; write"),
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


GOOGLE = "Args:\n    a (str): The a.\n    b (int, optional): The b\n        or: c.\n"
NUMPY = """Parameters
----------
a : str
    The a.

b : int, optional
    The b
    or: c.

Returns
-------
int
    A number.
"""


@pytest.mark.parametrize(
    "sections",
    [
        "Args:\n    a: The a.\n    b: The b\n        or c.\n".replace("or c", "or  c"),
        GOOGLE,
        GOOGLE.replace("Args", "Arguments"),
        GOOGLE.replace("Args", "Parameters"),
        GOOGLE.replace("    ", "\t"),
        GOOGLE.replace("    b", "\n    b"),
        GOOGLE + "\nReturns:\n    int: A number.\n\nRaises:\n    ValueError: No.\n",
        NUMPY,
        ":param a: The a.\n:type a: str\n:param int b: The b\n    or: c.\n:returns: A number.\n",
    ],
)
def test_tool_schemas_read_docstrings_of_the_usual_forms(sections: str) -> None:
    def go(a: str, b: int = 3) -> int:
        raise NotImplementedError

    go.__doc__ = f"Go.\n\nFar away.\n\n{sections}"
    (schema,) = tool_schemas([go])
    function = schema["function"]
    assert function["description"] == "Go.\n\nFar away."
    described = {k: v["description"] for k, v in function["parameters"]["properties"].items()}
    assert described["a"] == "The a."
    assert described["b"] in ("The b or: c.", "The b or  c.")


class Unit(Enum):
    KM = "km"
    M = "m"


@dataclass
class Point:
    x: int


class Record(TypedDict):
    x: int


@pytest.mark.parametrize(
    ("annotation", "advice"),
    [
        (Unit, r"annotate Literal\['km', 'm'\], and convert"),
        (Unit | None, r"annotate Literal\['km', 'm'\], and convert"),
        (dict[int, str], r"annotate dict\[str, ...\]"),
        (tuple[int, ...], r"annotate list\[...\]"),
        (Literal[Unit.KM], "use types such as str"),
        *(
            (other, "use types such as str, .* and convert the value")
            for other in (
                *(Point, Record, list[Point], Point | int, dict[str, date], bytes, date, datetime),
                *(UUID, Path, Decimal, object, set, set[int], Sequence, Callable[..., Any]),
            )
        ),
    ],
)
def test_tool_schemas_type_without_schema_is_refused_by_name(annotation: Any, advice: str) -> None:
    def go(x: int) -> Point:
        """Go.

        Args:
            x: What.
        """
        raise NotImplementedError

    go.__annotations__["x"] = annotation
    with pytest.raises(
        ToolError, match=f"tool go: the parameter x is annotated .*, which has no .*{advice}"
    ):
        tool_schemas([go])


@pytest.mark.parametrize(
    "annotation",
    [list, dict, tuple, Any, dict[str, Any], list[dict[str, list[int]]], Annotated[int, "km"]],
)
def test_tool_schemas_type_with_a_schema_is_taken(annotation: Any) -> None:
    def go(x: int) -> Point:
        """Go.

        Args:
            x: What.
        """
        raise NotImplementedError

    go.__annotations__["x"] = annotation
    (schema,) = tool_schemas([go])
    kinds = {list: "array", tuple: "array", dict: "object", int: "integer", Any: None}
    plain = annotation.__origin__ if hasattr(annotation, "__origin__") else annotation
    assert schema["function"]["parameters"]["properties"]["x"].get("type") == kinds[plain]
    assert "return" not in schema["function"]


@pytest.mark.parametrize(
    "arguments",
    [
        {"text": "a"},
        {"text": "", "count": 3, "limit": 3},
        {"text": "", "count": 3.0, "pair": [3.0, ""], "options": {"b": -1e20}},
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
        ("find", {"text": "a", "count": 3.5}, "count is 3.5, but it must be integer"),
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


def test_fit_arguments_makes_integers_of_whole_numbers_alone() -> None:
    arguments = {
        "text": "a",
        "count": 3.0,
        "limit": 3.0,
        "either": 4.0,
        "pair": [5.0, "6.0"],
        "options": {"b": 1e20},
        "exact": True,
        "words": None,
    }
    found = fit_arguments(SCHEMAS, ToolCall("find", arguments))
    assert found == arguments
    assert [type(found[name]) for name in ("count", "limit", "either", "exact")] == [
        *(int, float, int, bool)
    ]
    assert (type(found["pair"][0]), type(found["options"]["b"])) == (int, int)


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
    call = ToolCall("find", arguments)
    fault = check_call(SCHEMAS, call)
    assert fault is None or fault
    if fault is None:
        assert fit_arguments(SCHEMAS, call) == arguments
