"""``paint ablate``."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from tyro.conf import Positional, arg

from paint.cli.options import (
    ONE_PROCESS,
    THREE_SEEDS,
    GpuOptions,
    OptionalCount,
    OptionalPlace,
    Recipe,
    Settings,
    Trainings,
)
from paint.config.recipe import find_recipe, read_recipe
from paint.config.schema import ConfigError
from paint.training.launcher import on_gpus

Table = Literal[
    "mask-ratio",
    "mask-placement",
    "interpolation",
    "strong-interpolation",
    "strong-interpolation-whole",
    "controls",
]


@dataclass(frozen=True)
class Ablate:
    """Train and evaluate the rows of one of the paper's ablation tables, or controls.

    The varied settings replace the recipe's values (paper: Ablation Studies). Rows that several
    tables share are trained once, if the folder is the same. The same command continues after an
    interruption. Started again in parallel, in another terminal or on another machine, it works on
    other runs.

    Example: paint ablate mask-placement demo-paint --seeds 1 --train.steps 2 --problems 2
    """

    table: Positional[Table]
    """mask-ratio: rho_correct and rho_wrong; mask-placement: which part is hidden; interpolation:
    k_base and f_top; strong-interpolation: larger ones, also towards the base model and with a
    moving teacher (ours), -whole: the same with nothing hidden; controls: what the teacher reads in
    place of the solution (ours)."""
    recipe: Recipe
    """Recipe to start from (paper: paint-qwen3-1.7b), or demo-paint on any laptop. It stands before
    the flags."""
    config: Settings
    benchmark: str | None = None
    """Problem set, named as in `paint eval`; None: aime_2024 (paper), and for the embedded model
    its held-out problems."""
    problems: OptionalCount = None
    """Number of these problems to evaluate on, from the first; None is all."""
    trainings: Annotated[Trainings, arg(name="")] = THREE_SEEDS
    folder: OptionalPlace = None
    """Folder of results, runs and samples; existing results are reused. None:
    runs/ablate-RECIPE."""
    gpus: GpuOptions = ONE_PROCESS

    def run(self) -> int:
        recipe = find_recipe(self.recipe)
        unchanged = read_recipe(recipe)
        if (self.config.log, self.config.train.seed) != (unchanged.log, unchanged.train.seed):
            raise ConfigError(
                "rows have their own folders and seeds; set --folder, --seed and --seeds in place "
                "of --log and --train.seed"
            )
        with on_gpus(self.gpus, self.config, ranks=1) as config:
            if config is not None:
                from paint.experiments import ablations

                ablations.ablate(
                    self.table,
                    config,
                    self.folder or Path("runs") / f"ablate-{recipe.stem}",
                    seeds=self.trainings.all_seeds,
                    benchmark=self.benchmark,
                    problems=self.problems,
                    samples=self.trainings.samples,
                    every_checkpoint=self.trainings.every_checkpoint,
                )
        return 0
