"""The embedded lab: a tiny model, a tiny family of problems, every method, one table.

The problems are chains of operations modulo 100. The model (made by ``paint.lab.pretraining``, shipped with the package)
works them line by line and slips now and then; the references merge two operations into one formula. So the model is
right about half of the time alone, clearly more often with a reference in view, and has a style of its own: what
self-distillation needs, on a scale where a whole experiment takes minutes.
"""

from collections.abc import Sequence
from pathlib import Path

from paint.config import ConfigError, Rollout
from paint.data.problem_sets import load_benchmark
from paint.display import Display
from paint.experiments.grid import Cell, Exam, run_cells
from paint.experiments.reports import Report, publish
from paint.experiments.results import BASE, Result
from paint.lab.files import NAME
from paint.recipe import read_recipe


def run_lab(
    recipes: Sequence[Path], folder: Path, *, seeds: Sequence[int], problems: int, samples: int
) -> list[Result]:
    """Train each recipe with each seed, evaluate base and all on held-out problems, print the tables.

    The last of the recipes is compared with each of the others.
    """
    display = Display()
    cells = [Cell(recipe.stem, read_recipe(recipe)) for recipe in recipes]
    for cell in cells:
        if cell.config.model.path != NAME:
            raise ConfigError(
                f'{cell.name} trains {cell.config.model.path!r}, and the lab\'s problems are for model.path "lab"; use '
                f"`paint train` and `paint eval`, or `paint ablate`"
            )
    results = run_cells(cells, seeds, folder, lab_exam(problems, samples), display)
    *others, last = [cell.name for cell in cells]
    labels, pairs = (
        {cell.name: cell.name for cell in cells},
        {other: (last, other) for other in others or [BASE]},
    )
    report = Report("results", "The lab", labels, pairs, f"{last} less the row's")
    publish(report, results, folder, display)
    return results


def lab_exam(problems: int | None, samples: int, benchmark: str = "lab") -> Exam:
    """The paper's sampling, in the lab's mode (without thinking, at most 96 tokens), on held-out problems."""
    rollout = Rollout(temperature=1.0, top_p=0.95, top_k=-1, max_new_tokens=96, batch_size=400)
    return Exam(load_benchmark(benchmark, limit=problems), samples, thinking=False, rollout=rollout)
