"""Warnings of a run are seen in a shell and from Python, once, without any set-up."""

import os
import subprocess
import sys
from pathlib import Path
from shlex import split

import pytest

from paint.config.schema import PromptsConfig
from paint.data.problems import Problem
from paint.evaluation.generate import other_form


def test_prompt_that_asks_for_what_the_grader_does_not_read_is_warned_of() -> None:
    problem = Problem("What is ```1```?", "", "1", "p")
    asked = other_form(PromptsConfig(student="Write ```python, {{ problem }}"), ["math"], problem)
    assert "the student's prompt asks for ```, and grading.grader math reads \\boxed" in asked
    assert not other_form(PromptsConfig(student="Read {{ problem }}"), ["math"], problem)


SHELL = """
import logging, sys
from paint.cli import main
logging.basicConfig(filename="warnings.txt", format="%(message)s")
logging.root.handlers[0].setLevel("WARNING")
sys.exit(main(sys.argv[1:]))
"""

JUDGE = """
def grade(completion, row):
    if len(completion) % 3 == 0:
        raise ValueError("malformed")
    return float(row["answer"] in completion)
"""

CUT = (
    "train demo-paint --log.folder runs --log.name run --train.steps 1 --train.batch-size 4 "
    "--train.micro-batch-size 4 --data.limit 4 --rollout.max-new-tokens 8 "
    "--model.teacher-thinking True",
    "paint.train('demo-paint', output_dir='runs/run', model={'teacher_thinking': True}, "
    "data={'limit': 4}, train="
    "{'steps': 1, 'batch_size': 4, 'micro_batch_size': 4}, rollout={'max_new_tokens': 8})",
    ("the views differ", "(all_truncated)", "(all_unanswered)", "ended with collapse warnings"),
)
EVALUATION = (
    "eval demo --benchmarks demo --limit 8 --samples 1 --rollout.max-new-tokens 8 "
    "--grading.grader judge:grade",
    "paint.evaluate('demo', benchmarks=['demo'], limit=8, samples=1, rollout={'max_new_tokens': "
    "8}, grading={'grader': 'judge:grade'})",
    ("the grader failed on ", "truncated_frac 1: "),
)


@pytest.mark.slow
@pytest.mark.parametrize(("line", "call", "expected"), [CUT, EVALUATION], ids=["cut", "evaluation"])
def test_warnings_of_a_run_are_the_same_in_a_shell_and_in_python(
    line: str, call: str, expected: tuple[str, ...], tmp_path: Path
) -> None:
    env = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(tmp_path)}
    (tmp_path / "judge.py").write_text(JUDGE)
    processes = []
    for face, code in (("shell", [SHELL, *split(line)]), ("python", [f"import paint\n{call}"])):
        (tmp_path / face).mkdir()
        command = [sys.executable, "-c", *code]
        process = subprocess.run(
            command, cwd=tmp_path / face, env=env, capture_output=True, text=True
        )
        assert process.returncode == 0, process.stderr
        processes.append(process)
    shell, python = processes
    warned = (tmp_path / "shell" / "warnings.txt").read_text().splitlines()
    lines = [line for line in python.stderr.splitlines() if not line.startswith("paint: ")]
    assert lines == warned
    assert all(shell.stdout.splitlines().count(one) == 1 for one in warned)
    assert python.stdout == ""
    for part in expected:
        assert any(part in one for one in warned), part
