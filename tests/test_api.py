"""The Python API: training on rows, reading runs, evaluation, callbacks and resuming."""

import os
import shutil
import signal
from collections.abc import Callable, Mapping, Sequence
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from datasets import Dataset, DatasetDict, IterableDatasetDict

import paint
from paint.commands.api.configure import configure
from paint.config.recipe import differences, find_recipe, read_recipe
from paint.config.run_folder import RunError
from paint.config.schema import Config
from paint.core.demo_files import problems_path
from paint.core.errors import ConfigError, PaintError
from paint.core.storage import read_json
from paint.data.readers import DataError
from paint.evaluation.store import find_stores
from runs import adapter, assert_same, rows_of, write_problems

ROWS = rows_of(Path(problems_path("demo")))[:24]
SMALL: dict[str, Any] = {
    "train": {"steps": 2, "batch_size": 4, "micro_batch_size": 4},
    "rollout": {"max_new_tokens": 16},
}
chi_squared = paint.Divergence(
    name="chi_squared",
    term=lambda p, log_p, q, log_q: (p - q) ** 2 / q,
    slope=lambda p, log_p, q, log_q: q - p**2 / q,
)


def rows_given(data: Any, folder: Path) -> list[dict[str, Any]]:
    """The rows that a run in the folder would read of this data."""
    config, _ = configure(read_recipe(find_recipe("demo-sft")), folder, {"data": data})
    return rows_of(Path(config.data.place))


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> paint.Run:
    folder = tmp_path_factory.mktemp("api") / "first"
    return paint.train("demo-paint", data=ROWS, output_dir=folder, **SMALL)


def test_train_on_rows_equals_training_on_their_file(run: paint.Run, tmp_path: Path) -> None:
    assert rows_of(run.path / "data.jsonl") == ROWS
    file = write_problems(tmp_path / "rows.jsonl", ROWS)
    from_file = paint.train("demo-paint", data=file, output_dir=tmp_path / "file", **SMALL)
    assert_same(adapter(run.path), adapter(from_file.path))


def test_run_frames_hold_metrics_rollouts_and_tokens(run: paint.Run) -> None:
    assert list(run.metrics.index) == run.steps == [1, 2]
    rollouts = run.rollouts()
    assert rollouts.equals(run.rollouts(2))
    assert run.metrics.loc[2, "mask_ratio"] == pytest.approx(rollouts["mask_ratio"].mean())
    tokens = run.tokens(2)
    first = tokens[tokens["row"] == 0]
    assert list(first["token_id"]) == rollouts.loc[0, "completion_ids"]
    assert first["loss"].mean() == pytest.approx(rollouts.loc[0, "loss"], rel=1e-5)
    assert (run.adapter / "adapter_model.safetensors").exists()
    assert "gradient_norm" in run._repr_html_()


def test_run_without_rollouts_of_step_is_refused_by_name(run: paint.Run, tmp_path: Path) -> None:
    with pytest.raises(RunError, match="no rollouts of step 3; it has steps 1 to 2"):
        run.rollouts(3)
    with pytest.raises(RunError, match="no run"):
        paint.load_run(tmp_path)


DEEP: list[Any] = []  # holds itself
DEEP.append(DEEP)


@pytest.mark.parametrize(
    ("rows", "named"),
    [
        ([], "no rows"),
        (7, "list of dicts"),
        ([ROWS[0], "text"], "row 2"),
        ([ROWS[0], ROWS[1] | {"seen": date(2026, 1, 1)}], 'row 2: field "seen"'),
        ([ROWS[0] | {"note": "\ud800"}], 'row 1: field "note"'),
        ([ROWS[0] | {"note": DEEP}], 'row 1: field "note": lists and objects nest deeper than 100'),
        ([ROWS[0], DEEP], "row 2"),
    ],
)
def test_train_rows_of_other_kind_are_refused(rows: Any, named: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=named):
        paint.train("demo-paint", data=rows, output_dir=tmp_path / "run", **SMALL)
    assert not (tmp_path / "run").exists()


