"""The grader of code: which blocks pass, and that no block outlives its limits."""

import importlib
import time

import pytest

from paint.grading.contract import Grade, Item
from paint.grading.graders import find_grader

SPEC = "grade_code:grade"
grade_code = importlib.import_module("grade_code")
ROW = {"answer": "assert add(1, 2) == 3\nassert add(-1, 1) == 0\n"}


def block(code: str) -> str:
    return f"Try this:\n```python\n{code}\n```\nDone."


def test_grade_code_rewards_share_of_passed_tests() -> None:
    right, half = block("def add(a, b):\n    return a + b"), block("def add(a, b):\n    return 3")
    texts = [right, half, half + right, block("def add(:"), "return a + b"]
    with find_grader(SPEC) as grader:
        grades = grader.grade([Item(text, "", row=ROW) for text in texts])
    assert [grade.reward for grade in grades] == [1, 0.5, 1, 0, 0]
    assert grades[1] == Grade(0.5, "1 of 2 tests passed")
    assert grades[4] == Grade(0.0, "no code block")


@pytest.mark.parametrize(
    "code",
    [
        "import os; os._exit(0)",
        "import time; time.sleep(60)",
        "x = bytearray(1 << 31)",
        "while True: print('x' * 1000)",
    ],
)
def test_grade_code_over_limits_fails_in_time(code: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grade_code, "WALL_SECONDS", 0.5)
    began = time.monotonic()
    assert not grade_code.run_test(code, "assert True")[0]
    assert time.monotonic() - began < 10
