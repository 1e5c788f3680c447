"""Tables and plots of an experiment: every figure is computed from the results."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from paint.config.run_folder import RunError
from paint.core.display import Display
from paint.evaluation.frame import Measurement, select_rows
from paint.evaluation.intervals import Interval, compare_seeds, holm, over_seeds, p_value_over_seeds
from paint.lab.checkpoint_results import CheckpointResult, by_run, evaluation_name, shares
from paint.lab.comparison_report import (
    LEAD,
    Layout,
    comparison_report,
    comparison_rows,
    publish,
    step_rows,
)
from reports import row_of

SAMPLES = 4
LAYOUT = Layout("The demo", ["off", "never", "many", "few"], all_pairs=False)


def trained(
    cell: str, seed: int, steps: int, right: list[int], tokens: int = 100
) -> CheckpointResult:
    """A result whose run takes so many tokens and half a second a step."""
    config = {"train": {"steps": 2 if cell == "few" else 8}}
    exam = {"samples": SAMPLES, "problems": 3, "benchmark": "demo"}
    problems = ["one", "two", "three"]
    spent = (steps * tokens, steps / 2)
    return CheckpointResult(cell, seed, config, exam, "same", steps, *spent, problems, right, 9.0)


def both(cell: str, steps: int, *rows: list[int], tokens: int = 100) -> list[CheckpointResult]:
    return [trained(cell, seed, steps, row, tokens) for seed, row in enumerate(rows)]


# Two seeds, three problems. The means over both at the last step: few 18 of 24, many 19, never 16.
RESULTS = [
    *(replace(r, trained_on="") for r in both("base", 0, [1, 2, 1], [1, 1, 2])),
    *both("few", 1, [3, 3, 4], [2, 2, 3]),
    *both("few", 2, [3, 3, 3], [3, 3, 3]),
    *both("many", 2, [2, 3, 2], [2, 2, 2], tokens=101),
    *both("many", 4, [3, 4, 3], [3, 2, 3], tokens=101),
    *both("many", 8, [3, 4, 3], [3, 3, 3], tokens=101),
    *both("never", 4, [3, 3, 3], [3, 3, 2]),
    *both("never", 8, [3, 3, 3], [2, 3, 2]),
    *both("off", 8, [0, 1, 0], [0, 0, 0], tokens=0),
]
SCORES = {
    (cell, step): np.array([r.right for r in RESULTS if (r.run, r.steps) == (cell, step)]) / 4
    for cell, step in {(r.run, r.steps) for r in RESULTS}
}


def judged(**changes: Any) -> list[CheckpointResult]:
    """The results under a judge: 0.21 for each right sample and 0.01 more, and never 1."""
    return [
        replace(
            r,
            rewards=[0.01 + 0.21 * n for n in r.right],
            **{"right": [0] * len(r.right), **changes},
        )
        for r in RESULTS
    ]


def test_comparison_report_of_a_control_has_its_gain_beside_the_gain() -> None:
    layout = Layout("", ["never", "few"], all_pairs=False)
    # A control of two problems, one of which rises by a quarter.
    control = {True: [0.5, 0.25], False: [0.75, 0.25]}
    report = comparison_report(
        layout, [replace(r, control=control[r.run == "base"]) for r in RESULTS]
    )
    table = report.tables[0]
    gains = {row[0]: row[table.columns.index("gain on the control")] for row in table.rows}
    assert gains["base"] == ""
    assert gains["few"].startswith("+12.5")
    [line] = [line for line in report.lines if line.startswith("few: ")]
    assert "33.3" in line
    assert "75.0" in line
    assert "on the control, where nothing can be gained, +12.5" in line
    without = comparison_report(layout, RESULTS)
    assert "gain on the control" not in without.tables[0].columns
    assert not any(line.startswith("few: ") for line in without.lines)


REWARDS = {key: 0.01 + 0.84 * scores for key, scores in SCORES.items()}


def interval_of(row: Measurement) -> Interval:
    """The interval of a row that has both ends."""
    assert row.low is not None
    assert row.high is not None
    return Interval(row.mean, row.low, row.high)


@pytest.mark.parametrize("all_pairs", [True, False])
def test_comparison_rows_compare_pairs_with_corrected_p(all_pairs: bool) -> None:
    layout = Layout("", ["never", "many", "few"], all_pairs=all_pairs)
    rows = [row for row in comparison_rows(layout, RESULTS) if row.p is not None]
    names = [*([("never", "many")] if all_pairs else []), ("never", "few"), ("many", "few")]
    ends = {name: SCORES[name, 2 if name == "few" else 8] for name in ("never", "many", "few")}
    p_values = [p_value_over_seeds(ends[before], ends[after]) for before, after in names]
    assert [(row.against, row.policy) for row in rows] == names
    assert [row.p for row in rows] == p_values
    assert [row.corrected_p for row in rows] == holm(p_values)
    for row, (before, after) in zip(rows, names, strict=True):
        assert interval_of(row) == compare_seeds(ends[before], ends[after])


def test_comparison_tables_have_every_row_in_its_column() -> None:
    layout = Layout("", ["never", "many", "few"])
    main, pairs, varied, seeds, *_ = comparison_report(layout, RESULTS).tables
    heads = ["Avg@4", "pass@4", "gain over base", "rollout tokens", "training time"]
    assert main.columns == ["", *heads, "tokens an answer"]
    assert varied.rows == [[name, "train.steps: 2 -> 8"] for name in ("never", "many")]
    costs = {"never": ["800", "0:00:04"], "many": ["808", "0:00:04"], "few": ["200", "0:00:01"]}
    base = SCORES["base", 0]
    lines = {row[0]: row[1:] for row in main.rows}
    assert list(lines) == ["base", "never", "many", "few"]
    passed = over_seeds((base > 0).astype(float)).points()
    assert lines["base"] == [over_seeds(base).points(), passed, "", "", "", "9"]
    ends = {name: SCORES[name, 2 if name == "few" else 8] for name in costs}
    for name, scores in ends.items():
        gain = compare_seeds(base, scores).points(sign=True)
        passed = over_seeds((scores > 0).astype(float)).points()
        assert lines[name] == [over_seeds(scores).points(), passed, gain, *costs[name], "9"]
    rows = [row for row in comparison_rows(layout, RESULTS) if row.p is not None]
    assert pairs.rows == [
        [
            f"{row.policy} less {row.against}",
            compare_seeds(ends[row.against], ends[row.policy]).points(sign=True),
            f"{row.p:.4f}",
            f"{row.corrected_p:.4f}",
        ]
        for row in rows
    ]
    assert ["many", "83.3", "75.0"] in seeds.rows


def test_comparison_report_of_a_sweep_names_the_best_row_and_that_it_was_chosen() -> None:
    # Means over both seeds: never 16 of 24, many 19, few 18.
    layout = Layout("", ["never", "few", "many"], is_sweep=True)
    report = comparison_report(layout, RESULTS)
    lead = compare_seeds(SCORES["few", 2], SCORES["many", 8])
    [line] = report.lines
    assert line.startswith(f"Best Avg@4: many, {lead.points(sign=True)} points over few; 0 is in")
    assert "chosen on these problems, as the best of 3 rows, so its score is optimistic" in line
    assert comparison_report(replace(layout, is_sweep=False), RESULTS).lines == []
    alone = Layout("", ["many"], is_sweep=True)
    assert comparison_report(alone, RESULTS).lines == []


def test_step_rows_checkpoint_has_score_cost_and_lead() -> None:
    rows = step_rows(LAYOUT, RESULTS)
    end, base = SCORES["few", 2], SCORES["base", 0]
    costs = {("many", 4): (404, 2), ("off", 8): (0, 4)}
    for (cell, step), (tokens, seconds) in costs.items():
        found = {"policy": cell, "step": step}
        scores = SCORES[cell, step]
        score = interval_of(row_of(rows, **found, metric="avg_at_k"))
        assert score == over_seeds(scores, bounds=(0, 1))
        gain = row_of(rows, **found, metric="avg_at_k", against="base")
        assert interval_of(gain) == compare_seeds(base, scores)
        assert row_of(rows, **found, metric="rollout_tokens").mean == tokens
        assert row_of(rows, **found, metric="seconds").mean == seconds
        lead = row_of(rows, step=step, metric=LEAD, group=cell, against=cell)
        assert interval_of(lead) == compare_seeds(scores, end)
    assert not select_rows(rows, metric=LEAD, group="few", against="few", step=2)
    assert [row.metric for row in select_rows(rows, policy="base")] == ["avg_at_k"]


def test_step_tables_best_checkpoint_is_marked_as_no_result() -> None:
    best = comparison_report(LAYOUT, RESULTS).tables[-1]
    assert best.title.startswith("Not a result: Avg@4 of each seed's best checkpoint")
    assert best.columns == ["", "last", "best of 1 to 3", "its step, by seed"]
    assert best.rows == [
        ["off", "4.2", "4.2", "8, 8"],
        ["never", "66.7", "70.8", "4, 4"],
        ["many", "79.2", "79.2", "4, 8"],  # of equal ones the first
        ["few", "75.0", "79.2", "1, 2"],  # 10 and 9 of 12
    ]


def test_report_earlier_checkpoints_do_not_change_results(tmp_path: Path) -> None:
    last = [result for result in RESULTS if result.is_last]
    assert len(last) == 10
    assert comparison_rows(LAYOUT, RESULTS) == comparison_rows(LAYOUT, last)

    publish(LAYOUT, last, tmp_path / "last", Display(enabled=False))
    publish(LAYOUT, RESULTS, tmp_path / "all", Display(enabled=False))
    plain, whole = ((tmp_path / place / "results.md").read_text() for place in ("last", "all"))
    assert whole.startswith(plain.rstrip())
    assert "by step" in whole
    assert "by step" not in plain
    for place in ("last", "all"):
        names = {path.name for path in (tmp_path / place).iterdir()}
        assert names == {"results.md", "results.json"}


def test_results_leave_out_samples_and_problems_that_were_not_graded() -> None:
    base, run = trained("base", 0, 0, [4, 2, 1]), trained("few", 0, 2, [3, 0, 1])
    lacking = replace(run, graded=[3, 0, 2])
    assert shares([base]).tolist() == [[1, 0.5, 0.25]]
    assert shares([lacking])[0, [0, 2]].tolist() == [1, 0.5]
    assert np.isnan(shares([lacking])[0, 1])
    # Without the second problem on both sides.
    found = by_run([base, lacking])
    assert [result.problems for results in found.values() for result in results] == [
        ["one", "three"]
    ] * 2
    assert shares(found["base"]).tolist() == [[1, 0.25]]
    assert shares(found["few"]).tolist() == [[1, 0.5]]
    assert by_run([base, run])["few"] == [run]
    rewarded = [replace(base, rewards=[1, 0.5, 0.25]), replace(lacking, rewards=[0.75, None, 0.5])]
    found = by_run(rewarded)
    assert [group[0].rewards for group in found.values()] == [[1, 0.25], [0.75, 0.5]]
    assert evaluation_name(rewarded).startswith("2 of 3 problems of ")
    assert evaluation_name([base, run]).startswith("3 problems of ")
    with pytest.raises(RunError, match="no problem has a graded sample of every run"):
        by_run([base, replace(run, graded=[0, 0, 0])])


def test_comparison_report_of_a_judge_has_mean_rewards_and_no_share_of_ones() -> None:
    layout = Layout("", ["never", "many", "few"], is_sweep=True)
    report = comparison_report(layout, judged())
    main, pairs, _, seeds, by_step, best = report.tables
    assert main.columns[1:3] == ["Mean reward", "gain over base"]
    assert main.title.endswith("hundredths with 95 % interval; 3 problems are too few")
    assert "Differences of Mean reward" in pairs.title
    for table in (main, pairs, seeds, by_step, best):
        assert not {"Avg@4", "pass@4"} & set(table.columns)
        assert "Avg@" not in table.title
    ends = {name: REWARDS[name, 2 if name == "few" else 8] for name in ("never", "many", "few")}
    lines = {row[0]: row for row in main.rows}
    assert lines["base"][1] == over_seeds(REWARDS["base", 0]).points()
    for name, rewards in ends.items():
        gain = compare_seeds(REWARDS["base", 0], rewards).points(sign=True)
        assert lines[name][1:3] == [over_seeds(rewards).points(), gain]
    compared = [("never", "many"), ("never", "few"), ("many", "few")]
    p_values = [p_value_over_seeds(ends[before], ends[after]) for before, after in compared]
    for row, (before, after), p in zip(pairs.rows, compared, p_values, strict=True):
        difference = compare_seeds(ends[before], ends[after]).points(sign=True)
        assert row[:3] == [f"{after} less {before}", difference, f"{p:.4f}"]
    assert ["many", "71.0", "64.0"] in seeds.rows
    assert ["many", "67.5", "67.5", "4, 8"] in best.rows
    lead = compare_seeds(ends["few"], ends["many"]).points(sign=True)
    assert report.lines[0].startswith(f"Best Mean reward: many, {lead} hundredths over few; 0 is")
    assert [(chart.metric, chart.unit) for chart in report.charts] == [
        ("reward", "hundredths"),
        ("reward", "points"),
    ]


def test_comparison_of_rewards_beyond_one_shows_them_and_compares_nothing(tmp_path: Path) -> None:
    layout = Layout("", ["never", "many", "few"], is_sweep=True)
    results = judged(has_shares=False)
    report = comparison_report(layout, results)
    assert [row for row in report.rows if row.against] == []
    main = report.tables[0]
    assert main.title.endswith(", in hundredths; too few problems for an interval")
    assert {row[0]: row[1] for row in main.rows} == {
        name: f"{100 * REWARDS[name, step].mean():.1f}"
        for name, step in (("base", 0), ("never", 8), ("many", 8), ("few", 2))
    }
    assert "gain over base" not in main.columns
    assert "rewards beyond 0 and 1 are not compared" in report.lines[0]
