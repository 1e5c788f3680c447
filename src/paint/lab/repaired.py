"""One problem that training repaired: its reference, and an answer before and after."""

from collections.abc import Callable
from pathlib import Path

from paint.core.errors import cut
from paint.data.problems import Problem
from paint.evaluation.frame import Table
from paint.evaluation.store import StoreError, reopen_store
from paint.inference.rollouts import Rollout
from paint.lab.checkpoint_results import BASE, CheckpointResult, Results, by_run, score_of

LONGEST = 400  # characters of a cell


def repaired_table(
    name: str, results: Results, folder: Path, waiting: Callable[[str], None]
) -> Table | None:
    """Return the problem whose share of right samples rose most from the base to a run, as a table.

    The first of the run's seeds is shown. None where nothing was repaired, or the samples in the
    experiment's folder are no longer there. ``waiting`` is told of another process at work there.
    """
    groups = by_run(results)
    base, trained = groups[BASE][0], groups[name][0]
    if not score_of(results).has_right:
        return None
    rises = [after - before for before, after in zip(base.right, trained.right, strict=True)]
    place = rises.index(max(rises))
    if rises[place] <= 0:
        return None
    try:
        problem, wrong = _sample(folder, base, place, waiting, correct=False)
        _, right = _sample(folder, trained, place, waiting, correct=True)
    except StoreError:
        return None  # the table of results does not need them
    samples = base.protocol["samples"]
    title = (
        f"The problem that {name} repaired most (seed {base.seed}): {base.right[place]} of "
        f"{samples} answers right before, {trained.right[place]} after"
    )
    cells = {
        "problem": problem.problem,
        "reference": problem.solution,
        "before": wrong.text,
        "after": right.text,
    }
    rows = [[label, cut(text, LONGEST)] for label, text in cells.items() if text]
    return Table(title, ["", ""], rows)


def _sample(
    folder: Path,
    result: CheckpointResult,
    place: int,
    waiting: Callable[[str], None],
    *,
    correct: bool,
) -> tuple[Problem, Rollout]:
    path = folder / "evaluation" / f"seed-{result.seed}" / result.run / result.protocol["benchmark"]
    with reopen_store(path, waiting=waiting) as store:
        problem = store.problems[place]
        for sample, grade in store.graded():
            if sample.problem.id == problem.id and grade["correct"] is correct:
                return problem, sample
    raise AssertionError(f"no such sample of {problem.name} in {path}")
