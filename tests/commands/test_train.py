"""paint train and paint bake: recipes, settings as flags, and the flags of a rank."""

from typing import Any

import pytest
from hypothesis import example, given, settings

from config_tables import TABLES
from paint.config.recipe import find_recipe, flags, from_table, read_recipe
from paint.config.schema import Config
from runs import parse

DEMO = read_recipe(find_recipe("demo-paint"))


def config_of(*arguments: str) -> Config:
    config: Config = parse(["train", "demo-paint", *arguments]).config
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


@pytest.mark.parametrize("named", [[], ["demo-bake"]])
def test_bake_takes_settings_of_its_recipe_or_of_bake(named: list[str]) -> None:
    command = parse(["bake", "rules.md", "q.jsonl", *named, "--model.lora-rank", "2"])
    recipe = (named or ["bake"])[0]
    given = {"rules": "rules.md", "questions": "q.jsonl"}
    assert command.parameters == given | dict(zip(["recipe"], named, strict=False))
    expected = read_recipe(find_recipe(recipe)).changed("model", lora_rank=2)
    assert command.config == expected
