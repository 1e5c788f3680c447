"""Learning rates: which are tried, which one is taken, and what becomes of those that collapse."""

import json
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import paint
from paint.config.schema import ConfigError
from paint.core.display import Display
from paint.inference.adapter_sync_check import LogprobMismatchError
from paint.lab.learning_rates import (
    BEFORE,
    LADDER,
    RateTrial,
    nearest,
    rate_lines,
    rates_of,
    rates_report,
    try_rate,
)
from paint.lab.runner import ExperimentRun
from reports import of_rewards, report_in, row_of
from runs import changed, rows_of, write_problems

SMALL: dict[str, Any] = {"rollout": {"max_new_tokens": 24}, "train": {"steps": 2, "batch_size": 4}}


def trial(rate: float, kl: float, right: float = 0.5, **changes: Any) -> RateTrial:
    """A trial on 40 problems whose KL varies by a twentieth."""
    noise = np.random.default_rng(0).uniform(0.95, 1.05, 40)
    rewards = (np.arange(80).reshape(40, 2) % 10 < 10 * right).astype(float)
    name = f"{rate:g}" if rate else BEFORE
    return RateTrial(name, rate, kl * noise, of_rewards(rewards), **changes)


@pytest.mark.parametrize("own", [5e-6, 6e-4, 1e-3, 1e-2])
def test_rates_of_default_is_the_ladder_and_the_recipes_own(own: float) -> None:
    defaults: list[Any] = [True, (), []]
    for default in defaults:
        rates = rates_of(default, own)
        assert rates == sorted(rates)
        assert own in rates
        assert min(rates) == min(LADDER)
        assert len(rates) <= len(LADDER) + 1
        assert all(b / a > 1.4 for a, b in pairwise(rates))


def test_rates_of_given_rates_are_tried_alone_in_order() -> None:
    assert rates_of([1e-3, 5e-6], 2e-4) == [5e-6, 1e-3]


@pytest.mark.parametrize(
    ("trials", "starts"),
    [
        ([trial(1e-4, 0.8), trial(1e-3, 0.5), trial(1e-2, 0.9)], ["take 0.001: ", "with the "]),
        (
            [trial(1e-4, 0.5), trial(1e-3, 0.5), trial(1e-2, 0.9)],
            ["take 0.0001: ", "with the ", "not told apart from it by so many problems: 0.001"],
        ),
        (
            [trial(1e-4, 0.8), trial(1e-3, 0.5)],
            ["take 0.001: ", "with the ", "it is the largest rate that was tried"],
        ),
        (
            [trial(1e-4, 0.5, right=0.1), trial(1e-3, 0.8)],
            ["take 0.0001: ", "with the ", "but its answers are rewarded less"],
        ),
        (
            # A student that repeats itself is predicted by its teacher, too.
            [trial(1e-4, 0.8), trial(1e-3, 0.1, warnings=("truncated",))],
            ["take 0.0001: ", "with the "],
        ),
        ([trial(1e-4, 1.1), trial(1e-3, 2.0)], ["none: no rate brings the student nearer "]),
        (
            [trial(1e-3, 3.0, warnings=("kl",)), RateTrial("1", 1.0, ended="ended")],
            ["none: the student of every rate collapsed"],
        ),
    ],
)
def test_rate_lines_take_the_nearest_student_that_did_not_collapse(
    trials: list[RateTrial], starts: Sequence[str]
) -> None:
    lines = rate_lines([trial(0.0, 1.0), *trials], "some")
    assert len(lines) == len(starts)
    for line, start in zip(lines, starts, strict=True):
        assert line.startswith(start)
    if starts[0].startswith("take"):
        chosen = nearest(trials)
        assert chosen is not None
        assert lines[1].endswith(f"`paint train some --train.learning-rate {chosen.name}`")


def test_rate_lines_of_few_problems_name_their_number() -> None:
    few = [RateTrial(BEFORE, kl=np.ones(3)), RateTrial("1e-3", 1e-3, kl=np.full(3, 0.5))]
    [line] = rate_lines(few, "some")
    assert line.startswith("none: ")
    assert line.endswith("take more --problems")


