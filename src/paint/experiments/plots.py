"""Plots of an experiment, made from its results.

NAME.svg, .png          score and paired difference of each run's last checkpoint
efficiency.svg, .png    score of every checkpoint against rollout tokens and training seconds
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import matplotlib
import numpy as np
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, LogLocator, NullLocator

from paint.core.errors import sanitize_for_terminal
from paint.evaluation.intervals import Interval, compare_seeds, over_seeds
from paint.experiments.checkpoint_results import (
    BASE,
    Results,
    by_run,
    by_step,
    evaluation_name,
    mean_cost,
    score_name,
    shares,
)

INK, FAINT, GRID = "#1a1a1a", "#8c8c8c", "#dddddd"

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
"""Colours of curves. Source: Okabe & Ito 2008, "Color Universal Design"."""

SHAPES = "osD^vPX"  # markers of curves; with the colours, 42 distinct pairs


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
    """Plot the score of every run's last checkpoint, and its paired difference, in points."""
    last, labels, score = by_run(results), list(layout.rows.values()), score_name(results)
    ticks = "; ticks: single seeds" if len(last[BASE]) > 1 else ""
    title = f"{layout.title}\n{evaluation_name(results)}; bars: 95 % intervals{ticks}"

    with _figure(path, title, (9.9, 0.36 * len(labels) + 1.6)) as figure:
        levels, gaps = figure.subplots(1, 2, sharey=True)
        for row, name in enumerate(layout.rows):
            _add_row(levels, row, over_seeds(shares(last[name])), shares(last[name]))
            if name in layout.pairs:
                after, before = (shares(last[cell]) for cell in layout.pairs[name])
                _add_row(gaps, row, compare_seeds(before, after), after - before)
        gaps.axvline(0, color=INK, linewidth=0.8, linestyle=":")
        levels.set_xlabel(f"{score}, %")
        gaps.set_xlabel(sanitize_for_terminal(f"{score}: {layout.pairing}, points"))
        for axis in (levels, gaps):
            _style(axis, "x", "y")
        levels.set_yticks(range(len(labels)), [sanitize_for_terminal(label) for label in labels])
        levels.set_ylim(len(labels) - 0.5, -0.5)


def save_curves(path: Path, layout: Layout, results: Results) -> None:
    """Plot the score of every checkpoint against its cost, on logarithmic axes; omit costs of 0."""
    groups = by_step(results)
    [base] = groups[BASE].values()
    title = (
        f"{layout.title}: accuracy against cost\n{evaluation_name(results)}; bands: 95 % intervals"
    )
    with _figure(path, title, (11.0, 4.2)) as figure:
        axes = figure.subplots(1, 2, sharey=True)
        mean, low, high = _percent(over_seeds(shares(base)))
        for axis, cost in zip(axes, ("rollout tokens", "training seconds"), strict=True):
            lines = [axis.axhline(mean, color=INK, linewidth=0.8, linestyle=":")]
            axis.axhspan(low, high, color=INK, alpha=0.08, linewidth=0)
            axis.set_xscale("log")
            axis.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
            axis.xaxis.set_minor_locator(NullLocator())
            axis.xaxis.set_major_formatter(EngFormatter(sep=""))  # 500, 20k, 5M
            axis.set_xlabel(f"{cost} of a run")
            _style(axis, "both", "both")

        for number, name in enumerate(layout.labels):
            colour, shape = COLOURS[number % len(COLOURS)], SHAPES[number % len(SHAPES)]
            checkpoints = []
            for group in groups[name].values():
                checkpoints.append((*_percent(over_seeds(shares(group))), *mean_cost(group)))
            for axis, column in zip(axes, (3, 4), strict=True):
                points = []
                for row in checkpoints:
                    if row[column] > 0:
                        points.append((*row[:3], row[column]))
                means, lows, highs, x = np.array(points).reshape(-1, 4).T
                axis.fill_between(x, lows, highs, color=colour, alpha=0.15, linewidth=0)
                axis.vlines(x, lows, highs, color=colour, alpha=0.4, linewidth=1)
                axis.plot(x, means, marker=shape, color=colour, markersize=4.5, linewidth=1.4)
            lines.append(axis.lines[-1])

        axes[0].set_ylabel(f"{score_name(results)}, %")
        names = []
        for label in layout.rows.values():
            names.append(sanitize_for_terminal(label))
        figure.legend(lines, names, loc="outside right center", frameon=False)


@contextmanager
def _figure(path: Path, title: str, size: tuple[float, float]) -> Iterator[Figure]:
    """Yield an empty figure, then write it to PATH.svg and PATH.png. Raises OSError."""
    with matplotlib.rc_context(
        {"svg.fonttype": "none", "svg.hashsalt": "paint", "font.size": 9, "text.parse_math": False}
    ):
        figure = Figure(figsize=size, layout="constrained")
        yield figure
        figure.suptitle(sanitize_for_terminal(title), fontsize=10)
        figure.savefig(path.with_name(f"{path.name}.svg"), metadata={"Date": None})
        figure.savefig(path.with_name(f"{path.name}.png"), dpi=160)


def _add_row(axis: Axes, row: int, interval: Interval, values: Float[np.ndarray, "s p"]) -> None:
    """Plot a point with its interval, and a tick for each seed's mean if there are several."""
    ticks = 100 * values.mean(axis=1) if len(values) > 1 else []
    axis.plot(ticks, [row + 0.22] * len(ticks), "|", color=FAINT, markersize=6)
    mean, low, high = _percent(interval)
    reach = [[mean - low], [high - mean]]
    axis.errorbar(mean, row, xerr=reach, fmt="o", color=INK, markersize=5, capsize=3, linewidth=1.2)


def _style(axis: Axes, grid: Literal["x", "both"], ticks: Literal["y", "both"]) -> None:
    axis.grid(axis=grid, color=GRID, linewidth=0.6)
    axis.set_axisbelow(True)
    axis.tick_params(axis=ticks, length=0)
    axis.spines[["top", "right", "left"]].set_visible(False)


def _percent(interval: Interval) -> tuple[float, float, float]:
    return 100 * interval.mean, 100 * interval.low, 100 * interval.high
