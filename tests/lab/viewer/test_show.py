"""`paint show`: what it takes and refuses, and the page for trackers."""

import json
import re
from math import inf
from pathlib import Path

import pytest

from paint.cli import main
from paint.config.schema import ConfigError
from paint.evaluation.frame import Chart, Measurement, Report, Table, to_measurement, write_report
from paint.evaluation.intervals import Interval
from paint.lab.viewer.evaluation import evaluation_data, shortened
from paint.lab.viewer.show import tables_data
from reports import policies_of, report_in, row_of


def test_show_command_writes_one_file(run: Path, tmp_path: Path) -> None:
    out = tmp_path / "page.html"
    assert main(["show", str(run), "--no-rescore", "--no-open", "--out", str(out)]) == 0
    text = out.read_text("utf-8")
    data = json.loads(text.split('id="data">')[1].split("</script>")[0])
    assert data["metrics"]["step"] == [1, 2, 3]
    assert [len(step["rows"]) for step in data["steps"]] == [4, 4, 4]
    assert [v["step"] for v in data["validation"]] == [0, 2, 3]
    assert not re.search("http(?!-equiv|://www.w3.org/2000/svg)", text)


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
        for answer in (answer for answers in given for answer in answers):
            assert (answer["reason"] == "right") == answer["correct"]


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


def test_shortened_omits_middle_of_long_answers() -> None:
    text = "a" * 500 + "b" * 5000 + "c" * 500
    short = shortened(text, 1000)
    assert short.startswith("a" * 500)
    assert short.endswith("c" * 500)
    assert "5,000 characters" in short
    assert shortened("abc", 3) == "abc"
