"""Rows in the formats of other trainers become problems."""

import json
from pathlib import Path
from typing import Any

import pytest

from paint.config.schema import DataConfig
from paint.data.problems import DataError, ValidRows, read_problems

SYSTEM = ("system", "Be brief.")


def read(folder: Path, *rows: dict[str, Any], **options: Any) -> ValidRows:
    path = folder / "rows.json"
    path.write_text(json.dumps(rows))
    needs = options.pop("needs", {"solution": "sft"})
    return read_problems(DataConfig(path=str(path), **options), needs=needs)


def sharegpt(*turns: tuple[str, str]) -> dict[str, Any]:
    return {"conversations": [{"from": who, "value": text} for who, text in turns]}


FORMATS: list[tuple[str, dict[str, Any], tuple[str, str, tuple[tuple[str, str], ...]]]] = [
    (
        "ShareGPT",
        sharegpt(("system", "Be brief."), ("human", "q"), ("gpt", "r")),
        ("q", "r", (SYSTEM, ("user", "q"))),
    ),
    (
        "ShareGPT",
        sharegpt(("human", "q1"), ("gpt", "r1"), ("human", "q"), ("gpt", "r"))
        | {"system": "Be brief."},
        ("q", "r", (SYSTEM, ("user", "q1"), ("assistant", "r1"), ("user", "q"))),
    ),
    ("Alpaca", {"instruction": "Add.", "input": "1, 2", "output": "3"}, ("Add.\n\n1, 2", "3", ())),
    ("Alpaca", {"instruction": "q", "input": "", "output": "r"}, ("q", "r", ())),
    (
        "Alpaca",
        {"instruction": "q", "output": "r", "system": "Be brief.", "history": []},
        ("q", "r", (SYSTEM, ("user", "q"))),
    ),
    ("query/response", {"query": "q", "response": "r"}, ("q", "r", ())),
    # pandas writes its index as a column without a name.
    ("query/response", {"": "0", "query": "q", "response": "r"}, ("q", "r", ())),
    ("prompt/completion", {"prompt": "q", "completion": "r"}, ("q", "r", ())),
    (
        "prompt/completion",
        {
            "prompt": [{"role": "user", "content": "q"}],
            "completion": [{"role": "assistant", "content": "r"}],
        },
        ("q", "r", (("user", "q"),)),
    ),
]


@pytest.mark.parametrize(("name", "row", "expected"), FORMATS)
def test_read_problems_reads_a_format_and_names_it(
    tmp_path: Path, name: str, row: dict[str, Any], expected: tuple[Any, ...]
) -> None:
    rows = read(tmp_path, row | {"answer": "7"}, needs={"solution": "sft", "answer": "grpo"})
    [problem] = rows.problems
    assert (problem.problem, problem.solution, problem.turns) == expected
    assert problem.answer == "7"
    assert problem.fields.keys() >= row.keys()
    [note] = rows.notes
    assert note.startswith(f"read as {name}: problem and solution from ")


def test_read_problems_counts_formats_of_mixed_rows(tmp_path: Path) -> None:
    own = {"problem": "p", "solution": "s"}
    rows = read(tmp_path, own, {"query": "q", "response": "r"}, {"instruction": "i", "output": "o"})
    assert [problem.solution for problem in rows.problems] == ["s", "r", "o"]
    assert [note.partition(":")[0] for note in rows.notes] == [
        "read as Alpaca (1 of 3 rows)",
        "read as query/response (1 of 3 rows)",
    ]


