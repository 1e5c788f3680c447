"""Results of an experiment, with their tables and plots.

    results.jsonl           one line per evaluated checkpoint
    NAME.md                 tables of the last checkpoints, and of earlier ones if evaluated
    NAME.svg, .png          score and paired difference of each run's last checkpoint
    efficiency.svg, .png    score of every checkpoint against rollout tokens and training seconds

The main results are those of the last checkpoints. Two tables of earlier checkpoints are biased by
the selection of checkpoints, and labelled so.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from itertools import combinations, groupby
from pathlib import Path
from typing import Any, Literal

import matplotlib
import numpy as np
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, LogLocator, NullLocator

from paint.config.recipe import differences, from_table
from paint.config.run_folder import RunError
from paint.core import storage
from paint.core.display import Display
from paint.core.errors import sanitize_for_terminal, wrap_errors
from paint.core.workspace import Workspace
from paint.evaluation.frame import (
    Chart,
    Measurement,
    Report,
    Table,
    Unit,
    measure,
    select,
    table_of,
    to_terminal,
    write_report,
)
from paint.evaluation.intervals import (
    ROUNDING,
    Interval,
    compare_seeds,
    holm,
    over_seeds,
    p_value_over_seeds,
)

BASE = "base"  # name of the untrained model's run

INK, FAINT, GRID = "#1a1a1a", "#8c8c8c", "#dddddd"

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
"""Colours of curves. Source: Okabe & Ito 2008, "Color Universal Design"."""

SHAPES = "osD^vPX"  # markers of curves; with the colours, 42 distinct pairs


@dataclass(frozen=True)
class Result:
    """One line of results.jsonl: an evaluated checkpoint of one run and seed."""

    cell: str  # name of the experiment run
    seed: int
    config: dict[str, Any]  # the run's config and the evaluation protocol, as nested plain values
    exam: dict[str, Any]
    trained_on: str  # digest of the training problems; empty for the base model
    steps: int  # up to this checkpoint, as the next two; 0 for the base model
    rollout_tokens: int
    seconds: float  # wall time, without start-up, evaluation and work lost to a kill
    problems: list[str]  # digest of each evaluation problem
    right: list[int]  # number of correct samples of each problem
    answer_tokens: float  # mean length of a sample in tokens

    @property
    def is_last(self) -> bool:
        """Whether this is the last checkpoint of its run, or the base model."""
        return self.cell == BASE or self.steps == self.config["train"]["steps"]


Results = Sequence[Result]
BySteps = Mapping[str, Mapping[int, list[Result]]]  # by run and step

LEAD = "lead"  # metric: how far the last checkpoint of the reference run is ahead

COSTS: dict[str, tuple[str, Unit]] = {
    "gain": ("gain over base", "points"),
    "rollout_tokens": ("rollout tokens", "tokens"),
    "seconds": ("training time", "time"),
}
"""Columns of a run's gain and cost: head and unit."""


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
    pairs = {other: (last, other) for other in others or [BASE]}
    labels = {name: name for name in names}
    return Layout("results", title, labels, pairs, f"{last} less the row's", last, all_pairs)


# --- results.jsonl -------------------------------------------------------------------------------


def workspace_of(folder: Path) -> Workspace:
    """The results of an experiment, as a folder that grows."""
    hint = "delete it, and the same command writes it again from the runs and their samples"
    return Workspace(folder, "results.jsonl", "an experiment", RunError, hint)


def read_results(folder: Path) -> list[Result]:
    """Read results.jsonl; [] if it does not exist."""
    workspace = workspace_of(folder)
    results = []
    for number, row in enumerate(workspace.rows(), start=1):
        place = f"{workspace.rows_path} line {number}"
        with wrap_errors(place, storage.CorruptFileError, workspace.hint):
            results.append(Result(**row))
    return results


def write_results(folder: Path, results: Results) -> None:
    """Replace results.jsonl. Raises RunError if that fails."""
    path = workspace_of(folder).rows_path
    with wrap_errors(path, RunError, "free some space; the same command resumes"):
        storage.write_jsonl(path, [asdict(result) for result in results])


def append_results(folder: Path, results: Results) -> None:
    """Append to results.jsonl, in a locked folder. Raises RunError if that fails."""
    workspace = workspace_of(folder)
    workspace.trim()
    workspace.append(*(asdict(result) for result in results))


def by_run(results: Results) -> dict[str, list[Result]]:
    """Group the last checkpoints' results by run, ordered by seed. Raises RunError."""
    return {
        name: [result for group in steps.values() for result in group if result.is_last]
        for name, steps in by_step(results).items()
    }


