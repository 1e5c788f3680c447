"""Collapse warnings while training, and runs that end on them."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import paint
from paint.config.schema import HealthConfig
from paint.core.collapse import warning_history
from paint.training.health import Health
from runs import adapter, assert_same

Rows = list[dict[str, float]]


def course(metric: str, values: Sequence[float]) -> Rows:
    """The metrics of steps in which one of them takes these values."""
    return [{"step": i, metric: value} for i, value in enumerate(values, start=1)]


def test_health_of_resumed_run_does_not_repeat_a_warning() -> None:
    rows, notes = course("kl", [1, 4, 4, 4, 4, 1, 1, 9]), list[str]()
    health = Health(HealthConfig(stop_on=("kl",)), rows[:4], notes.append)
    ended = [health.on_step(int(row["step"]), row, []) for row in rows[4:]]
    assert ended == [False, False, False, True]
    assert [note.split(":")[0] for note in notes] == ["step 8"]


class StopAtOnce(paint.Callback):
    def on_step(self, step: int, metrics: Any, rollouts: Any) -> bool:
        return True


def test_train_that_starts_hopeless_ends_and_says_by_what(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = paint.train(
        "demo-paint",
        output_dir=tmp_path / "runs" / "cut",
        train={"steps": 2, "batch_size": 4, "micro_batch_size": 4},
        rollout={"max_new_tokens": 8},
        health={"stop_on": ["all_truncated"]},
        callbacks=[StopAtOnce()],
    )
    by = "health.stop_on all_truncated and the callback StopAtOnce"
    assert f"ended after step 1 by {by}; saved" in caplog.messages
    levels = {r.message.partition(":")[0]: r.levelname for r in caplog.records}
    assert levels["step 1"] == "WARNING"
    assert levels["ended with collapse warnings"] == "WARNING"
    [row] = paint.runs(tmp_path / "runs").to_dict("records")
    assert row["warnings"] == "all_truncated, all_unanswered"
    said = [message for message in caplog.messages if "collapse warning (" in message]
    caplog.clear()
    paint.resume(run)
    # What was said is not said again but in the last line.
    assert len(said) == 2
    assert not [message for message in caplog.messages if "collapse warning (" in message]
    assert caplog.messages[-1].startswith("ended with collapse warnings: all_truncated")


@pytest.mark.slow
def test_train_that_collapses_ends_with_a_checkpoint_and_resumes(tmp_path: Path) -> None:
    settings: dict[str, Any] = {
        "train": {"steps": 5, "batch_size": 4, "micro_batch_size": 4, "learning_rate": 0.03},
        "rollout": {"max_new_tokens": 16},
    }
    health = {"stop_on": ["kl"]}
    ended = paint.train("demo-paint", output_dir=tmp_path / "ends", health=health, **settings)
    assert [checkpoint.name for checkpoint in ended.checkpoints] == ["step-000004"]
    whole = paint.train("demo-paint", output_dir=tmp_path / "whole", **settings)
    assert_same(adapter(paint.resume(ended).path), adapter(whole.path))


@pytest.mark.slow
@pytest.mark.usefixtures("unchecked")
def test_collapse_warnings_of_demo_runs_tell_a_collapse_from_health(tmp_path: Path) -> None:
    found = {}
    for name, steps, rate in (("healthy", 12, 6e-4), ("collapses", 6, 6e-3)):
        train = {"steps": steps, "learning_rate": rate}
        run = paint.train("demo-paint", output_dir=tmp_path / name, train=train)
        rows = run.metrics.reset_index().to_dict("records")
        found[name] = [found_at["warning"] for found_at in warning_history(rows)]
    assert not found["healthy"]
    assert set(found["collapses"]) >= {"kl", "entropy_high"}


def calculate(formula: str) -> str:
    """Computes a formula.

    Args:
        formula: Numbers, brackets, and + - * /.
    """
    return formula


class Once:
    """An environment without tools, which ends after a turn."""

    def step(self, messages: Any, completion: str) -> None:
        return None


@pytest.mark.slow
def test_train_says_in_its_first_step_that_no_completion_called_an_offered_tool(
    tmp_path: Path,
) -> None:
    offers: dict[str, dict[str, Any]] = {
        "tools": {"tools": [calculate]},
        "environment": {"environment": Once},
    }
    found = {}
    for name, conversation in offers.items():
        run = paint.train(
            "demo-paint",
            output_dir=tmp_path / name,
            conversation=conversation,
            train={"steps": 1, "batch_size": 4, "micro_batch_size": 4},
        )
        rows = run.metrics.reset_index().to_dict("records")
        found[name] = {one["warning"] for one in warning_history(rows)}
        assert ("tool_calls" in run.metrics) == (name == "tools")
    assert "no_tool_call" in found["tools"]
    assert "no_tool_call" not in found["environment"]
