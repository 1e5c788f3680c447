"""paint train and paint bake: recipes, settings as flags, and the flags of a rank."""

from typing import Any

import pytest
from hypothesis import example, given, settings

from config_tables import TABLES
from paint.cli.main import parse
from paint.config.recipe import find_recipe, flags, from_table, read_recipe
from paint.config.schema import Config

DEMO = read_recipe(find_recipe("demo-paint"))


def config_of(*arguments: str) -> Config:
    config: Config = parse(["train", "demo-paint", *arguments]).options.config
    return config


@pytest.mark.slow
@settings(max_examples=30)
@given(TABLES)
@example({"rollout": {"top_k": -1, "server_args": "--gpu-memory-utilization 0.4"}})
@example({"log": {"folder": "-a", "token_rows": "all"}, "model": {"lora_targets": ["q_proj"]}})
def test_flags_round_trip_config(table: dict[str, dict[str, Any]]) -> None:
    config = from_table(table)
    assert config_of() == DEMO
    assert config_of(*flags(config, DEMO)) == config


def test_bake_without_recipe_takes_bake() -> None:
    line = ["bake", "rules.md", "q.jsonl", "--model.path", "m", "--train.steps", "3"]
    command = parse(line).options
    expected = read_recipe(find_recipe("bake"))
    assert (command.recipe, command.rules, command.questions) == ("bake", "rules.md", "q.jsonl")
    assert (command.config.model.path, command.config.train.steps) == ("m", 3)
    assert command.config.prompts == expected.prompts


def test_bake_with_recipe_takes_its_settings() -> None:
    command = parse(["bake", "rules.md", "q.jsonl", "demo-bake", "--model.lora-rank", "2"]).options
    assert (command.recipe, command.config.model.lora_rank) == ("demo-bake", 2)
    assert command.config.model.path == "demo"
