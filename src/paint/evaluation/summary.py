"""The report of an evaluation: rows and tables of graded samples.

All policies are compared with the first one, problem by problem; none is ranked or omitted.
"""

from collections import Counter
from collections.abc import Mapping, Sequence

from paint.config.metric_records import METRICS
from paint.evaluation.frame import (
    Measurement,
    Report,
    Table,
    Unit,
    interval_note,
    select_rows,
    table_of,
    to_measurement,
)
from paint.evaluation.intervals import compare_paired, is_comparable, with_value
from paint.evaluation.metrics import GradedSamples, are_shares, compute_metrics, per_problem
from paint.evaluation.store import StoreError

MOST_REASONS = 12
"""Maximum columns of reasons; a user's grader may give each sample a different one."""

SUMMARY = "summary"  # name of the files
MACRO = "macro"  # the benchmark that stands for the mean over several

ByPolicy = Mapping[str, Mapping[str, GradedSamples]]  # graded samples by policy and benchmark


def summary_report(graded: ByPolicy) -> Report:
    """Return the rows and tables of an evaluation.

    Raises StoreError for policies with different problems in a benchmark.
    """
    rows = summary_rows(graded)
    ks = {part.correct.shape[1] for part in _parts(graded)}
    k = str(ks.pop()) if len(ks) == 1 else "k"
    metric, score, unit = main_metric(graded), f"Avg@{k}", "%"
    if metric == "reward":
        # A reward need not be a share: hundredths of it, not percent.
        score, unit = "Mean reward", "hundredths"
    note = interval_note(select_rows(rows, metric=metric)) + _ungraded_note(graded)
    average = table_of(
        select_rows(rows, metric=metric),
        f"{score}, in {unit}{note}",
        {name: (name, "%") for name in dict.fromkeys(row.benchmark for row in rows)},
        column_of=lambda row: row.benchmark,
    )
    others = select_rows(rows)
    columns = _score_columns(others, k, are_verdicts=all(p.has_verdicts for p in _parts(graded)))
    # What a grader reports beside its rewards, under its own name where the package has none.
    for name in dict.fromkeys(name for part in _parts(graded) for name in part.metrics):
        columns.setdefault(name, (name, "%"))
    # Nothing is said by a metric that is 0 everywhere; but that none is right is a result.
    results = ("avg_at_", "maj_at_", "pass_at_")
    used = {row.metric for row in others if row.mean or row.metric.startswith(results)}
    others = [row for row in others if row.metric in used]
    tables = [
        average,
        table_of(others, "Other metrics of the same samples", columns, labels=_both),
        _reasons(rows),
        _differences(rows, score),
    ]
    return Report(rows, [table for table in tables if table.rows])


def main_metric(graded: ByPolicy) -> str:
    """Return what policies are compared by: the mean reward of numbers, or else Avg@k."""
    has_rewards = all(part.rewards is not None for part in _parts(graded))
    return "reward" if has_rewards else "avg_at_k"


def summary_rows(graded: ByPolicy) -> list[Measurement]:
    """Return metrics, counts of reasons, and differences to the first policy.

    Where no reward is 1, Avg@k, maj@k and pass@k are 0 whatever was measured, and left out.
    """
    rows: list[Measurement] = []
    is_reward = main_metric(graded) == "reward"
    has_right = any(part.has_right for part in _parts(graded)) or not is_reward
    shared = shared_benchmarks(graded)
    for policy, benchmarks in graded.items():
        for name, part in benchmarks.items():
            rows += to_measurement(policy, name, "samples", part.correct.shape[1])
            if part.rewards is not None:
                rows += to_measurement(policy, name, "grader_failures", part.failures)
            for reason, count in part.reasons.items():
                rows += to_measurement(policy, name, "reason", count, group=reason)
        for name, metrics in compute_metrics(benchmarks, shared).items():
            # Problems that have a value; the mean over several benchmarks has no such number.
            counts: dict[str, int] = {}
            if name in benchmarks:
                for metric, column in per_problem(benchmarks[name]).items():
                    counts[metric] = len(with_value(column))
            for metric, interval in metrics.items():
                is_of_right = metric in ("avg_at_k", "maj_at_k") or metric.startswith("pass_at_")
                if is_of_right and not has_right:
                    continue
                rows += to_measurement(policy, name, metric, interval, counts.get(metric))
    return rows + difference_rows(graded)


