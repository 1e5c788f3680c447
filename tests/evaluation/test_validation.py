"""Checkpoints are evaluated on the user's own problems, all are shown, and a kill loses nothing."""

import json
import signal
import subprocess
from contextlib import redirect_stdout
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from paint.cli import main
from paint.config.run_folder import read_run
from paint.config.schema import Config, ValidationConfig
from paint.core.demo_files import HELD_OUT_PROBLEMS
from paint.core.display import shown_on_terminal
from paint.evaluation.frame import Report, select_rows
from paint.evaluation.metrics import compute_metrics
from paint.evaluation.store import StoreError
from paint.evaluation.validation import tracker_metrics
from processes import in_two_processes, train_command, until
from reports import compared_in, of_rewards, policies_of, report_in
from runs import changed, rows_of, train, write_problems


@pytest.fixture(scope="module")
def mine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A user's own file: eight held-out problems, without solutions."""
    rows = [{key: row[key] for key in ("problem", "answer")} for row in rows_of(HELD_OUT_PROBLEMS)]
    return Path(write_problems(tmp_path_factory.mktemp("problems") / "mine.jsonl", rows[:8]))


@pytest.fixture(scope="module")
def finished(mine: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A run that was validated, and what it printed."""
    run = tmp_path_factory.mktemp("validated") / "run"
    with redirect_stdout(StringIO()) as said, shown_on_terminal():
        train(config(mine), run)
    return run, said.getvalue()


def config(mine: Path, **changes: Any) -> Config:
    options = {"steps": 3, "batch_size": 4, "checkpoint_every": 2} | changes
    validation = {"path": str(mine), "samples": 2, "max_new_tokens": 96}
    small = {"train": options, "validation": validation, "rollout": {"batch_size": 6}}
    return changed("demo-paint", small)


def report_of(run: Path) -> Report:
    return report_in(run / "validation")


def test_validation_evaluates_every_checkpoint(finished: tuple[Path, str], tmp_path: Path) -> None:
    run, said = finished
    report = report_of(run)
    # Every second step, the last one, and the student as it starts.
    assert policies_of(report) == ["step-000000", "step-000002", "step-000003"]
    assert compared_in(report) == ["step-000002", "step-000003"]
    rows = select_rows(report.rows, metric="avg_at_k")
    assert [(row.benchmark, row.n) for row in rows] == [("mine", 8)] * 3
    assert "validation after step 2: Avg@2" in said
    assert "Avg@2 less that of step-000000" in said
    places = [run / f"validation/step-00000{i}/mine/settings.json" for i in (0, 2, 3)]
    asked = [json.loads(place.read_text()) for place in places]
    assert len({setting["adapter"] for setting in asked}) == 3
    trained = changed("demo-paint").rollout
    expected = (trained.temperature, trained.top_p, trained.top_k)
    assert (asked[0]["temperature"], asked[0]["top_p"], asked[0]["top_k"]) == expected
    # The table can be made again from the run alone.
    before = (run / "validation" / "summary.json").read_text()
    assert main(["grade", str(run), "--output-dir", str(tmp_path)]) == 0
    assert (tmp_path / "summary.json").read_text() == before


@pytest.mark.slow
def test_tracker_metrics_of_a_judge_have_the_interval_of_the_mean_reward() -> None:
    rewards = np.array([[0.2, 0.4]] * 11 + [[0.6, np.nan]] + [[np.nan, np.nan]])
    graded = of_rewards(rewards, failures=3)
    intervals = compute_metrics({"": graded})[""]
    found = tracker_metrics(graded, intervals)
    # A mean over problems, as in the tables: not over samples, of which one problem lacks one.
    assert found["validation_reward"] == pytest.approx((11 * 0.3 + 0.6) / 12)
    wanted = intervals["reward"]
    ends = found["validation_reward_low"], found["validation_reward_high"]
    assert ends == (wanted.low, wanted.high)
    assert found["validation_grader_failures"] == 3
    nothing = replace(graded, rewards=np.full(rewards.shape, np.nan))
    assert not [name for name in tracker_metrics(nothing, {}) if "reward" in name]


def test_validation_moves_no_weight(mine: Path, finished: tuple[Path, str], tmp_path: Path) -> None:
    run, without = finished[0], tmp_path / "without"
    train(replace(config(mine), validation=ValidationConfig()), without)
    assert not (without / "validation").exists()
    weights = "checkpoints/step-000003/adapter/adapter_model.safetensors"
    assert (run / weights).read_bytes() == (without / weights).read_bytes()


@pytest.mark.slow
def test_validation_killed_and_resumed_gives_same_metrics(
    mine: Path, finished: tuple[Path, str], tmp_path: Path
) -> None:
    run = tmp_path / "killed"
    stored = run / "validation/step-000002/mine/completions.jsonl"
    process = subprocess.Popen(train_command(config(mine), run), stdout=subprocess.DEVNULL)
    until(lambda: stored.exists() and stored.stat().st_size, 120)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert len(stored.read_bytes().splitlines()) < 16
    assert main(["resume", str(run)]) == 0
    assert report_of(run) == report_of(finished[0])


@pytest.mark.slow
def test_validation_interrupted_run_stops_soon_and_resumes(mine: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    stored = run / "validation/step-000000/mine/completions.jsonl"
    process = subprocess.Popen(train_command(config(mine), run), stdout=subprocess.DEVNULL)
    until(lambda: stored.exists() and stored.stat().st_size, 120)
    process.send_signal(signal.SIGTERM)
    assert process.wait() == 128 + signal.SIGTERM
    assert len(stored.read_bytes().splitlines()) < 16
    assert not (run / "metrics.jsonl").exists()
    train(read_run(run), run, resume=True)
    assert policies_of(report_of(run)) == ["step-000000", "step-000002", "step-000003"]


@pytest.mark.slow
def test_validation_two_ranks_agree(mine: Path, finished: tuple[Path, str], tmp_path: Path) -> None:
    line = in_two_processes(train_command(config(mine), tmp_path / "two"))
    result = subprocess.run(line, check=True, capture_output=True, text=True)
    assert "2 ranks" in result.stdout
    one, two = report_of(finished[0]), report_of(tmp_path / "two")
    assert select_rows(two.rows, policy="step-000000") == select_rows(
        one.rows, policy="step-000000"
    )
    assert policies_of(two) == policies_of(one)


def test_validation_changed_problems_are_refused(mine: Path, finished: tuple[Path, str]) -> None:
    run, _ = finished
    before = mine.read_text()
    mine.write_text(before.replace('"answer": "', '"answer": "1'))
    try:
        with pytest.raises(StoreError, match=r"problems .*\bvalidation\b"):
            train(config(mine, steps=5), run, resume=True)
    finally:
        mine.write_text(before)
    assert len((run / "metrics.jsonl").read_text().splitlines()) == 3
