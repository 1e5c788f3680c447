"""One problem that training repaired: its reference, and an answer before and after."""

from pathlib import Path

import numpy as np

from paint.core.errors import PaintError, cut
from paint.data.problems import Problem
from paint.evaluation.frame import Table
from paint.evaluation.store import reopen_store
from paint.lab.checkpoint_results import BASE, CheckpointResult, Results, by_run

LONGEST = 400  # characters of a cell


def repaired_table(name: str, results: Results, folder: Path) -> Table | None:
    """Return the problem whose share of right samples rose most from the base to a run, as a table.

    The first of the run's seeds is shown. None where nothing was repaired, or the samples in the
    experiment's folder cannot be read.
    """
    groups = by_run(results)
    base, trained = groups[BASE][0], groups[name][0]
    rises = np.subtract(trained.right, base.right)
    place = int(rises.argmax())
    if rises[place] <= 0:
        return None
    try:
        problem, before = _answer(folder, base, place, correct=False)
        _, after = _answer(folder, trained, place, correct=True)
    except PaintError:
        return None  # the table of results does not need them
    samples = base.protocol["samples"]
    title = (
        f"The problem that {name} repaired most (seed {base.seed}): {base.right[place]} of "
        f"{samples} answers right before, {trained.right[place]} after"
    )
    cells = {
        "problem": problem.problem,
        "reference": problem.solution,
        "before": before,
        "after": after,
    }
    rows = [[label, cut(text, LONGEST)] for label, text in cells.items() if text]
    return Table(title, ["", ""], rows)


def _answer(
    folder: Path, result: CheckpointResult, place: int, *, correct: bool
) -> tuple[Problem, str]:
    path = folder / "evaluation" / f"seed-{result.seed}" / result.run / result.protocol["benchmark"]
    with reopen_store(path) as store:
        problem = store.problems[place]
        for sample, grade in store.graded():
            if sample.problem.id == problem.id and grade["correct"] is correct:
                return problem, sample.text
    raise AssertionError(f"no such sample of {problem.name} in {path}")
