"""Problems: every row that would train on nothing, or on the wrong thing, is refused or counted."""

import csv
import json
from collections import Counter
from dataclasses import replace
from datetime import date
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from paint.config.schema import DataConfig
from paint.data.problems import (
    DataError,
    Problem,
    ValidRows,
    batch_indices,
    from_row,
    problems_digest,
    read_problems,
    row_of,
    to_row,
)
from strictgrade.equality import explain_gold

GOOD: dict[str, Any] = {"problem": "1 + 1?", "solution": "We add.", "answer": "2"}
OTHER: dict[str, Any] = {"problem": "2 + 2?", "solution": "We add.", "answer": "4"}


def write(folder: Path, *rows: dict[str, Any] | bytes) -> Path:
    path = folder / "p.jsonl"
    encoded = (row if isinstance(row, bytes) else json.dumps(row).encode() for row in rows)
    path.write_bytes(b"".join(row + b"\n" for row in encoded))
    return path


def read(path: Path, **options: Any) -> ValidRows:
    return read_problems(DataConfig(path=str(path), **options))


def refusal(path: Path, **options: Any) -> str:
    with pytest.raises(DataError) as caught:
        read(path, **options)
    return str(caught.value).replace(f"{path.parent}/", "")


def test_read_problems_keeps_text_verbatim(tmp_path: Path) -> None:
    row = GOOD | {"problem": "  é\u2028ü\r\n ", "solution": "x\ty ", "unused": [1]}
    path = write(tmp_path, json.dumps(row, ensure_ascii=False).encode(), OTHER | {"id": "b"})
    kept = [Problem("  é\u2028ü\r\n ", "x\ty ", "2", "1"), Problem("2 + 2?", "We add.", "4", "b")]
    assert read(path) == ValidRows(kept, skipped={})


def test_read_jsonl_bom_blank_lines_and_crlf_are_accepted(tmp_path: Path) -> None:
    path = tmp_path / "p.jsonl"
    rows = [json.dumps(GOOD).encode(), b"", b"  ", json.dumps(OTHER).encode()]
    path.write_bytes(b"\xef\xbb\xbf" + b"\r\n".join(rows))
    assert [problem.id for problem in read(path).problems] == ["1", "2"]


PREFIX = b'{"problem": "d", "solution": "s", "answer": '


def test_read_problems_numeric_answer_or_id_keeps_its_digits(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        b'{"problem": "a", "solution": "s", "answer": 0.10, "id": 7}',
        b'{"problem": "b", "solution": "s", "answer": -12345678901234567890123}',
        b'{"problem": "c", "solution": "s", "answer": 1e3}',
    )
    problems = read(path).problems
    assert [problem.answer for problem in problems] == ["0.10", "-12345678901234567890123", "1e3"]
    assert [problem.id for problem in problems] == ["7", "2", "3"]
    assert {type(text) for problem in problems for text in (problem.answer, problem.id)} == {str}

    for number, text in ((b"1e-8", "1/10**8"), (b"1E+16", "1*10**16"), (b"-0.5", "-1/2")):
        [problem] = read(write(tmp_path, PREFIX + number + b"}")).problems
        assert explain_gold(problem.answer).text == text

    enormous = PREFIX + b"9" * 5000 + b"}"
    assert read(write(tmp_path, enormous)).problems[0].answer == "9" * 5000


def test_read_problems_custom_field_names(tmp_path: Path) -> None:
    path = write(tmp_path, {"question": "q", "reference": "r", "gold": "g", "uuid": "u"})
    options = {"problem_field": "question", "solution_field": "reference", "answer_field": "gold"}
    assert read(path, **options, id_field="uuid").problems == [Problem("q", "r", "g", "u")]
    # The default id field may be missing, one of another name may not.
    fields = "(fields of the row: question, reference, gold, uuid)"
    missing = f'row 1: field "key" is missing {fields}; set --data.id-field'
    assert missing in refusal(path, **options, id_field="key")


