"""``paint train``."""

import time
from dataclasses import dataclass
from pathlib import Path

from paint.api import run_training
from paint.cli.options import ONE_PROCESS, GpuOptions, Recipe, Settings
from paint.config.recipe import find_recipe


@dataclass(frozen=True)
class Train:
    """Train by a recipe.

    Each setting of the recipe can be given as a flag. The defaults shown are the recipe's; without
    a recipe, the paper's.

    Example: paint train demo-paint --train.steps 2 --log.name first
    """

    recipe: Recipe
    """TOML file, or the name of a recipe that comes with paint. It stands before the flags."""
    config: Settings
    gpus: GpuOptions = ONE_PROCESS

    def run(self) -> int:
        recipe = find_recipe(self.recipe)
        log = self.config.log
        name = log.name or f"{recipe.stem}-{time.strftime('%Y%m%d-%H%M%S')}"
        config = self.config.changed("log", name=name)
        return run_training(config, Path(log.folder) / name, self.gpus, recipe)