def by_step(results: Results) -> dict[str, dict[int, list[Result]]]:
    """Group results by run and step, ordered by seed; RunError if their problems differ."""
    trained = [result for result in results if result.trained_on]
    for name, verb, same in (
        ("trained_on", "trained", trained),
        ("problems", "evaluated", results),
    ):
        for result in same:
            if getattr(result, name) != getattr(same[0], name):
                raise RunError(
                    f"{result.cell}, seed {result.seed} was {verb} on other problems than "
                    f"{same[0].cell}, seed {same[0].seed} (the file of problems has changed); "
                    f"choose another place (--output-dir)"
                )
    ordered = sorted(results, key=lambda result: (result.cell, result.steps, result.seed))
    return {
        name: {step: list(same) for step, same in groupby(group, key=lambda result: result.steps)}
        for name, group in groupby(ordered, key=lambda result: result.cell)
    }


def shares(results: Results) -> Float[np.ndarray, "s p"]:
    """Share of correct samples by seed and problem."""
    samples: int = results[0].exam["samples"]
    return np.array([result.right for result in results]) / samples


# --- rows and tables -----------------------------------------------------------------------------


def publish(layout: Layout, results: Results, folder: Path, display: Display) -> None:
    """Print the tables, write them to NAME.json and NAME.md, and plot them to NAME.svg and .png.

    With a reference run and results of earlier checkpoints, also plot efficiency.svg and .png.
    """
    has_steps = not all(result.is_last for result in results)
    report = comparison_report(layout, results)
    to_terminal(report.tables, display.console)
    write_report(folder, layout.name, report, RunError)
    with wrap_errors(folder / layout.name, RunError, "results.jsonl is complete"):
        save_plot(folder / layout.name, layout, results)
        written = [f"{layout.name}.{ending}" for ending in ("md", "svg", "png")]
        if has_steps and layout.reference_run:
            save_curves(folder / "efficiency", layout, results)
            written += ["efficiency.svg", "efficiency.png"]
    display.note(
        f"in {folder}: {', '.join(written)}, made from results.jsonl; page: `paint show {folder}`"
    )


def comparison_report(layout: Layout, results: Results) -> Report:
    """The rows, tables and charts of an experiment."""
    rows = comparison_rows(layout, results)
    tables = comparison_tables(layout, rows, results)
    if not all(result.is_last for result in results):
        rows += step_rows(layout, results)
        tables += step_tables(layout, rows, results)
    score, about = _score(results), _evaluation(results)
    charts = [
        Chart(score, "avg_at_k", "%", about),
        Chart(
            "Differences",
            "avg_at_k",
            "points",
            "on the same seeds and problems",
            is_difference=True,
        ),
    ]
    return Report(rows, tables, charts)


def comparison_rows(layout: Layout, results: Results) -> list[Measurement]:
    """Score, cost, gain, paired differences and score by seed of the last checkpoints."""
    last = by_run(results)
    rows: list[Measurement] = []
    for name, label in layout.rows.items():
        rows += _rows_of(label, last[name], last[BASE])
    for name, label in layout.rows.items():
        for result in last[name]:
            score = float(shares([result]).mean())
            group = f"seed {result.seed}"
            rows += measure(label, _benchmark(results), "avg_at_k", score, group=group)
    return rows + _pair_rows(layout, last)


def _rows_of(
    label: str, group: Results, base: Results, step: int | None = None
) -> list[Measurement]:
    """Score, cost, and gain over the base, of one checkpoint of a run."""
    benchmark, n = _benchmark(group), len(group[0].problems)
    values: dict[str, Interval | float] = {"avg_at_k": over_seeds(shares(group))}
    if step is None:
        tried = group[0].exam["samples"]
        values[f"pass_at_{tried}"] = over_seeds((shares(group) > 0).astype(float))
        lengths = [result.answer_tokens for result in group]
        values["completion_tokens"] = float(np.mean(lengths))
    rows: list[Measurement] = []
    if group[0].cell != BASE:
        values["rollout_tokens"], values["seconds"] = _cost(group)
        gain = compare_seeds(shares(base), shares(group))
        rows += measure(label, benchmark, "avg_at_k", gain, n, step=step, against=BASE)
    for metric, value in values.items():
        rows += measure(label, benchmark, metric, value, n, step=step)
    return rows


def _pair_rows(layout: Layout, last: Mapping[str, Results]) -> list[Measurement]:
    """The differences that the report is about, with p-values corrected for all of them."""
    pairs = [(before, after) for after, before in layout.pairs.values()]
    if layout.all_pairs:
        pairs = list(combinations(layout.labels, 2))
    p_values = []
    for before, after in pairs:
        p_values.append(p_value_over_seeds(shares(last[before]), shares(last[after])))
    rows = []
    for (before, after), p, corrected in zip(pairs, p_values, holm(p_values), strict=True):
        rows += measure(
            layout.rows[after],
            _benchmark(last[after]),
            "avg_at_k",
            compare_seeds(shares(last[before]), shares(last[after])),
            len(last[after][0].problems),
            against=layout.rows[before],
            p=p,
            corrected_p=corrected,
        )
    return rows


