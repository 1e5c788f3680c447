"""Rows and tables of an experiment, made from its results.

The main results are those of the last checkpoints. The table of best checkpoints is biased by their
selection, and labelled so.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

import numpy as np

from paint.config.recipe import differences, from_table
from paint.config.run_folder import RunError
from paint.config.schema import Config
from paint.core.demo_files import NAME
from paint.core.display import Display
from paint.evaluation.frame import (
    Chart,
    Measurement,
    Report,
    Table,
    Unit,
    interval_note,
    select_rows,
    table_of,
    to_measurement,
    to_terminal,
    write_report,
)
from paint.evaluation.intervals import Interval, compare_seeds, holm, over_seeds, p_value_over_seeds
from paint.lab.checkpoint_results import (
    BASE,
    BySteps,
    ComparisonScore,
    Results,
    avg_name,
    benchmark_name,
    by_run,
    by_step,
    control_shares,
    evaluation_name,
    score_of,
    shares,
)
from paint.lab.repaired import repaired_table

RESULTS = "results"  # name of the files

CONTROL = "control"  # metric: the gain on problems where nothing can be gained

LEAD = "lead"  # metric: how far the last checkpoint of the reference run is ahead

# Columns of a run's gain and cost: head and unit.
COSTS: dict[str, tuple[str, Unit]] = {
    "gain": ("gain over base", "points"),
    CONTROL: ("gain on the control", "points"),
    "rollout_tokens": ("rollout tokens", "tokens"),
    "seconds": ("training time", "time"),
}


@dataclass(frozen=True)
class Layout:
    """What tables show. All checkpoints and settings are compared with the last run's."""

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


def publish(layout: Layout, results: Results, folder: Path, display: Display) -> None:
    """Print the tables, and write results.json and results.md."""
    report = comparison_report(layout, results)
    repaired = repaired_table(layout.last, results, folder)
    if repaired is not None:
        report.tables.append(repaired)
    to_terminal(report.tables, display.console)
    display.notes(report.lines)
    write_report(folder, RESULTS, report, RunError)
    display.note(
        f"in {folder}: {RESULTS}.md, made from results.jsonl; page with charts: `paint show "
        f"{folder}`"
    )


def title_of(config: Config, benchmark: str) -> str:
    """Return the model, or the demo if model, problems and benchmark are its own."""
    if config.model.path != NAME:
        return config.model.path
    return "The demo" if config.data.path == benchmark == NAME else "The demo's model"


def comparison_report(layout: Layout, results: Results) -> Report:
    """Return the rows, tables, charts and sentences of an experiment."""
    rows = comparison_rows(layout, results)
    tables = comparison_tables(layout, rows, results)
    if not all(result.is_last for result in results):
        rows += step_rows(layout, results)
        tables += step_tables(layout, rows, results)
    score = score_of(results)
    levels = Chart(score.name, score.metric, score.unit, evaluation_name(results))
    same = "on the same seeds and problems"
    pairs = Chart("Differences", score.metric, "points", same, is_difference=True)
    lines = [describe_best(layout, results)] if layout.is_sweep and len(layout.names) > 1 else []
    for name in layout.names:
        lines += describe_control(name, rows, score)
    return Report(rows, tables, [levels, pairs], lines)


def describe_control(name: str, rows: Sequence[Measurement], score: ComparisonScore) -> list[str]:
    """Return a sentence on a run's score and its gain on the control; [] without a control."""
    last = {"step": None, "p": None}
    lines = []
    for control in select_rows(rows, policy=name, metric=CONTROL, against=BASE, **last):
        [before] = select_rows(rows, policy=BASE, metric=score.metric, **last)
        [after] = select_rows(rows, policy=name, metric=score.metric, **last)
        lines.append(
            f"{name}: {before.text(score.unit)} {score.unit} before training, "
            f"{after.text(score.unit)} after it; on the control, where nothing can be gained, "
            f"{control.text('points')} {score.points}"
        )
    return lines


