"""Signs of a collapse: bands, their words while training, and runs that end on them."""

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any, get_args

import pytest

import paint
from paint.config.schema import HealthConfig, WarningName
from paint.training.health import COLLAPSE_WARNINGS, Health, collapse_warnings, warning_history
from runs import adapter, assert_same

Rows = list[dict[str, float]]


def course(metric: str, values: Sequence[float]) -> Rows:
    """The metrics of steps in which one of them takes these values."""
    return [{"step": i, metric: value} for i, value in enumerate(values, start=1)]


def test_collapse_warnings_have_the_names_of_the_setting() -> None:
    assert set(COLLAPSE_WARNINGS) == set(get_args(WarningName))


@pytest.mark.parametrize(
    ("warning", "first", "inside", "outside"),
    [
        ("truncated", 0.1, 0.34, 0.36),
        ("no_answer", 0.0, 0.24, 0.26),
        ("repetition", 0.0, 0.09, 0.11),
        ("longer", 100.0, 199.0, 201.0),
        ("shorter", 100.0, 51.0, 49.0),
        ("entropy_low", 0.4, 0.11, 0.09),
        ("entropy_high", 0.4, 0.79, 0.81),
        ("kl", 0.01, 0.029, 0.031),
        ("overlap", 0.6, 0.31, 0.29),
        ("clipped", 0.02, 0.21, 0.23),
        ("drift", 0.1, 0.59, 0.61),
    ],
)
def test_collapse_warnings_out_of_band_is_named(
    warning: str, first: float, inside: float, outside: float
) -> None:
    metric, _ = COLLAPSE_WARNINGS[warning]
    assert not collapse_warnings(course(metric, [first] + 2 * [inside]), window=2)
    found = collapse_warnings(course(metric, [first, inside] + 2 * [outside]), window=2)
    assert list(found) == [warning]
    assert found[warning] == pytest.approx((outside, first))


def test_collapse_warnings_before_a_full_window_are_none() -> None:
    rows = course("kl", [0.01, 9, 9, 9])
    assert [bool(collapse_warnings(rows[:n], window=3)) for n in range(1, 5)] == [
        False,
        False,
        False,
        True,
    ]


def test_collapse_warnings_pass_over_steps_without_the_metric() -> None:
    rows: Rows = [{"step": 1}, *course("kl", [0.01, 9]), {"step": 4}, *course("kl", [9])]
    assert collapse_warnings(rows, window=2) == {"kl": (9, 0.01)}
    assert not collapse_warnings(rows[:-1], window=2)


def test_warning_history_of_one_that_recovers_lists_it_again() -> None:
    listed = warning_history(course("kl", [1, 1, 4, 4, 1, 5]), window=1)
    assert [(found["step"], found["warning"]) for found in listed] == [(3, "kl"), (6, "kl")]


def test_warning_history_lists_what_appears_in_the_steps_so_far() -> None:
    rng = random.Random(0)
    rows: Rows = [
        {"step": step, **{name: rng.choice([0.01, 0.1, 1, 9]) for name in ("kl", "drift")}}
        for step in range(1, 60)
    ]
    rows[0] |= {"kl": 0.1, "drift": 0.1}
    del rows[20]["kl"]
    expected, before = [], set[str]()
    for count, row in enumerate(rows, start=1):
        now = set(collapse_warnings(rows[:count]))
        expected += [(row["step"], name) for name in sorted(now - before)]
        before = now
    listed = [(found["step"], found["warning"]) for found in warning_history(rows)]
    assert sorted(listed) == expected
    assert len(expected) > 10


def test_warning_history_of_a_long_run_does_not_read_steps_again() -> None:
    class Counted(dict[str, float]):
        reads = 0

        def __getitem__(self, name: str) -> float:
            Counted.reads += 1
            return super().__getitem__(name)

    rows = [Counted({"step": step, "kl": 1.0}) for step in range(500)]
    assert warning_history(rows) == []
    assert Counted.reads < 3 * len(rows)  # of the metric, and by checks of types in tests


def test_health_of_resumed_run_does_not_repeat_a_warning() -> None:
    rows, notes = course("kl", [1, 4, 4, 4, 4, 1, 1, 9]), list[str]()
    health = Health(HealthConfig(stop_on=("kl",)), rows[:4], notes.append)
    ended = [health.on_step(int(row["step"]), row, []) for row in rows[4:]]
    assert ended == [False, False, False, True]
    assert [note.split(":")[0] for note in notes] == ["step 8"]


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
