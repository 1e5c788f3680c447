from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from paint.commands.api.results import frame_of, setting_columns
from paint.config.run_folder import RunError, list_runs

if TYPE_CHECKING:
    import pandas as pd

SHOWN = ("name", "state", "step", "steps", "changed", "loss", "accuracy", "reward", "warnings")
"""Columns that the command line prints."""


def runs(folder: str | Path = "runs") -> "pd.DataFrame":
    """List the runs in a folder and below it: state, last step, last metrics.

    A run is running, done, stopped (`paint resume` continues it), or damaged: a file cannot be
    read.

    Example: paint runs runs

    Args:
        folder: Folder above the runs.

    Returns:
        One row per run, the last to change first: ``name`` (path below the folder), ``state``,
        ``step``, ``steps``, ``changed`` (a time in UTC), ``warnings`` (the collapse warnings of
        the last step, as text), each setting in which the runs differ, such as
        ``train.learning_rate``, and the last value of every metric.
    """
    statuses = list_runs(Path(folder))
    if not statuses:
        raise RunError(f"{folder} holds no run; name a folder above runs")
    # The name is that of the folder.
    settings = setting_columns([run.config for run in statuses], left_out="log.name")
    rows = []
    for run, columns in zip(statuses, settings, strict=True):
        row = {name: getattr(run, name) for name in ("name", "state", "step", "steps")}
        row["changed"] = datetime.fromtimestamp(run.changed, UTC)
        row["warnings"] = ", ".join(run.warnings)
        rows.append(row | columns | run.metrics)
    return frame_of(rows)


def report(frame: "pd.DataFrame") -> str:
    shown = frame[[name for name in SHOWN if name in frame]].copy()
    times = [time.to_pydatetime().astimezone() for time in shown["changed"]]
    shown["changed"] = [time.strftime("%Y-%m-%d %H:%M") for time in times]
    return str(shown.to_string(index=False, na_rep="", float_format="{:.4g}".format))
