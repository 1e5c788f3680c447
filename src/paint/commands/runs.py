"""``paint runs``."""

import math
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paint.commands.api.results import frame_of, setting_columns
from paint.config.run_folder import RunError, list_runs

if TYPE_CHECKING:
    import pandas as pd

SHOWN = {
    "loss": "loss {:.4f}",
    "accuracy": "correct {:.0%}",
    "reward": "reward {:.3f}",
}
"""Metrics of a row, each with its format."""


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
    """Return a line for each run."""
    rows = frame.to_dict("records")
    width = max(len(row["name"]) for row in rows)
    return "\n".join(f"{row['name']:{width}}  {_words(row)}" for row in rows)


def _words(row: dict[Any, Any]) -> str:
    when = row["changed"].to_pydatetime().astimezone().strftime("%Y-%m-%d %H:%M")
    words = [f"{row['state']:8}", f"step {row['step']}/{row['steps']}", when]
    for name, form in SHOWN.items():
        # A judge rarely gives 1: the share of rewards of 1 says less than their mean.
        if name == "accuracy" and math.isfinite(row.get("reward", math.nan)):
            continue
        # A run without the metric has NaN in its row of the DataFrame.
        if math.isfinite(row.get(name, math.nan)):
            words.append(form.format(row[name]))
    if row["warnings"]:
        words.append(f"collapse warnings: {row['warnings']}")
    return "  ".join(words)
