"""`paint data validate`: every bad row is counted; lengths are those of the run's own prompts."""

import json
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from paint.commands.validate_data import status
from paint.config.schema import Config, DataConfig, GradingConfig, ModelConfig
from paint.core.display import Display
from paint.data.problems import DataError, Problem, read_problems
from paint.lab.validate import FileCheck, check_file, length_quantiles, print_check
from paint.models import lengths
from paint.models.policy import Policy
from paint.objective.masking import MARKER
from paint.resolve.check import check_config
from paint.training.row_prompts import measure_longest

SOLUTION = r"We find $(1+2)-4 \equiv 99$, so the result is $\boxed{99}$."


def row(number: int, **changes: Any) -> dict[str, Any]:
    return {"problem": f"Start at ${number}$.", "solution": SOLUTION, "answer": "99"} | changes


def write(folder: Path, *lines: dict[str, Any] | str) -> str:
    path = folder / "p.jsonl"
    path.write_text(
        "".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines)
    )
    return str(path)


def check_of(path: str, **options: Any) -> FileCheck:
    return check_file(check_config(config_of(path, **options)), display=Display(enabled=False))


def config_of(path: str, *, model: str = "demo", grader: str = "math", **options: Any) -> Config:
    data, grading = DataConfig(path=path, **options), GradingConfig(grader=(grader,))
    model_config = ModelConfig(path=model, teacher_thinking=False)
    return Config(model=model_config, data=data, grading=grading)


def shown(check: FileCheck) -> str:
    console = Console(record=True, width=120, soft_wrap=True, file=StringIO())
    print_check(check, console)
    return console.export_text()


def test_check_file_counts_bad_rows_and_names_first(tmp_path: Path) -> None:
    bad = [row(n, solution="") for n in range(8)]
    check = check_of(write(tmp_path, row(0), "{", *bad, row(1, extra=1), row(0), row(2)))
    assert check.good == 3
    assert {reason: len(rows) for reason, rows in check.bad.items()} == {
        "invalid JSON": 1,
        'field "solution" is empty': 8,
        "same problem as an earlier row": 1,
    }
    assert [number for number, _ in check.bad['field "solution" is empty']] == list(range(3, 11))
    assert check.bad["same problem as an earlier row"] == [
        (12, "same problem as an earlier row, row 1 (value 'Start at $0$.')")
    ]
    assert check.columns == {"problem": 12, "solution": 12, "answer": 12, "extra": 1}


def test_check_file_lengths_match_prompts_of_run(policy: Policy) -> None:
    check = check_of("demo", limit=40)
    problems = read_problems(DataConfig(path="demo", limit=40)).problems
    prompts = sorted(
        len(policy.teacher_prompt(p.problem, f"{p.solution} {MARKER}", complete=False))
        for p in problems
    )
    assert check.lengths["teacher prompt"] == length_quantiles(prompts)
    texts = sorted(len(policy.tokenizer.encode(p.solution)) for p in problems)
    assert check.lengths["solution"] == length_quantiles(texts)
    limit = prompts[19]
    cut = check_of("demo", limit=40, max_prompt_tokens=limit)
    assert len(cut.too_long) == sum(length > limit for length in prompts) > 0
    number, message = cut.too_long[0]
    problem = problems[number - 1]
    text = f"{problem.solution} {MARKER}"
    length = len(policy.teacher_prompt(problem.problem, text, complete=False))
    assert (message, length > limit) == (f"a teacher prompt of {length} tokens", True)
    assert check.too_long == []


def test_check_file_of_many_rows_samples_lengths_and_finds_every_long_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [row(n) for n in range(40)]
    rows[7] = row(7, problem="Start at $7$. " + "Go on. " * 60)
    rows[22] = row(22, solution="x " * 150)
    path = write(tmp_path, *rows)
    exact = check_of(path, max_prompt_tokens=220)
    assert [number for number, _ in exact.too_long] == [8, 23]
    assert exact.measured == 40
    assert "at equal distances" not in shown(exact)

    monkeypatch.setattr(lengths, "MANY", 39)
    monkeypatch.setattr(lengths, "SAMPLED", 8)
    monkeypatch.setattr("paint.training.row_prompts.SAMPLED", 8)
    monkeypatch.setattr("paint.training.row_prompts.LONGEST", 2)
    check = check_of(path, max_prompt_tokens=220)
    assert check.too_long == exact.too_long
    assert check.measured == 8  # rows 1, 6, 11, ...
    for name, quantiles in exact.lengths.items():
        assert check.lengths[name].longest == quantiles.longest, name
    assert "are those of 8 of 40 rows, at equal distances" in shown(check)


def test_check_file_counts_solutions_by_their_verdicts(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        row(0),
        row(1, answer="98"),
        row(2, answer=r"\frac{198}{2}"),
        row(3, solution="It is so."),
        row(4, answer=99),
    )
    check = check_of(path)
    assert check.boxed == {"right": 3, "wrong": 1, "no box": 1}


def test_check_file_rows_without_answer_count_where_nothing_needs_it(tmp_path: Path) -> None:
    rows = [{"problem": "Is it?", "solution": "It is."}, row(1)]
    check = check_of(write(tmp_path, *rows))
    assert (check.good, check.boxed) == (2, {"right": 1})
    assert "Problem: Is it?" in check.views["student"]
    assert "Begin ===\nIt is." in check.views["teacher"]


