"""Rows in JSONL, Parquet, a DataFrame, a list and a data set of the hub become the same tokens.

What Arrow does not keep is left out of that: each object of a column has its keys in one order, and
numbers of a column with fractions are fractions (2 is 2.0). Problems are equal there, too.
"""

import json
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import datasets
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from paint.commands.api.configure import write_rows
from paint.config.schema import DataConfig
from paint.data.chats import json_value
from paint.data.problems import DataError, Problem, read_problems
from paint.inference.conversations import written_conversation
from paint.models.policy import Policy

Rows = list[dict[str, Any]]

EXAMPLES = 15

TEXTS = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=8)
SAID = TEXTS.filter(str.strip)
WHOLE = st.integers(-(2**53), 2**53)
# The type Json of data sets keeps neither 17 digits nor the sign of -0.0.
REAL = st.one_of(st.integers(-(10**6), 10**6).map(lambda n: n / 8), st.sampled_from([1e22, 1e-7]))


def objects(**values: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    """Objects with some of the keys, in any order, of which some are null."""
    entries = {key: st.one_of(value, st.none()) for key, value in values.items()}
    some = st.fixed_dictionaries({}, optional=entries)
    return st.tuples(some, st.randoms(use_true_random=False)).map(shuffled)


def shuffled(drawn: tuple[dict[str, Any], Any]) -> dict[str, Any]:
    entries = list(drawn[0].items())
    drawn[1].shuffle(entries)
    return dict(entries)


def either(*values: dict[str, Any]) -> st.SearchStrategy[dict[str, Any]]:
    return st.sampled_from(values)


# Arrow has one type for a key, so a key has one here; of numbers it has the wider one.
ARGUMENTS = objects(
    city=TEXTS,
    when=st.sampled_from(["2024-01-01", "2024-01-01 10:00:00", "12:30"]),
    count=WHOLE,
    share=REAL,
    mixed=st.one_of(st.integers(-9, 9), REAL),
    sure=st.booleans(),
    tags=st.lists(st.one_of(TEXTS, st.none()), max_size=2),
    sizes=st.lists(WHOLE, max_size=2),
    place=objects(name=TEXTS, at=st.lists(objects(x=REAL, note=TEXTS), max_size=2)),
    nothing=st.just({}),
)
PROPERTY = objects(
    type=st.sampled_from(["string", "integer"]),
    description=TEXTS,
    enum=st.lists(TEXTS, max_size=2),
    minimum=st.integers(0, 9),
    default=TEXTS,
)
NAMES = ["find", "count"]


@st.composite
def schemas(draw: st.DrawFn, name: str) -> dict[str, Any]:
    properties = draw(objects(city=PROPERTY, count=PROPERTY))
    parameters = {"type": "object", "properties": properties, "required": list(properties)}
    return {
        "type": "function",
        "function": {"name": name, "description": draw(TEXTS), "parameters": parameters},
    }


@st.composite
def chats(draw: st.DrawFn, number: int, as_text: bool) -> dict[str, Any]:
    """A row of a conversation with calls."""
    messages: list[dict[str, Any]] = [{"role": "user", "content": f"Task {number}: {draw(SAID)}"}]
    if draw(st.booleans()):
        calls: list[dict[str, Any]] = []
        for name in draw(st.lists(st.sampled_from(NAMES), min_size=1, max_size=2)):
            arguments = draw(ARGUMENTS)
            function: dict[str, Any] = {
                "name": name,
                "arguments": json.dumps(arguments) if as_text else arguments,
            }
            call: dict[str, Any] = {"type": "function", "function": function}
            calls.append(call | draw(either({}, {"id": f"c{len(calls)}"})))
        content = draw(either({}, {"content": None}, {"content": ""}, {"content": "So"}))
        messages.append({"role": "assistant", **content, "tool_calls": calls})
        for call in calls:
            named = draw(either({}, {"name": call["function"]["name"]}))
            messages.append({"role": "tool", **named, "content": draw(TEXTS)})
    elif draw(st.booleans()):
        mark = draw(either({}, {"weight": 0}, {"weight": 1}))
        messages.append({"role": "assistant", "content": draw(SAID), **mark})
        messages.append({"role": "user", "content": draw(SAID)})
    messages.append({"role": "assistant", "content": draw(SAID)})
    row = {"messages": messages, "answer": draw(SAID)}
    if draw(st.booleans()):
        tools = draw(st.lists(st.sampled_from(NAMES), unique=True))
        row["tools"] = [draw(schemas(name)) for name in tools]
    return row


@st.composite
def plain(draw: st.DrawFn, number: int) -> dict[str, Any]:
    row = {"problem": f"{number}: {draw(TEXTS)}", "solution": draw(SAID), "answer": draw(SAID)}
    return row | draw(either({}, {"level": "one"}, {"level": None}))


@st.composite
def data_sets(draw: st.DrawFn) -> Rows:
    as_text = draw(st.booleans())
    kinds = draw(st.lists(st.booleans(), min_size=1, max_size=3))
    return [
        draw(chats(number, as_text) if is_chat else plain(number))
        for number, is_chat in enumerate(kinds)
    ]


def json_file(rows: Rows, folder: Path) -> str:
    path = folder / "rows.json"
    path.write_text(json.dumps(rows, ensure_ascii=False))
    return str(path)


def jsonl(rows: Rows, folder: Path) -> str:
    path = folder / "rows.jsonl"
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))
    return str(path)


