"""Sweeps: rows for every combination of some settings, their names, and what is refused."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import paint
from paint.cli import main
from paint.config.recipe import find_recipe, read_recipe
from paint.config.schema import Config, ConfigError
from paint.lab.checkpoint_results import read_results
from paint.lab.recipes import read_recipes
from paint.lab.sweep import row_name, value_text

DEMO = read_recipe(find_recipe("demo-paint"))
ON_CORRECT = "paintvariants.on_correct:OnCorrect"


def test_sweep_of_two_settings_is_their_product(compared: list[dict[str, Config]]) -> None:
    line = "compare demo-paint --sweep train.learning-rate 2e-4 0.002 --sweep model.lora_rank 8 16"
    assert main([*line.split(), "--train.steps", "3"]) == 0
    values = {"train.learning_rate": np.array([2e-4, 2e-3]), "model.lora_rank": range(8, 17, 8)}
    paint.compare("demo-paint", sweep=values, train={"steps": 3})
    rows = {
        name: (config.train.learning_rate, config.model.lora_rank, config.train.steps)
        for name, config in compared[0].items()
    }
    assert list(rows.items()) == [
        ("learning_rate=2e-4,lora_rank=8", (2e-4, 8, 3)),
        ("learning_rate=2e-4,lora_rank=16", (2e-4, 16, 3)),
        ("learning_rate=2e-3,lora_rank=8", (2e-3, 8, 3)),
        ("learning_rate=2e-3,lora_rank=16", (2e-3, 16, 3)),
    ]
    assert compared[1] == compared[0]


def test_sweep_of_two_recipes_names_the_recipe() -> None:
    rows = read_recipes(["demo-opsd", "demo-paint"], sweep={"train.steps": [3, 4]})
    names = [f"{recipe},steps={n}" for recipe in ("demo-opsd", "demo-paint") for n in (3, 4)]
    assert [name for name, _ in rows] == names
    assert [run.config.train.steps for _, run in rows] == [3, 4, 3, 4]


def test_sweep_reads_options_by_the_types_of_the_method_that_is_swept_too() -> None:
    sweep = {"train.options.correct_weight": ["1", "0.5"], "train.method": [ON_CORRECT]}
    rows = [run.config.train for _, run in read_recipes(["demo-paint"], sweep=sweep)]
    assert [train.method for train in rows] == [ON_CORRECT] * 2
    assert [train.options["correct_weight"] for train in rows] == [1.0, 0.5]


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("train.learning_rate abc", 'train.learning_rate must be a number, got "abc"'),
        ("train.learning-rate 1e-3 -1", "train.learning_rate must be in (0, inf), got -1.0"),
        ("train.learnin_rate 1", "unknown setting train.learnin_rate; did you mean train.learning"),
        ("train.options.epsilon 1", "unknown option train.options.epsilon"),
        ("data.limit 1 2", "data.limit cannot differ between rows"),
        ("train.learning_rate 2e-4 0.0002", "same settings, so their rows would be equal"),
        ("train.steps 1 --sweep train.steps 2", "train.steps is given twice"),
        ("train.batch_size 8 --sweep train.batch-size 16", "train.batch_size is named twice"),
        ("", "--sweep needs a name and its values"),
    ],
)
def test_sweep_that_cannot_be_made_is_refused_in_a_sentence(
    flags: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line = f"compare demo-paint --output-dir {tmp_path / 'out'} --sweep {flags}"
    assert main(line.split()) == 2
    error = capsys.readouterr().err
    assert message in error
    assert len(error.splitlines()) == 1
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (2e-4, "2e-4"),
        (0.00025, "2.5e-4"),
        (0.3, "0.3"),
        (20.0, "20"),
        (8, "8"),
        (True, "true"),
        (None, "none"),
        (["solution", "answer"], "solution+answer"),
    ],
)
def test_value_text_is_short_and_exact(value: Any, text: str) -> None:
    assert value_text(value) == text
    if isinstance(value, float):
        assert float(text) == value


def test_row_name_is_a_folder_and_tells_equal_keys_apart() -> None:
    both = {"rollout.batch_size": 8, "train.batch_size": 16}
    assert row_name(both) == "rollout.batch_size=8,train.batch_size=16"
    assert row_name({"context.text": "Be brief: / and\nkind."}) == "text=Be-brief-and-kind."
    assert row_name({f"train.s{i}": "x" * 40 for i in range(9)}) == ""


def test_compare_takes_configs_and_dicts_beside_names(compared: list[dict[str, Config]]) -> None:
    recipes: Any = ["demo-opsd", DEMO, {"train": {"learning_rate": 1e-3}}]
    paint.compare(recipes, base="demo-paint", train={"steps": 4})
    [rows] = compared
    assert list(rows) == ["demo-opsd", "learning_rate=2e-3", "learning_rate=1e-3"]
    assert [config.train.learning_rate for config in rows.values()] == [2e-3, 2e-3, 1e-3]
    assert {config.train.steps for config in rows.values()} == {4}
    assert {config.model for config in rows.values()} == {DEMO.model}


def test_compare_configs_have_folders_and_seeds_of_the_comparison(
    compared: list[dict[str, Config]],
) -> None:
    named = DEMO.changed("log", name="mine").changed("train", seed=7)
    paint.compare([named, DEMO.changed("train", learning_rate=1e-3)])
    assert list(compared[0]) == ["learning_rate=2e-3", "learning_rate=1e-3"]
    with pytest.raises(ConfigError, match="row-1 and row-2 have the same settings"):
        paint.compare([named, DEMO])


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (DEMO.changed("data", limit=5), r"^data\.limit of limit=5 is 5, and that of limit=none"),
        ({"train": {"steps": 0}}, "train.steps must be at least 1, got 0"),
    ],
)
def test_compare_row_that_cannot_be_compared_is_refused(
    other: Any, message: str, compared: list[dict[str, Config]]
) -> None:
    with pytest.raises(ConfigError, match=message):
        paint.compare([DEMO, other])
    assert not compared


@pytest.mark.slow
def test_compare_results_have_a_column_for_each_setting_that_differs(tmp_path: Path) -> None:
    small: Any = {"train": {"steps": 1, "batch_size": 2}, "rollout": {"max_new_tokens": 16}}
    small |= {"seeds": 1, "problems": 2, "samples": 1, "max_new_tokens": 8}
    sweep = {"context.source": ["none", "answer"], "train.learning_rate": [1e-3]}
    frame = paint.compare("demo-paint", sweep=sweep, output_dir=tmp_path, **small)
    names = [f"source={source},learning_rate=1e-3" for source in ("none", "answer")]
    assert list(frame["run"]) == ["base", *names]
    assert list(frame["context.source"][1:]) == ["none", "answer"]
    assert frame["context.source"].isna()[0]
    assert not {"train.learning_rate", "train.seed"} & set(frame)
    assert list(frame.groupby("context.source")["avg_at_k"].count()) == [1, 1]
    assert [result.run for result in read_results(tmp_path)] == list(frame["run"])
    written = (tmp_path / "results.md").read_text()
    row = "| source=none,learning_rate=1e-3 | context.source: ['answer'] -> ['none'] |"
    assert row in written
