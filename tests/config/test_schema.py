"""Settings: defaults, validation, recipes, flags and help."""

import json
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given

from config_tables import TABLES
from paint.config.context_sources import SOURCES, context_source
from paint.config.recipe import differences, from_table, read_recipe, to_table
from paint.config.schema import (
    Config,
    ConfigError,
    ContextConfig,
    DataConfig,
    LogConfig,
    ModelConfig,
    ObjectiveConfig,
    RolloutConfig,
    TeacherConfig,
    TrainConfig,
)
from paint.core.settings import section_name
from paint.resolve.check import check_config, check_training
from runs import parse


def recipe(folder: Path, text: str) -> Path:
    path = folder / "x.toml"
    path.write_text(text, encoding="utf-8")
    return path


def refusal(folder: Path, text: str) -> str:
    """Return the message of read_recipe's ConfigError, without the folder."""
    with pytest.raises(ConfigError) as caught:
        read_recipe(recipe(folder, text))
    return str(caught.value).replace(f"{folder}/", "")


TABLE = to_table(Config())
MISPLACED = [
    ("[train]\nstep = 4", "unknown key train.step; did you mean train.steps?"),
    ("[context]\nclip = 1", "unknown key context.clip; did you mean objective.clip?"),
    ("[context]\nzzz = 1", f"unknown key context.zzz; there are {', '.join(TABLE['context'])}"),
    ("steps = 3", "unknown key steps; did you mean train.steps?"),
    ("[objectiv]\nclip = 0.1", "unknown section objectiv; did you mean objective?"),
    ("[zzz]", f"unknown section zzz; there are {', '.join(TABLE)}"),
    ("train = 3", "train must be a section, got 3; write [train]"),
]


@pytest.mark.parametrize(("text", "message"), MISPLACED)
def test_read_recipe_unknown_name_gives_nearest(tmp_path: Path, text: str, message: str) -> None:
    assert refusal(tmp_path, text) == f"x.toml: {message}"


REFUSED = [
    ("train.steps", "true", "an integer, got True"),
    ("objective.interpolation_weight", "false", "a number, got False"),
    ("objective.interpolation_weight", "1.3", "in [0, 1], got 1.3 ("),
    ("model.student_thinking", "1", "true or false, got 1"),
    ("model.lora_targets", "7", "a list of values, each text, got 7"),
    ("teacher.weights", "'live '", 'one of frozen, ema, live, got "live "'),
    ("context.source", "[]", "distinct sources, got ("),
    ("log.trackers", "['mlflow']", "a list of values, each one of tensorboard, wandb, trackio"),
]


@pytest.mark.parametrize(("setting", "value", "message"), REFUSED)
def test_read_recipe_invalid_value_is_refused_by_name(
    tmp_path: Path, setting: str, value: str, message: str
) -> None:
    section, key = setting.split(".")
    text = f"[{section}]\n{key} = {value}"
    assert refusal(tmp_path, text).startswith(f"x.toml: {setting} must be {message}")


def test_read_recipe_unreadable_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"gone\.toml"):
        read_recipe(tmp_path / "gone.toml")
    with pytest.raises(ConfigError, match=str(tmp_path)):
        read_recipe(tmp_path)
    (tmp_path / "latin.toml").write_bytes(b"# caf\xe9\n")
    with pytest.raises(ConfigError, match=r"latin\.toml.*utf-8.*position 5"):
        read_recipe(tmp_path / "latin.toml")
    assert "x.toml is not valid TOML" in refusal(tmp_path, "[train]\nsteps = 10\nsteps ==\n")
    assert "train must be a section" in refusal(tmp_path, "[[train]]\nsteps = 1\n")
    assert "at line 3, column 8" in refusal(tmp_path, "[train]\nsteps = 10\nseed = =\n")


BAD: list[tuple[Any, str, list[Any]]] = [
    (ModelConfig, "lora_rank", [0]),
    (ModelConfig, "lora_targets", [(), ("",), ("q_proj", "q_proj"), ("q\0",)]),
    (DataConfig, "limit", [0]),
    (DataConfig, "path", [("a/x.jsonl", "b/x.jsonl")]),  # of one name
    (RolloutConfig, "temperature", [0.0, -1.0, 1e-30, float("inf"), float("nan")]),
    (RolloutConfig, "top_p", [0.0, 1.01, float("nan")]),
    (RolloutConfig, "top_k", [0, -2]),
    (RolloutConfig, "urls", [("node1:8000",), ("http://u@h",), ("http://h?key=1",)]),
    (RolloutConfig, "max_logprob_mismatch", [0.0, float("nan")]),
    (RolloutConfig, "server", ["", "vllm 'serve"]),
    (RolloutConfig, "server_timeout", [0.0, float("inf")]),
    (ContextConfig, "mask_ratio_wrong", [-0.1, 1.0, float("nan")]),
    (ContextConfig, "mask_ratio_correct", [-0.1, 1.0, 0.2, float("nan")]),
    (TeacherConfig, "decay", [-0.1, 1.0, float("nan")]),
    (ObjectiveConfig, "clip", [0.0, -0.06, float("nan")]),
    (ObjectiveConfig, "interpolation_weight", [-0.01, 1.01, float("nan")]),
    (ObjectiveConfig, "temperature", [0.0, float("inf")]),
    (TrainConfig, "steps", [0, 10**9]),
    (TrainConfig, "learning_rate", [0.0, 1e300, float("nan")]),
    (TrainConfig, "warmup_steps", [-1, 101]),
    (TrainConfig, "seed", [-1, 2**63]),
    (LogConfig, "folder", ["", "a\udcff"]),
    (LogConfig, "name", ["", ".", "..", "a/b", "a\\b", "a\x1bb", "a\nb", "-n", "a\udcff"]),
    (LogConfig, "trackers", [("wandb", "wandb")]),
]


