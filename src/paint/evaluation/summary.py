"""The report of an evaluation: rows and tables of graded samples.

All policies are compared with the first one, problem by problem; none is ranked or omitted.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from paint.evaluation.frame import (
    Measurement,
    Report,
    Table,
    Unit,
    select_rows,
    table_of,
    to_measurement,
)
from paint.evaluation.intervals import Comparison, compare_paired
from paint.evaluation.metrics import GradedSamples, are_shares, compute_metrics
from paint.evaluation.store import StoreError

MOST_REASONS = 12
"""Maximum columns of reasons; a user's grader may give each sample a different one."""

SUMMARY = "summary"  # name of the files
MACRO = "macro"  # the benchmark that stands for the mean over several

ByPolicy = Mapping[str, Mapping[str, GradedSamples]]  # graded samples by policy and benchmark


def summary_report(graded: ByPolicy) -> Report:
    """The rows and tables of an evaluation."""
    rows = summary_rows(graded)
    tables = summary_tables(rows, graded)
    return Report(rows, [table for table in tables if table.rows])


def summary_rows(graded: ByPolicy) -> list[Measurement]:
    """Metrics, counts of reasons, and differences to the first policy."""
    rows: list[Measurement] = []
    shared = shared_benchmarks(graded)
    for policy, benchmarks in graded.items():
        for name, metrics in compute_metrics(benchmarks, shared).items():
            n = len(benchmarks[name].problems) if name in benchmarks else None
            for metric, interval in metrics.items():
                rows += to_measurement(policy, name, metric, interval, n)
    for policy, name, part in _parts(graded):
        rows += to_measurement(policy, name, "samples", part.correct.shape[1])
        if part.rewards is not None:
            rows += to_measurement(policy, name, "grader_failures", part.failures)
        for reason, count in part.reasons.items():
            rows += to_measurement(policy, name, "reason", count, group=reason)
    return rows + difference_rows(graded)


def difference_rows(graded: ByPolicy) -> list[Measurement]:
    """The paired differences to the first policy."""
    first = next(iter(graded))
    metric = "reward" if _have_rewards(graded) else "avg_at_k"
    rows = []
    for policy, name, found in comparisons(graded):
        rows += to_measurement(
            policy,
            name,
            metric,
            found.difference,
            against=first,
            p=found.p_value,
            detectable=found.detectable,
        )
    return rows


def comparisons(graded: ByPolicy) -> Iterator[tuple[str, str, Comparison]]:
    """Yield policy, benchmark (or "macro") and the paired difference to the first policy.

    Rewards outside of [0, 1] are not compared, and different problems are refused (StoreError).
    """
    (first, base), *others = graded.items()
    if not all(are_shares(part.scores) for _, _, part in _parts(graded)):
        return
    shared = shared_benchmarks(graded)
    for policy, benchmarks in others:
        for name in base:
            if name not in benchmarks:
                continue
            if base[name].problems != benchmarks[name].problems:
                raise StoreError(
                    f"{name} has other problems or gold answers for {policy} than for {first}; "
                    f"evaluate both on the same problems"
                )
            yield policy, name, compare_paired([base[name].scores], [benchmarks[name].scores])
        if len(shared) > 1:
            before = [base[name].scores for name in shared]
            after = [benchmarks[name].scores for name in shared]
            yield policy, MACRO, compare_paired(before, after)


def summary_tables(rows: Sequence[Measurement], graded: ByPolicy) -> list[Table]:
    """Tables of Avg@k, the other metrics, and the paired differences to the first policy."""
    ks = {part.correct.shape[1] for _, _, part in _parts(graded)}
    k = str(ks.pop()) if len(ks) == 1 else "k"
    has_rewards = _have_rewards(graded)
    score, metric = ("Mean reward", "reward") if has_rewards else (f"Avg@{k}", "avg_at_k")
    unit = "hundredths" if has_rewards else "%"

    names = list(dict.fromkeys(row.benchmark for row in rows))
    if MACRO in names:
        names.remove(MACRO)
        names.append(MACRO)
    average = table_of(
        select_rows(rows, metric=metric),
        f"{score}, in {unit} with 95 % interval",
        {name: (name, "%") for name in names},
        column_of=lambda row: row.benchmark,
    )
    others = select_rows(rows)
    columns = _score_columns(others, k)
    return [
        average,
        table_of(others, "Other metrics of the same samples", columns, labels=_both),
        _reasons(rows),
        _differences(rows, score),
    ]


def shared_benchmarks(graded: ByPolicy) -> list[str]:
    """The benchmarks that all policies have."""
    first, *others = graded.values()
    benchmarks: list[str] = []
    for name in first:
        if all(name in other for other in others):
            benchmarks.append(name)
    return benchmarks


def _both(row: Measurement) -> tuple[str, ...]:
    return row.policy, row.benchmark


def _score_columns(rows: Sequence[Measurement], k: str) -> dict[str, tuple[str, Unit]]:
    """Columns of the other metrics; a table leaves out those that no row has."""
    columns: dict[str, tuple[str, Unit]] = {}
    names = list(dict.fromkeys(row.metric for row in rows))
    for name in names:
        if name.startswith("rewards/"):  # the reward by one of several graders
            columns[name] = (name.removeprefix("rewards/"), "%")
    if "reward" in names:
        columns["avg_at_k"] = (f"Avg@{k}", "%")
    columns["maj_at_k"] = (f"maj@{k}", "%")
    tries = [int(name.removeprefix("pass_at_")) for name in names if name.startswith("pass_at_")]
    for j in sorted(tries):
        columns[f"pass_at_{j}"] = (f"pass@{j}", "%")
    return columns | {
        "lenient_avg_at_k": (f"lenient Avg@{k}", "%"),
        "completion_tokens": ("tokens an answer", "tokens"),
        "truncated_frac": ("truncated", "%"),
        "unboxed_frac": ("no answer", "%"),
        "repetitive_frac": ("looping", "%"),
        "grader_failures": ("grader failures", "count"),
    }


def _reasons(rows: Sequence[Measurement]) -> Table:
    """Counts of the most common reasons of verdicts."""
    counted = select_rows(rows, metric="reason", group=...)
    totals = Counter[str]()
    for row in counted:
        totals[row.group] += round(row.mean)
    return table_of(
        counted,
        "Reasons of the verdicts",
        {reason: (reason, "count") for reason, _ in totals.most_common(MOST_REASONS)},
        labels=_both,
        column_of=lambda row: row.group,
    )


def _differences(rows: Sequence[Measurement], score: str) -> Table:
    """The paired differences to the first policy."""
    body = []
    first = ""
    for row in select_rows(rows, against=...):
        if row.against:
            first = row.against
            p = "" if row.p is None else f"{row.p:.4f}"
            detectable = "" if row.detectable is None else f"{100 * row.detectable:.1f}"
            body.append([row.policy, row.benchmark, row.text("points"), p, detectable])
    title = f"{score} less that of {first}, on the same problems"
    return Table(title, ["", "", "difference", "p", "detectable difference"], body)


def _have_rewards(graded: ByPolicy) -> bool:
    return all(part.rewards is not None for _, _, part in _parts(graded))


def _parts(graded: ByPolicy) -> list[tuple[str, str, GradedSamples]]:
    parts = []
    for policy, benchmarks in graded.items():
        for name, part in benchmarks.items():
            parts.append((policy, name, part))
    return parts
