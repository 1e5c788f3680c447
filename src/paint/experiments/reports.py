"""The tables and the plots of an experiment, which show nothing that is not in results.jsonl.

They report the last checkpoints. Where earlier ones were evaluated, too, paint.experiments.curves
adds what is shown of them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import numpy as np
from jaxtyping import Float

from paint import files
from paint.display import Display
from paint.errors import explained
from paint.evaluation.intervals import SHARE, Interval, compare_seeds, over_seeds
from paint.evaluation.tables import Sheet, markdown, print_sheets
from paint.experiments.curves import cost_curves, step_sheets
from paint.experiments.plots import Panel, save_curves, save_plot
from paint.experiments.results import BASE, Result, by_cell, shares
from paint.runs import RunError

COSTS = ["rollout tokens of a run", "training seconds of a run"]
"""What curves are drawn against."""


@dataclass(frozen=True)
class Report:
    """What the tables and the plot show.

    Attributes:
        name: of the files, without ending.
        title: of the tables and the plot.
        labels: the name of each cell's row, in the order of the rows; the base model comes first.
        pairs: the difference in each cell's row: a cell, and the cell that it is compared with.
        pairing: the plot's axis title for these differences.
        goal: where earlier checkpoints were evaluated, the cell whose last one they are held
            against, with a plot of what each cost; None for neither.
    """

    name: str
    title: str
    labels: Mapping[str, str]
    pairs: Mapping[str, tuple[str, str]]
    pairing: str
    goal: str | None = None


def side_by_side(title: str, names: Sequence[str]) -> Report:
    """The report on cells of these names, of which the last is compared with each of the others."""
    *others, last = names
    pairs = {other: (last, other) for other in others or [BASE]}
    labels = {name: name for name in names}
    return Report("results", title, labels, pairs, f"{last} less the row's", goal=last)


def publish(report: Report, results: Sequence[Result], folder: Path, display: Display) -> None:
    """Print the tables; write them to NAME.md, and draw them to NAME.svg and NAME.png.

    With a goal and results of earlier checkpoints, efficiency.svg and .png show what each cost.

    Raises:
        RunError: results of different problems, or files that cannot be written.
    """
    tables, labels = result_sheets(report, results), {BASE: BASE} | dict(report.labels)
    has_steps = not all(result.is_last for result in results)
    if has_steps:
        tables += step_sheets(labels, report.goal, results)
    print_sheets(display.console, tables)

    with explained(folder / report.name, RunError, "results.jsonl is whole"):
        files.write(folder / f"{report.name}.md", markdown(tables))
        written = save_plot(folder / report.name, *picture(report, results))
        if has_steps and report.goal:
            score = f"Avg@{results[0].exam['samples']}, %"
            title = (
                f"{report.title}: accuracy and its price\n{_asked(results)}; bands: 95 % intervals"
            )
            curves = cost_curves(labels, results)
            written += save_curves(folder / "efficiency", title, score, COSTS, curves)
    names = ", ".join([f"{report.name}.md", *(path.name for path in written)])
    display.note(f"in {folder}: {names}, made of results.jsonl")


def result_sheets(report: Report, results: Sequence[Result]) -> list[Sheet]:
    """Score, gain and cost of every cell; paired differences; each seed by itself, if several."""
    rows, labels = by_cell(results), {BASE: BASE} | dict(report.labels)
    scores = {name: shares(rows[name]) for name in labels}
    score, seeds = f"Avg@{results[0].exam['samples']}", [result.seed for result in rows[BASE]]
    asked = _asked(results)

    columns = ["", score, "gain over base", "rollout tokens", "training time", "tokens an answer"]
    main = [
        [
            label,
            over_seeds(scores[name], bounds=SHARE).points(),
            *_gain(name, scores),
            *_cost(name, rows[name]),
        ]
        for name, label in labels.items()
    ]
    title = f"{report.title}: {score} on {asked}, in % with 95 % interval"
    tables = [Sheet(title, columns, main)]

    if any(other != BASE for _, other in report.pairs.values()):
        pairs = [
            [
                f"{labels[cell]} less {labels[other]}",
                compare_seeds(scores[other], scores[cell]).points(sign=True),
            ]
            for cell, other in report.pairs.values()
        ]
        title = (
            f"Differences of {score} on the same seeds and problems, in points with 95 % interval"
        )
        tables.append(Sheet(title, ["", "difference"], pairs))

    if len(seeds) > 1:
        by_seed = [
            [label, *(f"{100 * x:.1f}" for x in scores[name].mean(axis=1))]
            for name, label in labels.items()
        ]
        columns = ["", *(f"seed {seed}" for seed in seeds)]
        tables.append(Sheet(f"{score} of each seed, in %", columns, by_seed))
    return tables


def picture(report: Report, results: Sequence[Result]) -> tuple[str, list[str], list[Panel]]:
    """Title, labels and panels of the plot: the score of every cell, and its paired difference."""
    rows, labels = by_cell(results), {BASE: BASE} | dict(report.labels)
    scores = {name: shares(rows[name]) for name in labels}
    score, has_seeds = f"Avg@{results[0].exam['samples']}", len(rows[BASE]) > 1

    levels: list[Interval | None] = [over_seeds(scores[name], bounds=SHARE) for name in labels]
    level_seeds: list[Sequence[float]] = [
        scores[name].mean(axis=1).tolist() if has_seeds else () for name in labels
    ]

    gaps: list[Interval | None] = [None] * len(labels)
    gap_seeds: list[Sequence[float]] = [()] * len(labels)
    for row, name in enumerate(labels):
        if name in report.pairs:
            cell, other = report.pairs[name]
            gaps[row] = compare_seeds(scores[other], scores[cell])
            if has_seeds:
                gap_seeds[row] = (scores[cell] - scores[other]).mean(axis=1).tolist()

    panels = [
        Panel(f"{score}, %", levels, level_seeds, zero=False),
        Panel(f"{score}: {report.pairing}, points", gaps, gap_seeds, zero=True),
    ]
    marks = "; ticks: single seeds" if has_seeds else ""
    title = f"{report.title}\n{_asked(results)}; bars: 95 % intervals{marks}"
    return title, list(labels.values()), panels


def _gain(name: str, scores: Mapping[str, Float[np.ndarray, "s p"]]) -> list[str]:
    return ["" if name == BASE else compare_seeds(scores[BASE], scores[name]).points(sign=True)]


def _cost(name: str, results: Sequence[Result]) -> list[str]:
    """Mean rollout tokens and training time of a run, and mean length of a sample."""
    length = f"{np.mean([result.answer_tokens for result in results]):,.0f}"
    if name == BASE:
        return ["", "", length]
    tokens = np.mean([result.rollout_tokens for result in results])
    seconds = np.mean([result.seconds for result in results])
    return [f"{tokens:,.0f}", str(timedelta(seconds=round(float(seconds)))), length]


def _asked(results: Sequence[Result]) -> str:
    exam, seeds = results[0].exam, sorted({result.seed for result in results})
    trained = f"seed {seeds[0]}" if len(seeds) == 1 else f"seeds {seeds[0]} to {seeds[-1]}"
    return f"{exam['problems']} problems of {exam['benchmark']}, {trained}"