def step_rows(layout: Layout, results: Results) -> list[Measurement]:
    """The same of every checkpoint, and how far the last one of the reference run is ahead."""
    groups = by_step(results)
    [base] = groups[BASE].values()
    reference = layout.reference_run
    end = groups[reference][max(groups[reference])] if reference else []
    rows: list[Measurement] = []
    for name, label in layout.rows.items():
        for step, group in groups[name].items():
            rows += _rows_of(label, group, base, step)
            if reference and group is not end:
                lead = compare_seeds(shares(group), shares(end))
                ahead = layout.rows[reference]
                rows += measure(
                    ahead, _benchmark(group), LEAD, lead, step=step, group=label, against=label
                )
    return rows


def comparison_tables(layout: Layout, rows: list[Measurement], results: Results) -> list[Table]:
    """Tables of score, gain and cost of every run, paired differences, settings, scores by seed."""
    score, tried = _score(results), results[0].exam["samples"]
    tables = [
        table_of(
            [*select(rows), *select(rows, against=BASE, p=None)],
            f"{layout.title}: {score} on {_evaluation(results)}, in % with 95 % interval",
            {
                "avg_at_k": (score, "%"),
                f"pass_at_{tried}": (f"pass@{tried}", "%"),
                **COSTS,
                "completion_tokens": ("tokens an answer", "tokens"),
            },
            column_of=_column,
        )
    ]
    differences = [row for row in select(rows, against=...) if row.p is not None]
    if differences:
        cells = []
        for row in differences:
            pair = f"{row.policy} less {row.against}"
            cells.append([pair, row.text("points"), f"{row.p:.4f}", f"{row.corrected_p:.4f}"])
        title = (
            f"Differences of {score} on the same seeds and problems, in points with 95 % interval; "
            f"p without and with Holm's correction for {len(differences)}"
        )
        tables.append(Table(title, ["", "difference", "p", "corrected p"], cells))
    tables += _setting_tables(layout, results)
    seeds = [row for row in select(rows, group=...) if row.group.startswith("seed ")]
    columns: dict[str, tuple[str, Unit]] = {row.group: (row.group, "%") for row in seeds}
    if len(columns) > 1:
        title = f"{score} of each seed, in %"
        tables.append(table_of(seeds, title, columns, column_of=lambda row: row.group))
    return tables


def _column(row: Measurement) -> str:
    """The column of a row in the tables of score and cost."""
    return "gain" if row.against == BASE else row.metric


def _setting_tables(layout: Layout, results: Results) -> list[Table]:
    """The settings of the reference run that differ in others."""
    if not layout.reference_run:
        return []
    last = by_run(results)
    configs = {name: from_table(last[name][0].config) for name in layout.labels}
    rows = []
    for name, config in configs.items():
        for line in differences(configs[layout.reference_run], config):
            rows.append([layout.labels[name], line])
    reference = layout.labels[layout.reference_run]
    title = f"Settings of {reference} -> those of the others where they differ"
    return [Table(title, ["", "setting"], rows)] if rows else []


def step_tables(layout: Layout, rows: list[Measurement], results: Results) -> list[Table]:
    """Tables of score and cost by step, best checkpoints, and cost to reach the reference run."""
    groups, score = by_step(results), _score(results)
    by_checkpoint = [row for row in rows if row.step is not None]
    columns: dict[str, tuple[str, Unit]] = {"avg_at_k": (score, "%"), **COSTS}
    if layout.reference_run:
        columns[LEAD] = (f"last of {layout.labels[layout.reference_run]} less this", "points")
    tables = [
        table_of(
            by_checkpoint,
            f"{score} by step, in % with 95 % interval",
            columns,
            labels=lambda row: (row.group or row.policy, f"step {row.step}"),
            column_of=lambda row: row.metric if row.metric == LEAD else _column(row),
        ),
        _best_checkpoints(layout, groups, score),
    ]
    if layout.reference_run:
        tables.append(_cost_to_reach(layout, groups, score))
    return tables


def _best_checkpoints(layout: Layout, groups: BySteps, score: str) -> Table:
    """The paper's rule ("best checkpoints within 100 steps", Main Results), for every seed."""
    rows, counts = [], set()
    for name, label in layout.labels.items():
        means = np.array([shares(group).mean(axis=1) for group in groups[name].values()])
        steps = list(groups[name])
        chosen = [str(steps[row]) for row in means.argmax(axis=0)]
        last = f"{100 * means[-1].mean():.1f}"
        best = f"{100 * means.max(axis=0).mean():.1f}"
        rows.append([label, last, best, ", ".join(chosen)])
        counts.add(len(means))
    title = (
        f"Not a result: {score} of each seed's best checkpoint, biased upwards, since the same "
        f"samples select it (the paper's rule)"
    )
    several = " to ".join(map(str, sorted({min(counts), max(counts)})))
    return Table(title, ["", "last", f"best of {several}", "its step, by seed"], rows)


