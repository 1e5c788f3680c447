"""A survey: every bad row is counted with its first numbers, and the lengths are those of the run's own prompts."""

import json
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from paint.config import Data
from paint.context import MARKER
from paint.data.problems import DataError, read_problems
from paint.display import Display
from paint.model.policy import Policy
from paint.preparation.check import BadRows, Lengths, Survey, print_survey, summary, survey

SOLUTION = r"We find $(1+2)-4 \equiv 99$, so the result is $\boxed{99}$."


def row(number: int, **changes: Any) -> dict[str, Any]:
    return {"problem": f"Start at ${number}$.", "solution": SOLUTION, "answer": "99"} | changes


def write(folder: Path, *lines: dict[str, Any] | str) -> str:
    path = folder / "p.jsonl"
    path.write_text("".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines))
    return str(path)


def look(path: str, **options: Any) -> Survey:
    return survey(Data(path=path, **options), "lab", teacher_thinking=False, display=Display(enabled=False))


def shown(found: Survey) -> str:
    console = Console(record=True, width=120, soft_wrap=True, file=StringIO())
    print_survey(found, console)
    return console.export_text()


def test_all_bad_rows_are_counted_and_the_first_are_named(tmp_path: Path) -> None:
    bad = [row(n, answer="") for n in range(8)]
    found = look(write(tmp_path, row(0), "{", *bad, row(1, extra=1), row(0), row(2)))
    assert found.good == 3
    assert {reason: rows.count for reason, rows in found.bad.items()} == {
        "invalid JSON": 1,
        'field "answer" is empty': 8,
        "same problem as an earlier row": 1,
    }
    assert [number for number, _ in found.bad['field "answer" is empty'].first] == [3, 4, 5, 6, 7]
    assert found.bad["same problem as an earlier row"].first == [
        (12, "same problem as an earlier row, row 1 (value 'Start at $0$.')")
    ]
    assert found.columns == {"problem": 12, "solution": 12, "answer": 12, "extra": 1}


def test_lengths_are_those_of_the_prompts_that_a_run_makes(policy: Policy) -> None:
    found = look("lab", limit=40)
    problems = read_problems(Data(path="lab", limit=40)).problems
    prompts = sorted(len(policy.teacher_prompt(p.problem, f"{p.solution} {MARKER}", complete=False)) for p in problems)
    assert found.lengths["teacher prompt"] == summary(prompts)
    texts = sorted(len(policy.tokenizer.encode(p.solution)) for p in problems)
    assert found.lengths["solution"] == summary(texts)
    limit = prompts[19]
    cut = look("lab", limit=40, max_prompt_tokens=limit)
    assert cut.too_long.count == sum(length > limit for length in prompts) > 0
    number, message = cut.too_long.first[0]
    problem = problems[number - 1]
    length = len(policy.teacher_prompt(problem.problem, f"{problem.solution} {MARKER}", complete=False))
    assert (message, length > limit) == (f"a teacher prompt of {length} tokens", True)
    assert found.too_long == BadRows()


def test_solutions_that_miss_their_answer_or_anchors_are_counted(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        row(0),
        row(1, answer="98"),
        row(2, answer=r"\frac{198}{2}"),
        row(3, solution="It is so."),
        row(4, answer=99),
    )
    found = look(path)
    assert found.boxed == {"right": 3, "wrong": 1, "no box": 1}
    assert found.without_anchors == 1


def test_the_limit_ends_the_survey_where_it_ends_the_run(tmp_path: Path) -> None:
    found = look(write(tmp_path, "{", row(0), "{", row(1), "{"), limit=2)
    assert (found.good, found.bad["invalid JSON"].count) == (2, 2)


def test_what_is_shown_holds_what_was_found(tmp_path: Path) -> None:
    text = shown(look(write(tmp_path, "{", *[row(n) for n in range(3)], row(3, answer="1")), max_prompt_tokens=10))
    for piece in (
        "p.jsonl: 5 rows, 4 good",
        "columns: problem (in 4 rows), solution (in 4 rows), answer (in 4 rows)",
        "bad: invalid JSON: 1 rows",
        "row 1: invalid JSON at column 2: Expecting property name",
        "over data.max_prompt_tokens, 10: 4 rows",
        "solutions whose box holds the answer: 75.0% (3 right, 1 wrong)",
        "teacher prompt",
    ):
        assert piece in text, piece


def test_a_file_without_a_good_row_is_surveyed_too(tmp_path: Path) -> None:
    found = look(write(tmp_path, "[1]", "{"))
    assert (found.good, found.lengths, found.boxed) == (0, {}, {})
    assert "not a JSON object but a list" in shown(found)
    with pytest.raises(DataError, match="is empty"):
        look(write(tmp_path))


def test_a_tokenizer_that_cannot_serve_is_refused(tmp_path: Path, lab_copy: Path) -> None:
    path = write(tmp_path, row(0))
    with pytest.raises(DataError, match="no tokenizer at 'nowhere/at-all'"):
        survey(Data(path=path), "nowhere/at-all", display=Display(enabled=False))
    (lab_copy / "chat_template.jinja").unlink()
    with pytest.raises(DataError, match="has no chat template"):
        survey(Data(path=path), str(lab_copy), display=Display(enabled=False))


@given(st.lists(st.integers(0, 1000), min_size=1, max_size=60))
def test_the_95th_percentile_is_the_smallest_length_that_95_percent_do_not_exceed(lengths: list[int]) -> None:
    found = summary(lengths)

    def within(limit: float) -> float:
        return sum(length <= limit for length in lengths) / len(lengths)

    assert found.p95 in lengths
    assert within(found.p95) >= 0.95
    assert all(within(length) < 0.95 for length in lengths if length < found.p95)
    assert found.longest == max(lengths)
    assert summary([1, 2, 3, 10]) == Lengths(2.5, 10, 10)
