"""Gold answers: what does not parse is named with its place and the way out."""

import json
import logging
from pathlib import Path

import pytest

from paint.core.display import Display
from paint.data.benchmarks import Benchmark, load_benchmark
from paint.data.problems import DataError, Problem
from paint.data.row_checks import announce_benchmark, gold_warnings
from paint.grading.graders import find_grader

GOOD = ["7", r"\frac{1}{2}", "(0, 1)", "x = 3", r"12\text{ cm}", "1,000"]
BROKEN = [r"\frac{1}{", r"\sqrt", r"2^{", r"\frac{}{}", "9" * 1000 + "x" * 1001]


def benchmark(folder: Path, *answers: str | list[str]) -> Path:
    path = folder / "mine.jsonl"
    rows = ({"problem": f"p{n}", "answer": a, "id": f"q{n}"} for n, a in enumerate(answers))
    # A blank line is no row.
    path.write_text("\n" + "".join(json.dumps(row) + "\n" for row in rows))
    return path


class Said(Display):
    """Keeps what is said, with its level."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[tuple[int, str]] = []

    def log(self, level: int, text: str) -> None:
        self.lines.append((level, text))


def said(problems: list[Problem], grader: str = "math") -> str:
    display = Said()
    announce_benchmark(find_grader(grader), Benchmark("mine", problems, ("how read",)), display)
    assert display.lines.pop(0) == (logging.INFO, "how read")
    assert all(level == logging.WARNING for level, _ in display.lines)
    return "".join(text for _, text in display.lines)


def test_gold_warnings_name_row_value(tmp_path: Path) -> None:
    problems = load_benchmark(str(benchmark(tmp_path, *GOOD, *BROKEN))).problems
    found = gold_warnings(problems)
    assert [doubt.answer for doubt in found] == BROKEN
    text = said(problems)
    assert f"warning: mine: {len(BROKEN)} of {len(GOOD + BROKEN)} gold answers" in text
    assert r"  row 7, id q6: '\\frac{1}{': it does not parse" in text
    with pytest.raises(DataError, match=r"mine: none of the 5 gold answers parses \(row 7, id q6"):
        said(problems[len(GOOD) :])
    assert said([Problem("p", "", answer, answer) for answer in GOOD]) == ""
    assert said(problems, "exact") == ""


def test_gold_warnings_text_answer_parses_with_warning() -> None:
    [doubt] = gold_warnings([Problem("p", "", "the seventh", "1")])
    assert doubt.why == "it is read as text (read as 'the seventh')"
    assert said([doubt.problem]) == ""