def test_check_file_without_good_row_is_reported(tmp_path: Path) -> None:
    check = check_of(write(tmp_path, "[1]", "{"))
    assert (check.good, check.lengths, check.boxed) == (0, {}, {})
    assert "not a JSON object but a list" in shown(check)
    with pytest.raises(DataError, match="is empty"):
        check_of(write(tmp_path))


def test_length_quantiles_p95_is_smallest_covering_length() -> None:
    assert length_quantiles([1, 2, 3, 10]) == (2.5, 10, 10)
    assert length_quantiles(range(1, 101)) == (50.5, 95, 100)


def test_check_file_runs_no_checks_of_mathematics_under_another_grader(tmp_path: Path) -> None:
    tests = "assert add(1, 2) == 3\nassert add(0, 0) == 0"
    code = {"solution": "def add(a, b): return a + b", "answer": tests, "tests": tests}
    path = write(tmp_path, *(code | {"problem": f"Write add {n}."} for n in range(2)))
    for grader in ("extensions.flaky_grader:grade", "none", "code"):
        check = check_of(path, grader=grader)
        assert (check.good, check.grader, check.boxed, check.gold_warnings) == (2, "", {}, [])
        text = shown(check)
        assert "gold answers to check" not in text
        assert "holds the answer" not in text
        assert "no solution has a box" not in text
    assert check_of(path).boxed == {"no box": 2}


def test_check_file_tries_rows_of_code_by_their_own_solutions(tmp_path: Path) -> None:
    def code_row(number: int, code: str, tests: str) -> dict[str, Any]:
        return row(number, solution=f"```python\n{code}\n```", tests=tests)

    path = write(
        tmp_path,
        code_row(0, "def f(): return 1", "assert f() == 1"),
        code_row(1, "def f(): return 2", "assert f() == 1"),
        code_row(2, "def f(): return 1", "assert (f() == 1, 'no')"),
        code_row(3, "class C(Exception): pass\ndef f(): raise C", "x = 1\ntry: f()\n"
                 "except C: x = 2\nassert x == 2"),
    )  # fmt: skip
    check = check_of(path, grader="code")
    assert check.good == 4
    assert check.ungradable == [
        (2, "its own solution fails its tests: 0 of 1 tests passed: wrong value"),
        (3, "an assertion can never fail: assert (f() == 1, 'no')"),
    ]
    assert [note for note in check.notes if note.startswith("1 of 4 rows: each is judged beside")]
    assert "cannot be graded: 2 rows" in shown(check)
    assert status(check) == 1
    check.ungradable = []
    assert status(check) == 0


def test_check_file_runs_the_checks_of_choice_and_exact(tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [
        {"problem": "Which of 1?", "solution": "The answer is B.", "answer": "B"},
        {"problem": "Which of 2?", "solution": "Paris", "answer": "Paris"},
        {"problem": "Which of 3?", "solution": "The answer is C.", "answer": ["A", "D"]},
    ]
    path = write(tmp_path, *rows)
    check = check_of(path, grader="choice")
    assert check.gold_warnings == [(2, "'Paris': it is no letter")]
    assert check.boxed == {"right": 1, "the gold answer 'Paris' is no letter": 1, "wrong": 1}
    assert "solutions that grading.grader choice accepts: 33.3%" in shown(check)
    exact = check_of(path, grader="exact")
    assert (exact.gold_warnings, exact.boxed) == ([], {"right": 1, "wrong": 2})


def test_measure_longest_is_of_the_prompts_that_training_makes(policy: Policy) -> None:
    run = check_config(config_of("demo", limit=40))
    problems = read_problems(run.config.data).problems
    found = measure_longest(run, problems, policy.tokenizer)
    check = check_of("demo", limit=40)
    assert found.prompt == check.lengths["student prompt"].longest
    assert found.teacher_prompt == check.lengths["teacher prompt"].longest
    # Solutions are measured where they are learned.
    learns = replace(run, config=run.config.changed("objective", sft_weight=0.1))
    reference = measure_longest(learns, problems, policy.tokenizer).reference
    assert reference >= check.lengths["solution"].longest
    assert str(found) == "the longest of 40 rows"
    # What is a function of other rows, or of a completion, is not measured.
    for source in ("other", "rollout", "feedback", "neighbour"):
        other = replace(run, config=run.config.changed("context", source=(source,)))
        assert measure_longest(other, problems, policy.tokenizer).teacher_prompt is None


def test_measure_longest_of_many_rows_finds_the_row_with_the_most_bytes(
    policy: Policy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("paint.training.row_prompts.SAMPLED", 4)
    monkeypatch.setattr("paint.training.row_prompts.LONGEST", 1)
    rows = [Problem(f"Start at ${n}$.", SOLUTION, "99", str(n)) for n in range(40)]
    rows[23] = replace(rows[23], problem="Go on. " * 50)
    run = check_config(config_of("demo"))
    found = measure_longest(run, rows, policy.tokenizer)
    assert found.prompt == len(policy.student_prompt(rows[23]))
    assert str(found) == "the longest of 5 of 40 rows"
