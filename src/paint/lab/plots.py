"""The plot of an experiment, made from its results: score and paired difference of each run."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import matplotlib
import numpy as np
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from paint.core.errors import sanitize_for_terminal
from paint.evaluation.intervals import Interval, compare_seeds, over_seeds
from paint.lab.checkpoint_results import (
    BASE,
    Results,
    by_run,
    evaluation_name,
    score_of,
)

INK, FAINT, GRID = "#1a1a1a", "#8c8c8c", "#dddddd"


@dataclass(frozen=True)
class Layout:
    """What tables and plots show. All checkpoints and settings are compared with the last run's."""

    title: str
    names: Sequence[str]  # of the runs, in order; the base model's row stands before them
    all_pairs: bool = True  # a table of all differences, not of those with the last run alone
    is_sweep: bool = False  # one recipe with other settings, of which the best is looked for

    @property
    def rows(self) -> list[str]:
        return [BASE, *self.names]

    @property
    def last(self) -> str:
        return self.names[-1]

    @property
    def others(self) -> list[str]:
        """The rows that have a difference to the last run; of one run alone, the base model's."""
        return list(self.names[:-1]) or [BASE]


def save_plot(path: Path, layout: Layout, results: Results) -> None:
    """Plot the score of every run's last checkpoint, and its paired difference, in points.

    Raises OSError if PATH cannot be written.
    """
    last, score = by_run(results), score_of(results)
    ticks = "; ticks: single seeds" if len(last[BASE]) > 1 else ""
    title = f"{layout.title}\n{evaluation_name(results)}; bars: 95 % intervals{ticks}"
    # Text stays text. Ids come from the salt, so equal results give equal files.
    with matplotlib.rc_context(
        {"svg.fonttype": "none", "svg.hashsalt": "paint", "font.size": 9, "text.parse_math": False}
    ):
        # Without pyplot, which keeps every figure and may look for a screen.
        figure = Figure(figsize=(9.9, 0.36 * len(layout.rows) + 1.6), layout="constrained")
        levels, gaps = figure.subplots(1, 2, sharey=True)
        for row, name in enumerate(layout.rows):
            values = score.values(last[name])
            _add_row(levels, row, over_seeds(values, bounds=score.bounds), values)
            if name in layout.others and score.is_compared:
                end = score.values(last[layout.last])
                _add_row(gaps, row, compare_seeds(values, end), end - values)
        # Where two runs do not differ.
        gaps.axvline(0, color=INK, linewidth=0.8, linestyle=":")
        levels.set_xlabel(f"{score.name}, {score.unit}")
        difference = f"{score.name}: {layout.last} less the row's, {score.points}"
        gaps.set_xlabel(sanitize_for_terminal(difference))
        for axis in (levels, gaps):
            axis.grid(axis="x", color=GRID, linewidth=0.6)
            axis.set_axisbelow(True)
            axis.tick_params(axis="y", length=0)
            axis.spines[["top", "right", "left"]].set_visible(False)
        names = [sanitize_for_terminal(name) for name in layout.rows]
        levels.set_yticks(range(len(names)), names)
        # An axis counts upwards, and the first row is on top.
        levels.set_ylim(len(names) - 0.5, -0.5)
        # Names are the user's: control characters are shown, and nothing is read as mathematics.
        figure.suptitle(sanitize_for_terminal(title), fontsize=10)
        figure.savefig(path, metadata={"Date": None})  # the same file for the same results


def _add_row(axis: Axes, row: int, interval: Interval, values: Float[np.ndarray, "s p"]) -> None:
    """Plot a point with its interval, and a tick for each seed's mean if there are several."""
    ticks = 100 * values.mean(axis=1) if len(values) > 1 else []
    axis.plot(ticks, [row + 0.22] * len(ticks), "|", color=FAINT, markersize=6)
    mean, low, high = 100 * interval.mean, 100 * interval.low, 100 * interval.high
    reach = [[mean - low], [high - mean]]
    axis.errorbar(mean, row, xerr=reach, fmt="o", color=INK, markersize=5, capsize=3, linewidth=1.2)
