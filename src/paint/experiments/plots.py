"""The plots of an experiment, with 95 % intervals, in SVG and PNG.

    save_plot       a table: its rows as points, on axes in percentage points
    save_curves     every checkpoint: accuracy against what it cost

Marks differ in shape, not in colour alone, and colours are told apart by colour-blind people. The
SVG holds text as text, and the same figures give the same file.

Left out on purpose: other people's figures beside one's own on one axis.
"""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from paint.errors import plain
from paint.evaluation.intervals import Interval

INK, FAINT, GRID = "#1a1a1a", "#8c8c8c", "#dddddd"

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
"""Of curves. Source: Okabe & Ito 2008, "Color Universal Design"."""

SHAPES = "osD^vPX"
"""Marks of curves. There are not as many as colours, so that pairs of both repeat late."""

LABEL_GAP = 0.055
"""Height of a line of text, as a share of an axis."""


@dataclass(frozen=True)
class Panel:
    """One axis beside the rows' labels.

    Attributes:
        axis: what is measured, with its unit.
        intervals: of each row, in shares; None where the row has none.
        seeds: each row's values of single seeds, in shares; empty where they are not shown.
        zero: whether the axis has a line at zero.
    """

    axis: str
    intervals: Sequence[Interval | None]
    seeds: Sequence[Sequence[float]]
    zero: bool


@dataclass(frozen=True)
class Curve:
    """A line of points, one a checkpoint.

    Attributes:
        levels: in shares.
        costs: by panel, the cost of each point.
    """

    label: str
    levels: Sequence[Interval]
    costs: Sequence[Sequence[float]]


def save_plot(path: Path, title: str, labels: Sequence[str], panels: Sequence[Panel]) -> list[Path]:
    """Write PATH.svg and PATH.png, the first label at the top, and return both paths.

    Raises:
        OSError: they cannot be written.
    """
    size = (4.2 * len(panels) + 1.5, 0.36 * len(labels) + 1.6)
    paths = [path.with_name(f"{path.name}.{ending}") for ending in ("svg", "png")]
    with _drawn(paths, title, size) as figure:
        axes = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
        for axis, panel in zip(axes, panels, strict=True):
            _add_panel(axis, panel)
        axes[0].set_yticks(range(len(labels)), [plain(label) for label in labels])
        for label in axes[0].get_yticklabels():
            label.set_parse_math(False)
        axes[0].set_ylim(len(labels) - 0.5, -0.5)
    return paths


def save_curves(
    path: Path, title: str, measure: str, costs: Sequence[str], curves: Sequence[Curve]
) -> list[Path]:
    """Write PATH.svg and PATH.png, a panel for every cost, and return both paths.

    The first curve is a level without cost, across all panels. Costs have a logarithmic axis; a
    curve is missing where it costs nothing.

    Raises:
        OSError: they cannot be written.
    """
    (base, *others), paths = curves, [path.with_name(f"{path.name}.{e}") for e in ("svg", "png")]
    with _drawn(paths, title, (4.6 * len(costs) + 0.6, 4.2)) as figure:
        axes = figure.subplots(1, len(costs), sharey=True, squeeze=False)[0]
        for panel, (axis, cost) in enumerate(zip(axes, costs, strict=True)):
            [level] = base.levels
            axis.axhline(100 * level.mean, color=INK, linewidth=0.8, linestyle=":")
            axis.axhspan(100 * level.low, 100 * level.high, color=INK, alpha=0.08, linewidth=0)

            for number, curve in enumerate(others):
                _add_curve(axis, curve, curve.costs[panel], number)
            axis.set_xlabel(plain(cost), parse_math=False)
        axes[0].set_ylabel(plain(measure), parse_math=False)
        for panel, axis in enumerate(axes):
            _label_curves(axis, base, others, panel)
    return paths


