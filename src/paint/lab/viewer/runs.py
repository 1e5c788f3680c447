"""The page of several runs: a metric of all in one chart, and the settings that differ."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from paint.config.recipe import varied_settings
from paint.config.run_folder import RunError, read_metrics, read_run, read_status
from paint.core.display import Display
from paint.core.errors import PaintError
from paint.core.storage import digest, is_locked
from paint.evaluation.store import GRADES
from paint.lab.viewer.run import charts_of, course_of


def runs_in(targets: Sequence[Path]) -> list[Path]:
    """Return the folders of all runs that are named, or lie in a named folder, at any depth."""
    runs: list[Path] = []
    for target in targets:
        is_run = (target / "run.json").exists()
        runs += [target] if is_run else sorted(p.parent for p in target.rglob("run.json"))
    return list(dict.fromkeys(runs))


def runs_data(
    targets: Sequence[Path], page: Path, display: Display, *, live: bool = False
) -> dict[str, Any]:
    """Return the data of the page; a run that cannot be read is left out with a warning.

    Targets are runs, folders that hold runs, and evaluations of the runs. A ``live`` page asks its
    server for further steps. Raises RunError without a run that can be read.
    """
    runs, configs = [], []
    folders = runs_in(targets)
    for run, name in zip(folders, _names(folders), strict=True):
        try:
            config, data = read_run(run), _run_data(run, targets, page, display)
        except PaintError as error:
            display.warn(f"{run} is not shown: {error}")
            continue
        runs.append({"name": name, **data})
        configs.append(config)
    if not runs:
        raise RunError("no run can be read")
    logged = list(dict.fromkeys(name for run in runs for name in run["metrics"]))
    # The names say log.name already.
    settings = varied_settings(configs)
    settings.pop("log.name", None)
    for number, data in enumerate(runs):
        data["settings"] = {name: values[number] for name, values in settings.items()}
    return {
        "name": " · ".join(target.resolve().name for target in targets),
        "runs": runs,
        "charts": charts_of(logged),
        "live": live,
        "version": version_of(targets) if live else "",
    }


def version_of(targets: Sequence[Path]) -> str:
    """Return a digest of runs, their states and validations: by it the page is made anew."""
    parts = []
    for run in runs_in(targets):
        graded = sorted(str(path) for path in run.glob(f"validation/*/*/{GRADES}"))
        parts += [str(run), str(is_locked(run)), *graded]
    return digest(*parts)[:16]


def _run_data(run: Path, targets: Sequence[Path], page: Path, display: Display) -> dict[str, Any]:
    status, others = read_status(run, run), [target for target in targets if target != run]
    course = course_of(run, read_metrics(run), page, display, others)
    return {"state": status.state, "steps": status.steps, **course}


def _names(runs: Sequence[Path]) -> list[str]:
    """Return the runs' paths below the folder that holds all of them."""
    if not runs:  # which have no common folder
        return []
    places = [run.absolute() for run in runs]
    common = os.path.commonpath([place.parent for place in places])
    return [str(place.relative_to(common)) for place in places]