HALF = ": half a surrogate pair at character 1"
ABSENT = " (fields of the row: problem, answer); set --data.solution-field to the one that holds "
ABSENT += "the solution"
BAD_ROWS: list[tuple[dict[str, Any] | bytes, str, str]] = [
    (OTHER | {"solution": ""}, 'field "solution" is empty', " (value '')"),
    (OTHER | {"problem": " \n"}, 'field "problem" is empty', r" (value ' \n')"),
    (OTHER | {"answer": "\t"}, 'field "answer" is empty', r" (value '\t')"),
    (OTHER | {"id": ""}, 'field "id" is empty', " (value '')"),
    (OTHER | {"problem": 3}, 'field "problem" is not text', " but a number (value 3)"),
    (OTHER | {"solution": ["s"]}, 'field "solution" is not text', " but a list (value ['s'])"),
    (OTHER | {"answer": None}, 'field "answer" is not text', " but null (value None)"),
    (OTHER | {"answer": True}, 'field "answer" is not text', " but true or false (value True)"),
    (OTHER | {"id": {}}, 'field "id" is not text', " but an object (value {})"),
    (OTHER | {"solution": "\ud800"}, 'field "solution" is not valid Unicode', HALF),
    ({"problem": "p", "answer": "a"}, 'field "solution" is missing', ABSENT),
    (GOOD | {"problem": "1  +\n1?"}, "same problem as an earlier row", ", row 1 (value '1 + 1?')"),
    (OTHER | {"id": "1"}, "same id as an earlier row", ", row 1 (value '1')"),
    (b"[1]", "not a JSON object", " but a list; write one object a line"),
    (b"null", "not a JSON object", " but null; write one object a line"),
    (b'{"problem": }', "invalid JSON", ": Expecting value: line 1 column 13 (char 12)"),
    (b"[" * 200_000, "invalid JSON", ": lists and objects nest deeper than 100"),
]


@pytest.mark.parametrize(("row", "reason", "detail"), BAD_ROWS, ids=lambda value: None)
def test_read_problems_bad_row_is_refused_or_skipped_and_counted(
    tmp_path: Path, row: dict[str, Any] | bytes, reason: str, detail: str
) -> None:
    last = GOOD | {"problem": "last"}
    path = write(tmp_path, GOOD, b"", row, last)
    hint = "; fix the row or pass --data.on-bad-row skip"
    message = refusal(path)
    assert message.startswith(f"p.jsonl row 2: {reason}{detail}")
    assert message.endswith(hint)

    good_rows = read(path, on_bad_row="skip")
    assert [(p.problem, p.id) for p in good_rows.problems] == [("1 + 1?", "1"), ("last", "3")]
    assert good_rows.skipped == {reason: 1}


NO_CHATS = [
    ([{"role": "user"}], "must be a role and a content, both text"),
    ([{"role": "user", "content": "q", "tool_calls": [{"id": "1"}]}], "must be a role and a cont"),
    ([{"role": "user", "content": "\ud800"}], "is not valid Unicode"),
    ([], r"is no list of messages .* \(value \[\]\)"),
    ("[]", r"is no list of messages .* \(value '\[\]'\)"),
    ([{"role": "system", "content": "s"}], r"ends in a turn of the user .*roles: system"),
    (
        [{"role": "user", "content": "q"}, {"role": "tool", "content": "4"}],
        r"is no chat that ends in a turn of the user .*roles: user, tool",
    ),
]


@pytest.mark.parametrize(("messages", "said"), NO_CHATS)
def test_read_problems_chat_that_is_none_is_refused(
    tmp_path: Path, messages: object, said: str
) -> None:
    path = write(tmp_path, {"messages": messages, "solution": "s", "answer": "a"})
    with pytest.raises(DataError, match=f'row 1: field "messages" .*{said}'):
        read(path)


def test_read_problems_reply_of_chat_is_solution_unless_the_row_has_one(tmp_path: Path) -> None:
    asked: dict[str, Any] = {"role": "user", "content": "q", "name": None, "tool_calls": []}
    reply = {"role": "assistant", "content": "r", "tool_calls": None}
    system = {"role": "system", "content": "s"}
    chats = [[asked, reply], [system, asked], [asked, reply, asked, reply]]
    path = write(tmp_path, *({"messages": chat, "solution": "s"} for chat in chats))
    problems = read_problems(DataConfig(path=str(path)), needs={"solution": ""}).problems
    assert [p.solution for p in problems] == ["r", "s", "r"]
    assert {(p.problem, p.answers) for p in problems} == {("q", ())}
    assert problems[2].turns == (("user", "q"), ("assistant", "r"), ("user", "q"))
    path = write(tmp_path, {"prompt": [asked], "completion": [reply], "answer": "a"})
    [problem] = read(path, problem_field="prompt", solution_field="completion").problems
    assert (problem.problem, problem.solution) == ("q", "r")