def test_read_problems_with_a_problem_or_named_columns_is_not_converted(tmp_path: Path) -> None:
    row = {"problem": "p", "solution": "s", "prompt": "q", "completion": "r"}
    row |= GSM8K
    rows = read(tmp_path, row)
    assert (rows.problems[0].problem, rows.problems[0].solution, rows.notes) == ("p", "s", ())
    named = read(tmp_path, row, problem_field="prompt", solution_field="completion")
    assert (named.problems[0].problem, named.problems[0].solution, named.notes) == ("q", "r", ())
    # A solution that the row has stands before the format's.
    both = read(tmp_path, {"prompt": "q", "completion": "r", "solution": "s"})
    assert both.problems[0].solution == "s"
    with pytest.raises(DataError, match='"problem" is missing'):
        read(tmp_path, {"prompt": "q", "query": "q"})  # of which format?


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (
            sharegpt(("human", "q"), ("tool", "4")),
            r"no ShareGPT chat: turn 2 is .* be \"from\" hum",
        ),
        ({"conversations": "text"}, r"no ShareGPT chat: turn 1 is 'text'"),
        ({"conversations": []}, r"\"messages\" is no list of messages"),
        ({"query": "q", "response": "r", "history": [["a", "b"]]}, r"\"history\" is not read"),
        ({"instruction": 3, "output": "r"}, r"\"instruction\" is not text but a number"),
        ({"prompt": "q"}, r"\"solution\" is missing .*; sft needs it"),
        (
            {"prompt": "q", "completion": [{"role": "user", "content": "r"}]},
            r"\"solution\" is no chat that ends in a reply",
        ),
        (
            {"prompt": "q", "completion": [{"role": "assistant", "content": " "}]},
            r"\"solution\" is no chat that ends in a reply",
        ),
    ],
)
def test_read_problems_row_of_a_format_that_is_broken_is_refused(
    tmp_path: Path, row: dict[str, Any], message: str
) -> None:
    with pytest.raises(DataError, match=f"rows.json row 2: .*{message}"):
        read(tmp_path, {"problem": "p", "solution": "s"}, row)


NOT_TEXTS = [["a", "b"], {"a": "b"}, 3, True]


@pytest.mark.parametrize("value", NOT_TEXTS, ids=repr)
@pytest.mark.parametrize(
    ("row", "name"),
    [
        ({"instruction": "q", "input": "i", "output": "r", "system": "s"}, "input"),
        ({"Instruction": "q", "INPUT": "i", "Output": "r"}, "INPUT"),
        ({"query": "q", "response": "r", "system": "s"}, "system"),
        ({"prompt": "q", "completion": "r", "system": "s"}, "completion"),
        (sharegpt(("human", "q"), ("gpt", "r")) | {"system": "s"}, "system"),
        ({"problem": "q", "solution": "r"}, "problem"),
        ({"problem": "q", "solution": "r"}, "solution"),
        ({"text": "t", "code": "c", "test_list": ["assert f()"]}, "test_setup_code"),
        ({"text": "t", "code": "c", "test_list": ["assert f()"]}, "test_imports"),
    ],
)
def test_read_problems_field_that_is_no_text_is_refused_by_name(
    tmp_path: Path, row: dict[str, Any], name: str, value: Any
) -> None:
    if name.startswith("test_") and isinstance(value, list):
        return  # texts of tests may be lists
    read(tmp_path, row)
    with pytest.raises(DataError, match=rf'row 1: field "{name}" is not text but'):
        read(tmp_path, row | {name: value}, needs={})


@pytest.mark.parametrize("value", [*NOT_TEXTS, None], ids=repr)
@pytest.mark.parametrize("place", ["first", "last", "value", "completion"])
def test_read_problems_message_that_is_no_text_is_refused(
    tmp_path: Path, place: str, value: Any
) -> None:
    turns: list[dict[str, Any]] = [
        {"role": "user", "content": "q"},
        {"role": "assistant", "content": "r"},
    ]
    rows: dict[str, dict[str, Any]] = {
        "first": {"messages": [{"role": "user", "content": value}, turns[1]]},
        "last": {"messages": [turns[0], {"role": "assistant", "content": value}]},
        "value": {"conversations": [{"from": "human", "value": value}, turns[1]]},
        "completion": {"prompt": "q", "completion": [{"role": "assistant", "content": value}]},
    }
    with pytest.raises(DataError, match=r"row 1: field .* is no (ShareGPT )?chat"):
        read(tmp_path, rows[place], needs={})


