"""The records of metrics: complete, and what names a metric reads them."""

from pathlib import Path

import pytest

import paint
from extensions.sure import Sure
from paint.config.metric_records import CHARTS, METRICS, is_of_run, metrics_of_chart, record_of


@pytest.mark.parametrize("recipe", ["demo-grpo", "demo-sft"])
def test_metrics_of_a_run_have_records(recipe: str, tmp_path: Path) -> None:
    settings = {"steps": 1, "batch_size": 8}
    run = paint.train(recipe, output_dir=tmp_path / "run", train=settings)
    assert without_record(run) == []


def test_metrics_of_ones_own_are_logged_without_a_record(tmp_path: Path) -> None:
    run = paint.train(
        "demo-paint",
        output_dir=tmp_path / "run",
        train={"steps": 1, "batch_size": 8, "method": Sure},
        grading={"grader": ("math", "extensions.words:words")},
    )
    assert without_record(run) == ["sure", "words"]
    rollouts = run.rollouts(step=1)
    metrics = run.metrics.iloc[0]
    assert metrics["words"] == rollouts["text"].str.split().str.len().mean()
    assert 0 < metrics["sure"] < 1
    # The grader without a reward changes none.
    assert list(rollouts["reward"]) == list(rollouts["correct"].astype(float))


def without_record(run: paint.Run) -> list[str]:
    names = run.metrics.reset_index().columns
    return [name for name in names if record_of(name) is None]


def test_record_of_a_pattern_is_found_and_reserved() -> None:
    record = record_of("seconds_loss")
    assert record is not None
    assert record.name == "seconds_PHASE"
    assert is_of_run("seconds_anything")
    assert is_of_run("rewards/length/mean")
    assert not is_of_run("seconds")
    assert not is_of_run("kl")
    assert record_of("of_my_own") is None


def test_metrics_of_chart_are_logged_ones_and_those_of_each_source() -> None:
    logged = ["sources/a/kl", "accuracy", "sources/a/accuracy", "sources/b/accuracy"]
    assert metrics_of_chart("accuracy", logged) == ["accuracy"]
    expected = ["sources/a/accuracy", "sources/b/accuracy"]
    assert metrics_of_chart("source_accuracy", logged) == expected
    assert metrics_of_chart("source_reward", logged) == []


def test_metrics_with_a_record_are_those_of_the_reference() -> None:
    page = (Path(__file__).parents[2] / "docs/reference/metrics.md").read_text("utf-8")
    table = page.partition("| name | is | unit |\n|---|---|---|\n")[2].partition("\n\n")[0]
    assert [line.split(" | ")[0] for line in table.splitlines()] == [f"| {m.name}" for m in METRICS]


def test_charts_have_metrics_and_metrics_known_charts() -> None:
    names = [metric.name for metric in METRICS]
    assert all(metrics_of_chart(name, names) for name in CHARTS)
    assert {name for metric in METRICS for name in metric.charts} <= set(CHARTS)
    assert len({metric.name for metric in METRICS}) == len(METRICS)