def test_read_problems_missing_field_is_refused_by_what_needs_it(tmp_path: Path) -> None:
    path = write(tmp_path, {"problem": "p", "answer": " "})
    [problem] = read_problems(DataConfig(path=str(path)), needs={}).problems
    assert (problem.solution, problem.answer, problem.answers) == ("", "", ())
    with pytest.raises(DataError, match=r"answer. is empty"):
        read_problems(DataConfig(path=str(path)), needs={"answer": "x"})
    with pytest.raises(DataError, match=r"fields of the row: problem, answer.; SFT needs it; set"):
        read_problems(DataConfig(path=str(path)), needs={"solution": "SFT"})


def test_read_problems_column_case_is_ignored_if_unambiguous(tmp_path: Path) -> None:
    row = {"Problem": "p", "SOLUTION": "s", "Answer": "a", "ID": "i"}
    assert read(write(tmp_path, row)).problems == [Problem("p", "s", "a", "i")]

    exact = row | {"answer": "exact"}
    assert read(write(tmp_path, exact)).problems == [Problem("p", "s", "exact", "i")]

    two = {"problem": "p", "solution": "s", "Answer": "a", "ANSWER": "b"}
    fields = "(fields of the row: problem, solution, Answer, ANSWER)"
    assert f'field "answer" is missing {fields}' in refusal(write(tmp_path, two))


UNSOLVED: list[dict[str, Any]] = [
    {"problem": "p", "answer": "1"},
    {"problem": "p", "answer": "2", "solution": None},
    {"problem": "q", "answer": "3", "solution": " "},
    {"problem": "r", "answer": "4", "solution": "s"},
]


def test_read_evaluation_rows_without_solutions_are_accepted(tmp_path: Path) -> None:
    data = DataConfig(path=str(write(tmp_path, *UNSOLVED)))
    problems = read_problems(data, solutions=False).problems
    expected = [("p", ""), ("p", ""), ("q", ""), ("r", "s")]
    assert [(p.problem, p.solution) for p in problems] == expected


def test_read_problems_list_of_answers_is_several(tmp_path: Path) -> None:
    rows = [GOOD | {"answer": ["2", 2, "0.10", "two"]}, OTHER | {"Answer": 3}]
    rows[1].pop("answer")
    problems = read(write(tmp_path, *rows)).problems
    assert [problem.answers for problem in problems] == [("2", "0.10", "two"), ("3",)]
    assert len({problems[0], replace(problems[0], also=()), replace(problems[0], row=7)}) == 2

    path = tmp_path / "p.parquet"
    table = {"problem": ["p"], "answer": [[1, 25]], "solution": ["s"]}
    pyarrow.parquet.write_table(pyarrow.table(table), path)
    assert read(path).problems[0].answers == ("1", "25")


def test_problem_stored_row_gives_graders_every_field() -> None:
    fields = {"q": "p", "tests": ["a", 1], "prompt": {"x": None}, "day": date(2026, 1, 2)}
    again = from_row(json.loads(json.dumps(to_row(Problem("p", "s", "1", "i", fields=fields)))))
    assert row_of(again) == row_of(Problem("p", "s", "1", "i", fields=fields)) | {
        "day": "2026-01-02"
    }


def test_problem_row_round_trips_through_json() -> None:
    chat = Problem("b", "", "1", "i", turns=(("system", "a"), ("user", "b")))
    more = Problem("p", "", "1", "i", ("2", "3"))
    for problem in (Problem("p", "", "1", "i"), more, chat):
        again = from_row(json.loads(json.dumps(to_row(problem))))
        assert again == problem
    assert to_row(Problem("p", "", "1", "i")) == {"id": "i", "problem": "p", "answer": "1"}
    with pytest.raises(ValueError, match="not enough values"):
        from_row({"id": "i", "problem": "p", "answer": []})


def test_problems_digest_depends_on_every_answer_but_not_rows() -> None:
    one = Problem("p", "s", "1", "i")
    assert problems_digest([one]) != problems_digest([replace(one, also=("2",))])
    labelled = replace(one, row=3)
    assert problems_digest([one]) == problems_digest([labelled])
    assert problems_digest([one]) == problems_digest([replace(one, fields={"problem": "p"})])
    assert problems_digest([one]) != problems_digest([replace(one, fields={"rules": "r"})])