def test_rates_report_has_differences_by_problem_and_a_row_of_each_rate() -> None:
    ended = RateTrial("1", 1.0, ended="ended: numbers that are not finite")
    trials = [trial(0.0, 1.0), trial(1e-4, 0.5, right=0.8), trial(1e-3, 2.0), ended]
    report = rates_report(trials, 20, "some")
    less = row_of(report, policy="0.0001", metric="kl", against=BEFORE)
    assert less.mean == pytest.approx(-row_of(report, policy="0.0001", metric="kl").mean)
    assert less.high is not None
    assert less.high < 0
    gain = row_of(report, policy="0.0001", metric="accuracy", against=BEFORE)
    assert gain.mean == pytest.approx(0.3)
    [table] = report.tables
    assert [line[0] for line in table.rows] == [BEFORE, "0.0001", "0.001", "1"]
    assert table.rows[-1][1:] == ["", "", "", "", "", ended.ended]


def test_advise_rates_trains_each_and_names_those_that_are_not_finite(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def advised(**changes: Any) -> paint.Result:
        given = {"problems": 12, "samples": 2, "rates": [1e-3, 1e30], **SMALL, **changes}
        return paint.advise("demo-paint", output_dir=tmp_path, data={"limit": 60}, **given)

    found = advised()
    report = report_in(tmp_path / "rates")
    assert found.path == tmp_path / "rates"
    [table] = report.tables
    assert [line[0] for line in table.rows] == [BEFORE, "1e-3", "1e+30"]
    assert table.rows[-1][-1] == "ended: numbers that are not finite"
    assert row_of(report, policy=BEFORE, metric="kl").n == 12
    assert row_of(report, policy="1e-3", metric="kl", against=BEFORE).mean != 0

    trained_on = {row["id"] for row in rows_of(tmp_path / "rates/training/problems.jsonl")}
    answered = rows_of(tmp_path / "rates/before/student/completions.jsonl")
    assert len(trained_on) == 48
    assert len(answered) == 24
    assert not trained_on & {row["problem_id"] for row in answered}

    # Trainings and rollouts that are there are not made again, and those of others are refused.
    monkeypatch.setattr("paint.lab.runner.train", None)
    assert advised(rates=[1e-3]).path == tmp_path / "rates"
    with pytest.raises(ConfigError, match=r"objective\.clip: 0\.06 -> 0\.2"):
        advised(rates=[1e-3], objective={"clip": 0.2})
    with pytest.raises(ConfigError, match=r"problems\.jsonl: .* other rows were held out"):
        advised(problems=6)


@pytest.mark.parametrize("steps_done", [0, 3])
def test_try_rate_whose_engine_differs_is_a_row_once_it_has_learned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, steps_done: int
) -> None:
    def train_run(run: ExperimentRun, place: Path, display: Display) -> None:
        place.mkdir(parents=True)
        text = "".join(f'{{"step": {step + 1}}}\n' for step in range(steps_done))
        (place / "metrics.jsonl").write_text(text)
        raise LogprobMismatchError("engine and trainer differ")

    monkeypatch.setattr("paint.lab.learning_rates.train_run", train_run)
    run = ExperimentRun("1e-3", changed("demo-paint", {}))
    if not steps_done:
        with pytest.raises(LogprobMismatchError):
            try_rate(run, 1e-3, [], 2, tmp_path, Display(enabled=False))
        return
    found = try_rate(run, 1e-3, [], 2, tmp_path, Display(enabled=False))
    assert found.collapsed
    assert found.course == "ended: engine and trainer differ"


def test_advise_rates_of_a_mixture_holds_out_rows_of_each_source(tmp_path: Path) -> None:
    rows = [
        {"problem": f"Start at ${i}$.", "solution": f"${i}$", "answer": str(i)} for i in range(40)
    ]
    paths = [
        write_problems(tmp_path / "first.jsonl", rows[:30]),
        write_problems(tmp_path / "second.jsonl", rows[30:]),
    ]
    data = {"path": paths, "weights": [1.0, 2.0]}
    few: dict[str, Any] = {"problems": 12, "samples": 2, "rates": [1e-3], **SMALL}
    paint.advise("demo-paint", data=data, output_dir=tmp_path / "advice", **few)
    folder = tmp_path / "advice/rates"
    left = {name: len(rows_of(folder / f"training/{name}.jsonl")) for name in ("first", "second")}
    assert left == {"first": 21, "second": 7}
    trained = json.loads((folder / "1e-3/run/run.json").read_text())["config"]["data"]
    assert trained["weights"] == [1.0, 2.0]
    assert trained["path"] == [str(folder / f"training/{name}.jsonl") for name in left]
