"""`paint chat`: everybody answers as their engine would, side by side."""

import io
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from paint.cli import main
from paint.core.errors import ConfigError
from paint.data.problems import Problem
from paint.evaluation.chat import open_chat
from paint.inference.engine import Sampling, derive_seed
from paint.inference.local import LocalEngine

SAMPLING = Sampling(temperature=1.0, top_p=0.95, top_k=-1, max_new_tokens=30)


def test_chat_answers_are_of_base_trained_and_teacher(run: Path, problems: list[Problem]) -> None:
    chat, problem = open_chat(str(run)), problems[0]
    policy, engine = chat.policy, LocalEngine(chat.policy, batch_size=1)
    steps = list(chat.answers(problem.problem, SAMPLING, 7, solution=problem.solution))
    assert 1 < len(steps) <= 30
    assert list(steps[0]) == ["base", "shown-step-000003", "teacher"]

    student = policy.student_prompt(problem.problem)
    teacher = policy.teacher_prompt(problem.problem, problem.solution, complete=True)
    seeds = [derive_seed(7, problem.problem)]
    expected = {"shown-step-000003": engine.generate([student], SAMPLING, seeds)}
    with chat.base.view():
        expected["base"] = engine.generate([student], SAMPLING, seeds)
        expected["teacher"] = engine.generate([teacher], SAMPLING, seeds)
    for name, (completion,) in expected.items():
        assert steps[-1][name] == policy.transcript(student, completion.ids), name


def test_chat_answers_every_line_of_input(
    run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("What is 1 + 1?\nWhat is 2 + 2?\n\nunread\n"))
    assert main(["chat", str(run), "--max-new-tokens", "3"]) == 0
    assert capsys.readouterr().out.count("shown-step-000003") == 2


def test_chat_with_model_has_one_column(monkeypatch: pytest.MonkeyPatch) -> None:
    (*_, last) = open_chat("demo").answers("What is 1 + 1?", SAMPLING, 0)
    assert list(last) == ["base"]


def test_chat_prompt_beyond_positions_is_refused() -> None:
    with pytest.raises(ConfigError, match="longer than the model's context length"):
        list(open_chat("demo").answers("so " * 2000, SAMPLING, 0))


@pytest.mark.slow
def test_chat_ends_where_nobody_reads() -> None:
    typed = "What is 1 + 1?\n" * 1000
    line = f"{sys.executable} -P -m paint.cli chat demo --max-new-tokens 2 | head -1"
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", line],
        input=typed.encode(),
        capture_output=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 128 + signal.SIGPIPE
