"""Learning rates of several methods, chosen by KL(teacher || student) before any comparison.

FOLDER/METHOD-RATE/run/        a short training
FOLDER/METHOD-RATE/rollouts/   rollouts of the validation problems by its student
FOLDER/METHOD-RATE/kl.json     nats a token; null if the student collapsed
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from paint.config.schema import DataConfig
from paint.core import storage
from paint.core.display import Display
from paint.core.storage import FolderInUse, lock_folder
from paint.data.problems import read_problems
from paint.lab.learning_rates import RateTrial, try_rate
from paint.lab.runner import ExperimentRun


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

    If the students of all rates collapsed, the smallest is taken, with a warning.
    """
    tried: dict[str, dict[float, ExperimentRun]] = {}
    for cell in cells:
        if _is_searched(cell):
            tried[_method(cell)] = _candidates(cell, search)

    kl: dict[str, float | None] = {}  # None of a student that collapsed
    for waiting in (None, display.note):  # first the rates that no other process tries
        for by_rate in tried.values():
            for rate, run in by_rate.items():
                place = search.folder / run.name
                place.mkdir(parents=True, exist_ok=True)
                with suppress(FolderInUse), lock_folder(place, waiting=waiting):
                    if not (place / "kl.json").exists():
                        trial = _try_on(run, rate, search, place, display)
                        found = None if trial.collapsed else trial.mean_kl
                        storage.write_json(place / "kl.json", {"kl": found})
                    kl[run.name] = storage.read_json(place / "kl.json", "delete it")["kl"]
    chosen = {}
    for method, by_rate in tried.items():
        found_kl = {rate: kl[run.name] for rate, run in by_rate.items()}
        chosen[method] = _smallest(found_kl, method, display)
    display.note("\n".join(f"{name}: KL {_kl_text(value)}" for name, value in kl.items()))
    return [
        _with_rate(cell, chosen.get(_method(cell), cell.config.train.learning_rate))
        for cell in cells
    ]


def _try_on(
    run: ExperimentRun, rate: float, search: RateSearch, folder: Path, display: Display
) -> RateTrial:
    problems = read_problems(search.data, needs=run.checked.needed_fields).problems
    return try_rate(run, rate, problems, search.samples, folder, display)


def _smallest(kl: Mapping[float, float | None], method: str, display: Display) -> float:
    usable = [(value, rate) for rate, value in kl.items() if value is not None]
    if not usable:
        display.warn(f"{method}: the students of all learning rates collapsed; try smaller ones")
        return min(kl)
    return min(usable)[1]


def _kl_text(value: float | None) -> str:
    return "of a student that collapsed" if value is None else f"{value:.4f} nats a token"


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
    return cell.name.removesuffix(f"-{cell.config.context.source[0]}")


def _with_rate(cell: ExperimentRun, rate: float) -> ExperimentRun:
    return replace(cell, config=cell.config.changed("train", learning_rate=rate))