@pytest.mark.parametrize("blank", ["", " \n", None])
def test_read_problems_blank_input_and_system_are_none(tmp_path: Path, blank: str | None) -> None:
    row = {"Instruction": "q", "input": blank, "Output": "r", "system": blank}
    [problem] = read(tmp_path, row).problems
    assert (problem.problem, problem.solution, problem.turns) == ("q", "r", ())
    [capitals] = read(tmp_path, {"Instruction": "q", "INPUT": "i", "Output": "r"}).problems
    assert capitals.problem == "q\n\ni"


GSM8K = {
    "question": "Natalia sold clips to 48 friends, and then half as many. How many in all?",
    "answer": "She sold 48/2 = <<48/2=24>>24 more.\n48+24 = <<48+24=72>>1,072 in all.\n#### 1,072",
}
MBPP = {
    "task_id": 11,
    "text": "Add two numbers.",
    "code": "def add(a, b):\r\n    return a + b",
    "test_list": ["assert add(1, 2) == 3", "assert add(0, 0) == 0"],
    "test_setup_code": "import math",
}
HUMANEVAL = {
    "task_id": "HumanEval/0",
    "prompt": 'def add(a, b):\n    """Add."""\n',
    "canonical_solution": "    return a + b\n",
    "test": "def check(candidate):\n    assert candidate(1, 2) == 3\n",
    "entry_point": "add",
}


def test_read_problems_gsm8k_answer_and_steps_are_separate(tmp_path: Path) -> None:
    rows = read(tmp_path, GSM8K, needs={"solution": "sft", "answer": "grpo"})
    [problem] = rows.problems
    assert problem.problem == GSM8K["question"]
    assert problem.answer == "1072"
    assert problem.solution == (
        "She sold 48/2 = 24 more.\n48+24 = 1,072 in all.\nThe answer is \\boxed{1072}."
    )
    assert rows.notes == ("read as GSM8K: problem and solution from question, answer",)


@pytest.mark.parametrize("text", ["text", "prompt"])
def test_read_problems_mbpp_shows_and_keeps_the_tests(tmp_path: Path, text: str) -> None:
    row = {**MBPP, text: MBPP["text"]}
    if text == "prompt":
        row = row | {"test_imports": ["import math"]}
        del row["text"], row["test_setup_code"]
    [problem] = read(tmp_path, row).problems
    tests = "assert add(1, 2) == 3\nassert add(0, 0) == 0"
    assert problem.problem == f"Add two numbers.\nYour code should pass these tests:\n\n{tests}"
    assert problem.solution == "```python\ndef add(a, b):\n    return a + b\n```"
    assert problem.fields["tests"] == f"import math\n{tests}"
    assert (problem.id, problem.answer) == ("11", "")


def test_read_problems_humaneval_solution_passes_its_tests(tmp_path: Path) -> None:
    [problem] = read(tmp_path, HUMANEVAL).problems
    assert problem.problem.startswith("Complete this function.\n\n```python\ndef add(a, b):")
    code = problem.solution.removeprefix("```python\n").removesuffix("```")
    exec(code + problem.fields["tests"], {})
    with pytest.raises(AssertionError):
        exec(code.replace("+", "-") + problem.fields["tests"], {})
    assert problem.id == "HumanEval/0"


@pytest.mark.parametrize(
    ("last", "answer"),
    [
        ("#### 72", "72"),
        ("#### -3\n", "-3"),
        ("#### $1,234.50", "$1234.50"),
        ("#### 50%", "50%"),
        ("#### .5", ".5"),
        ("####72\r\n", "72"),
    ],
)
def test_read_problems_gsm8k_number_of_the_last_line_is_the_answer(
    tmp_path: Path, last: str, answer: str
) -> None:
    [problem] = read(tmp_path, GSM8K | {"answer": f"Add them.\n{last}"}).problems
    solution = f"Add them.\nThe answer is \\boxed{{{answer}}}."
    assert (problem.answer, problem.solution) == (answer, solution)