def _cost_to_reach(layout: Layout, groups: BySteps, score: str) -> Table:
    """Tokens and seconds that the other runs take to the reference run's last score."""
    reference = layout.reference_run or ""
    end = groups[reference][max(groups[reference])]
    end_tokens, end_seconds = _cost(end)
    level = shares(end).mean()
    rows = []
    for name, label in layout.labels.items():
        if name != reference:
            rows.append([label, *_reach(list(groups[name].values()), end)])
    title = (
        f"What it takes to reach the last {score} of {layout.labels[reference]}, "
        f"{100 * level:.1f} after {end_tokens:,.0f} rollout tokens and {end_seconds:,.0f} s: the "
        f"last checkpoint whose interval lies below it, and the first whose mean does not"
    )
    columns = ["", "nearest tokens", "difference there", "below up to", "as high at", "in seconds"]
    return Table(title, columns, rows)


def _reach(checkpoints: list[list[Result]], end: Results) -> list[str]:
    """Of a run: nearest cost, the lead there, cost below the end's score, and cost to reach it."""
    end_tokens, end_seconds = _cost(end)
    level = shares(end).mean()
    nearest = min(checkpoints, key=lambda group: abs(_cost(group)[0] - end_tokens))
    lead = compare_seeds(shares(nearest), shares(end))
    [difference] = measure("", "", "avg_at_k", lead)

    below = "nowhere"
    for group in checkpoints:
        if compare_seeds(shares(group), shares(end)).low > 0:
            below = _times(_cost(group)[0], end_tokens)

    reaching = [group for group in checkpoints if shares(group).mean() >= level - ROUNDING]
    prefix = "" if reaching else "not within "
    tokens, seconds = _cost(reaching[0] if reaching else checkpoints[-1])
    return [
        f"{_cost(nearest)[0]:,.0f}",
        difference.text("points"),
        below,
        prefix + _times(tokens, end_tokens),
        prefix + _times(seconds, end_seconds),
    ]


def _cost(group: Results) -> tuple[float, float]:
    """Mean rollout tokens and training seconds over the seeds."""
    tokens = float(np.mean([result.rollout_tokens for result in group]))
    return tokens, float(np.mean([result.seconds for result in group]))


def _times(amount: float, other: float) -> str:
    return f"{amount:,.0f} ({amount / other:.1f} times)" if other else f"{amount:,.0f}"


def _score(results: Results) -> str:
    return f"Avg@{results[0].exam['samples']}"


def _benchmark(results: Results) -> str:
    return str(results[0].exam["benchmark"])


def _evaluation(results: Results) -> str:
    exam, seeds = results[0].exam, sorted({result.seed for result in results})
    trained = f"seed {seeds[0]}" if len(seeds) == 1 else f"seeds {seeds[0]} to {seeds[-1]}"
    return f"{exam['problems']} problems of {exam['benchmark']}, {trained}"


# --- plots ---------------------------------------------------------------------------------------


def save_plot(path: Path, layout: Layout, results: Results) -> None:
    """Plot the score of every run's last checkpoint, and its paired difference, in points."""
    last, labels, score = by_run(results), list(layout.rows.values()), _score(results)
    marks = "; ticks: single seeds" if len(last[BASE]) > 1 else ""
    title = f"{layout.title}\n{_evaluation(results)}; bars: 95 % intervals{marks}"

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
    title = f"{layout.title}: accuracy against cost\n{_evaluation(results)}; bands: 95 % intervals"
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
            checkpoints = [
                (*_percent(over_seeds(shares(group))), *_cost(group))
                for group in groups[name].values()
            ]
            for axis, column in zip(axes, (3, 4), strict=True):
                points = [(*row[:3], row[column]) for row in checkpoints if row[column] > 0]
                means, lows, highs, x = np.array(points).reshape(-1, 4).T
                axis.fill_between(x, lows, highs, color=colour, alpha=0.15, linewidth=0)
                axis.vlines(x, lows, highs, color=colour, alpha=0.4, linewidth=1)
                axis.plot(x, means, marker=shape, color=colour, markersize=4.5, linewidth=1.4)
            lines.append(axis.lines[-1])

        axes[0].set_ylabel(f"{_score(results)}, %")
        names = [sanitize_for_terminal(label) for label in layout.rows.values()]
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
