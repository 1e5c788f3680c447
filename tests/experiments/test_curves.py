"""Every checkpoint: what is shown of it is computed from the results, and never the headline."""

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from paint.display import Display
from paint.evaluation.intervals import compare_seeds, over_seeds
from paint.experiments.curves import cost_curves, step_sheets
from paint.experiments.plots import COLOURS, save_curves
from paint.experiments.reports import Report, publish, result_sheets
from paint.experiments.results import Result

SAMPLES = 4
LABELS = {"base": "base", "few": "Few", "many": "Many", "never": "Never", "off": "Off"}


def trained(cell: str, seed: int, steps: int, right: list[int], tokens: int = 100) -> Result:
    """A result whose run takes so many tokens and half a second a step."""
    config = {"train": {"steps": 2 if cell == "few" else 8}}
    exam = {"samples": SAMPLES, "problems": 3, "benchmark": "lab"}
    problems = ["one", "two", "three"]
    spent = (steps * tokens, steps / 2)
    return Result(cell, seed, config, exam, "same", steps, *spent, problems, right, 9.0)


def both(cell: str, steps: int, *rows: list[int], tokens: int = 100) -> list[Result]:
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
    (cell, step): np.array([r.right for r in RESULTS if (r.cell, r.steps) == (cell, step)]) / 4
    for cell, step in {(r.cell, r.steps) for r in RESULTS}
}


def test_each_checkpoint_has_its_score_its_cost_and_what_the_goal_is_ahead() -> None:
    by_step, _, _ = step_sheets(LABELS, "few", RESULTS)
    assert by_step.columns[2] == "Avg@4"
    rows = {(row[0], row[1]): row[2:] for row in by_step.rows}
    assert list(rows) == [
        ("base", "0"),
        *(("Few", step) for step in "12"),
        *(("Many", step) for step in "248"),
        *(("Never", step) for step in "48"),
        ("Off", "8"),
    ]
    end, base = SCORES["few", 2], SCORES["base", 0]
    for (cell, step), cost in {
        ("many", 4): ["404", "0:00:02"],
        ("off", 8): ["0", "0:00:04"],
    }.items():
        scores = SCORES[cell, step]
        assert rows[LABELS[cell], str(step)] == [
            over_seeds(scores, bounds=(0, 1)).points(),
            compare_seeds(base, scores).points(sign=True),
            *cost,
            compare_seeds(scores, end).points(sign=True),
        ]
    assert rows["Few", "2"][-1] == ""
    assert rows["base", "0"][1:4] == ["", "", ""]
    assert rows["base", "0"][4] == compare_seeds(base, end).points(sign=True)


def test_the_best_of_each_seed_is_beside_the_last_and_called_no_result() -> None:
    _, best, _ = step_sheets(LABELS, "few", RESULTS)
    assert best.title.startswith("No result: Avg@4 of each seed's best checkpoint")
    assert best.columns == ["", "last", "best of 1 to 3", "its step, by seed"]
    assert best.rows == [
        ["Few", "75.0", "79.2", "1, 2"],  # 10 and 9 of 12
        ["Many", "79.2", "79.2", "4, 8"],  # of equal ones the first
        ["Never", "66.7", "70.8", "4, 4"],
        ["Off", "4.2", "4.2", "8, 8"],
    ]


def test_what_another_cell_needs_to_reach_the_goal_or_that_it_does_not() -> None:
    *_, reached = step_sheets(LABELS, "few", RESULTS)
    assert "reach the last Avg@4 of Few, 75.0 after 200 rollout tokens and 1 s" in reached.title

    def lead(cell: str, step: int) -> str:
        return compare_seeds(SCORES[cell, step], SCORES["few", 2]).points(sign=True)

    assert [row[:3] + row[4:] for row in reached.rows] == [
        ["Many", "202", lead("many", 2), "404 (2.0 times)", "2 (2.0 times)"],
        [
            "Never",
            "400",
            lead("never", 4),
            "not within 800 (4.0 times)",
            "not within 4 (4.0 times)",
        ],
        ["Off", "0", lead("off", 8), "not within 0 (0.0 times)", "not within 4 (4.0 times)"],
    ]


def test_how_long_another_cell_is_surely_below_the_goal() -> None:
    """Two seeds and three problems say nothing for sure; twice and four times as many do."""
    assert {row[3] for row in step_sheets(LABELS, "few", RESULTS)[-1].rows} == {"nowhere"}
    names = [f"{n}" for n in range(12)]
    many = [
        replace(r, seed=r.seed + more, right=4 * r.right, problems=names)
        for more in (0, 2)
        for r in [*RESULTS, *both("many", 1, [1, 2, 1], [1, 1, 2], tokens=101)]
    ]
    by_step, _, reached = step_sheets(LABELS, "few", many)
    below = [row[:2] for row in by_step.rows if row[-1].partition("[")[2].startswith("+")]
    assert below == [["base", "0"], ["Many", "1"], ["Many", "2"], ["Off", "8"]]
    assert [row[3] for row in reached.rows] == ["202 (1.0 times)", "nowhere", "0 (0.0 times)"]


def test_a_goal_that_samples_nothing_is_no_measure_of_tokens() -> None:
    *_, reached = step_sheets(LABELS, "off", RESULTS)
    assert [row[4:] for row in reached.rows] == [
        ["100", "0 (0.1 times)"],
        ["202", "1 (0.2 times)"],
        ["400", "2 (0.5 times)"],
    ]


