"""The picture of a comparison in docs/results: score and paired difference of each run.

python benchmarks/comparison_plot.py runs/demo docs/images/demo-methods.svg --title "The demo"
"""

import argparse
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
    read_results,
    score_of,
)
from paint.lab.comparison_report import Layout

INK, FAINT, GRID = "#1a1a1a", "#8c8c8c", "#dddddd"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="of paint compare or paint demo")
    parser.add_argument("picture", type=Path)
    parser.add_argument("--title", default="The demo")
    options = parser.parse_args()
    results = read_results(options.folder)
    names = list(dict.fromkeys(result.run for result in results if result.run != BASE))
    save_plot(options.picture, Layout(options.title, names), results)


def save_plot(path: Path, layout: Layout, results: Results) -> None:
    """Plot the score of every run's last checkpoint, and its paired difference, in points.

    Raises OSError if PATH cannot be written.
    """
    last, score = by_run(results), score_of(results)
    others = layout.names[:-1] or [BASE]
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
            if name in others and score.is_compared:
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


if __name__ == "__main__":
    main()
