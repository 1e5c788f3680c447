"""The plot of an experiment, made from its results: score and paired difference of each run."""

from collections.abc import Mapping, Sequence
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
    """Layout of the tables and plots."""

    name: str  # name of the files, without extension
    title: str
    labels: Mapping[str, str]  # of each run's row, in order, after the base model's
    pairs: Mapping[str, tuple[str, str]]  # the difference in each run's row: of a run, to another
    pairing: str  # the plot's axis title for these differences
    reference_run: str | None = None  # compared with all checkpoints and settings of the others
    all_pairs: bool = False  # a table of all differences, not of ``pairs`` alone
    is_sweep: bool = False  # one recipe with other settings, of which the best is looked for

    @property
    def rows(self) -> dict[str, str]:
        """The labels, with the base model's first."""
        return {BASE: BASE} | dict(self.labels)


def side_by_side(title: str, names: Sequence[str], *, all_pairs: bool = True) -> Layout:
    """The layout for these runs: of all pairs, or of the last one with each, as in the plot."""
    *others, last = names
    pairs = {}
    for other in others or [BASE]:
        pairs[other] = (last, other)
    labels = {}
    for name in names:
        labels[name] = name
    return Layout("results", title, labels, pairs, f"{last} less the row's", last, all_pairs)


def save_plot(path: Path, layout: Layout, results: Results) -> None:
    """Plot the score of every run's last checkpoint, and its paired difference, in points.

    Raises OSError if PATH cannot be written.
    """
    last, labels, score = by_run(results), list(layout.rows.values()), score_of(results)
    ticks = "; ticks: single seeds" if len(last[BASE]) > 1 else ""
    title = f"{layout.title}\n{evaluation_name(results)}; bars: 95 % intervals{ticks}"
    # Text stays text. Ids come from the salt, so equal results give equal files.
    with matplotlib.rc_context(
        {"svg.fonttype": "none", "svg.hashsalt": "paint", "font.size": 9, "text.parse_math": False}
    ):
        # Without pyplot, which keeps every figure and may look for a screen.
        figure = Figure(figsize=(9.9, 0.36 * len(labels) + 1.6), layout="constrained")
        levels, gaps = figure.subplots(1, 2, sharey=True)
        for row, name in enumerate(layout.rows):
            values = score.values(last[name])
            _add_row(levels, row, over_seeds(values, bounds=score.bounds), values)
            if name in layout.pairs and score.is_compared:
                after, before = (score.values(last[cell]) for cell in layout.pairs[name])
                _add_row(gaps, row, compare_seeds(before, after), after - before)
        # Where two runs do not differ.
        gaps.axvline(0, color=INK, linewidth=0.8, linestyle=":")
        levels.set_xlabel(f"{score.name}, {score.unit}")
        gaps.set_xlabel(sanitize_for_terminal(f"{score.name}: {layout.pairing}, {score.points}"))
        for axis in (levels, gaps):
            axis.grid(axis="x", color=GRID, linewidth=0.6)
            axis.set_axisbelow(True)
            axis.tick_params(axis="y", length=0)
            axis.spines[["top", "right", "left"]].set_visible(False)
        levels.set_yticks(range(len(labels)), [sanitize_for_terminal(label) for label in labels])
        # An axis counts upwards, and the first row is on top.
        levels.set_ylim(len(labels) - 0.5, -0.5)
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
