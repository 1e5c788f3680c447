"""Estimates of a step's time: what is measured, assumed, kept, said and asked."""

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from paint.cli import main
from paint.config.run_folder import read_metrics
from paint.core import display
from paint.core.trust import state_folder
from paint.data.mixtures import draw_problems
from paint.data.problems import Problem
from paint.inference.engine import Sampling
from paint.inference.local import LocalEngine
from paint.models.policy import Policy
from paint.models.teacher import open_teacher
from paint.resolve.check import check_config
from paint.training import step_time, trainer
from paint.training.step_time import Speed, StepTime, describe_taken, estimate
from runs import changed

SMALL: dict[str, Any] = {
    "rollout": {"max_new_tokens": 40, "batch_size": 4},
    "train": {"batch_size": 8, "micro_batch_size": 4, "steps": 5},
}


@pytest.fixture
def unmeasured() -> None:
    """In place of the fixture of all tests: here, time is measured."""


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user's state folder in which nothing was measured."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    return state_folder() / step_time.FILE


@pytest.mark.parametrize("recipe", ["demo-paint", "demo-grpo", "demo-sft"])
def test_estimate_is_measured_once_and_leaves_the_policy_as_it_was(
    policy: Policy, problems: list[Problem], home: Path, recipe: str, monkeypatch: Any
) -> None:
    run = check_config(changed(recipe, SMALL)).changed("rollout", engine="local")
    teacher = open_teacher(policy, run.teacher)
    state, weights = torch.get_rng_state(), [p.detach().clone() for p in policy.trainable]
    found = estimate(policy, teacher, run, problems, 5)
    assert found is not None
    assert found.steps == 5
    assert 0 < found.seconds <= found.most
    assert torch.equal(torch.get_rng_state(), state)
    assert all(p.grad is None for p in policy.trainable)
    assert all(map(torch.equal, weights, policy.trainable))

    measured: list[int] = []

    def measure(*_: Any) -> Speed:
        measured.append(1)
        return Speed(0.0, 4, 0.0, 1.0)

    monkeypatch.setattr(step_time, "_measure", measure)
    assert estimate(policy, teacher, run, problems, 5) == found
    assert not measured
    talking = estimate(policy, teacher, run.changed("conversation", tools=("a:b",)), problems, 5)
    assert talking is not None
    assert talking.assumed == f"{found.assumed}, each conversation of one turn"
    # Other shapes and damaged files are measured anew.
    estimate(policy, teacher, run.changed("train", batch_size=16), problems, 5)
    assert len(measured) == 1
    home.write_text("{")
    estimate(policy, teacher, run, problems, 5)
    home.write_text('{"x": 3}')
    estimate(policy, teacher, run, problems, 5)
    assert len(measured) == 3


