"""Messages of rows: keys that are read, marks of turns, and values that JSON has."""

import datetime
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from paint.config.schema import DataConfig
from paint.data.problems import DataError, Problem, read_problems

ASKED = {"role": "user", "content": "q"}
WRONG = {"role": "assistant", "content": "no"}
AGAIN = {"role": "user", "content": "sure?"}
RIGHT = {"role": "assistant", "content": "yes"}


def read(folder: Path, *messages: Any, turns: str = "all", **columns: Any) -> Problem:
    path = folder / "rows.json"
    path.write_text(json.dumps([{"messages": messages, **columns}]))
    data = DataConfig(path=str(path), turns=turns)  # type: ignore[arg-type]
    [problem] = read_problems(data, needs={}).problems
    return problem


def calling(arguments: Any, **further: Any) -> dict[str, Any]:
    function = {"name": "find", "arguments": arguments, **further.pop("function", {})}
    return {"role": "assistant", "tool_calls": [{"function": function, **further}]}


@pytest.mark.parametrize("unlearned", [0, 0.0, False])
def test_turn_marked_as_not_to_be_learned_is_none_of_the_solution(
    tmp_path: Path, unlearned: Any
) -> None:
    mark = {"weight": unlearned}
    marked = [ASKED | mark, WRONG | mark, AGAIN, RIGHT | {"weight": True}]
    problem = read(tmp_path, *marked)
    assert problem.solution == "yes"
    # Weights that change nothing are left out.
    assert problem.conversation == (WRONG | {"weight": 0}, AGAIN, RIGHT)
    assert read(tmp_path, *marked, turns="last").solution == "yes"
    for turns in ("last", "all"):
        with pytest.raises(DataError, match=r'row 1: field "messages" has no turn to learn'):
            read(tmp_path, ASKED | mark, WRONG | mark, turns=turns)


@pytest.mark.parametrize(
    ("message", "place", "fault"),
    [
        ({"weight": 0.5}, 1, 'message 2 has "weight" 0.5; it must be 0 or 1'),
        ({"weight": "false"}, 1, "message 2 has \"weight\" 'false'; it must be 0 or 1"),
        ({"weight": 1}, 2, "others' turns to learn than the assistant's"),
        ({"train": False}, 1, 'message 2 has a key "train"'),
        ({"train_detail": "x"}, 2, 'message 3 has a key "train_detail"'),
        ({"function_call": {"name": "f"}}, 3, 'message 4 has a key "function_call"'),
        ({"id": 7}, 0, 'message 1 has a key "id"'),
    ],
)
@pytest.mark.parametrize("turns", ["all", "last"])
def test_key_without_effect_is_refused_by_name(
    tmp_path: Path, message: dict[str, Any], place: int, fault: str, turns: str
) -> None:
    messages = [ASKED, WRONG, AGAIN, RIGHT]
    messages[place] = messages[place] | message
    with pytest.raises(DataError) as caught:
        read(tmp_path, *messages, turns=turns)
    assert "rows.json row 1: " in str(caught.value)
    assert fault in str(caught.value)


@pytest.mark.parametrize("nothing", [None, [], ""])
def test_key_that_says_nothing_is_left_out(tmp_path: Path, nothing: Any) -> None:
    keys = dict.fromkeys(["weight", "name", "refusal", "tool_calls", "audio"], nothing)
    marked = [message | (keys if nothing is None else keys | {"weight": 0}) for message in [ASKED]]
    assert read(tmp_path, *marked, WRONG, AGAIN, RIGHT | keys | {"weight": 1}).conversation == (
        WRONG,
        AGAIN,
        RIGHT,
    )


@pytest.mark.parametrize(
    "call",
    [
        {"function": {"parameters": {"a": 1}}},
        {"function": {"name": "f", "args": {"a": 1}}},
        {"name": "f", "parameters": {"a": 1}},
        {"name": "f", "arguments": {}, "index": 0},
    ],
)
def test_key_of_a_call_that_is_not_read_is_refused(tmp_path: Path, call: dict[str, Any]) -> None:
    with pytest.raises(DataError, match=r"row 1: .*a call of message 2 has a key"):
        read(tmp_path, ASKED, {"role": "assistant", "tool_calls": [call]}, RIGHT)


def test_null_in_calls_counts_as_missing(tmp_path: Path) -> None:
    arguments: dict[str, Any] = {"a": 1.5, "b": None, "c": [{"d": None, "e": 2}, None], "f": {}}
    problem = read(tmp_path, ASKED, calling(arguments, id=None), RIGHT)
    [call] = problem.conversation[0]["tool_calls"]
    kept = {"a": 1.5, "c": [{"e": 2}, None], "f": {}}
    assert call == {"function": {"name": "find", "arguments": kept}}
    text = '{"a": null}'
    [call] = read(tmp_path, ASKED, calling(text), RIGHT).conversation[0]["tool_calls"]
    assert call["function"]["arguments"] == text


@pytest.mark.parametrize(
    "value",
    [datetime.datetime(2024, 1, 1), datetime.date(2024, 1, 1), b"x", float("nan"), float("inf")],
    ids=repr,
)
@pytest.mark.parametrize("column", ["messages", "tools"])
def test_value_that_json_does_not_have_is_refused_by_row(
    tmp_path: Path, value: Any, column: str
) -> None:
    row = {"messages": [ASKED, calling({"a": [1]}), RIGHT], "tools": [{"name": "f"}]}
    bad = {
        "messages": [AGAIN, calling({"at": {"b": [value]}}), RIGHT],
        "tools": [{"name": "f", "parameters": {"default": [value]}}],
    }
    path = tmp_path / "rows.parquet"
    rows = [row, row | {"messages": [AGAIN, RIGHT], column: bad[column]}]
    pq.write_table(pa.Table.from_pylist(rows), path)
    with pytest.raises(DataError, match=rf'row 2: field "{column}" holds a value that JSON does'):
        read_problems(DataConfig(path=str(path), turns="all"), needs={})


@pytest.mark.parametrize("digits", ["1e400", "-1e400", "9" * 5000, "NaN", "Infinity"])
def test_number_that_python_does_not_hold_is_refused(tmp_path: Path, digits: str) -> None:
    row = json.dumps({"messages": [ASKED, calling({"a": "DIGITS"}), RIGHT]})
    (tmp_path / "rows.jsonl").write_text(row.replace('"DIGITS"', digits))
    with pytest.raises(DataError, match=r'row 1: field "messages" holds a value that JSON does'):
        read_problems(DataConfig(path=str(tmp_path / "rows.jsonl"), turns="all"), needs={})


@pytest.mark.parametrize(
    "row",
    [
        {"messages": [ASKED, calling({"a": "\ud83d"}), RIGHT]},
        {"messages": [ASKED, calling({"\ud83d": 1}), RIGHT]},
        {"messages": [ASKED, WRONG | {"name": "\ud83d"}]},
        {"messages": [ASKED, RIGHT], "tools": [{"name": "f", "description": "\ud83d"}]},
    ],
)
def test_half_of_a_surrogate_pair_is_refused_everywhere(tmp_path: Path, row: Any) -> None:
    with pytest.raises(DataError, match=r"row 1: field .* is not valid Unicode: half a surr"):
        read(tmp_path, *row.pop("messages"), **row)


def test_result_of_a_tool_may_be_empty(tmp_path: Path) -> None:
    result = {"role": "tool", "content": ""}
    problem = read(tmp_path, ASKED, calling({}), result, RIGHT)
    assert problem.conversation[1] == result
