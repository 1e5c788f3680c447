"""`paint runs`: the runs of a folder with state, step and last figures."""

import json
import re
import shutil
from datetime import datetime
from pathlib import Path

import pytest

import paint
from paint.cli import main
from paint.config.run_folder import read_metrics
from paint.core.storage import lock_folder

OF_EXTENSIONS = [
    ("train", "method"),
    ("train", "optimizer"),
    ("objective", "divergence"),
    ("rollout", "engine"),
    ("grading", "grader"),
]
"""Settings of a run that another machine cannot import."""


def test_runs_lists_state_step_and_last_figures(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("whole", "busy", "demo/cut"):
        shutil.copytree(run, tmp_path / name)
    shutil.rmtree(tmp_path / "demo/cut/checkpoints/step-000003")
    lines = (run / "metrics.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "demo/cut/metrics.jsonl").write_text("".join(lines[:2]))
    (tmp_path / "other").mkdir()
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken/run.json").write_text("{")
    record = json.loads((run / "run.json").read_text())
    for section, key in OF_EXTENSIONS:
        record["config"][section][key] = f"gone:{key}"
    (tmp_path / "of_extensions/checkpoints/step-000003").mkdir(parents=True)
    (tmp_path / "of_extensions/run.json").write_text(json.dumps(record))
    with lock_folder(tmp_path / "busy"):
        assert main(["runs", str(tmp_path), "--json"]) == 0
    found = {row["name"]: row for row in json.loads(capsys.readouterr().out)}
    assert datetime.fromisoformat(found["whole"]["changed"]).tzinfo is not None
    states = {name: (row["state"], row["step"], row["steps"]) for name, row in found.items()}
    assert states == {
        "whole": ("done", 3, 3),
        "busy": ("running", 3, 3),
        "demo/cut": ("stopped", 2, 3),
        "broken": ("damaged", 0, 0),
        "of_extensions": ("done", 0, 3),
    }
    rows = read_metrics(run)
    assert found["whole"]["loss"] == rows[2]["loss"]
    assert found["demo/cut"]["loss"] == rows[1]["loss"]
    assert main(["runs", str(tmp_path)]) == 0
    assert re.search("demo/cut +stopped +2 +3", capsys.readouterr().out)


def test_runs_in_python_have_times_and_the_settings_that_differ(run: Path, tmp_path: Path) -> None:
    record = json.loads((run / "run.json").read_text())
    for name, rate in (("slow", 1e-4), ("fast", 1e-3)):
        shutil.copytree(run, tmp_path / name)
        record["config"]["train"]["learning_rate"] = rate
        record["config"]["context"]["source"] = ["none"] if name == "slow" else ["answer", "text"]
        record["config"]["context"]["text"] = "" if name == "slow" else "Be brief."
        record["config"]["log"]["name"] = name
        (tmp_path / name / "run.json").write_text(json.dumps(record))
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken/run.json").write_text("{")
    frame = paint.runs(tmp_path).set_index("name")
    assert frame.loc["slow", "train.learning_rate"] == 1e-4
    assert frame.loc["fast", "context.source"] == "answer, text"
    assert frame.loc["broken"].isna()["train.learning_rate"]
    settings = [column for column in frame if "." in column]
    assert settings == ["context.source", "context.text", "train.learning_rate"]
    changed = (tmp_path / "slow/metrics.jsonl").stat().st_mtime
    assert frame.loc["slow", "changed"].timestamp() == pytest.approx(changed, abs=1e-3)
    assert str(frame["changed"].dt.tz) == "UTC"


@pytest.mark.parametrize("line", ["train demo-paint --output-dir busy", "resume busy"])
def test_run_that_trains_is_refused_by_that_first(
    line: str,
    run: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copytree(run, "busy")
    with lock_folder(Path("busy")):
        assert main(line.split()) == 2
    said = capsys.readouterr().err
    assert "another process is at work there (process " in said
    assert "resume" not in said.replace("paint resume:", "")