def describe_best(layout: Layout, results: Results) -> str:
    """Name the row with the highest score of at least two, and warn that it was chosen by it."""
    last, score = by_run(results), score_of(results)
    means = {name: float(score.values(last[name]).mean()) for name in layout.names}
    # The sort is stable: of equal rows the first stays first.
    best, second, *_ = sorted(means, key=lambda name: -means[name])
    if means[best] == means[second]:
        equal = [name for name in means if means[name] == means[best]]
        return (
            f"No row is best: {', '.join(equal)} have the same {score.name}, "
            f"{100 * means[best]:.1f}; take more problems or samples"
        )
    if score.is_compared:
        gap = compare_seeds(score.values(last[second]), score.values(last[best]))
        lead = gap.points(sign=True)
        verdict = "; 0 is in the interval, so the two are not told apart" if gap.low <= 0 else ""
    else:
        lead = f"{100 * (means[best] - means[second]):+.1f}"
        verdict = "; rewards beyond 0 and 1 are not compared"
    return (
        f"Best {score.name}: {best}, {lead} {score.points} over "
        f"{second}{verdict}. It was chosen on these problems, as the best of "
        f"{len(means)} rows, so its score is optimistic: evaluate it on other problems (`paint "
        f"eval`), and report that"
    )


def comparison_rows(layout: Layout, results: Results) -> list[Measurement]:
    """Return score, cost, gain, paired differences and score by seed of the last checkpoints."""
    last, score = by_run(results), score_of(results)
    rows: list[Measurement] = []
    for name in layout.rows:
        rows += _rows_of(name, last[name], last[BASE], score)
    for name in layout.rows:
        for result in last[name]:
            mean = float(score.values([result]).mean())
            group = f"seed {result.seed}"
            rows += to_measurement(name, benchmark_name(results), score.metric, mean, group=group)
    return rows + (_pair_rows(layout, last, score) if score.is_compared else [])


def _rows_of(
    name: str, group: Results, base: Results, score: ComparisonScore, step: int | None = None
) -> list[Measurement]:
    benchmark, n = benchmark_name(group), len(group[0].problems)
    # Over problems and seeds: with one seed, over problems alone.
    values: dict[str, Interval | float] = {
        score.metric: over_seeds(score.values(group), bounds=score.bounds)
    }
    if step is None:
        values["avg_at_k"] = over_seeds(shares(group))
        tried = group[0].protocol["samples"]
        # pass@k of k samples is whether one of them is right.
        values[f"pass_at_{tried}"] = over_seeds((shares(group) > 0).astype(float))
        lengths = [result.answer_tokens for result in group]
        values["completion_tokens"] = float(np.mean(lengths))
    rows: list[Measurement] = []
    if group[0].run != BASE:
        values["rollout_tokens"] = float(np.mean([result.rollout_tokens for result in group]))
        values["seconds"] = float(np.mean([result.seconds for result in group]))
        if score.is_compared:
            gain = compare_seeds(score.values(base), score.values(group))
            rows += to_measurement(name, benchmark, score.metric, gain, n, step=step, against=BASE)
            before, after = control_shares(base), control_shares(group)
            # Where rewards are never 1, no sample of the control is right.
            if score.has_right and before is not None and after is not None:
                gain, count = compare_seeds(before, after), before.shape[1]
                rows += to_measurement(
                    name, benchmark, CONTROL, gain, count, step=step, against=BASE
                )
    for metric, value in values.items():
        rows += to_measurement(name, benchmark, metric, value, n, step=step)
    return rows


def _pair_rows(
    layout: Layout, last: Mapping[str, Results], score: ComparisonScore
) -> list[Measurement]:
    """Return the differences of the report, with p-values corrected for all of them."""
    # A single run is compared with the base model.
    pairs = [(other, layout.last) for other in layout.names[:-1] or [BASE]]
    if layout.all_pairs:
        pairs = list(combinations(layout.names, 2))
    # Holm's correction is for all pairs of the table, whichever of them is looked at.
    values = {name: score.values(group) for name, group in last.items()}
    p_values = [p_value_over_seeds(values[before], values[after]) for before, after in pairs]
    rows = []
    for (before, after), p, corrected in zip(pairs, p_values, holm(p_values), strict=True):
        gap = compare_seeds(values[before], values[after])
        benchmark, n = benchmark_name(last[after]), len(last[after][0].problems)
        rows += to_measurement(
            after, benchmark, score.metric, gap, n, against=before, p=p, corrected_p=corrected
        )
    return rows


def step_rows(layout: Layout, results: Results) -> list[Measurement]:
    """Return the rows of every checkpoint, and how far the last one of the last run is ahead."""
    groups, score, benchmark = by_step(results), score_of(results), benchmark_name(results)
    # The untrained model has one checkpoint, at step 0.
    [base] = groups[BASE].values()
    end = groups[layout.last][max(groups[layout.last])]
    rows: list[Measurement] = []
    for name in layout.rows:
        for step, group in groups[name].items():
            rows += _rows_of(name, group, base, score, step)
            if group is not end and score.is_compared:
                # Labelled by the checkpoint that is compared, so that it stands in its line.
                lead = compare_seeds(score.values(group), score.values(end))
                rows += to_measurement(
                    layout.last, benchmark, LEAD, lead, step=step, group=name, against=name
                )
    return rows


