"""``paint runs``."""

import json
import math
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, arg

from paint.cli.options import Place
from paint.config.run_folder import RunError, RunStatus, list_runs

SHOWN = {
    "loss": "loss {:.4f}",
    "accuracy": "correct {:.0%}",
    "reward": "reward {:.3f}",
}
"""Metrics of a row, each with its format."""


@dataclass(frozen=True)
class Runs:
    """List the runs in a folder and below it: state, last step, last figures.

    A run is running, done, stopped (`paint resume` goes on), or damaged: a file cannot be read.

    Example: paint runs runs
    """

    folder: Annotated[Positional[Place], arg(metavar="FOLDER")] = Path("runs")
    """Folder above the runs."""
    json: bool = False
    """Print JSON, with the last value of every metric."""

    def run(self) -> int:
        from paint.core.display import Terminal

        found = list_runs(self.folder)
        if not found:
            raise RunError(f"{self.folder} holds no run; name a folder above runs")
        if self.json:
            Terminal().print(json.dumps([asdict(status) for status in found], indent=2))
            return 0
        width = max(len(status.name) for status in found)
        for status in found:
            Terminal().print(f"{status.name:{width}}  {_words(status)}")
        return 0


def _words(status: RunStatus) -> str:
    when = datetime.fromtimestamp(status.changed).strftime("%Y-%m-%d %H:%M")
    figures = [
        form.format(status.metrics[name])
        for name, form in SHOWN.items()
        if math.isfinite(status.metrics.get(name, math.nan))
    ]
    return "  ".join([f"{status.state:8}", f"step {status.step}/{status.steps}", when, *figures])
