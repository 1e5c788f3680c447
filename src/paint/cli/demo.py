"""``paint demo``."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, arg

from paint.cli.compare import Compare
from paint.cli.options import ONE_PROCESS, GpuOptions, Place, Trainings, bounded
from paint.config.schema import ConfigError
from paint.demo.files import NAME
from paint.experiments.recipes import read_recipes


@dataclass(frozen=True)
class Demo:
    """Train and evaluate on the embedded model, on any laptop, and print one table.

    This is `paint compare` with the embedded model's recipes and held-out problems.

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
        names = [*self.recipes, *(f"demo-{name}" for name in self.methods)] or ["demo-paint"]
        for name, config in read_recipes(names):
            if config.model.path != NAME:
                raise ConfigError(
                    f'{name} trains {config.model.path!r}, and the demo is for model.path "demo"; '
                    f"use `paint compare`"
                )
        demo = Compare(
            tuple(names),
            problems=self.problems,
            trainings=self.trainings,
            folder=self.folder,
            gpus=self.gpus,
        )
        return demo.run()
