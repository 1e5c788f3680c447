"""paint train: recipes, settings as flags, and the flags that give a rank its settings."""

import subprocess
import sys
from pathlib import Path
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


def test_train_unknown_recipe_key_is_refused_with_file_and_nearest_key(tmp_path: Path) -> None:
    recipe = tmp_path / "mine.toml"
    recipe.write_text("[objective]\ntop_fractoin = 0.05\n")
    line = [sys.executable, "-m", "paint.cli", "train", str(recipe)]
    result = subprocess.run(line, capture_output=True, text=True)
    assert result.returncode == 2
    assert result.stderr == (
        f"paint train: {recipe}: unknown key objective.top_fractoin; "
        f"did you mean objective.top_fraction?\n"
    )


@pytest.mark.slow
@given(TABLES)
@example({"rollout": {"top_k": -1, "server_args": "--gpu-memory-utilization 0.4"}})
@example({"log": {"name": "-a", "token_rows": "all"}, "model": {"lora_targets": ["q_proj"]}})
def test_flags_round_trip_config(table: dict[str, dict[str, Any]]) -> None:
    config = from_table(table)
    assert config_of() == DEMO
    assert config_of(*flags(config, DEMO)) == config
