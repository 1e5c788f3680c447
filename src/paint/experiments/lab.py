"""The embedded lab: a tiny model, a tiny family of problems, every method, one table.

The problems are chains of operations modulo 100. The model (made by ``paint.lab.pretraining``,
shipped with the package) works them step by step and slips now and then. A reference helps it by
what it says and by nothing else: a step that it reads there hardly slips, and every other step
slips as it does alone. So what a method gains can be traced to what its teacher was shown, on a
scale where a whole experiment takes minutes.
"""

from collections.abc import Sequence
from pathlib import Path

from paint.config import ConfigError
from paint.display import Display
from paint.experiments.exams import Exam, lab_exam
from paint.experiments.grid import Cell, run_cells
from paint.experiments.reports import Report, publish
from paint.experiments.results import BASE, Result
from paint.lab.files import NAME
from paint.recipe import read_recipe


def run_lab(
    recipes: Sequence[Path],
    folder: Path,
    *,
    seeds: Sequence[int],
    problems: int,
    samples: int,
    every_checkpoint: bool = False,
) -> list[Result]:
    """Train each recipe with each seed, evaluate them and the base model, print the tables.

    The last recipe is compared with each of the others; with every checkpoint, its last one with
    all of theirs.

    Raises:
        ConfigError: a recipe trains another model than the lab's.
        PaintError: what `paint.experiments.grid.run_cells` raises.
    """
    display = Display()
    cells = [Cell(recipe.stem, read_recipe(recipe)) for recipe in recipes]
    for cell in cells:
        if cell.config.model.path != NAME:
            raise ConfigError(
                f"{cell.name} trains {cell.config.model.path!r}, and the lab's problems are for "
                f'model.path "lab"; use `paint train` and `paint eval`, or `paint ablate`'
            )

    exam = lab_exam(problems, samples)
    return compare("The lab", cells, seeds, folder, exam, display, every_checkpoint)


def compare(
    title: str,
    cells: Sequence[Cell],
    seeds: Sequence[int],
    folder: Path,
    exam: Exam,
    display: Display,
    every_checkpoint: bool,
) -> list[Result]:
    """Train and evaluate the cells, and print their tables: the last one against the others.

    Raises:
        PaintError: what `paint.experiments.grid.run_cells` raises.
    """
    results = run_cells(cells, seeds, folder, exam, display, every_checkpoint=every_checkpoint)
    *others, last = [cell.name for cell in cells]
    labels = {cell.name: cell.name for cell in cells}
    pairs = {other: (last, other) for other in others or [BASE]}
    report = Report("results", title, labels, pairs, f"{last} less the row's", goal=last)
    publish(report, results, folder, display)
    return results