def test_rows_of_dataset_and_frame_are_those_of_a_list(tmp_path: Path) -> None:
    for number, rows in enumerate([Dataset.from_list(ROWS), pd.DataFrame(ROWS)]):
        data = {"path": rows, "problem_field": "problem"}
        assert rows_given(data, tmp_path / str(number)) == ROWS
    frame = pd.DataFrame([ROWS[0] | {"level": 1.0}, ROWS[1]])
    assert [row["level"] for row in rows_given(frame, tmp_path / "missing")] == [1.0, None]


def test_frame_of_parquet_has_the_rows_of_its_file(tmp_path: Path) -> None:
    place = {"at": [{"x": 1.5, "note": "a"}], "sizes": [1, 2], "sure": True}
    rows = [ROWS[0] | {"place": place}, ROWS[1] | {"place": place, "tags": [["a"], []]}]
    pd.DataFrame(rows).to_parquet(tmp_path / "rows.parquet")
    frame = pd.read_parquet(tmp_path / "rows.parquet")
    assert rows_given(frame, tmp_path) == [rows[0] | {"tags": None}, rows[1]]


@pytest.mark.parametrize("places", [[[{"x": 1}, {"y": 2}]], [[{"x": {"y": [5, None]}}]]])
def test_frame_of_parquet_with_integers_made_fractions_is_refused(
    tmp_path: Path, places: list[Any]
) -> None:
    rows = [row | {"places": place} for row, place in zip(ROWS, places, strict=False)]
    pd.DataFrame(rows).to_parquet(tmp_path / "rows.parquet")
    frame = pd.read_parquet(tmp_path / "rows.parquet")
    with pytest.raises(
        DataError, match=r'row 1: field "places" is .*\d\.0 may be .* pass the Parquet'
    ):
        rows_given(frame, tmp_path)


def test_times_of_numpy_are_no_numbers(tmp_path: Path) -> None:
    columns = {"problem": ["p"], "solution": ["s"], "seen": np.array(["2026-01-01"], "M8[ns]")}
    with pytest.raises(DataError, match=r'row 1: field "seen" is .*datetime64'):
        rows_given(columns, tmp_path)


@pytest.mark.parametrize(
    "splits",
    [
        DatasetDict(dict.fromkeys(("train", "test"), Dataset.from_list(ROWS))),
        IterableDatasetDict(
            dict.fromkeys(("train", "test"), Dataset.from_list(ROWS).to_iterable_dataset())
        ),
        dict.fromkeys(("train", "test"), pd.DataFrame(ROWS)),
    ],
)
def test_dict_of_splits_is_refused_with_their_names(tmp_path: Path, splits: Any) -> None:
    for data in (splits, {"path": splits}):
        with pytest.raises(
            DataError, match=r"dict of splits \(train.*; pass one .* data\['train'\]"
        ):
            rows_given(data, tmp_path)


def test_train_takes_objects_in_place_of_names(run: paint.Run, tmp_path: Path) -> None:
    class Counting(paint.Algorithm):
        needs_context = True

        def step(self, setup: Any, batch: Any, step_index: int, clock: Any) -> Any:
            from paint.algorithms.paint import paint_step

            seen.append(step_index)
            return paint_step(setup, batch, step_index, clock)

    seen: list[int] = []
    own = SMALL | {
        "train": SMALL["train"] | {"method": Counting, "steps": 1},
        "objective": {"divergence": chi_squared},
    }
    other = paint.train("demo-paint", data=ROWS, output_dir=tmp_path / "run", **own)
    assert seen == [0]
    changed = {line.partition(":")[0] for line in differences(run.config, other.config)}
    assert {"train.method", "objective.divergence"} <= changed
    assert other.config.objective.divergence == "test_api:chi_squared"


