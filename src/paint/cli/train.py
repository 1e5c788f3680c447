"""``paint train``."""

import time
from dataclasses import dataclass, replace
from pathlib import Path

from paint.cli.options import ONE_PROCESS, GpuOptions, Recipe, Settings
from paint.config import Config
from paint.gpus import Request, pinned, train_on
from paint.recipe import find_recipe


@dataclass(frozen=True)
class Train:
    """Train by a recipe.

    Each setting of the recipe can be given as a flag. The defaults shown are the recipe's; without
    a recipe, the paper's.

    Example: paint train lab-paint --train.steps 2 --log.name first
    """

    recipe: Recipe
    """TOML file, or the name of a recipe that comes with paint. It stands before the flags."""
    config: Settings
    gpus: GpuOptions = ONE_PROCESS

    def run(self) -> int:
        """Train here or on the GPUs of a request; the exit status."""
        recipe = find_recipe(self.recipe)
        log = self.config.log
        name = log.name or f"{recipe.stem}-{time.strftime('%Y%m%d-%H%M%S')}"
        config = replace(self.config, log=replace(log, name=name))
        return train(config, Path(log.folder) / name, self.gpus, recipe)


def train(config: Config, folder: Path, request: Request, recipe: Path | None = None) -> int:
    """Train here, or on the GPUs of a request, where a run that has begun is resumed.

    Args:
        recipe: the file that the run starts from; None resumes the run in the folder.
    """
    is_resumed = recipe is None
    if not request.gpus:
        _train_here(config, folder, resume=is_resumed)
        return 0

    outcome = train_on(request, config, folder, recipe)
    if isinstance(outcome, int):
        return outcome
    config, placement = outcome
    has_begun = (folder / "run.json").exists()
    with pinned(placement):
        _train_here(config, folder, resume=has_begun)
    return 0


def _train_here(config: Config, folder: Path, *, resume: bool) -> None:
    from paint.show.trackers import log_page
    from paint.training import run

    run.train(config, folder, resume=resume, at_end=log_page)
