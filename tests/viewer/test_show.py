"""`paint show`: what it takes and refuses, and the page for trackers."""

import json
import re
import shutil
import sys
from math import inf
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from accelerate import Accelerator

from conftest import SHOWN
from paint.cli import main
from paint.config.run_folder import RunError
from paint.config.schema import ConfigError
from paint.core.display import Display
from paint.evaluation.frame import Chart, Measurement, Report, Table, to_measurement, write_report
from paint.evaluation.graded import graded_validation
from paint.evaluation.intervals import Interval
from paint.evaluation.store import StoreError, find_stores
from paint.training.trainer import train
from paint.viewer.evaluation import evaluation_data, shortened
from paint.viewer.run import PageSpec, compare_data, log_page
from paint.viewer.show import show_targets, tables_data
from reports import policies_of, report_in, row_of
from runs import changed

QUIET = Display(enabled=False)


@pytest.fixture
def copied(run: Path, tmp_path: Path) -> Path:
    """The run in a folder that a test may damage."""
    return shutil.copytree(run, tmp_path / "run")


def test_show_command_writes_one_file(run: Path, tmp_path: Path) -> None:
    out = tmp_path / "page.html"
    assert main(["show", str(run), "--no-rescore", "--no-open", "--out", str(out)]) == 0
    text = out.read_text("utf-8")
    data = json.loads(text.split('id="data">')[1].split("</script>")[0])
    assert data["metrics"]["step"] == [1, 2, 3]
    assert [len(step["rows"]) for step in data["steps"]] == [4, 4, 4]
    assert [v["step"] for v in data["validation"]] == [0, 2, 3]
    assert not re.search("http(?!-equiv|://www.w3.org/2000/svg)", text)


@pytest.mark.parametrize(
    ("screen", "sits", "flags", "opens"),
    [(":0", True, [], 1), (":0", True, ["--no-open"], 0), (":0", False, [], 0), ("", True, [], 0)],
)
def test_show_opens_browser_only_on_a_screen(
    run: Path, tmp_path: Path, monkeypatch: Any, screen: str, sits: bool, flags: Any, opens: int
) -> None:
    asked: list[str] = []
    monkeypatch.setattr("webbrowser.open", asked.append)
    monkeypatch.setattr("sys.platform", "linux")
    monkeypatch.setattr("sys.stdout.isatty", lambda: sits, raising=False)
    monkeypatch.setenv("DISPLAY", screen)
    monkeypatch.delenv("WAYLAND_DISPLAY", raising=False)
    out = tmp_path / "page.html"
    assert main(["show", str(run), "--no-rescore", "--row", "0", "--out", str(out), *flags]) == 0
    assert asked == [out.as_uri()] * opens


def test_show_targets_incompatible_arguments_are_refused(run: Path, tmp_path: Path) -> None:
    evals = run / "validation"
    refused: list[tuple[str, list[Path], PageSpec]] = [
        ("not both", [run, evals], PageSpec()),
        ("neither a run", [tmp_path], PageSpec()),
        ("for one run", [evals], PageSpec(steps=[1])),
        ("for one run", [run, run], PageSpec(row=0)),
        ("module:function", [run], PageSpec(contexts=["rollout"])),
        ("names 'other_feedback'; choose", [run], PageSpec(contexts=["other_feedback"])),
        ("drop one", [run], PageSpec(contexts=["none"], again=False)),
    ]
    for words, targets, page in refused:
        with pytest.raises(ConfigError, match=words):
            show_targets(targets, QUIET, page)


def test_evaluation_data_matches_grades(run: Path) -> None:
    """The figures are those of the summary that the run wrote, and every answer is there."""
    data = evaluation_data([run / "validation"])
    report = report_in(run / "validation")
    [benchmark] = data["benchmarks"]
    assert data["policies"] == policies_of(report)
    assert [Measurement(**row) for row in data["rows"]] == report.rows
    for policy in data["policies"]:
        mean = row_of(report, policy=policy, metric="avg_at_k").mean
        given = [p["answers"][policy] for p in benchmark["problems"]]
        assert sum(a["correct"] for answers in given for a in answers) / 12 == pytest.approx(mean)
        assert data["pass"][policy][benchmark["name"]][0]["mean"] == pytest.approx(mean)
        for answer in (answer for answers in given for answer in answers):
            assert (answer["reason"] == "right") == answer["correct"]


@pytest.mark.parametrize(
    ("names", "words"),
    [
        (["grades.jsonl"], "is not graded; run `paint grade"),
        (["SHA256SUMS"], "has no SHA256SUMS"),
        (["SHA256SUMS", "completions.jsonl"], "12 of 12 samples are missing"),
    ],
)
def test_evaluation_data_missing_file_is_named(copied: Path, names: list[str], words: str) -> None:
    [store, *_] = find_stores(copied / "validation")
    for name in names:
        (store / name).unlink()
    with pytest.raises(StoreError, match=f"^{store}.*{words}"):
        evaluation_data([copied / "validation"])


