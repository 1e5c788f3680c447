"""What is made of an experiment's results: tables, a plot, and nothing that is not in results.jsonl."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import numpy as np
from jaxtyping import Float

from paint import files
from paint.display import Display
from paint.evaluation.intervals import SHARE, Interval, compare_seeds, over_seeds
from paint.evaluation.tables import Sheet, markdown, print_sheets
from paint.experiments.plots import Panel, save_plot
from paint.experiments.results import BASE, Result, by_cell, shares
from paint.runs import RunError


@dataclass(frozen=True)
class Report:
    """What is made of results.

    Attributes:
        name: of the files, without ending; title: of the tables and the plot.
        labels: by cell, what a row is called, in the order of the rows; the base model comes before them.
        pairs: by the cell in whose row it stands: a cell, and the one that it is compared with.
        pairing: what these differences are, as the plot's axis says it.
    """

    name: str
    title: str
    labels: Mapping[str, str]
    pairs: Mapping[str, tuple[str, str]]
    pairing: str


def publish(report: Report, results: Sequence[Result], folder: Path, display: Display) -> None:
    """Print the tables; write them to NAME.md, and draw them to NAME.svg and NAME.png.

    Raises:
        RunError: results of different problems, or files that cannot be written.
    """
    tables = result_sheets(report, results)
    print_sheets(display.console, tables)
    with files.explained(folder / report.name, RunError, "results.jsonl is whole"):
        files.write(folder / f"{report.name}.md", markdown(tables))
        save_plot(folder / report.name, *picture(report, results))
    written = ", ".join(f"{report.name}.{ending}" for ending in ("md", "svg", "png"))
    display.note(f"in {folder}: {written}, made of results.jsonl")


def result_sheets(report: Report, results: Sequence[Result]) -> list[Sheet]:
    """Score, gain and cost of every cell; the paired differences; each seed by itself, if there are several."""
    rows, labels = by_cell(results), {BASE: BASE} | dict(report.labels)
    scores = {name: shares(rows[name]) for name in labels}
    score, seeds = f"Avg@{results[0].exam['samples']}", [result.seed for result in rows[BASE]]
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
    tables = [
        Sheet(
            f"{report.title}: {score} on {_asked(results)}, in % with 95 % interval", columns, main
        )
    ]
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
        each = [
            [label, *(f"{100 * x:.1f}" for x in scores[name].mean(axis=1))]
            for name, label in labels.items()
        ]
        tables.append(
            Sheet(f"{score} of each seed, in %", ["", *(f"seed {seed}" for seed in seeds)], each)
        )
    return tables


def picture(report: Report, results: Sequence[Result]) -> tuple[str, list[str], list[Panel]]:
    """Title, labels and panels of the plot: the score of every cell, and its paired difference."""
    rows, labels = by_cell(results), {BASE: BASE} | dict(report.labels)
    scores = {name: shares(rows[name]) for name in labels}
    score, several = f"Avg@{results[0].exam['samples']}", len(rows[BASE]) > 1
    levels: list[Interval | None] = [over_seeds(scores[name], bounds=SHARE) for name in labels]
    differences: list[Interval | None] = [None] * len(labels)
    means: list[Sequence[float]] = [
        scores[name].mean(axis=1).tolist() if several else () for name in labels
    ]
    gaps: list[Sequence[float]] = [()] * len(labels)
    for place, name in enumerate(labels):
        if name in report.pairs:
            cell, other = report.pairs[name]
            differences[place] = compare_seeds(scores[other], scores[cell])
            gaps[place] = (scores[cell] - scores[other]).mean(axis=1).tolist() if several else ()
    panels = [
        Panel(f"{score}, %", levels, means, zero=False),
        Panel(f"{score}: {report.pairing}, points", differences, gaps, zero=True),
    ]
    marks = "; ticks: single seeds" if several else ""
    return (
        f"{report.title}\n{_asked(results)}; bars: 95 % intervals{marks}",
        list(labels.values()),
        panels,
    )


def _gain(name: str, scores: Mapping[str, Float[np.ndarray, "s p"]]) -> list[str]:
    return ["" if name == BASE else compare_seeds(scores[BASE], scores[name]).points(sign=True)]


def _cost(name: str, results: Sequence[Result]) -> list[str]:
    """Means of a run."""
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
