"""Tables of an evaluation, for the terminal, as Markdown and as JSON.

All policies are compared with the first one, problem by problem; none is ranked or omitted.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from rich.console import Console, JustifyMethod
from rich.table import Table

from paint.core import storage
from paint.core.errors import escape_markdown_cell
from paint.data.gold_answer_checks import SHOWN, GoldWarning
from paint.data.problems import LABELS
from paint.evaluation.intervals import Comparison, Interval, compare
from paint.evaluation.metrics import GradedSamples, by_label, compute_metrics
from paint.evaluation.store import StoreError

MOST_REASONS = 12
"""Maximum columns of reasons; a user's grader may give each sample a different one."""

FEW_SAMPLES = 100
"""With fewer samples of each policy and benchmark, a terminal shows the main tables only."""

TABLES = ".tables.json"  # end of the name of a file of tables for `paint show`
ByPolicy = Mapping[str, Mapping[str, GradedSamples]]  # graded samples by policy and benchmark


@dataclass(frozen=True)
class Sheet:
    """A table; a terminal shows the main ones for few samples, too."""

    title: str
    columns: list[str]
    rows: list[list[str]]
    is_main: bool = False


@dataclass(frozen=True)
class Chart:
    """Intervals to be drawn, one a row."""

    title: str
    rows: Mapping[str, Interval]
    unit: Literal["%", "points", ""] = ""  # of shares: "%", or "points" with a sign
    note: str = ""  # what the values are


def sheets(graded: ByPolicy) -> list[Sheet]:
    """Tables of Avg@k, the other metrics, and the paired differences to the first policy."""
    tables = tables_of(graded)
    names = list(dict.fromkeys(name for table in tables.values() for name in table))
    columns = [name for name in names if name != "macro"] + ["macro"] * ("macro" in names)

    parts = [part for _, _, part in _parts(graded)]
    ks = {part.correct.shape[1] for part in parts}
    k = str(ks.pop()) if len(ks) == 1 else "k"
    has_rewards = all(part.rewards is not None for part in parts)
    measure, metric = ("Mean reward", "reward") if has_rewards else (f"Avg@{k}", "avg_at_k")
    unit = "hundredths" if has_rewards else "%"

    averages = [
        [policy, *(table[name][metric].points() if name in table else "" for name in columns)]
        for policy, table in tables.items()
    ]
    rows = [
        (policy, name, table[name])
        for policy, table in tables.items()
        for name in columns
        if name in table
    ]
    shared = set.intersection(*(set(row) for _, _, row in rows))
    tries = sorted(int(f.removeprefix("pass_at_")) for f in shared if f.startswith("pass_at_"))
    scores = {
        **({f"Avg@{k}": "avg_at_k"} if has_rewards else {}),
        f"maj@{k}": "maj_at_k",
        **({f"pass@{j}": f"pass_at_{j}" for j in tries} or {"pass@1": "avg_at_k"}),
        f"lenient Avg@{k}": "lenient_avg_at_k",
    }
    texts = {
        "truncated": "truncated_frac",
        "no answer": "unboxed_frac",
        "looping": "repetitive_frac",
    }
    scores, texts = (
        {head: f for head, f in heads.items() if f in shared} for heads in (scores, texts)
    )
    score_rows = [[p, name, *(row[f].points() for f in scores.values())] for p, name, row in rows]
    text_rows = [
        [p, name, row["completion_tokens"].text(",.0f"), *(row[f].points() for f in texts.values())]
        for p, name, row in rows
    ]
    made = [
        Sheet(f"{measure}, in {unit} with 95 % interval", ["", *columns], averages, is_main=True),
        Sheet("Other scores of the same samples", ["", "", *scores], score_rows),
        Sheet("Completions", ["", "", "tokens an answer", *texts], text_rows),
        _reasons(graded),
        _failures(graded),
        _gold_warnings(graded),
        *(_labelled(graded, label, k) for label in LABELS),
        _differences(graded, measure),
    ]
    return [sheet for sheet in made if sheet.rows]


