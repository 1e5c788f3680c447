"""``paint demo``."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, arg

from paint.cli.options import ONE_PROCESS, GpuOptions, Place, Trainings, bounded
from paint.config.recipe import find_recipe, read_recipe
from paint.training.launcher import on_gpus


@dataclass(frozen=True)
class Demo:
    """Train and evaluate on the embedded model, on any laptop, and print one table.

    Each recipe starts from the same base model and uses the same problems; the last one is compared
    with each of the others. The same command continues after an interruption. Started again in
    parallel, in another terminal or on another machine, it works on other runs.

    Example: paint demo demo-paint --problems 4 --samples 2
    """

    recipes: Annotated[Positional[tuple[str, ...]], arg(metavar="RECIPE")] = ()
    """Recipes to compare; none named, and no --methods: demo-paint."""
    methods: tuple[str, ...] = ()
    """The model's recipes by method: sft, grpo, opsd and paint are the paper's main table;
    grpo-long is grpo with 8 times as many steps."""
    problems: Annotated[int, bounded(int, 1, 200)] = 100
    """Held-out problems evaluated, in [1, 200]."""
    trainings: Annotated[Trainings, arg(name="")] = field(default_factory=Trainings)
    folder: Place = Path("runs/demo")
    """Folder of results, runs and samples; existing results are reused."""
    gpus: GpuOptions = ONE_PROCESS

    def run(self) -> int:
        """Train, evaluate, and print the table."""
        names = [*self.recipes, *(f"demo-{name}" for name in self.methods)] or ["demo-paint"]
        recipes = [find_recipe(name) for name in names]
        with on_gpus(self.gpus, read_recipe(recipes[-1]), ranks=1) as config:
            if config is not None:
                from paint.experiments.demo import run_demo

                run_demo(
                    recipes,
                    self.folder,
                    seeds=self.trainings.all_seeds,
                    problems=self.problems,
                    samples=self.trainings.samples,
                    every_checkpoint=self.trainings.every_checkpoint,
                    server_gpus=config.rollout.server_gpus if self.gpus.gpus else (),
                )
        return 0
