"""Tables of an evaluation, for the terminal, as Markdown and as JSON.

All policies are compared with the first one, problem by problem. Rows are not ranked and none is
omitted.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console, JustifyMethod
from rich.table import Table

from paint.core.errors import escape_markdown_cell
from paint.data.gold_answer_checks import SHOWN, GoldWarning
from paint.data.problems import LABELS
from paint.evaluation.intervals import Comparison, Interval, compare
from paint.evaluation.metrics import GradedSamples, by_label, compute_metrics
from paint.evaluation.store import StoreError

MOST_REASONS = 12
"""Maximum columns of reasons; a user's grader may give each sample a different one."""

ByPolicy = Mapping[str, Mapping[str, GradedSamples]]
"""Graded samples by policy and benchmark."""


@dataclass(frozen=True)
class Sheet:
    """A table: title, column names, and the cells of each row."""

    title: str
    columns: list[str]
    rows: list[list[str]]


def sheets(graded: ByPolicy) -> list[Sheet]:
    """Tables of Avg@k, the other metrics, and the paired differences to the first policy."""
    tables = tables_of(graded)
    names = list(dict.fromkeys(name for table in tables.values() for name in table))
    columns = [name for name in names if name != "macro"] + ["macro"] * ("macro" in names)

    ks = {part.correct.shape[1] for benchmarks in graded.values() for part in benchmarks.values()}
    k = str(ks.pop()) if len(ks) == 1 else "k"

    parts = [part for _, _, part in _parts(graded)]
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
    tries = sorted(set.intersection(*(_tries(row) for _, _, row in rows)) - {1}) or [1]
    metric_rows = [row for _, _, row in rows]
    scores = {
        **({f"Avg@{k}": "avg_at_k"} if has_rewards else {}),
        f"maj@{k}": "maj_at_k",
        **{f"pass@{j}": f"pass_at_{j}" if j > 1 else "avg_at_k" for j in tries},
        f"lenient Avg@{k}": "lenient_avg_at_k",
    }
    texts = {
        "truncated": "truncated_frac",
        "no answer": "unboxed_frac",
        "looping": "repetitive_frac",
    }
    scores, texts = (
        {head: f for head, f in heads.items() if all(f in row for row in metric_rows)}
        for heads in (scores, texts)
    )
    score_rows = [[p, name, *(row[f].points() for f in scores.values())] for p, name, row in rows]
    text_rows = [
        [p, name, _tokens(row), *(row[f].points() for f in texts.values())] for p, name, row in rows
    ]
    tables_made = [
        Sheet(f"{measure}, in {unit} with 95 % interval", ["", *columns], averages),
        Sheet("Other scores of the same samples", ["", "", *scores], score_rows),
        Sheet("Completions", ["", "", "tokens an answer", *texts], text_rows),
        *_reasons(graded),
        *_by_hand(graded),
        *_gold_warnings(graded),
        *(sheet for label in LABELS for sheet in _labelled(graded, label, k)),
    ]

    pairs = [[policy, name, *_pair(comparison)] for policy, name, comparison in comparisons(graded)]
    if pairs:
        title = f"{measure} less that of {next(iter(graded))}, on the same problems"
        heads = ["", "", "difference", "p", "detectable difference"]
        tables_made.append(Sheet(title, heads, pairs))
    return tables_made


def tables_of(graded: ByPolicy) -> dict[str, dict[str, dict[str, Interval]]]:
    """Metrics of every policy; macro averages are over the benchmarks that all have."""
    shared = [
        name
        for name in next(iter(graded.values()))
        if all(name in part for part in graded.values())
    ]
    return {policy: compute_metrics(benchmarks, shared) for policy, benchmarks in graded.items()}


def comparisons(graded: ByPolicy) -> Iterator[tuple[str, str, Comparison]]:
    """Yield policy, benchmark (or "macro") and the paired difference to the first policy.

    Rewards outside of [0, 1] are not compared.

    Raises:
        StoreError: two policies have different problems in one benchmark.
    """
    (first, base), *others = graded.items()
    if not all(part.are_shares for _, _, part in _parts(graded)):
        return
    shared = [name for name in base if all(name in benchmarks for _, benchmarks in others)]
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
    parts = []
    for sheet in tables:
        lines = [
            f"**{escape_markdown_cell(sheet.title)}**",
            "",
            _line(sheet.columns),
            _line(["---:" if c else "---" for c in sheet.columns]),
        ]
        parts.append("\n".join([*lines, *map(_line, sheet.rows)]))
    return "\n\n".join(parts) + "\n"