def comparison_tables(layout: Layout, rows: list[Measurement], results: Results) -> list[Table]:
    """Return the tables: score, gain and cost, paired differences, settings, scores by seed."""
    score, tried = score_of(results), results[0].protocol["samples"]
    columns: dict[str, tuple[str, Unit]] = {score.metric: (score.name, score.unit)}
    if score.has_right:
        columns["avg_at_k"] = (avg_name(results), "%")
        columns[f"pass_at_{tried}"] = (f"pass@{tried}", "%")
    note = interval_note(select_rows(rows, metric=score.metric))
    main = table_of(
        [*select_rows(rows), *select_rows(rows, against=BASE, p=None)],
        f"{layout.title}: {score.name} on {evaluation_name(results)}, in {score.unit}{note}",
        {**columns, **COSTS, "completion_tokens": ("tokens an answer", "tokens")},
        column_of=_column,
    )
    last = by_run(results)
    # Those of the first seed: others differ in train.seed alone.
    configs = {name: from_table(last[name][0].config) for name in layout.names}
    tables = [main]
    compared = [row for row in select_rows(rows, against=...) if row.p is not None]
    if compared:
        cells = []
        for row in compared:
            pair = f"{row.policy} less {row.against}"
            cells.append([pair, row.text("points"), f"{row.p:.4f}", f"{row.corrected_p:.4f}"])
        title = (
            f"Differences of {score.name} on the same seeds and problems, in {score.points} with "
            f"95 % interval; p without and with Holm's correction for {len(compared)}"
        )
        tables.append(Table(title, ["", "difference", "p", "corrected p"], cells))
    settings = []
    for name, config in configs.items():
        settings += [[name, line] for line in differences(configs[layout.last], config)]
    title = f"Settings of {layout.last} -> those of the others where they differ"
    tables.append(Table(title, ["", "setting"], settings))
    seeds = [row for row in select_rows(rows, group=...) if row.group.startswith("seed ")]
    by_seed: dict[str, tuple[str, Unit]] = {row.group: (row.group, score.unit) for row in seeds}
    if len(by_seed) > 1:
        title = f"{score.name} of each seed, in {score.unit}"
        tables.append(table_of(seeds, title, by_seed, column_of=lambda row: row.group))
    return [table for table in tables if table.rows]


def _column(row: Measurement) -> str:
    if row.against == BASE and row.metric not in (CONTROL, LEAD):
        return "gain"
    return row.metric


def step_tables(layout: Layout, rows: list[Measurement], results: Results) -> list[Table]:
    """Return tables of score and cost by step, and of best checkpoints."""
    groups, score = by_step(results), score_of(results)
    by_checkpoint = [row for row in rows if row.step is not None]
    columns: dict[str, tuple[str, Unit]] = {score.metric: (score.name, score.unit), **COSTS}
    columns[LEAD] = (f"last of {layout.last} less this", "points")
    by_step_table = table_of(
        by_checkpoint,
        f"{score.name} by step, in {score.unit}{interval_note(by_checkpoint)}",
        columns,
        labels=lambda row: (row.group or row.policy, f"step {row.step}"),
        column_of=_column,
    )
    return [by_step_table, _best_checkpoints(layout, groups, score)]


def _best_checkpoints(layout: Layout, groups: BySteps, score: ComparisonScore) -> Table:
    """Apply the paper's rule ("best checkpoints within 100 steps", Main Results) to every seed."""
    # Of equal checkpoints argmax takes the first.
    rows, counts = [], set()
    for name in layout.names:
        means = np.array([score.values(group).mean(axis=1) for group in groups[name].values()])
        steps = list(groups[name])
        chosen = [str(steps[row]) for row in means.argmax(axis=0)]
        last = f"{100 * means[-1].mean():.1f}"
        best = f"{100 * means.max(axis=0).mean():.1f}"
        rows.append([name, last, best, ", ".join(chosen)])
        counts.add(len(means))
    title = (
        f"Not a result: {score.name} of each seed's best checkpoint, biased upwards, since the "
        f"same samples select it (the paper's rule)"
    )
    several = " to ".join(map(str, sorted({min(counts), max(counts)})))
    return Table(title, ["", "last", f"best of {several}", "its step, by seed"], rows)
