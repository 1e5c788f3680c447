"""paint train: recipes, settings as flags, and the flags that give a rank its settings."""

from typing import Any

import pytest
from hypothesis import example, given

from config_tables import TABLES
from paint.cli.main import parse
from paint.config.recipe import find_recipe, flags, from_table, read_recipe
from paint.config.schema import Config

DEMO = read_recipe(find_recipe("demo-paint"))


def config_of(*arguments: str) -> Config:
    config: Config = parse(["train", "demo-paint", *arguments]).config
    return config


@pytest.mark.slow
@given(TABLES)
@example({"rollout": {"top_k": -1, "server_args": "--gpu-memory-utilization 0.4"}})
@example({"log": {"name": "-a", "token_rows": "all"}, "model": {"lora_targets": ["q_proj"]}})
def test_flags_round_trip_config(table: dict[str, dict[str, Any]]) -> None:
    config = from_table(table)
    assert config_of() == DEMO
    assert config_of(*flags(config, DEMO)) == config
