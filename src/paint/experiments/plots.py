"""A table as a plot: its rows as points with their 95 % intervals, in SVG and PNG.

Every panel has its own axis in percentage points; marks differ in shape, not in colour alone. The
SVG holds text as text, and the same figures give the same file.

Left out on purpose: other people's figures beside one's own on one axis.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from paint.errors import plain
from paint.evaluation.intervals import Interval

INK, FAINT = "#1a1a1a", "#8c8c8c"


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


def save_plot(path: Path, title: str, labels: Sequence[str], panels: Sequence[Panel]) -> list[Path]:
    """Write PATH.svg and PATH.png, the first label at the top, and return both paths.

    Raises:
        OSError: they cannot be written.
    """
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "paint", "font.size": 9}):
        figure = Figure(
            figsize=(4.2 * len(panels) + 1.5, 0.36 * len(labels) + 1.6), layout="constrained"
        )
        axes = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
        for axis, panel in zip(axes, panels, strict=True):
            _add_panel(axis, panel)
        axes[0].set_yticks(range(len(labels)), [plain(label) for label in labels])
        for label in axes[0].get_yticklabels():
            label.set_parse_math(False)
        axes[0].set_ylim(len(labels) - 0.5, -0.5)
        figure.suptitle(plain(title), fontsize=10, parse_math=False)
        paths = [path.with_name(f"{path.name}.{ending}") for ending in ("svg", "png")]
        figure.savefig(paths[0], metadata={"Date": None})
        figure.savefig(paths[1], dpi=160)
    return paths


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
    axis.grid(axis="x", color="#dddddd", linewidth=0.6)
    axis.set_axisbelow(True)
    axis.tick_params(axis="y", length=0)
    axis.spines[["top", "right", "left"]].set_visible(False)