class Recorder(paint.Callback):
    """Records what it is called with; stops after a step, or interrupts it."""

    def __init__(self, stop: int = 0, interrupt: int = 0) -> None:
        self.calls: list[Any] = []
        self.stop, self.interrupt = stop, interrupt

    def on_step(
        self, step: int, metrics: Mapping[str, float], rollouts: Sequence[Mapping[str, Any]]
    ) -> bool:
        self.calls.append((step, metrics["loss"], [row["text"] for row in rollouts]))
        if step == self.interrupt:
            os.kill(os.getpid(), signal.SIGINT)
        return step == self.stop

    def on_checkpoint(self, path: Path) -> None:
        self.calls.append(path)

    def on_end(self, run: Any) -> None:
        self.calls.append(run)


def test_callbacks_see_every_step_and_change_no_context_of_the_run(tmp_path: Path) -> None:
    recorder, saved = Recorder(), list[Path]()
    guide = tmp_path / "guide.md"
    guide.write_text("Add from the left.")

    class Saved(paint.Callback):
        """Has one of the methods."""

        def on_checkpoint(self, path: Path) -> None:
            saved.append(path)

    class Rewriter(paint.Callback):
        def on_step(self, step: int, *_: Any) -> None:
            guide.write_text(f"Step {step} is over.")

    run = paint.train(
        "demo-paint",
        data=ROWS,
        context={"source": "file", "file": str(guide)},
        callbacks=[recorder, Saved(), Rewriter()],
        output_dir=tmp_path / "run",
        **SMALL,
    )
    losses, texts = run.metrics["loss"], [list(run.rollouts(step)["text"]) for step in (1, 2)]
    steps = [(1, losses[1], texts[0]), (2, losses[2], texts[1])]
    assert recorder.calls == [*steps, run.checkpoints[-1], run]
    assert saved == run.checkpoints
    for step in (1, 2):
        assert set(run.rollouts(step)["context"]) == {"Add from the left."}


@pytest.mark.parametrize("callbacks", [Recorder, None, [None], [Recorder], [print], [object()]])
def test_train_what_is_no_callback_is_refused_before_anything_is_written(
    callbacks: Any, tmp_path: Path, unchecked: None
) -> None:
    with pytest.raises(ConfigError, match="callbacks must be"):
        paint.train("demo-paint", data=ROWS, output_dir=tmp_path / "run", callbacks=callbacks)
    assert not (tmp_path / "run").exists()


def test_run_with_own_rows_resumes_wherever_its_folder_lies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    short = SMALL | {"train": SMALL["train"] | {"steps": 1}}
    run = paint.train("demo-paint", data=ROWS, output_dir="here/first", **short)
    assert rows_of(Path(run.config.data.place)) == ROWS
    (tmp_path / "here").rename(tmp_path / "there")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    moved = paint.resume(tmp_path / "there/first", steps=2)
    (tmp_path / "there/first").rename(tmp_path / "elsewhere/again")
    again = paint.resume("again", steps=3)
    assert (moved.steps, again.steps) == ([], [1, 2, 3])