def test_without_a_goal_nothing_is_held_against_it() -> None:
    by_step, best = step_sheets(LABELS, None, RESULTS)
    assert by_step.columns[-1] == "training time"
    assert {len(row) for row in by_step.rows} == {6}
    assert len(best.rows) == 4


def test_earlier_checkpoints_leave_what_is_reported_as_it_was(tmp_path: Path) -> None:
    last = [result for result in RESULTS if result.is_last]
    assert len(last) == 10
    labels = {name: label for name, label in LABELS.items() if name != "base"}
    report = Report("results", "The lab", labels, {}, "", goal="few")
    assert result_sheets(report, RESULTS) == result_sheets(report, last)

    publish(report, last, tmp_path / "last", Display(enabled=False))
    publish(report, RESULTS, tmp_path / "all", Display(enabled=False))
    publish(replace(report, goal=None), RESULTS, tmp_path / "none", Display(enabled=False))
    plain, whole = ((tmp_path / place / "results.md").read_text() for place in ("last", "all"))
    assert whole.startswith(plain.rstrip())
    assert "by step" in whole
    assert "by step" not in plain
    names = {place.name: {path.name for path in place.iterdir()} for place in tmp_path.iterdir()}
    assert names["last"] == names["none"] == {"results.md", "results.svg", "results.png"}
    assert names["all"] == names["last"] | {"efficiency.svg", "efficiency.png"}


def test_curves_have_the_scores_and_the_mean_costs() -> None:
    base, few, many, *_ = cost_curves(LABELS, RESULTS)
    assert (base.label, base.levels) == ("base", [over_seeds(SCORES["base", 0])])
    assert few.costs == [[100, 200], [0.5, 1.0]]
    assert many.levels == [over_seeds(SCORES["many", step]) for step in (2, 4, 8)]
    assert many.costs == [[202, 404, 808], [1, 2, 4]]


def test_curves_are_drawn_where_their_figures_are_in_colours_and_names_of_their_own(
    tmp_path: Path,
) -> None:
    curves = cost_curves(LABELS, RESULTS)
    svg, png = save_curves(tmp_path / "plot", "Title", "share, %", ["tokens", "seconds"], curves)
    assert png.read_bytes().startswith(b"\x89PNG")
    again, _ = save_curves(tmp_path / "again", "Title", "share, %", ["tokens", "seconds"], curves)
    assert again.read_bytes() == svg.read_bytes()

    text = svg.read_text()
    panels = re.split(r'<g id="axes_\d">', text)[1:]
    for panel, (part, cost) in enumerate(zip(panels, ("tokens", "seconds"), strict=True)):
        assert f">{cost}</text>" in part
        marks = re.findall(
            r'<use [^>]*x="([\d.]+)" y="([\d.]+)" style="fill: (#\w+); stroke: #\w+', part
        )
        drawn, wanted = [], []
        for colour, curve in zip(COLOURS, curves[1:], strict=False):
            places = [(float(x), float(y)) for x, y, found in marks if found == colour]
            is_shown = curve.costs[panel][0] > 0
            assert len(places) == len(curve.levels) * is_shown
            assert (f">{curve.label}</text>" in part) == is_shown
            drawn += places
            if is_shown:
                levels = [level.mean for level in curve.levels]
                wanted += list(zip(np.log(curve.costs[panel]), levels, strict=True))

        for axis, sign in ((0, 1), (1, -1)):  # heights count from the top
            at, values = (np.array(rows)[:, axis] for rows in (drawn, wanted))
            slope, start = np.polyfit(values, at, 1)
            np.testing.assert_allclose(at, start + slope * values, atol=1e-3)
            assert slope * sign > 0


def test_curves_of_one_point_and_curves_that_cost_nothing_are_drawn(tmp_path: Path) -> None:
    base, *_, never, off = cost_curves(LABELS, RESULTS)
    one = replace(never, levels=never.levels[:1], costs=[cost[:1] for cost in never.costs])
    for number, curve in enumerate((off, one)):
        place = tmp_path / str(number)
        svg, _ = save_curves(place, "Title", "share, %", ["tokens", "seconds"], [base, curve])
        assert svg.read_text().count(f">{curve.label}</text>") == 1 + number


def test_names_of_curves_that_end_together_do_not_lie_on_each_other(tmp_path: Path) -> None:
    _, few, *_ = cost_curves(LABELS, RESULTS)
    base, *_ = cost_curves(LABELS, RESULTS)
    same = [base, *(replace(few, label=name) for name in ("$x_1$", "two", "three"))]
    svg, _ = save_curves(tmp_path / "plot", "Title", "share, %", ["tokens"], same)
    heights = []
    for name in ("$x_1$", "two", "three"):
        [height] = re.findall(rf' y="([\d.]+)"[^<]*>{re.escape(name)}</text>', svg.read_text())
        heights.append(float(height))
    assert min(np.diff(sorted(heights))) >= 9  # the size of the letters


@pytest.mark.parametrize("amount", [3e3, 2e6])
def test_an_axis_of_costs_says_its_numbers_in_short(amount: int, tmp_path: Path) -> None:
    results = [replace(r, rollout_tokens=round(r.steps * amount)) for r in RESULTS]
    curves = cost_curves(LABELS, results)
    svg, _ = save_curves(tmp_path / "plot", "Title", "share, %", ["tokens"], curves)
    wanted = ("5k", "10k", "20k") if amount == 3e3 else ("2M", "5M", "10M")
    assert all(f">{word}</text>" in svg.read_text() for word in wanted)
