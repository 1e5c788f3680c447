"""``paint train``."""

import time
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path

from paint.cli.options import ONE_PROCESS, GpuOptions, Recipe, Settings
from paint.config.recipe import find_recipe
from paint.config.schema import Config
from paint.training.launcher import Request, train_on, visible_gpus


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
        """Train here or on the GPUs of a request; return the exit status."""
        recipe = find_recipe(self.recipe)
        log = self.config.log
        name = log.name or f"{recipe.stem}-{time.strftime('%Y%m%d-%H%M%S')}"
        config = replace(self.config, log=replace(log, name=name))
        return train(config, Path(log.folder) / name, self.gpus, recipe)


def train(config: Config, folder: Path, request: Request, recipe: Path | None = None) -> int:
    """Train here, or on the GPUs of a request, which resumes an existing run.

    Args:
        recipe: the file that the run starts from; None resumes the run in the folder.
    """
    resume = recipe is None
    gpus: AbstractContextManager[None] = nullcontext()
    if request.gpus:
        outcome = train_on(request, config, folder, recipe)
        if isinstance(outcome, int):
            return outcome
        config, placement = outcome
        resume, gpus = (folder / "run.json").exists(), visible_gpus(placement)
    with gpus:
        from paint.training import trainer
        from paint.viewer.trackers import log_page

        trainer.train(config, folder, resume=resume, at_end=log_page)
    return 0