def tables_of(graded: ByPolicy) -> dict[str, dict[str, dict[str, Interval]]]:
    """Metrics of every policy; macro averages are over the benchmarks that all have."""
    shared = _shared(graded)
    return {policy: compute_metrics(benchmarks, shared) for policy, benchmarks in graded.items()}


def comparisons(graded: ByPolicy) -> Iterator[tuple[str, str, Comparison]]:
    """Yield policy, benchmark (or "macro") and the paired difference to the first policy.

    Rewards outside of [0, 1] are not compared, and different problems are refused (StoreError).
    """
    (first, base), *others = graded.items()
    if not all(part.are_shares for _, _, part in _parts(graded)):
        return
    shared = _shared(graded)
    for policy, benchmarks in others:
        for name in (name for name in base if name in benchmarks):
            if base[name].problems != benchmarks[name].problems:
                raise StoreError(
                    f"{name} has other problems or gold answers for {policy} than for {first}; "
                    f"evaluate both on the same problems"
                )
            yield policy, name, compare([base[name].scores], [benchmarks[name].scores])
        if len(shared) > 1:
            before, after = ([part[name].scores for name in shared] for part in (base, benchmarks))
            yield policy, "macro", compare(before, after)


def worth_showing(tables: Sequence[Sheet], graded: ByPolicy) -> list[Sheet]:
    """The tables that a terminal shows: of few samples, the main ones; of more, all."""
    samples = max(part.correct.size for _, _, part in _parts(graded))
    return [table for table in tables if table.is_main or samples >= FEW_SAMPLES]


def print_sheets(console: Console, tables: Sequence[Sheet]) -> None:
    """Print tables on a terminal that interprets no markup (paint.core.display.Terminal)."""
    for sheet in tables:
        table = Table(title=sheet.title)
        for column in sheet.columns:
            justify: JustifyMethod = "right" if column else "left"
            table.add_column(column, justify=justify, no_wrap=not column)
        for row in sheet.rows:
            table.add_row(*row)
        console.print(table)


def markdown(tables: Sequence[Sheet]) -> str:
    """Format tables as Markdown."""

    def line(cells: Sequence[str]) -> str:
        return f"| {' | '.join(map(escape_markdown_cell, cells))} |"

    parts = []
    for sheet in tables:
        rule = ["---:" if column else "---" for column in sheet.columns]
        lines = map(line, [sheet.columns, rule, *sheet.rows])
        parts.append("\n".join([f"**{escape_markdown_cell(sheet.title)}**", "", *lines]))
    return "\n\n".join(parts) + "\n"


def write_tables(
    folder: Path,
    name: str,
    tables: Sequence[Sheet],
    charts: Sequence[Chart] = (),
    lines: Sequence[str] = (),
) -> None:
    """Write NAME.tables.json, from which `paint show` makes a page. Raises OSError."""
    drawn = [
        {**vars(chart), "rows": {label: found.table() for label, found in chart.rows.items()}}
        for chart in charts
    ]
    shown = {"lines": list(lines), "charts": drawn, "tables": [asdict(table) for table in tables]}
    storage.write_json(folder / f"{name}{TABLES}", shown)


def summary_json(graded: ByPolicy) -> dict[str, Any]:
    """All metrics and comparisons, unrounded; infinite ends of intervals are null."""

    def of_each(value: Callable[[GradedSamples], Any]) -> dict[str, dict[str, Any]]:
        return {
            policy: {name: value(part) for name, part in benchmarks.items()}
            for policy, benchmarks in graded.items()
        }

    return {
        "samples": of_each(lambda part: part.correct.shape[1]),
        "problems": of_each(lambda part: len(part.problems)),
        "reasons": of_each(lambda part: dict(part.reasons)),
        "grader_failures": of_each(lambda part: len(part.failures)),
        "labels": of_each(
            lambda part: {
                label: {
                    value: {"problems": n, "avg_at_k": interval.table()}
                    for value, (n, interval) in by_label(part, label).items()
                }
                for label in part.labels
            }
        ),
        "doubts": {
            name: [{"problem": d.problem.id, "answer": d.answer, "why": d.why} for d in found]
            for name, found in _warnings_by_benchmark(graded).items()
        },
        "figures": {
            policy: {
                name: {metric: interval.table() for metric, interval in row.items()}
                for name, row in table.items()
            }
            for policy, table in tables_of(graded).items()
        },
        "compared_with": next(iter(graded)),
        "comparisons": [
            {
                "policy": policy,
                "benchmark": name,
                "difference": c.difference.table(),
                "p_value": c.p_value,
                "detectable": c.detectable,
            }
            for policy, name, c in comparisons(graded)
        ],
    }