def parquet(rows: Rows, folder: Path) -> str:
    path = folder / "rows.parquet"
    pq.write_table(pa.table(columns_of(rows)), path)
    return str(path)


def columns_of(rows: Rows) -> dict[str, list[Any]]:
    names = dict.fromkeys(name for row in rows for name in row)
    return {name: [row.get(name) for row in rows] for name in names}


KEEPS_ORDER: list[Callable[[Rows, Path], str]] = [
    json_file,
    write_rows,
    lambda rows, folder: write_rows(pd.DataFrame(rows), folder),
    lambda rows, folder: write_rows(pd.DataFrame(rows).to_dict("list"), folder),
]


def read(path: str) -> list[Problem]:
    return read_problems(DataConfig(path=path, turns="all"), needs={}).problems


def read_of_hub(data: Any) -> list[Problem]:
    stream = data.to_iterable_dataset()
    with mock.patch.object(datasets, "load_dataset", return_value=stream):
        return read("owner/name")


def read_given(rows: Any, folder: Path) -> list[Problem]:
    return read(write_rows(rows, folder))


def read_frame_of_parquet(frame: Any, folder: Path) -> list[Problem] | None:
    """None where pandas made fractions of integers."""
    try:
        return read_given(frame, folder)
    except DataError as error:
        assert "may be an integer that pandas made a fraction" in str(error)  # noqa: PT017
        return None


def in_arrow(rows: Rows, folder: Path) -> Iterator[Callable[[], list[Problem] | None]]:
    """The readers of Arrow's containers, of those that can hold the rows."""
    unheld = (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError)
    with suppress(*unheld):
        path = parquet(rows, folder)
        yield partial(read, path)
        yield partial(read_frame_of_parquet, pd.read_parquet(path), folder)
    for mixed in (None, "use_json"):
        with suppress(*unheld):
            data = datasets.Dataset.from_dict(columns_of(rows), on_mixed_types=mixed)
            yield partial(read_of_hub, data)
            yield partial(read_given, data, folder)


def in_file(problem: Problem) -> list[Any]:
    """All that prompts and what is learned depend on."""
    tools = json_value(problem.fields.get("tools") or [], "tools")
    return [problem, list(problem.conversation), tools]


def ids_of(policy: Policy, problem: Problem) -> list[Any]:
    """Token ids of the prompt, and of what is learned behind it."""
    prompt = policy.student_prompt(problem)
    if not problem.conversation:
        return [prompt, policy.reference_ids(problem)]
    written = written_conversation(policy, problem, problem.conversation, "reference")
    assert written.conversation is not None
    return [prompt, written.ids, [turn.prompt for turn in written.conversation.turns]]


def in_order(value: Any) -> Any:
    """A value with the keys of all objects in one order, and with numbers as floats."""
    if isinstance(value, dict):
        return {key: in_order(item) for key, item in sorted(value.items())}
    if isinstance(value, list | tuple):
        return [in_order(item) for item in value]
    if isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    return value


def is_uniform(rows: Rows) -> bool:
    """Whether objects at one place have their keys in one order, and numbers are of one kind."""
    order: dict[tuple[str, ...], list[str]] = {}
    kinds: dict[tuple[str, ...], set[type]] = {}
    uniform = True

    def visit(value: Any, place: tuple[str, ...]) -> None:
        nonlocal uniform
        if isinstance(value, dict):
            known = order.setdefault(place, [])
            known += [key for key in value if key not in known]
            uniform &= sorted(value, key=known.index) == list(value)
            for key, item in value.items():
                visit(item, (*place, key))
        elif isinstance(value, list):
            for item in value:
                visit(item, (*place, ""))
        elif isinstance(value, int | float) and not isinstance(value, bool):
            kinds.setdefault(place, set()).add(type(value))

    for row in rows:
        for name in ("messages", "tools"):
            visit(row.get(name), (name,))
    return uniform and all(len(kind) == 1 for kind in kinds.values())


# The policy is only read.
@settings(max_examples=EXAMPLES, suppress_health_check=list(HealthCheck))
@given(data_sets())
def test_rows_are_the_same_tokens_in_every_container(policy: Policy, rows: Rows) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        first = read(jsonl(rows, folder))
        ids = [ids_of(policy, problem) for problem in first]
        for write in KEEPS_ORDER:
            assert [ids_of(policy, problem) for problem in read(write(rows, folder))] == ids
        for read_again in in_arrow(rows, folder):
            found = read_again()
            if found is None:
                continue
            assert found == first
            assert in_order(list(map(in_file, found))) == in_order(list(map(in_file, first)))
            if is_uniform(rows):
                assert [ids_of(policy, problem) for problem in found] == ids
