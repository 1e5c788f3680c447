"""One table of results: its rows, and how they are shown."""

import json
import math
from dataclasses import asdict, replace
from io import StringIO
from pathlib import Path

import numpy as np
import pytest
from rich.cells import cell_len

from paint.core.display import Terminal
from paint.core.errors import ConfigError
from paint.evaluation.frame import (
    Measurement,
    Report,
    read_report,
    select_rows,
    table_of,
    to_frame,
    to_markdown,
    to_measurement,
    to_terminal,
    write_report,
)
from paint.evaluation.intervals import Interval
from paint.evaluation.metrics import GradedSamples
from paint.evaluation.store import StoreError
from paint.evaluation.summary import summary_report, summary_rows
from reports import graded_samples, row_of


def graded(*correct: list[int]) -> GradedSamples:
    """Samples with these verdicts, a row a problem."""
    none = np.zeros((len(correct), len(correct[0])), dtype=bool)
    return graded_samples(correct, votes=1 - np.array(correct), unboxed=none)


BASE = {"x": graded([1, 0], [0, 0]), "y": graded([1, 1], [0, 1])}
NEW = {"x": graded([1, 1], [0, 1]), "y": graded([1, 1], [1, 1])}


def test_summary_rows_match_hand_computed_means() -> None:
    rows = summary_rows({"base": BASE, "new": NEW})
    means = {(r.policy, r.benchmark): r.mean for r in select_rows(rows, metric="avg_at_k")}
    assert means == {
        ("base", "x"): 0.25,
        ("base", "y"): 0.75,
        ("base", "macro"): 0.5,
        ("new", "x"): 0.75,
        ("new", "y"): 1.0,
        ("new", "macro"): 0.875,
    }
    differences = select_rows(rows, against="base")
    assert [(r.policy, r.benchmark, r.mean) for r in differences] == [
        ("new", "x", 0.5),
        ("new", "y", 0.25),
        ("new", "macro", 0.375),
    ]
    assert row_of(rows, policy="new", benchmark="x", metric="samples").mean == 2
    json.dumps(asdict(Report(rows, [])), allow_nan=False)


def test_summary_has_shares_of_right_samples_only_where_a_reward_is_one() -> None:
    def columns(*rewards: list[float], right: bool = False) -> set[str]:
        part = graded([right, 0], [0, 0])
        judged = {"x": replace(part, rewards=np.array(rewards))}
        base = {"x": replace(graded([0, 0], [0, 0]), rewards=np.full((2, 2), 0.25))}
        tables = summary_report({"base": base, "judged": judged}).tables
        return {name for table in tables for name in table.columns}

    shares = {"Avg@2", "maj@2", "pass@2"}
    assert not shares & columns([0.9, 0.5], [0.37, math.nan])
    assert shares <= columns([1.0, 0.5], [0.37, math.nan], right=True)
    # A grader that gives answers has no rewards: that none is right is a result.
    wrong = {"base": {"x": graded([0, 0], [0, 0])}}
    assert {"maj@2", "pass@2"} <= set(summary_report(wrong).tables[1].columns)


def test_summary_has_a_column_for_each_of_several_graders() -> None:
    judged = replace(
        graded([1, 0], [0, 0]),
        votes=None,
        unboxed=None,
        rewards=np.array([[1.5, 0.5], [0.5, 0.5]]),
        parts={"judge": np.array([[1.0, 0], [0, 0]]), "length": np.full((2, 2), 0.5)},
    )
    report = summary_report({"base": {"x": judged}})
    assert row_of(report, metric="rewards/judge").mean == 0.25
    assert row_of(report, metric="rewards/length").mean == 0.5
    main, others, *_ = report.tables
    assert main.rows[0][1].startswith("75.0")  # the weighted sum, in hundredths
    assert others.columns[2:4] == ["judge", "length"]


def test_summary_tables_average_only_shared_benchmarks() -> None:
    both = summary_report({"base": BASE, "new": NEW}).tables[0]
    assert both.columns == ["", "x", "y", "macro"]
    apart = summary_report({"base": BASE, "new": {"x": NEW["x"], "z": NEW["y"]}}).tables[0]
    assert apart.columns == ["", "x", "y", "z"]


def test_summary_rows_of_other_problems_are_refused() -> None:
    other = {"x": replace(NEW["x"], problems=["0", "other"])}
    with pytest.raises(StoreError, match=r"\bx\b.*\bnew\b.*\bbase\b"):
        summary_rows({"base": BASE, "new": other})


@pytest.mark.parametrize("value", [None, math.nan, Interval(math.nan, math.nan, math.nan)])
def test_measure_without_a_value_has_no_row(value: Interval | float | None) -> None:
    assert to_measurement("a", "x", "kl", value) == []


def test_measurement_text_has_a_word_for_an_end_without_bound() -> None:
    [row] = to_measurement("a", "x", "kl", Interval(0.5, 0.25, math.inf))
    assert (row.low, row.high) == (0.25, None)
    assert row.text("") == "0.5 [0.25, unbounded]"
    [row] = to_measurement("a", "x", "kl", Interval(0.5, -math.inf, math.inf))
    assert row.text("points") == "+50.0"
    assert to_measurement("a", "x", "seconds", 3725.2)[0].text("time") == "1:02:05"


WIDE = table_of(
    [Measurement(f"policy {p}", "x", f"metric {m}", 0.5, 0.4, 0.6) for p in "ab" for m in range(9)],
    "Nine metrics",
    {f"metric {m}": (f"metric {m}", "%") for m in range(9)},
)


@pytest.mark.parametrize("width", [80, 120])
def test_to_terminal_wide_table_is_folded_and_nothing_is_cut(width: int) -> None:
    file = StringIO()
    to_terminal([WIDE], Terminal(file, width=width))
    text = file.getvalue()
    assert max(map(cell_len, text.splitlines())) <= width
    assert "\u2026" not in text  # nothing is cut
    assert text.count("[") == text.count("]") == 18


def test_write_report_is_read_back(tmp_path: Path) -> None:
    report = summary_report({"base": BASE, "new": NEW})
    write_report(tmp_path, "summary", report, ConfigError)
    assert read_report(tmp_path / "summary.json", "") == report
    assert (tmp_path / "summary.md").read_text() == to_markdown(report.tables)
    assert "| new | macro | +37.5" in to_markdown(report.tables)


def test_to_frame_leaves_out_columns_that_are_empty() -> None:
    frame = to_frame(to_measurement("a", "x", "kl", Interval(0.5, 0.4, 0.6), 3))
    assert list(frame) == ["policy", "benchmark", "metric", "mean", "low", "high", "n"]
    assert frame.iloc[0]["high"] == 0.6