def _reasons(graded: ByPolicy) -> Sheet:
    """Counts of the most common reasons of verdicts."""
    parts = _parts(graded)
    counts = sum((Counter(part.reasons) for _, _, part in parts), Counter[str]())
    reasons = [reason for reason, _ in counts.most_common(MOST_REASONS)]
    rows = [
        [policy, name, *(f"{part.reasons.get(reason, 0):,}" for reason in reasons)]
        for policy, name, part in parts
    ]
    return Sheet("Reasons of the verdicts", ["", "", *reasons], rows if reasons else [])


def _failures(graded: ByPolicy) -> Sheet:
    """Samples on which the grader failed, which count 0, and the first of them."""
    rows = [
        [policy, name, f"{len(part.failures):,}", *part.failures[0]]
        for policy, name, part in _parts(graded)
        if part.failures
    ]
    columns = ["", "", "samples", "first problem", "reason"]
    return Sheet("Failures of the grader", columns, rows, is_main=True)


def _gold_warnings(graded: ByPolicy) -> Sheet:
    """The first gold answers with warnings."""
    rows = [
        [name, warning.problem.id, warning.answer, warning.why]
        for name, found in _warnings_by_benchmark(graded).items()
        for warning in found
    ]
    left_out = [["", "", "", f"and {len(rows) - SHOWN} more: summary.json"]] * (len(rows) > SHOWN)
    columns = ["", "problem", "gold answer", "why"]
    return Sheet("Gold answers to check", columns, rows[:SHOWN] + left_out, is_main=True)


def _warnings_by_benchmark(graded: ByPolicy) -> dict[str, Sequence[GoldWarning]]:
    return {name: part.gold_warnings for _, name, part in _parts(graded) if part.gold_warnings}


def _labelled(graded: ByPolicy, label: str, k: str) -> Sheet:
    """Avg@k of the problems of each level or subject."""
    groups = {(policy, name): by_label(part, label) for policy, name, part in _parts(graded)}
    kinds = {(name, value): n for (_, name), by in groups.items() for value, (n, _) in by.items()}
    rows = []
    for (name, value), n in kinds.items():
        of_all = [groups.get((policy, name), {}).get(value) for policy in graded]
        scores = [found[1].points() if found else "" for found in of_all]
        rows.append([name, value or "none", f"{n:,}", *scores])
    return Sheet(f"Avg@{k} by {label}", ["", label, "problems", *graded], rows)


def _differences(graded: ByPolicy, measure: str) -> Sheet:
    """The paired differences to the first policy."""
    rows = []
    for policy, name, found in comparisons(graded):
        detectable = "" if found.detectable is None else f"{100 * found.detectable:.1f}"
        difference, p_value = found.difference.points(sign=True), f"{found.p_value:.4f}"
        rows.append([policy, name, difference, p_value, detectable])
    title = f"{measure} less that of {next(iter(graded))}, on the same problems"
    columns = ["", "", "difference", "p", "detectable difference"]
    return Sheet(title, columns, rows, is_main=True)


def _shared(graded: ByPolicy) -> list[str]:
    """The benchmarks that all policies have."""
    first, *others = graded.values()
    return [name for name in first if all(name in other for other in others)]


def _parts(graded: ByPolicy) -> list[tuple[str, str, GradedSamples]]:
    return [
        (policy, name, part)
        for policy, benchmarks in graded.items()
        for name, part in benchmarks.items()
    ]