def test_read_problems_skip_counts_rows_up_to_limit(tmp_path: Path) -> None:
    path = write(tmp_path, b"{", GOOD | {"answer": ""}, GOOD, OTHER, GOOD, GOOD, b"{")
    for limit, repeats, broken in ((None, 2, 2), (9, 2, 2), (2, 0, 1)):
        good_rows = read(path, on_bad_row="skip", limit=limit)
        assert [problem.id for problem in good_rows.problems] == ["3", "4"]
        counts = {'field "answer" is empty': 1, "invalid JSON": broken}
        counts |= {"same problem as an earlier row": repeats} if repeats else {}
        assert good_rows.skipped == counts


def test_read_problems_file_without_usable_row_is_refused(tmp_path: Path) -> None:
    for rows in ([], [b" ", b""]):
        assert refusal(write(tmp_path, *rows)) == "p.jsonl is empty; it must hold one problem a row"
    path = write(tmp_path, b"{", b"{", GOOD | {"problem": ""})
    reasons = '(2 x invalid JSON; 1 x field "problem" is empty)'
    assert refusal(path, on_bad_row="skip") == f"p.jsonl has no valid row {reasons}"


@given(st.integers(1, 30), st.integers(1, 70), st.integers(0, 9), st.integers(0, 5))
def test_batch_indices_cut_batches_from_consecutive_epochs(
    count: int, batch_size: int, last: int, seed: int
) -> None:
    steps = [batch_indices(count, batch_size, step, seed) for step in range(last + 1)]
    assert {len(batch) for batch in steps} == {batch_size}

    stream = [index for batch in steps for index in batch]
    whole = len(stream) // count
    for epoch in range(whole):
        assert sorted(stream[epoch * count : (epoch + 1) * count]) == list(range(count))
    rest = stream[whole * count :]
    assert max(Counter(rest).values(), default=0) <= 1
    # The stream does not depend on how it is cut into steps.
    assert stream == batch_indices(count, len(stream), 0, seed)


def test_batch_indices_are_equal_in_every_process() -> None:
    expected = [[8, 9, 0], [3, 7, 4], [1, 5, 2], [6, 8, 6]]
    assert [batch_indices(10, 3, step, seed=0) for step in range(4)] == expected


def test_read_problems_dotted_name_is_a_field_in_an_object(tmp_path: Path) -> None:
    inner = {"reward_model": {"ground_truth": 0.1, "style": "rule"}, "extra": {"Q": {"x": "q"}}}
    row = {"solution": "s", **inner}
    fields = {"answer_field": "reward_model.ground_truth", "problem_field": "extra.q.x"}
    table = tmp_path / "p.parquet"
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist([row]), table)
    for path in (write(tmp_path, row), table):
        [problem] = read(path, **fields).problems
        assert (problem.problem, problem.solution, problem.answer) == ("q", "s", "0.1")
        assert str(problem.fields["reward_model.ground_truth"]) == "0.1"
    # A column of that very name stands first.
    flat = write(tmp_path, row | {"reward_model.ground_truth": "7"})
    assert read(flat, **fields).problems[0].answer == "7"
    message = refusal(write(tmp_path, GOOD | inner), answer_field="reward_model.truth")
    assert 'field "reward_model.truth" is missing (fields of the row: ' in message
    assert "reward_model.ground_truth, reward_model.style" in message


CHARACTERS = st.characters(exclude_categories=["Cs"])


TEXT = st.text(CHARACTERS, min_size=1, max_size=30).filter(lambda text: text.strip())


@example([("p", "x\n" * 500_000, "1")])
@given(st.lists(st.tuples(TEXT, TEXT, TEXT), min_size=1, max_size=8))
def test_read_problems_of_csv_keeps_any_text(drawn: list[tuple[str, str, str]]) -> None:
    rows = [(f"{number}. {p}", s, a) for number, (p, s, a) in enumerate(drawn)]
    with TemporaryDirectory() as folder:
        path = Path(folder) / "p.csv"
        with path.open("w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file, quoting=csv.QUOTE_ALL)
            writer.writerows([("problem", "solution", "answer"), *rows])
        found = read(path).problems
    assert [(p.problem, p.solution, p.answer) for p in found] == rows
