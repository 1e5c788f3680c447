"""Checkpoints are evaluated on the user's own problems, all are shown, and a kill loses nothing."""

import json
import signal
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from paint.cli import main
from paint.config import Config, ConfigError, Validation
from paint.data.readers import DataError
from paint.evaluation.store import StoreError
from paint.lab.files import MODEL
from paint.recipe import find_recipe, read_recipe
from paint.runs import read_run
from paint.training.run import train
from processes import in_two_processes, train_command, until


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    """A user's own file: eight held-out problems, without solutions."""
    rows = [json.loads(line) for line in (MODEL / "held_out.jsonl").read_text().splitlines()[:8]]
    path = tmp_path / "mine.jsonl"
    path.write_text(
        "".join(json.dumps({key: row[key] for key in ("problem", "answer")}) + "\n" for row in rows)
    )
    return path


def config(mine: Path, **changes: Any) -> Config:
    recipe = read_recipe(find_recipe("lab-paint"))
    options = {"steps": 3, "batch_size": 4, "checkpoint_every": 2} | changes
    validation = Validation(path=str(mine), samples=2, thinking=False, max_new_tokens=96)
    rollout = replace(recipe.rollout, batch_size=6)
    return replace(
        recipe, train=replace(recipe.train, **options), validation=validation, rollout=rollout
    )


def figures(run: Path) -> Any:
    return json.loads((run / "validation" / "summary.json").read_text())


def test_every_checkpoint_is_evaluated_and_compared_with_the_start(
    mine: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    train(config(mine), run)
    found = figures(run)
    # Every second step, the last one, and the student as it starts.
    assert list(found["figures"]) == ["step-000000", "step-000002", "step-000003"]
    assert [row["policy"] for row in found["comparisons"]] == ["step-000002", "step-000003"]
    assert found["problems"] == {name: {"mine": 8} for name in found["figures"]}
    out = capsys.readouterr().out
    assert "validation after step 2: Avg@2" in out
    assert "Avg@2 less that of step-000000" in out
    asked = [
        json.loads((run / "validation" / f"step-00000{i}/mine/asked.json").read_text())
        for i in (0, 2, 3)
    ]
    assert len({one["adapter"] for one in asked}) == 3
    assert (asked[0]["temperature"], asked[0]["top_p"], asked[0]["top_k"]) == (1.0, 0.95, -1)
    # The table can be made again from the run alone.
    before = (run / "validation" / "summary.json").read_text()
    assert main(["grade", str(run), "--out", str(tmp_path)]) == 0
    assert (tmp_path / "summary.json").read_text() == before


def test_without_problems_nothing_is_evaluated(mine: Path, tmp_path: Path) -> None:
    train(replace(config(mine, steps=1), validation=Validation()), tmp_path / "run")
    assert not (tmp_path / "run" / "validation").exists()


def test_validation_does_not_change_the_training(mine: Path, tmp_path: Path) -> None:
    train(config(mine), tmp_path / "with")
    train(replace(config(mine), validation=Validation()), tmp_path / "without")
    one, other = (
        (tmp_path / name / "checkpoints/step-000003/adapter/adapter_model.safetensors").read_bytes()
        for name in ("with", "without")
    )
    assert one == other


def test_a_run_killed_while_it_validates_goes_on_to_the_same_figures(
    mine: Path, tmp_path: Path
) -> None:
    train(config(mine), tmp_path / "whole")
    run = tmp_path / "killed"
    stored = run / "validation/step-000002/mine/completions.jsonl"
    process = subprocess.Popen(train_command(config(mine), run), stdout=subprocess.DEVNULL)
    until(lambda: stored.exists() and stored.stat().st_size, 120)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert len(stored.read_bytes().splitlines()) < 16
    assert main(["resume", str(run)]) == 0
    assert figures(run) == figures(tmp_path / "whole")


def test_a_run_that_is_stopped_while_it_validates_ends_soon_and_goes_on(
    mine: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    stored = run / "validation/step-000000/mine/completions.jsonl"
    process = subprocess.Popen(train_command(config(mine), run), stdout=subprocess.DEVNULL)
    until(lambda: stored.exists() and stored.stat().st_size, 120)
    process.send_signal(signal.SIGTERM)
    assert process.wait() == 128 + signal.SIGTERM
    assert len(stored.read_bytes().splitlines()) < 16
    assert not (run / "metrics.jsonl").exists()
    train(read_run(run), run, resume=True)
    assert list(figures(run)["figures"]) == ["step-000000", "step-000002", "step-000003"]


def test_two_ranks_share_the_work_and_find_the_same_figures(mine: Path, tmp_path: Path) -> None:
    train(config(mine), tmp_path / "one")
    line = in_two_processes(train_command(config(mine), tmp_path / "two"))
    result = subprocess.run(line, check=True, capture_output=True, text=True)
    assert "2 ranks" in result.stdout
    one, two = figures(tmp_path / "one"), figures(tmp_path / "two")
    assert two["figures"]["step-000000"] == one["figures"]["step-000000"]
    assert list(two["figures"]) == list(one["figures"])


def test_a_file_that_changed_since_the_first_checkpoint_is_refused_before_training_goes_on(
    mine: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    train(config(mine), run)
    mine.write_text(mine.read_text().replace('"answer": "', '"answer": "1'))
    longer = config(mine, steps=5)
    with pytest.raises(StoreError, match="other problems or gold answers than validation"):
        train(longer, run, resume=True)
    assert len((run / "metrics.jsonl").read_text().splitlines()) == 3


def test_what_cannot_be_asked_is_refused_before_the_first_step(mine: Path, tmp_path: Path) -> None:
    long = replace(config(mine), validation=Validation(path=str(mine)))
    with pytest.raises(ConfigError, match="do not fit in the model's 1024 positions"):
        train(long, tmp_path / "run")
    with pytest.raises(DataError, match=r"nowhere\.jsonl"):
        train(replace(long, validation=Validation(path="nowhere.jsonl")), tmp_path / "run")
    assert not (tmp_path / "run").exists()