@pytest.mark.parametrize(
    ("section", "key", "value"), [(s, k, v) for s, k, values in BAD for v in values]
)
def test_config_value_out_of_range_is_refused_by_name(section: Any, key: str, value: Any) -> None:
    name = rf"^{section_name(section)}\.{key}"
    with pytest.raises(ConfigError, match=f"{name} must be .*, got ") as caught:
        section(**{key: value})
    assert len(str(caught.value)) < 500


GRPO = "[train]\nmethod = 'grpo'"
SAMPLED = "[objective]\ndivergence = 'sampled_token'\nclip_mode = 'none'"
CLASHES = [
    ("train.batch_size", "[train]\nbatch_size = 12\n[rollout]\nsamples_per_problem = 8"),
    ("rollout.samples_per_problem", GRPO),
    ("rollout.samples_per_problem", "[train]\nmethod = 'sft'\n[rollout]\nsamples_per_problem = 2"),
    ("grading.grader", f"{GRPO}\n[rollout]\nsamples_per_problem = 2\n[grading]\ngrader = 'none'"),
    ("objective.clip_mode", SAMPLED.replace("none", "pointwise")),
    ("teacher.weights", f"{GRPO}\noptions = {{ kl = 0.04 }}\n[teacher]\nweights = 'ema'"),
    ("context.source", "[train]\nmethod = 'sft'\n[context]\nsource = 'other'"),
    ("objective.temperature", f"{GRPO}\n[objective]\ntemperature = 1.0"),
    ("rollout.top_p", SAMPLED),
]


@pytest.mark.parametrize(("setting", "text"), CLASHES)
def test_check_config_conflict_is_refused_by_name(tmp_path: Path, setting: str, text: str) -> None:
    config = read_recipe(recipe(tmp_path, text))
    with pytest.raises(ConfigError, match=rf"^{setting} must be .*, got "):
        check_config(config)


@pytest.mark.parametrize(
    "text",
    [
        "[train]\nbatch_size = 12\n[rollout]\nsamples_per_problem = 4",
        "[train]\nmethod = 'sft'\nbatch_size = 12",
        "[model]\ntrain_mode = 'full'\ndtype = 'float32'",
        "[rollout]\nengine = 'vllm'",
        f"{SAMPLED}\n[rollout]\ntop_p = 1.0\ntop_k = -1",
        "[context]\nsource = 'none'",
    ],
)
def test_check_config_compatible_settings_are_accepted(tmp_path: Path, text: str) -> None:
    config = read_recipe(recipe(tmp_path, text))
    assert check_config(config).config == config != Config()


@given(TABLES)
def test_config_round_trips_through_json(drawn: dict[str, dict[str, Any]]) -> None:
    config = from_table(drawn)
    table = to_table(config)
    stored = json.loads(json.dumps(table))
    assert stored == table
    assert from_table(stored) == config
    assert differences(config, from_table(stored)) == []
    cells = [(name, key, value) for name, keys in drawn.items() for key, value in keys.items()]
    assert all(table[name][key] == value for name, key, value in cells)
    changed = {line.partition(":")[0] for line in differences(Config(), config)}
    assert changed == {f"{name}.{key}" for name, key, value in cells if value != TABLE[name][key]}


def test_flags_override_recipe_in_both_spellings(tmp_path: Path) -> None:
    text = "[objective]\ninterpolation_weight = 1\ntemperature = 2.0\n[train]\nsteps = 7"
    path = str(recipe(tmp_path, text))
    numbers = "--train.batch-size 8 --train.micro_batch_size 2 --objective.temperature None"
    others = "--model.lora-targets a b --model.student-thinking --log.trackers wandb"
    line = ["train", path, *numbers.split(), *others.split()]
    config = parse(line).config
    assert type(config.objective.interpolation_weight) is float
    assert config == Config(
        model=ModelConfig(lora_targets=("a", "b"), student_thinking=True),
        objective=ObjectiveConfig(interpolation_weight=1.0, temperature=None),
        train=TrainConfig(steps=7, batch_size=8, micro_batch_size=2),
        log=LogConfig(trackers=("wandb",)),
    )


def test_require_trainable_full_tuning_in_16_bits_is_refused() -> None:
    model = {"path": "demo", "train_mode": "full", "dtype": "bfloat16"}
    config = from_table({"model": model, "data": {"path": "demo"}})
    with pytest.raises(ConfigError, match=r'^model\.dtype must be "float32" with .* "full", got'):
        check_training(config)
    check_training(config.changed("model", dtype="float32"))


def test_help_of_context_source_names_every_source_and_none_is_a_field() -> None:
    [field] = [field for field in fields(ContextConfig) if field.name == "source"]
    for name, source in SOURCES.items():
        assert f"{name}: {source.shows}" in field.metadata["help"]
        assert context_source(name) is source
