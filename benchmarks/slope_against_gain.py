"""Does the slope of `paint advise` order what training gains?

    python benchmarks/slope_against_gain.py --out docs/images/slope-against-gain.svg

Prints Spearman's correlation of each group of ``slope_against_gain.csv`` with its 95 % interval
over resampled settings, and plots them. The file has a line a trained setting of the demo, with
slope and gain in points; docs/dev/log.md has the commands that measured it.
"""

import csv
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import tyro
from jaxtyping import Float
from matplotlib.figure import Figure

from paint.experiments.report import COLOURS, FAINT, SHAPES

TABLE = Path(__file__).with_suffix(".csv")
RESAMPLES = 10_000


def spearman(x: Float[np.ndarray, " s"], y: Float[np.ndarray, " s"]) -> float:
    """Correlation of the ranks, in [-1, 1]; ties have their mean rank. NaN if one is constant."""
    if np.ptp(x) == 0 or np.ptp(y) == 0:
        return float("nan")
    ranks = [np.sign(values[:, None] - values).sum(axis=1) for values in (x, y)]
    return float(np.corrcoef(ranks)[0, 1])


def interval(x: Float[np.ndarray, " s"], y: Float[np.ndarray, " s"]) -> tuple[float, float]:
    """The 95 % interval of ``spearman`` over resampled settings."""
    draws = np.random.default_rng(0).integers(len(x), size=(RESAMPLES, len(x)))
    low, high = np.nanquantile([spearman(x[draw], y[draw]) for draw in draws], [0.025, 0.975])
    return float(low), float(high)


def main(groups: Sequence[str] = (), out: Path | None = None) -> None:
    """Print the correlations, and plot.

    Args:
        groups: groups of the file; none is all.
        out: picture to write.
    """
    with TABLE.open() as file:
        rows = list(csv.DictReader(file))
    figure = Figure(figsize=(6.4, 4.6), layout="constrained")
    axis = figure.subplots()
    names = groups or list(dict.fromkeys(row["group"] for row in rows))
    for number, name in enumerate(names):
        mine = [row for row in rows if row["group"] == name]
        slope, gain = (np.array([float(row[key]) for row in mine]) for key in ("slope", "gain"))
        label = f"{name}, {len(mine)} settings: "
        if np.ptp(slope) == 0:
            label += "one slope"
        else:
            low, high = interval(slope, gain)
            label += f"{spearman(slope, gain):+.2f} [{low:+.2f}, {high:+.2f}]"
        print(label)
        axis.plot(slope, gain, SHAPES[number], color=COLOURS[number], label=label, markersize=5)
    axis.axhline(0, color=FAINT, linewidth=0.8)
    axis.set_xlabel("slope before training, points")
    axis.set_ylabel("gain of training, points of Avg@12")
    axis.legend(frameon=False, fontsize=7, title="Spearman's correlation")
    if out:
        figure.savefig(out, metadata={"Date": None})


if __name__ == "__main__":
    tyro.cli(main, description=__doc__)
