"""Options of extensions: from a recipe, the command line and Python to the code that uses them."""

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
import torch

import paint
from extensions.length_grader import LengthOptions, grade
from extensions.lion import LionFactory
from extensions.reward_weighted import RewardOptions, RewardWeighted
from extensions.shout_engine import ShoutEngine
from paint.cli.main import main
from paint.config.recipe import from_table, read_recipe, to_table
from paint.config.run_folder import read_metrics, read_run, read_run_json
from paint.config.schema import Config, TrainConfig
from paint.core.extensions import OptionTable, spec_of
from paint.resolve.algorithm import find_algorithm
from paint.resolve.check import check_config
from runs import adapter, assert_same, changed, parse, stored, train, train_in_parts, write_problems

RECIPE = """
[train]
method = "extensions.reward_weighted:RewardWeighted"
optimizer = "extensions.lion:LionFactory"
[train.options]
baseline = 0.5
[train.optimizer_options]
beta1 = 0.8
[rollout]
engine = "extensions.shout_engine:ShoutEngine"
options = { signature = "loud" }
[grading]
grader = "extensions.length_grader:grade"
options = { longest = 1 }
"""
NAMES = {
    "train": {
        "method": "extensions.reward_weighted:RewardWeighted",
        "optimizer": "extensions.lion:LionFactory",
    },
    "rollout": {"engine": "extensions.shout_engine:ShoutEngine"},
    "grading": {"grader": "extensions.length_grader:grade"},
}
FLAGS = [
    *("--train.options.baseline", "0.5", "--train.optimizer-options.beta1", "0.8"),
    *("--rollout.options.signature", "loud", "--grading.options.longest=1"),
]
SMALL: dict[str, dict[str, Any]] = {
    "model": {"lora_rank": 4},
    "rollout": {"max_new_tokens": 8},
    "train": {"steps": 2, "batch_size": 4, "checkpoint_every": 1, "learning_rate": 1e-3},
}


def name_flags() -> list[str]:
    return [
        word
        for section, settings in NAMES.items()
        for key, spec in settings.items()
        for word in (f"--{section}.{key}", spec)
    ]


@pytest.fixture
def recipe(tmp_path: Path) -> str:
    path = tmp_path / "mine.toml"
    path.write_text(RECIPE)
    return str(path)


def of_line(*words: str) -> Config:
    config: Config = parse(["train", *words]).config
    return config


def complete(config: Config) -> dict[str, dict[str, Any]]:
    return to_table(check_config(config).config)


def test_options_are_one_config_from_recipe_line_and_python(recipe: str) -> None:
    of_recipe = complete(read_recipe(recipe))
    assert of_recipe["train"]["options"] == {"baseline": 0.5}
    assert of_recipe["train"]["optimizer_options"] == {"beta1": 0.8, "beta2": 0.99}
    assert of_recipe["rollout"]["options"] == {"signature": "loud"}
    assert of_recipe["grading"]["options"] == {"longest": 1}

    assert complete(of_line("paint", *name_flags(), *FLAGS)) == of_recipe
    assert complete(of_line(recipe, "--train.options.baseline", "0.5")) == of_recipe
    assert complete(from_table(NAMES, base=read_recipe(recipe))) == of_recipe


@pytest.mark.slow
def test_options_are_trained_with_recorded_and_resumed(tmp_path: Path) -> None:
    own: dict[str, dict[str, Any]] = {
        "train": {"method": RewardWeighted, "options": {"baseline": 0.5}},
        "rollout": {"engine": ShoutEngine, "options": {"signature": "loud"}},
        "grading": {"grader": grade, "options": LengthOptions(longest=1)},
    }
    own["train"] |= {"optimizer": LionFactory, "optimizer_options": {"beta1": 0.8}}
    sections: Any = {name: SMALL.get(name, {}) | own.get(name, {}) for name in SMALL | own}
    folder = tmp_path / "run"
    paint.train("demo-paint", output_dir=folder, **sections)

    recorded = read_run_json(folder)["config"]
    assert recorded["train"]["options"] == {"baseline": 0.5}
    assert recorded["train"]["optimizer_options"] == {"beta1": 0.8, "beta2": 0.99}
    rows = stored(folder)
    assert {row["source"] for row in rows} == {"loud"}
    assert {row["reward"] for row in rows} == {0.0}  # no completion has one character
    assert read_metrics(folder)[0]["loss"] < 0  # 0.5 log p
    saved = torch.load(folder / "checkpoints/step-000002/optimizer.pt")
    assert saved["param_groups"][0]["beta1"] == 0.8

    train_in_parts(read_run(folder), tmp_path / "parts", first=1)
    assert_same(adapter(tmp_path / "parts"), adapter(folder))


def test_options_of_divergence_and_context_are_trained_with(tmp_path: Path) -> None:
    rows = [
        {"problem": f"What is {i}+{i}?", "solution": f"It is {i}.", "answer": 2 * i, "hint": "h"}
        for i in range(1, 5)
    ]
    source = "extensions.earlier_context:earlier"
    own: dict[str, dict[str, Any]] = {
        "data": {"path": write_problems(tmp_path / "rows.jsonl", rows)},
        "context": {"source": source, "options": {"most": 1}},
        "objective": {"divergence": "extensions.alpha:alpha_divergence", "options": {"alpha": 0.3}},
        "train": {"steps": 1},
    }
    kl = {}
    for alpha in (0.3, 0.9):
        own["objective"]["options"] = {"alpha": alpha}
        folder = tmp_path / str(alpha)
        train(changed("demo-paint", SMALL, own), folder)
        kl[alpha] = read_metrics(folder)[0]["kl"]
    assert kl[0.3] != kl[0.9]
    for row in stored(folder):
        number = int(row["problem_id"])
        assert row["context"] == (f"It is {number - 1}." if number > 1 else "h")