def test_estimate_adds_up_decode_steps_and_passes(
    policy: Policy, problems: list[Problem], home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    speed = Speed(decode=1000.0, rows=4, fixed=10.0, token=0.01)
    monkeypatch.setattr(step_time, "_measure", lambda *_: speed)
    run = check_config(changed("demo-grpo", SMALL, {"rollout": {"samples_per_problem": 8}}))
    [drawn] = [problems[i] for i in draw_problems(problems, run.config.data, 1, 0, 0)]
    prompt = len(policy.student_prompt(drawn))
    length = min(len(policy.solution_ids(drawn.solution)), 40)
    # Eight rows by four at once; two micro-batches of four; the student's two passes and a reading.
    expected = {n: 2 * n * 1000 + 2 * 10 + 8 * (3 * prompt + 2 * n) * 0.01 for n in (length, 40)}
    teacher = open_teacher(policy, run.teacher)
    found = estimate(policy, teacher, run, problems, 3)
    assert found is not None
    assert found.seconds == pytest.approx(expected[length])
    assert found.most == pytest.approx(expected[40])
    assert found.total == pytest.approx(3 * expected[length])
    # Without a solution, completions are taken to be as long as they can be.
    bare = [replace(problem, solution="") for problem in problems]
    without = estimate(policy, teacher, run, bare, 3)
    assert without is not None
    assert without.tokens == 40
    assert without.seconds == pytest.approx(expected[40])


@pytest.mark.parametrize("at_once", [1, 8])
def test_decode_seconds_are_those_of_a_step_however_many_run_at_once(
    policy: Policy, monkeypatch: pytest.MonkeyPatch, at_once: int
) -> None:
    # On a GPU, completions of one token and of five both take eight steps.
    def seconds(work: Callable[[], Any], _: torch.device) -> float:
        [sampling] = [part for part in work.args if isinstance(part, Sampling)]  # type: ignore[attr-defined]
        return 1.0 + 0.5 * math.ceil(sampling.max_new_tokens / at_once) * at_once

    monkeypatch.setattr(LocalEngine, "steps_at_once", at_once)
    monkeypatch.setattr(step_time, "_timed", seconds)
    run = check_config(changed("demo-paint", SMALL)).changed("rollout", engine="local")
    assert step_time._decode_seconds(policy, run, [5] * 20, 4) == 0.5


@pytest.mark.parametrize(("device", "runs", "found"), [("cpu", 1, 9.0), ("cuda", 2, 1.0)])
def test_timed_work_on_a_gpu_is_the_second_run_without_what_is_compiled(
    monkeypatch: pytest.MonkeyPatch, device: str, runs: int, found: float
) -> None:
    clock = iter([0.0, 9.0, 9.0, 10.0])
    done: list[int] = []
    monkeypatch.setattr("time.perf_counter", lambda: next(clock))
    assert step_time._timed(lambda: done.append(1), torch.device(device)) == found
    assert len(done) == runs


def test_describe_taken_compares_at_the_length_there_was() -> None:
    expected = StepTime(10.0, 50, 30.0, 150, 4, 0.1, "for completions of 50 tokens")
    steps = [
        {"step": 1, "seconds_loss": 9.0, "seconds_rollout": 3.0, "completion_tokens": 90.0},
        {"step": 2, "seconds_loss": 10.0, "seconds_left": 99.0, "completion_tokens": 110.0},
    ]
    text = describe_taken(expected, steps)
    assert (
        text == "estimated 10.0 s a step for 50 tokens (20 s for the 100 there were), took 11.0 s"
    )
    same = [{"seconds_loss": 12.0, "completion_tokens": 50.0}]
    assert describe_taken(expected, same) == "estimated 10.0 s a step, took 12.0 s"


def test_estimate_without_memory_is_none(
    policy: Policy, problems: list[Problem], home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> Speed:
        raise torch.OutOfMemoryError("out of memory")

    monkeypatch.setattr(step_time, "_measure", fail)
    run = check_config(changed("demo-paint", SMALL))
    assert estimate(policy, open_teacher(policy, run.teacher), run, problems, 5) is None
    assert not home.exists()


@pytest.mark.slow
def test_train_of_hours_is_asked_about_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(trainer, "LONG", 0.0)
    monkeypatch.setattr(trainer, "agrees", lambda: False)
    line = ["train", "demo-paint", "--data.limit", "4", "--train.steps", "1", "--train.batch-size"]
    line += ["2", "--rollout.max-new-tokens", "8", "--log.folder", str(tmp_path), "--log.name", "a"]
    assert main(line) == 2
    assert "not started" in capsys.readouterr().err
    assert not (tmp_path / "a").exists()
    assert main([*line, "--yes"]) == 0
    said = capsys.readouterr().out
    assert said.count("time, an estimate: about ") == 1
    assert said.count("; estimated ") == len(read_metrics(tmp_path / "a"))


@pytest.mark.parametrize(
    ("is_command", "sits", "answer", "agreed"),
    [
        (True, True, "y", True),
        (True, True, "", False),
        (True, False, "n", True),  # nobody is there
        (False, True, "n", True),  # a script of the user's own
    ],
)
def test_agrees_asks_on_the_terminal_of_a_command_alone(
    monkeypatch: pytest.MonkeyPatch, is_command: bool, sits: bool, answer: str, agreed: bool
) -> None:
    for stream in ("stdin", "stdout"):
        monkeypatch.setattr(f"sys.{stream}.isatty", lambda: sits, raising=False)
    handler: Callable[[], Any] = (lambda: object()) if is_command else (lambda: None)
    monkeypatch.setattr(display, "_terminal_handler", handler)
    monkeypatch.setattr("builtins.input", lambda _: answer)
    assert display.agrees() is agreed


def test_plan_with_seconds_prints_an_estimate(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line = ["plan", "demo-paint", "--gpus", "0", "--data.limit", "8", "--train.batch-size", "4"]
    assert main([*line, "--seconds"]) == 0
    *_, last = capsys.readouterr().out.splitlines()
    assert last.startswith("time, an estimate: about ")
    assert home.exists()