def test_show_targets_swapped_rollouts_are_refused(copied: Path) -> None:
    first = copied / "rollouts/step-000001.jsonl"
    shutil.copy(copied / "rollouts/step-000003.jsonl", first)
    with pytest.raises(RunError, match=f"^row 0 of {first} is not the completion in"):
        show_targets([copied], QUIET, PageSpec(again=False))


@pytest.mark.parametrize("damage", ["gone", "empty", "cut", "zeroed"])
def test_compare_data_damaged_metrics_are_refused(run: Path, copied: Path, damage: str) -> None:
    path = copied / "metrics.jsonl"
    whole = path.read_bytes()
    contents = {"empty": b"", "cut": whole[:-20], "zeroed": bytes(len(whole))}
    path.unlink() if damage == "gone" else path.write_bytes(contents[damage])
    with pytest.raises(RunError, match=f"^{path} ends before step {3 if damage == 'cut' else 1}"):
        compare_data([run, copied], QUIET)


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Another run, of two steps at a rate at which the demo falls."""
    folder = tmp_path_factory.mktemp("runs") / "other"
    train(changed("demo-paint", SHOWN, {"train": {"steps": 2, "learning_rate": 0.05}}), folder)
    return folder


def test_compare_data_compares_runs_where_both_validated(run: Path, other: Path) -> None:
    data = compare_data([run, other], QUIET)
    steps, rate = data["settings"]
    assert steps == ["train.steps", "3", "2"]
    assert rate == ["train.learning_rate", "0.0006", "0.05"]
    scores = [graded_validation(folder, QUIET) for folder in (run, other)]
    found = {d["step"]: d["mean"] for d in data["differences"]}
    assert list(found) == [0, 2]
    for step, mean in found.items():
        first, second = (graded[step, "held_out"].correct.mean() for graded in scores)
        assert mean == pytest.approx(second - first)
    assert found[0] == 0
    assert found[2] != 0


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("rollouts/step-000002.jsonl", r"step-000002.jsonl is gone; put it back"),
        ("metrics.jsonl", r"metrics.jsonl ends before step 1, and there is a checkpoint of step 3"),
    ],
)
def test_show_targets_missing_file_is_named(copied: Path, name: str, words: str) -> None:
    (copied / name).unlink()
    with pytest.raises(RunError, match=words):
        show_targets([copied], QUIET, PageSpec(again=False))


def test_tables_data_has_intervals_and_cells_of_every_folder(tmp_path: Path) -> None:
    table = Table("Title", ["", "share"], [["<b>", "1.0 [0.5, 2.0]"]])
    rows = to_measurement("a", "", "slope", Interval(0.1, -0.2, 0.3))
    rows += to_measurement("one", "", "slope", Interval(1, -inf, inf))
    chart = Chart("Slope", "slope", "points")
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        report = Report(rows, [table], [chart], [f"line of {name}"])
        write_report(tmp_path / name, "advice", report, ConfigError)
    data = tables_data([tmp_path / "first", tmp_path / "second"])
    found = [(report["name"], report["lines"]) for report in data["reports"]]
    names = ("first", "second")
    assert found == [(f"{name}: advice", [f"line of {name}"]) for name in names]
    [drawn], [shown] = data["reports"][0]["charts"], data["reports"][0]["tables"]
    assert drawn["rows"]["a"] == {"mean": 0.1, "low": -0.2, "high": 0.3}
    assert drawn["rows"]["one"] == {"mean": 1, "low": None, "high": None}
    assert (shown["columns"], shown["rows"]) == (table.columns, table.rows)

    with pytest.raises(ConfigError, match="has no report"):
        tables_data([tmp_path / "first", tmp_path])


def test_shortened_omits_middle_of_long_answers() -> None:
    text = "a" * 500 + "b" * 5000 + "c" * 500
    short = shortened(text, 1000)
    assert short.startswith("a" * 500)
    assert short.endswith("c" * 500)
    assert "5,000 characters" in short
    assert shortened("abc", 3) == "abc"


@pytest.fixture
def tracked() -> Accelerator:
    """An accelerator with two trackers that keep what they log, and nothing else."""
    accelerator = object.__new__(Accelerator)
    trackers = [SimpleNamespace(name=name, logged={}) for name in ("trackio", "tensorboard")]
    for tracker in trackers:
        tracker.log = tracker.logged.update
    accelerator.trackers = cast(Any, trackers)
    return accelerator


def test_log_page_sends_html_to_supporting_trackers(
    run: Path, tracked: Accelerator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """wandb and trackio both take the text of a page as ``Html``."""
    monkeypatch.setitem(sys.modules, "trackio", SimpleNamespace(Html=lambda page: page))
    log_page(run, tracked, QUIET)
    trackio, tensorboard = cast(Any, tracked.trackers)
    assert trackio.logged["paint_show"].startswith("<!doctype html>")
    assert not tensorboard.logged


def test_log_page_tracker_failure_does_not_fail_run(
    run: Path, tracked: Accelerator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "trackio", SimpleNamespace())
    said: list[str] = []
    monkeypatch.setattr(Display, "log", lambda _, level, text: said.append(text))
    log_page(run, tracked, QUIET)
    assert any("was not logged" in text for text in said)
