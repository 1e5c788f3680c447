"""The embedded demo: a tiny model, a tiny family of problems, every method, one table.

The problems are chains of operations modulo 100. The model (made by ``tools/pretrain_demo.py``,
shipped with the package) works them step by step and slips now and then. A reference helps it only
with the steps that it states: a step that the model reads there hardly slips, and every other step
slips as it does alone. So a gain can be traced to what the teacher was shown, on a scale where a
whole experiment takes minutes.
"""

from collections.abc import Sequence
from pathlib import Path

from paint.config.recipe import read_recipe
from paint.config.schema import ConfigError
from paint.core.display import Display
from paint.demo.files import NAME
from paint.experiments.eval_protocols import demo_protocol
from paint.experiments.report import Result, publish, side_by_side
from paint.experiments.runner import ExperimentRun, run_experiment


def run_demo(
    recipes: Sequence[Path],
    folder: Path,
    *,
    seeds: Sequence[int],
    problems: int,
    samples: int,
    every_checkpoint: bool = False,
    server_gpus: tuple[str, ...] = (),
) -> list[Result]:
    """Train each recipe with each seed, evaluate them and the base model, print the tables.

    The last recipe is compared with each of the others; with every checkpoint, its last one with
    all of theirs.

    Args:
        server_gpus: of the vLLM servers that generate; none: the training process does.

    Raises:
        ConfigError: a recipe trains another model than the demo's.
        PaintError: what `paint.experiments.runner.run_experiment` raises.
    """
    display = Display()
    cells = [
        ExperimentRun(recipe.stem, read_recipe(recipe)).served(server_gpus) for recipe in recipes
    ]
    for cell in cells:
        if cell.config.model.path != NAME:
            raise ConfigError(
                f"{cell.name} trains {cell.config.model.path!r}, and the demo's problems are for "
                f'model.path "demo"; use `paint train` and `paint eval`, or `paint ablate`'
            )

    exam = demo_protocol(problems, samples).served(server_gpus)
    results = run_experiment(cells, seeds, folder, exam, display, every_checkpoint=every_checkpoint)
    report = side_by_side("The demo", [cell.name for cell in cells])
    publish(report, results, folder, display)
    return results
