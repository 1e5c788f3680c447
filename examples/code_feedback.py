"""Train on what unit tests say: the teacher reads the assertions that a completion fails.

The demo model cannot write code: name a model and a file of tasks of your own. From a shell, with
this file and grade_code.py in the folder: --grading.grader code_feedback:grade. Each test runs in a
process with limits, which are no sandbox (examples/grade_code.py).

A completion that passes all tests has no feedback. It is shown to the teacher of the other
completions of its task, and learned from where another one passes, too.
"""

import re
from collections.abc import Mapping
from typing import Any

from grade_code import BLOCK, run_test

import paint
from paint.grading.thoughts import split_thought

TASKS = [
    {"problem": "Write add(a, b).", "tests": "assert add(1, 2) == 3\nassert add(-1, 1) == 0"},
    {"problem": "Write last(items).", "tests": "assert last([1, 2]) == 2"},
]
LAST_LINE = re.compile(r"\S.*\s*\Z")
MOST = 3  # failed tests that are quoted


def grade(completion: str, row: Mapping[str, Any]) -> paint.Grade:
    blocks = BLOCK.findall(split_thought(completion).answer or "")
    if not blocks:
        return paint.Grade(0.0, "no code block", feedback="Write the code in a ```python block.")
    tests = [line for line in row["tests"].splitlines() if line.strip()]
    failures = []
    for test in tests:
        passed, errors = run_test(blocks[-1], test)
        if not passed:
            error = LAST_LINE.search(errors)
            said = error[0].strip()[:200] if error else "It did not end in time."
            failures.append(f"This test failed: {test}\n{said}")
    passed_tests = len(tests) - len(failures)
    reason = f"{passed_tests} of {len(tests)} tests passed"
    return paint.Grade(passed_tests / len(tests), reason, feedback="\n\n".join(failures[:MOST]))


if __name__ == "__main__":
    run = paint.train(
        "sdpo",
        model={"path": "demo"},
        data={"path": TASKS},
        rollout={"max_new_tokens": 32, "samples_per_problem": 2},
        grading={"grader": grade},
        output_dir="runs/code-feedback",
        train={"steps": 2, "batch_size": 4},
    )
    print(run.rollouts()[["reward", "reason", "context"]])
