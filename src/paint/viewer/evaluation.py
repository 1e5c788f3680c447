"""Page of evaluations: every sample with its verdict, and the policies side by side."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from paint.evaluation.grade import policy_names, stored_in
from paint.evaluation.graded import Graded, read_graded
from paint.evaluation.intervals import SHARE, bootstrap
from paint.evaluation.metrics import GradedSamples, pass_at_k
from paint.evaluation.store import Sample
from paint.evaluation.summary import summary_rows

TEXT_CHARACTERS = 6_000_000
"""Maximum characters of all samples on a page; longer samples lose their middle."""


def evaluation_data(targets: Sequence[Path]) -> dict[str, Any]:
    """The data of the page: all evaluations below some folders, with their stored grades.

    Raises:
        StoreError: a folder contains no evaluation, an evaluation is not graded, or two policies
            have different problems in one benchmark.
        CorruptFileError, FolderInUse: as `reopen_store`.
    """
    paths = stored_in(targets)
    by_policy: dict[str, dict[str, Graded]] = {}
    for path, policy in policy_names(paths).items():
        by_policy.setdefault(policy, {})[path.name] = read_graded(path)

    graded: dict[str, dict[str, GradedSamples]] = {}
    settings: dict[str, dict[str, Any]] = {}
    names: dict[str, None] = {}  # of the benchmarks, in the order in which they appear
    count = 0
    for policy, parts in by_policy.items():
        graded[policy], settings[policy] = {}, {}
        for name, part in parts.items():
            graded[policy][name] = part.graded
            settings[policy][name] = part.store.settings
            names[name] = None
            count += len(part.samples)
    max_characters = max(TEXT_CHARACTERS // max(count, 1), 400)
    return {
        "name": targets[0].resolve().name,
        "policies": list(by_policy),
        "rows": list(map(asdict, summary_rows(graded))),
        "pass": {policy: _pass_curves(parts) for policy, parts in graded.items()},
        "benchmarks": [benchmark_data(name, by_policy, max_characters) for name in names],
        "settings": settings,
    }


def _pass_curves(graded: Mapping[str, GradedSamples]) -> dict[str, list[dict[str, float | None]]]:
    """pass@j of each benchmark, for j from 1 to k."""
    curves = {}
    for name, part in graded.items():
        points = []
        for j in range(1, part.correct.shape[1] + 1):
            points.append(bootstrap([pass_at_k(part.correct, j)], bounds=SHARE).table())
        curves[name] = points
    return curves


def benchmark_data(
    name: str, by_policy: Mapping[str, Mapping[str, Graded]], max_characters: int
) -> dict[str, Any]:
    """The problems of a benchmark, with the samples of every policy that has it.

    Args:
        max_characters: maximum length of a sample's text; longer texts lose their middle.
    """
    having = {policy: parts[name] for policy, parts in by_policy.items() if name in parts}
    first = next(iter(having.values()))
    doubts: dict[str, str] = {}
    unparsed = set()
    for warning in first.graded.gold_warnings:
        doubts[warning.problem.id] = str(warning)
        if not warning.parses:
            unparsed.add(warning.problem.id)
    problems: dict[str, dict[str, Any]] = {}
    for problem in first.store.problems:
        problems[problem.id] = {
            "id": problem.id,
            "problem": problem.problem,
            "solution": problem.solution,
            "golds": list(problem.answers),
            "labels": dict(problem.labels),
            "doubt": doubts.get(problem.id),
            "never_parses": problem.id in unparsed,
            "answers": {},
        }
    for policy, part in having.items():
        for row, sample in zip(part.rows, part.samples, strict=True):
            if row["problem"] in problems:
                answers = problems[row["problem"]]["answers"].setdefault(policy, [])
                answers.append(_answer_data(row, sample, max_characters))
    return {"name": name, "k": first.graded.correct.shape[1], "problems": list(problems.values())}


def _answer_data(row: Mapping[str, Any], sample: Sample, max_characters: int) -> dict[str, Any]:
    """One sample with its verdict."""
    return {
        **row["strict"],  # correct, answer and reason
        "lenient": row.get("lenient", row["strict"])["correct"],
        "vote": row.get("vote"),
        "looping": row["looping"],
        "tokens": sample.tokens,
        "truncated": sample.truncated,
        "text": shortened(sample.text, max_characters),
    }


def shortened(text: str, max_characters: int) -> str:
    """Shorten a text to its beginning and end, with a count of the characters between."""
    if len(text) <= max_characters:
        return text
    half = max_characters // 2
    return f"{text[:half]}\n[... {len(text) - 2 * half:,} characters ...]\n{text[-half:]}"