@contextmanager
def _drawn(paths: Sequence[Path], title: str, size: tuple[float, float]) -> Iterator[Figure]:
    """A figure to draw on, which is then written to the SVG and the PNG."""
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "paint", "font.size": 9}):
        figure = Figure(figsize=size, layout="constrained")
        yield figure
        figure.suptitle(plain(title), fontsize=10, parse_math=False)
        figure.savefig(paths[0], metadata={"Date": None})
        figure.savefig(paths[1], dpi=160)


def _add_curve(axis: Axes, curve: Curve, costs: Sequence[float], number: int) -> None:
    points = [(x, level) for x, level in zip(costs, curve.levels, strict=True) if x > 0]
    x = [x for x, _ in points]
    mean, low, high = (
        [100 * getattr(level, end) for _, level in points] for end in ("mean", "low", "high")
    )
    colour, shape = COLOURS[number % len(COLOURS)], SHAPES[number % len(SHAPES)]
    axis.fill_between(x, low, high, color=colour, alpha=0.15, linewidth=0)
    axis.vlines(x, low, high, color=colour, alpha=0.4, linewidth=1)
    axis.plot(x, mean, marker=shape, color=colour, markersize=4.5, linewidth=1.4)


def _label_curves(axis: Axes, base: Curve, curves: Sequence[Curve], panel: int) -> None:
    """Scale the axis, and write each name at its curve's end, one above the other."""
    axis.set_xscale("log")
    axis.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axis.xaxis.set_minor_locator(NullLocator())
    axis.xaxis.set_major_formatter(FuncFormatter(_short))
    costs = [x for curve in curves for x in curve.costs[panel] if x > 0] or [1.0]
    left, right = 0.8 * min(costs), 1.2 * max(costs)
    axis.set_xlim(left, right * (right / left) ** 0.3)  # room for the names

    ends = [
        (
            100 * curve.levels[-1].mean,
            curve.costs[panel][-1],
            curve.label,
            COLOURS[number % len(COLOURS)],
        )
        for number, curve in enumerate(curves)
        if curve.costs[panel][-1] > 0
    ]
    ends.append((100 * base.levels[0].mean, left, base.label, INK))
    bottom, top = axis.get_ylim()
    gap, placed = LABEL_GAP * (top - bottom), list[tuple[float, float]]()
    for level, x, label, colour in sorted(ends):
        above = gap / 2 if label == base.label else 0.0  # its own line runs through it
        near = [at for other, at in placed if abs(math.log(x / other)) < math.log(right / left) / 3]
        y = max([level + above, *(at + gap for at in near)])
        placed.append((x, y))
        axis.annotate(
            plain(label),
            (x, y),
            xytext=(6, 0),
            textcoords="offset points",
            color=colour,
            va="center",
            parse_math=False,
        )
    axis.grid(color=GRID, linewidth=0.6)
    axis.set_axisbelow(True)
    axis.tick_params(axis="both", length=0)
    axis.spines[["top", "right", "left"]].set_visible(False)


def _short(amount: float, _: int | None = None) -> str:
    """500, 20k, 5M."""
    for unit, size in (("M", 1e6), ("k", 1e3)):
        if amount >= size:
            return f"{amount / size:g}{unit}"
    return f"{amount:g}"


def _add_panel(axis: Axes, panel: Panel) -> None:
    for row, (interval, seeds) in enumerate(zip(panel.intervals, panel.seeds, strict=True)):
        axis.plot(
            [100 * x for x in seeds], [row + 0.22] * len(seeds), "|", color=FAINT, markersize=6
        )
        if interval is not None:
            mean, low, high = (100 * x for x in (interval.mean, interval.low, interval.high))
            reach = [[mean - low], [high - mean]]
            axis.errorbar(
                mean, row, xerr=reach, fmt="o", color=INK, markersize=5, capsize=3, linewidth=1.2
            )
    if panel.zero:
        axis.axvline(0, color=INK, linewidth=0.8, linestyle=":")
    axis.set_xlabel(plain(panel.axis), parse_math=False)
    axis.grid(axis="x", color=GRID, linewidth=0.6)
    axis.set_axisbelow(True)
    axis.tick_params(axis="y", length=0)
    axis.spines[["top", "right", "left"]].set_visible(False)