def test_options_of_a_grader_are_flags_of_eval_and_grade() -> None:
    words = ["--grading.grader", NAMES["grading"]["grader"], "--grading.options.longest", "9"]
    assert parse(["grade", "folder", *words]).config.grading.options == {"longest": 9}
    assert parse(["eval", "demo", *words]).config.grading.options == {"longest": 9}


def test_options_of_another_extension_are_dropped(recipe: str) -> None:
    base = read_recipe(recipe)
    other = from_table({"train": {"method": "distillation"}}, base=base)
    assert other.train.options == {}
    assert other.train.optimizer_options == {"beta1": 0.8}
    assert of_line(recipe, "--train.method", "grpo").train.options == {}
    grpo = of_line(recipe, "--train.method", "grpo", "--train.options.kl", "0.1")
    assert grpo.train.options == {"kl": 0.1}
    kept = from_table({"rollout": {"options": {}}}, base=base)
    assert kept.rollout.options == {"signature": "loud"}


class Halved(RewardWeighted):
    options = RewardOptions(baseline=0.5)


def test_options_of_a_subclass_are_its_own_defaults() -> None:
    for table, baseline in (({}, 0.5), ({"baseline": 0.2}, 0.2)):
        config = TrainConfig(method=spec_of(Halved), options=OptionTable(table))
        assert find_algorithm(config).options == RewardOptions(baseline)


def test_options_of_a_record_are_read_without_the_extension() -> None:
    table = {"train": {"method": "nowhere:Gone", "options": {"epsilon": 0.2, "names": ["a"]}}}
    config = from_table(json.loads(json.dumps(table)))
    assert to_table(config)["train"]["options"] == table["train"]["options"]


KEY, URL = "n0t-f0r-files", "http://me:als0-n0t@judge.internal:8001/v1"


def key_grading(name: str) -> dict[str, Any]:
    options = {"api_key": "env:PAINT_TEST_KEY", "url": "env:PAINT_TEST_URL"}
    return {"grader": f"extensions.key_grader:{name}", "options": options}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["grade", "fails"])
def test_options_of_the_environment_reach_the_grader_and_no_file(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PAINT_TEST_KEY", KEY)
    monkeypatch.setenv("PAINT_TEST_URL", URL)
    monkeypatch.setattr("paint.grading.functions.FIRST_PAUSE_SECONDS", 0)
    grading = key_grading(name) | {"stop_on_failure": False}
    run = tmp_path / "run"
    folders: Any = {"output_dir": run, **SMALL, "grading": grading}
    paint.train("demo-grpo", **{**folders, "train": SMALL["train"] | {"batch_size": 8}})
    rows = stored(run)
    digest = hashlib.sha256(f"{KEY} {URL}".encode()).hexdigest()[:8]
    if name == "grade":
        assert {row["reason"] for row in rows} == {f"{digest} env:PAINT_TEST_KEY"}
        assert {row["feedback"] for row in rows} == {"asked env:PAINT_TEST_URL"}
    else:
        reason = "PermissionError: 401 for env:PAINT_TEST_KEY at env:PAINT_TEST_URL"
        assert {row["reason"].partition("?")[0] for row in rows} == {reason}
    words = [str(run), "--benchmarks", "demo", "--limit", "2", "--samples", "1", "--no-base"]
    words += ["--grading.no-stop-on-failure", "--output-dir", str(tmp_path / "evals")]
    assert main(["eval", *words]) == 0
    assert main(["export", str(run), str(tmp_path / "export")]) == 0
    assert main(["show", str(run), "--no-open"]) == 0
    assert "grading.options.api_key is set" in (tmp_path / "export/README.md").read_text()
    recorded = read_run_json(run)["config"]["grading"]["options"]
    assert recorded == key_grading(name)["options"]
    said = "".join(capfd.readouterr())
    for path in tmp_path.rglob("*"):
        written = path.read_bytes() if path.is_file() else b""
        for secret in (KEY, URL, "als0-n0t"):
            assert secret.encode() not in written, path
            assert secret not in said


@pytest.mark.parametrize(
    "words",
    [
        ["--grading.options.api-key", "sk-SECRET"],
        ["--grading.options.api-key=sk-SECRET"],
        ["--grading.options.url", "http://user:SECRET@h/v1"],
        ["--data.path", "https://user:SECRET@h/x"],
        ["--rollout.server", "bash -c 'HF_TOKEN=SECRET exec vllm serve'"],
    ],
)
def test_secret_on_the_line_is_refused_without_repeating_it(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    grader = ["--grading.grader", "extensions.key_grader:grade"]
    assert main(["train", "demo-paint", *grader, *words]) == 2
    said = "".join(capsys.readouterr())
    assert "read it from the environment" in said
    assert "SECRET" not in said
