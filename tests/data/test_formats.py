"""Rows of published sets, and of other trainers by named columns, become problems."""

import json
from pathlib import Path
from typing import Any

import pytest

from paint.config.schema import DataConfig
from paint.data.problems import DataError, ValidRows, read_problems


def read(folder: Path, *rows: dict[str, Any], **options: Any) -> ValidRows:
    path = folder / "rows.json"
    path.write_text(json.dumps(rows))
    needs = options.pop("needs", {"solution": "sft"})
    return read_problems(DataConfig(path=str(path), **options), needs=needs)


PROMPTED = {"problem_field": "prompt", "solution_field": "completion"}


def test_read_problems_counts_formats_of_mixed_rows(tmp_path: Path) -> None:
    rows = read(tmp_path, {"problem": "p", "solution": "s"}, GSM8K, MBPP)
    assert [note.partition(":")[0] for note in rows.notes] == [
        "read as GSM8K (1 of 3 rows)",
        "read as MBPP (1 of 3 rows)",
    ]


def test_read_problems_with_a_problem_or_named_columns_is_not_converted(tmp_path: Path) -> None:
    row = {"problem": "p", "solution": "s", "prompt": "q", "completion": "r"}
    row |= GSM8K
    rows = read(tmp_path, row)
    assert (rows.problems[0].problem, rows.problems[0].solution, rows.notes) == ("p", "s", ())
    named = read(tmp_path, row, **PROMPTED)
    assert (named.problems[0].problem, named.problems[0].solution, named.notes) == ("q", "r", ())
    # A solution that the row has stands before the format's.
    both = read(tmp_path, GSM8K | {"solution": "s"})
    assert both.problems[0].solution == "s"


@pytest.mark.parametrize(
    "completion", [[{"role": "user", "content": "r"}], [{"role": "assistant", "content": " "}]]
)
def test_read_problems_completion_that_is_no_reply_is_refused(
    tmp_path: Path, completion: Any
) -> None:
    row = {"prompt": "q", "completion": completion}
    with pytest.raises(DataError, match=r"row 1: .*\"completion\" is no chat that ends in a reply"):
        read(tmp_path, row, **PROMPTED)


NOT_TEXTS = [["a", "b"], {"a": "b"}, 3, True]


@pytest.mark.parametrize("value", NOT_TEXTS, ids=repr)
@pytest.mark.parametrize(
    ("row", "name"),
    [
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
@pytest.mark.parametrize("place", ["first", "last", "completion"])
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
        "completion": {"problem": "q", "solution": [{"role": "assistant", "content": value}]},
    }
    with pytest.raises(DataError, match=r"row 1: field .* is no chat"):
        read(tmp_path, rows[place], needs={})


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


NEAR: list[tuple[dict[str, Any], dict[str, Any]]] = [
    (MBPP, {"test_list": ["tests/test_add.py::test_add"]}),
    (MBPP, {"test_list": []}),
    (GSM8K, {"answer": "72"}),
    (GSM8K, {"answer": "#### Step 1\nAdd 2 and 3.\n#### 5"}),
    (GSM8K, {"answer": "Add.\n##### 5"}),
    (GSM8K, {"answer": "Add.\n#### 5\n\nNote: checked."}),
    (GSM8K, {"answer": "Add.\n#### 1,5"}),
    (GSM8K, {"answer": "Add: #### 5"}),
    (GSM8K, {"answer": "Add.\n#### Paris"}),
    (MBPP, {"test_list": "assert add(1, 2) == 3"}),
    (MBPP, {"text": ""}),
    (HUMANEVAL, {"prompt": "const add = (a, b) => {\n"}),
    (HUMANEVAL, {"entry_point": "sub"}),
    (HUMANEVAL, {"test": "def test_add():\n    assert add(1, 2) == 3\n"}),
]


@pytest.mark.parametrize(("row", "change"), NEAR)
def test_read_problems_near_a_format_is_not_taken_for_it(
    tmp_path: Path, row: dict[str, Any], change: dict[str, Any]
) -> None:
    with pytest.raises(DataError, match=r'row 1: field "problem" is missing'):
        read(tmp_path, row | change, needs={})


def test_read_problems_columns_of_other_rows_that_are_null_are_no_format(tmp_path: Path) -> None:
    columns: dict[str, Any] = dict.fromkeys(["problem", "messages", "question", "answer"])
    chat = {"messages": [{"role": "user", "content": "q"}]}
    rows: list[dict[str, Any]] = [{"problem": "p"}, chat, GSM8K]
    found = read(tmp_path, *[columns | row for row in rows], needs={})
    assert [problem.problem for problem in found.problems] == ["p", "q", GSM8K["question"]]