def summary_json(graded: ByPolicy) -> dict[str, Any]:
    """All metrics and comparisons, unrounded.

    Infinite ends of intervals and unknown detectable differences are null.
    """

    def of_each(value: Callable[[GradedSamples], Any]) -> dict[str, dict[str, Any]]:
        return {
            policy: {name: value(part) for name, part in benchmarks.items()}
            for policy, benchmarks in graded.items()
        }

    return {
        "samples": of_each(lambda part: part.correct.shape[1]),
        "problems": of_each(lambda part: len(part.problems)),
        "reasons": of_each(lambda part: dict(part.reasons)),
        "by_hand": of_each(lambda part: dict(part.overridden)),
        "labels": of_each(_labels_table),
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


def _labels_table(part: GradedSamples) -> dict[str, dict[str, dict[str, Any]]]:
    return {
        label: {
            value: {"problems": n, "avg_at_k": interval.table()}
            for value, (n, interval) in by_label(part, label).items()
        }
        for label in part.labels
    }


def _tries(row: Mapping[str, Interval]) -> set[int]:
    """The j of every pass@j in a row; pass@1 is Avg@k."""
    return {1} | {int(name.removeprefix("pass_at_")) for name in row if name.startswith("pass_at_")}


def _reasons(graded: ByPolicy) -> list[Sheet]:
    """Counts of the most common reasons of verdicts."""
    parts = _parts(graded)
    counts = sum((Counter(part.reasons) for _, _, part in parts), Counter[str]())
    reasons = [reason for reason, _ in counts.most_common(MOST_REASONS)]
    rows = [
        [policy, name, *(f"{part.reasons.get(reason, 0):,}" for reason in reasons)]
        for policy, name, part in parts
    ]
    return [Sheet("Reasons of the verdicts", ["", "", *reasons], rows)] if reasons else []


def _by_hand(graded: ByPolicy) -> list[Sheet]:
    """Counts of manual verdicts, by reason."""
    rows = [
        [policy, name, reason, *(f"{counts[verdict]:,}" for verdict in ("right", "wrong"))]
        for policy, name, part in _parts(graded)
        for reason, counts in part.overridden.items()
    ]
    return [Sheet("Manual verdicts", ["", "", "reason", "right", "wrong"], rows)] if rows else []


def _gold_warnings(graded: ByPolicy) -> list[Sheet]:
    """The first gold answers with warnings."""
    rows = [
        [name, warning.problem.id, warning.answer, warning.why]
        for name, found in _warnings_by_benchmark(graded).items()
        for warning in found
    ]
    left_out = [["", "", "", f"and {len(rows) - SHOWN} more: summary.json"]] * (len(rows) > SHOWN)
    columns = ["", "problem", "gold answer", "why"]
    return [Sheet("Gold answers to check", columns, rows[:SHOWN] + left_out)] if rows else []


def _warnings_by_benchmark(graded: ByPolicy) -> dict[str, Sequence[GoldWarning]]:
    return {name: part.gold_warnings for _, name, part in _parts(graded) if part.gold_warnings}


def _labelled(graded: ByPolicy, label: str, k: str) -> list[Sheet]:
    """Avg@k of the problems of each level or subject."""
    groups = {(policy, name): by_label(part, label) for policy, name, part in _parts(graded)}
    kinds = {(name, value): n for (_, name), by in groups.items() for value, (n, _) in by.items()}
    rows = []
    for (name, value), n in kinds.items():
        of_all = [groups.get((policy, name), {}).get(value) for policy in graded]
        scores = [found[1].points() if found else "" for found in of_all]
        rows.append([name, value or "none", f"{n:,}", *scores])
    return [Sheet(f"Avg@{k} by {label}", ["", label, "problems", *graded], rows)] if rows else []


def _parts(graded: ByPolicy) -> list[tuple[str, str, GradedSamples]]:
    return [
        (policy, name, part)
        for policy, benchmarks in graded.items()
        for name, part in benchmarks.items()
    ]


def _tokens(row: Mapping[str, Interval]) -> str:
    tokens = row["completion_tokens"]
    return f"{tokens.mean:,.0f} [{_rounded(tokens.low)}, {_rounded(tokens.high)}]"


def _pair(comparison: Comparison) -> list[str]:
    detectable = "" if comparison.detectable is None else f"{100 * comparison.detectable:.1f}"
    return [comparison.difference.points(sign=True), f"{comparison.p_value:.4f}", detectable]


def _rounded(value: float) -> str:
    return f"{value:,.0f}" if math.isfinite(value) else str(value)


def _line(cells: list[str]) -> str:
    return "| " + " | ".join(map(escape_markdown_cell, cells)) + " |"
