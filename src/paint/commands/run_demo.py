from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from paint.commands.api import arguments
from paint.commands.compare import compare
from paint.config.schema import ConfigError
from paint.core.demo_files import NAME as MODEL
from paint.core.settings import within
from paint.lab.recipes import read_recipes

if TYPE_CHECKING:
    import pandas as pd

NAME = "demo"
CONTINUES = True


def run_demo(
    recipes: Sequence[str | Path] = (),
    *,
    methods: Sequence[str] = (),
    problems: Annotated[int, *within("[1, 200]")] = 100,
    seeds: arguments.Seeds = 1,
    samples: arguments.Samples = 12,
    every_checkpoint: arguments.EveryCheckpoint = False,
    output_dir: arguments.ResultsDir = "runs/demo",
) -> "pd.DataFrame":
    """Train and evaluate on the embedded model, on any laptop, and print one table.

    This is `paint compare` with the embedded model's recipes and held-out problems.

    Example: paint demo demo-paint --problems 4 --samples 2

    Args:
        recipes: Recipes to compare; none named, and no methods: demo-paint.
        methods: The model's recipes by method: sft, grpo, opsd and paint are the paper's main
            table; grpo-long is grpo with 8 times as many steps.
        problems: Held-out problems evaluated, in [1, 200].

    Returns:
        As ``compare``.
    """
    names = [*map(str, recipes), *(f"demo-{name}" for name in methods)] or ["demo-paint"]
    for name, run in read_recipes(names):
        if run.config.model.path != MODEL:
            raise ConfigError(
                f'{name} trains {run.config.model.path!r}, and the demo is for model.path "demo"; '
                f"use `paint compare`"
            )
    return compare(
        names,
        problems=problems,
        seeds=seeds,
        samples=samples,
        every_checkpoint=every_checkpoint,
        output_dir=output_dir,
    )