def difference_rows(graded: ByPolicy) -> list[Measurement]:
    """Return the paired differences to the first policy, of each benchmark and of their mean.

    Rewards outside of [0, 1] are not compared, and different problems are refused (StoreError).
    """
    (first, base), *others = graded.items()
    rows: list[Measurement] = []
    # The interval of a difference is bounded by -1 and 1.
    if not all(are_shares(part.scores) for part in _parts(graded)):
        return rows
    metric = main_metric(graded)
    shared = shared_benchmarks(graded)
    for policy, benchmarks in others:
        compared = {name: [name] for name in base if name in benchmarks}
        if len(shared) > 1:
            compared[MACRO] = shared
        for name, parts in compared.items():
            for part in parts:
                if base[part].problems != benchmarks[part].problems:
                    raise StoreError(
                        f"{part} has other problems or gold answers for {policy} than for "
                        f"{first}; evaluate both on the same problems"
                    )
            if not all(is_comparable(base[p].scores, benchmarks[p].scores) for p in parts):
                continue
            found = compare_paired(
                [base[part].scores for part in parts], [benchmarks[part].scores for part in parts]
            )
            shown = {"against": first, "p": found.p_value, "detectable": found.detectable}
            n = found.problems
            rows += to_measurement(policy, name, metric, found.difference, n, **shown)
    return rows


def shared_benchmarks(graded: ByPolicy) -> list[str]:
    first, *others = graded.values()
    return [name for name in first if all(name in other for other in others)]


def _both(row: Measurement) -> tuple[str, ...]:
    return row.policy, row.benchmark


def _score_columns(
    rows: Sequence[Measurement], k: str, *, are_verdicts: bool
) -> dict[str, tuple[str, Unit]]:
    """Columns of the other metrics; a table leaves out those that no row has.

    Rewards that are all 1 or 0 have Avg@k as their mean. Of one sample, the vote and the best are
    the sample itself.
    """
    columns: dict[str, tuple[str, Unit]] = {}
    names = list(dict.fromkeys(row.metric for row in rows))
    for name in names:
        if name.startswith("rewards/"):  # the reward by one of several graders
            columns[name] = (name.removeprefix("rewards/"), "%")
    if "reward" in names and not are_verdicts:
        columns["avg_at_k"] = (f"Avg@{k}", "%")
    if k != "1":
        columns["maj_at_k"] = (f"maj@{k}", "%")
        tries = [int(n.removeprefix("pass_at_")) for n in names if n.startswith("pass_at_")]
        for j in sorted(tries):
            columns[f"pass_at_{j}"] = (f"pass@{j}", "%")
    for metric in METRICS:
        if metric.column:
            columns[metric.name] = (metric.column, metric.column_unit)
    return columns


def _reasons(rows: Sequence[Measurement]) -> Table:
    counted = select_rows(rows, metric="reason", group=...)
    totals = Counter[str]()
    for row in counted:
        totals[row.group] += round(row.mean)
    if len(totals) == 1:
        counted = []
    return table_of(
        counted,
        "Reasons of the verdicts",
        {reason: (reason, "count") for reason, _ in totals.most_common(MOST_REASONS)},
        labels=_both,
        column_of=lambda row: row.group,
    )


def _differences(rows: Sequence[Measurement], score: str) -> Table:
    differences = [row for row in select_rows(rows, against=...) if row.against]
    first, body = "", []
    for row in differences:
        first = row.against
        p = "" if row.p is None else f"{row.p:.4f}"
        detectable = "" if row.detectable is None else f"{100 * row.detectable:.1f}"
        body.append([row.policy, row.benchmark, row.text("points"), p, detectable])
    title = f"{score} less that of {first}, on the same problems{interval_note(differences)}"
    heads = ["", "", "difference", "p", "detectable difference"]
    return Table(title, heads, body)


def _ungraded_note(graded: ByPolicy) -> str:
    asked: set[tuple[str, str]] = set()
    left_out: set[tuple[str, str]] = set()
    for benchmarks in graded.values():
        for name, part in benchmarks.items():
            asked |= {(name, problem) for problem in part.problems}
            left_out |= {(name, problem) for problem in part.ungraded}
    return f"; {len(left_out)} of {len(asked)} problems have no reward" if left_out else ""


def _parts(graded: ByPolicy) -> list[GradedSamples]:
    return [part for benchmarks in graded.values() for part in benchmarks.values()]
