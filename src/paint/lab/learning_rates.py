"""Learning rates of an experiment, chosen on validation problems before it begins.

    FOLDER/METHOD-RATE/seed-100/     a short run with each rate
    FOLDER/METHOD-RATE/kl.json       KL(teacher || student) of its student, nats a token

The rate is taken whose student is closest to its teacher on the student's own rollouts. On the demo
this lost less than the best validation score did (docs/dev/log.md). No answer is graded for it.
"""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from paint.config.run_folder import latest_checkpoint
from paint.config.schema import DataConfig
from paint.core import storage
from paint.core.display import Display
from paint.core.storage import FolderInUse, lock_folder
from paint.lab.context_scores import kl_of_checkpoint
from paint.lab.runner import ExperimentRun, train_run


@dataclass(frozen=True)
class RateSearch:
    """What learning rates are tried, and what judges them.

    Attributes:
        data: the validation problems; the teacher reads their references.
        folder: of the runs and their KL.
        factors: rates as multiples of a recipe's own, each above 0.
        steps: the most steps of a run, at least 1.
        samples: rollouts of each validation problem, at least 1.
        seed: of the runs; results have other ones.
    """

    data: DataConfig
    folder: Path
    factors: tuple[float, ...] = (1 / 3, 1, 3)
    steps: int = 20
    samples: int = 2
    seed: int = 100


def with_chosen_rates(
    cells: Sequence[ExperimentRun], search: RateSearch, display: Display
) -> list[ExperimentRun]:
    """The cells with the learning rates whose students come closest to their teacher.

    Controls reuse the rate of their method, which is tried even if the method is not among the
    cells. Methods without a teacher, and teachers that read feedback, keep their recipe's. Several
    processes share the work; what one of them has done is not done again.
    """
    tried: dict[str, dict[float, ExperimentRun]] = {}
    for cell in cells:
        if _is_searched(cell):
            tried[_method(cell)] = _candidates(cell, search)

    every = [run for by_rate in tried.values() for run in by_rate.values()]
    kl: dict[str, float] = {}
    for waiting in (None, display.note):  # first the rates that no other process tries
        for run in every:
            place = search.folder / run.name
            place.mkdir(parents=True, exist_ok=True)
            with suppress(FolderInUse), lock_folder(place, waiting=waiting):
                if not (place / "kl.json").exists():
                    found = judge(run, search, place, display)
                    storage.write_json(place / "kl.json", {"kl": found})
                kl[run.name] = storage.read_json(place / "kl.json", "delete it")["kl"]
    display.note("\n".join(f"{run.name}: KL {kl[run.name]:.4f} nats a token" for run in every))
    chosen = {
        method: min(by_rate, key=lambda rate: (kl[by_rate[rate].name], rate))
        for method, by_rate in tried.items()
    }
    return [
        _with_rate(cell, chosen.get(_method(cell), cell.config.train.learning_rate))
        for cell in cells
    ]


def judge(run: ExperimentRun, search: RateSearch, folder: Path, display: Display) -> float:
    """Train, and return KL(teacher || student) a token on rollouts that the student samples."""
    resolved, place = run.checked, folder / f"seed-{run.seed}"
    train_run(replace(run, config=resolved.config), place, display)
    checkpoint = latest_checkpoint(place)
    assert checkpoint is not None
    rollouts = folder / "rollouts"
    return kl_of_checkpoint(checkpoint, resolved, search.data, search.samples, rollouts, display)


def _is_searched(cell: ExperimentRun) -> bool:
    """Whether a rate is chosen: there is a teacher, and what it reads is known beforehand."""
    return cell.checked.algorithm.needs_context and not cell.checked.feedback


def _candidates(cell: ExperimentRun, search: RateSearch) -> dict[float, ExperimentRun]:
    """Short runs of the cell's method, which shows solutions, by learning rate."""
    config = cell.config
    steps = min(search.steps, config.train.steps)
    method = replace(
        config,
        context=replace(config.context, source=("solution",)),
        train=replace(config.train, steps=steps, seed=search.seed),
        health=replace(config.health, stop_on=()),  # rates are judged after equal steps
    )
    candidates = {}
    for factor in search.factors:
        rate = config.train.learning_rate * factor
        run = ExperimentRun(f"{_method(cell)}-{rate:.1e}", method)
        candidates[rate] = _with_rate(run, rate)
    return candidates


def _method(cell: ExperimentRun) -> str:
    """The cell's name without what its teacher is shown."""
    return cell.name.removesuffix(f"-{cell.config.context.source[0]}")


def _with_rate(cell: ExperimentRun, rate: float) -> ExperimentRun:
    return replace(cell, config=cell.config.changed("train", learning_rate=rate))