@pytest.mark.slow
def test_copied_run_resumes_with_moved_data_and_model_to_the_same_weights(
    demo_copy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    data = write_problems(Path("mine.jsonl"), ROWS)
    Path("guide.md").write_text("Add from the left.")
    files: dict[str, Any] = {
        "context": {"source": ["solution", "file"], "file": "./guide.md"},
        "validation": {
            "path": write_problems(Path("held.jsonl"), ROWS[:2]) + ":problem,answer",
            "samples": 1,
            "max_new_tokens": 8,
        },
        "health": {"drift_path": write_problems(Path("fixed.jsonl"), ROWS[:2])},
    }
    paint.train("demo-paint", data=data, model="model", output_dir="runs/first", **files, **SMALL)
    shutil.copytree("runs/first", "elsewhere/first")
    expected = adapter(paint.resume("runs/first", steps=3).path)
    for name in ("guide.md", "held.jsonl", "fixed.jsonl"):
        Path(name).unlink()
    Path("mine.jsonl").rename("elsewhere/rows.jsonl")
    demo_copy.rename("elsewhere/weights")
    write_problems(Path("elsewhere/others.jsonl"), ROWS[1:])
    monkeypatch.chdir("elsewhere")
    with pytest.raises(DataError, match=r"data\.path: mine.jsonl does not exist"):
        paint.resume("first", model="weights", steps=3)
    with pytest.raises(RunError, match=r"digest \w{16}, now \w{16}"):
        paint.resume("first", data="others.jsonl", model="weights", steps=3)
    resumed = paint.resume("first", data="rows.jsonl", model="weights", steps=3)
    assert_same(adapter(resumed.path), expected)
    assert paint.load_run("first").config.model.path == "weights"


def test_callback_true_ends_run_that_resumes_to_the_same(run: paint.Run, tmp_path: Path) -> None:
    small = SMALL | {"callbacks": [Recorder(stop=1)]}
    stopped = paint.train("demo-paint", data=ROWS, output_dir=tmp_path / "run", **small)
    assert stopped.steps == [1]
    assert_same(adapter(paint.resume(stopped).path), adapter(run.path))


def test_interrupted_run_is_resumed_to_the_same_weights(run: paint.Run, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    callbacks = [Recorder(interrupt=1)]
    with pytest.raises(paint.Interrupted):
        paint.train("demo-paint", data=ROWS, output_dir=folder, callbacks=callbacks, **SMALL)
    assert_same(adapter(paint.resume(folder).path), adapter(run.path))


def test_evaluate_on_rows_compares_run_with_base(run: paint.Run, tmp_path: Path) -> None:
    short: dict[str, Any] = {"thinking": False, "rollout": {"max_new_tokens": 64}}
    results = paint.evaluate(run, benchmarks=ROWS[:4], samples=2, output_dir=tmp_path, **short)
    table, samples = results.table, results.samples
    policies = ["base", f"{run.path.name}-step-000002"]
    assert set(table["policy"]) == set(samples["policy"]) == set(policies)
    assert len(samples) == 2 * 4 * 2
    for policy in policies:
        is_mean = (table["policy"] == policy) & (table["metric"] == "avg_at_k")
        [row] = table[is_mean].to_dict("records")
        assert row["mean"] == samples[samples["policy"] == policy]["correct"].mean()
        assert row["low"] < row["mean"] <= row["high"]
    assert list(results.comparisons["policy"]) == policies[1:]
    assert "<iframe srcdoc=" in results.show()._repr_html_()


def test_rows_without_answers_are_validated_and_evaluated_by_own_grader(tmp_path: Path) -> None:
    questions = [{"problem": row["problem"], "style": "short"} for row in ROWS[:4]]

    def grade(completion: str, row: Mapping[str, Any]) -> float:
        return 0.5 if row["style"] == "short" and row["answer"] == "" else 0.0

    run = paint.train(
        "demo-paint",
        data=questions,
        output_dir=tmp_path / "support",
        train={"steps": 1, "batch_size": 4},
        rollout={"max_new_tokens": 16},
        context={"source": "text", "text": "Be brief."},
        validation={"path": write_problems(tmp_path / "mine.jsonl", questions[:2]), "samples": 1},
        grading={"grader": grade},
    )
    assert set(paint.Evaluation(run.path / "validation").samples["reward"]) == {0.5}
    results = paint.evaluate(run, benchmarks=questions, samples=1, output_dir=tmp_path / "evals")
    assert set(results.samples["reward"]) == {0.5}
    assert results.path == tmp_path / "evals/support"
    settings = read_json(next(results.path.rglob("settings.json")), "")
    trained = run.config.rollout
    asked = ("max_new_tokens", "temperature", "top_k", "thinking")
    expected = [16, trained.temperature, trained.top_k, False]
    assert [settings[name] for name in asked] == expected
    results.show(out=tmp_path / "page.html")


def test_rows_as_columns_are_those_of_a_list(tmp_path: Path) -> None:
    columns: dict[str, Any] = {name: [row[name] for row in ROWS] for name in ROWS[0]}
    columns["problem"] = np.array(columns["problem"])
    assert rows_given(columns, tmp_path) == ROWS
    section, _ = configure(Config(), tmp_path, {"data": {"path": columns, "limit": 3}})
    assert (section.data.limit, rows_of(Path(section.data.place))) == (3, ROWS)
    with pytest.raises(DataError, match="columns of one length"):
        configure(Config(), tmp_path, {"data": {"problem": ["p", "q"], "answer": ["1"]}})
    with pytest.raises(ConfigError, match=r"unknown key data\.problem"):
        configure(Config(), tmp_path, {"data": {"problem": "p", "limit": 3}})


def test_evaluation_graded_by_function_has_its_rewards(run: paint.Run, tmp_path: Path) -> None:
    def is_first(completion: str, row: Mapping[str, Any]) -> bool:
        return bool(row["answer"] == ROWS[0]["answer"])

    results = paint.evaluate(run, benchmarks=ROWS[:4], samples=1, output_dir=tmp_path)
    again = paint.grade(results, grading={"grader": is_first})
    rewards = again.samples.groupby("policy")["reward"].sum()
    assert list(rewards) == [sum(row["answer"] == ROWS[0]["answer"] for row in ROWS[:4])] * 2
    assert again.path == results.path
    folders = [results.path / policy for policy in rewards.index]
    apart = paint.grade(*folders, output_dir=tmp_path / "apart")
    columns = ["policy", "benchmark", "mean", "low", "high", "p"]
    pd.testing.assert_frame_equal(apart.comparisons[columns], results.comparisons[columns])


@pytest.mark.slow
def test_held_out_kl_falls_as_student_learns(tmp_path: Path) -> None:
    problems = rows_of(Path(problems_path("demo")))
    found = []
    for steps in (1, 24):  # the demo's rules are not learned in fewer: 0.15, then 0.06 nats
        train = {"steps": steps, "batch_size": 32}
        run = paint.train(
            "demo-opsd", data=problems[:100], output_dir=tmp_path / str(steps), train=train
        )
        found.append(paint.held_out_kl(run, data=problems[100:108], problems=4))
        rollouts = rows_of(run.path / f"held-out-kl/step-{steps:06d}/student/completions.jsonl")
        assert len(rollouts) == 4 * 2
    assert 0 < found[1] < 0.7 * found[0]


def test_held_out_kl_folder_is_no_evaluation_and_of_one_student(
    run: paint.Run, tmp_path: Path
) -> None:
    bank = tmp_path / "bank"
    options: dict[str, Any] = {"data": ROWS[:2], "samples": 1, "output_dir": bank}
    found = paint.held_out_kl(run, **options)
    assert paint.held_out_kl(run, **options) == found
    assert find_stores(tmp_path) == []
    train = {"steps": 1, "batch_size": 4}
    other = paint.train("demo-paint", data=ROWS, output_dir=tmp_path / "other", train=train)
    with pytest.raises(
        PaintError, match=r"student holds samples with other settings:\n  adapter: "
    ):
        paint.held_out_kl(other, **options)


def test_show_writes_the_page_of_one_run(run: paint.Run, tmp_path: Path) -> None:
    page = run.show(out=tmp_path / "one.html")
    assert page.path.read_text().startswith("<!doctype html>")
    with pytest.raises(paint.ConfigError, match="nothing to show"):
        paint.show()


@pytest.mark.parametrize("command", [paint.grade, paint.show, paint.load_run, paint.resume])
def test_empty_path_is_not_the_working_directory(command: Callable[[str], Any]) -> None:
    with pytest.raises(paint.ConfigError, match="a path is empty"):
        command("")