NEAR: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    (MBPP, {"test_list": ["tests/test_add.py::test_add"]}, ""),
    (MBPP, {"test_list": []}, ""),
    (GSM8K, {"answer": "72"}, ""),
    (GSM8K, {"answer": "#### Step 1\nAdd 2 and 3.\n#### 5"}, ""),
    (GSM8K, {"answer": "Add.\n##### 5"}, ""),
    (GSM8K, {"answer": "Add.\n#### 5\n\nNote: checked."}, ""),
    (GSM8K, {"answer": "Add.\n#### 1,5"}, ""),
    (GSM8K, {"answer": "Add: #### 5"}, ""),
    (GSM8K, {"answer": "Add.\n#### Paris"}, ""),
    (MBPP, {"test_list": "assert add(1, 2) == 3"}, ""),
    (MBPP, {"text": ""}, ""),
    (HUMANEVAL, {"prompt": "const add = (a, b) => {\n"}, "prompt/completion"),
    (HUMANEVAL, {"entry_point": "sub"}, "prompt/completion"),
    (HUMANEVAL, {"test": "def test_add():\n    assert add(1, 2) == 3\n"}, "prompt/completion"),
    # Dolly's rows, whose context Alpaca does not have.
    ({"instruction": "q"}, {"context": "c", "response": "r"}, ""),
    ({"instruction": "q"}, {"answer": "7"}, ""),
]


@pytest.mark.parametrize(("row", "change", "name"), NEAR)
def test_read_problems_near_a_format_is_not_taken_for_it(
    tmp_path: Path, row: dict[str, Any], change: dict[str, Any], name: str
) -> None:
    if not name:
        with pytest.raises(DataError, match=r'row 1: field "problem" is missing'):
            read(tmp_path, row | change, needs={})
        return
    found = read(tmp_path, row | change, needs={})
    assert [note.split(":")[0] for note in found.notes] == [f"read as {name}"]


def test_read_problems_columns_of_other_rows_that_are_null_are_no_format(tmp_path: Path) -> None:
    columns: dict[str, Any] = dict.fromkeys(
        ["problem", "messages", "query", "instruction", "input", "output"]
    )
    chat = {"messages": [{"role": "user", "content": "q"}]}
    rows: list[dict[str, Any]] = [
        {"problem": "p"},
        chat,
        {"query": "r"},
        {"instruction": "s", "output": "t"},
    ]
    found = read(tmp_path, *[columns | row for row in rows], needs={})
    assert [problem.problem for problem in found.problems] == ["p", "q", "r", "s"]


def test_read_problems_sharegpt_turn_that_is_not_to_be_learned_is_no_solution(
    tmp_path: Path,
) -> None:
    row = sharegpt(("human", "q"), ("gpt", "no"), ("human", "sure?"), ("gpt", "yes"))
    for turn, weight in zip(row["conversations"], (0, 0, 0, 1), strict=True):
        turn["weight"] = weight  # as SlimOrca writes it
    assert read(tmp_path, row).problems[0].solution == "yes"
    assert read(tmp_path, row, turns="all").problems[0].solution == "yes"
    row["conversations"][-1]["weight"] = 0
    for turns in ("last", "all"):
        with pytest.raises(DataError, match=r'row 1: field "messages" has no turn to learn'):
            read(tmp_path, row, turns=turns)
    row["conversations"][-1] |= {"weight": 1, "markdown": "yes"}
    for turns in ("last", "all"):
        with pytest.raises(DataError, match=r'message 4 has a key "markdown" \(value \'yes\'\)'):
            read(tmp_path, row, turns=turns)
