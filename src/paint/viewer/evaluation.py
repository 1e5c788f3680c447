"""Page of evaluations: every sample with its verdict, and the policies side by side."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from paint.config.run_folder import step_of, step_paths
from paint.core.display import Display
from paint.core.errors import reason
from paint.core.storage import SUMS, FolderInUse
from paint.evaluation.grade import policy_names, stored_in, to_graded_samples
from paint.evaluation.intervals import SHARE, bootstrap
from paint.evaluation.metrics import GradedSamples, pass_at_k
from paint.evaluation.store import Sample, Store, StoreError, find_stores, read_grades, reopen_store
from paint.evaluation.summary import summary_rows

TEXT_CHARACTERS = 6_000_000
"""Maximum characters of all samples on a page; longer samples lose their middle."""


@dataclass(frozen=True)
class Graded:
    """A store with its grades."""

    store: Store
    graded: GradedSamples
    rows: list[dict[str, Any]]  # of grades.jsonl, in the order of the store's rows
    samples: list[Sample]  # in the same order


def read_graded(folder: Path) -> Graded:
    """Read an evaluation with its stored grades; nothing is regraded or written.

    Raises:
        StoreError: not all samples are graded, or the checksums that bind both are missing.
        CorruptFileError: a file cannot be read, or was changed since it was written.
    """
    path = folder / "grades.jsonl"
    with reopen_store(folder) as store:
        if not path.exists():
            raise StoreError(f"{folder} is not graded; run `paint grade {folder}`")
        if store.missing:
            raise StoreError(
                f"{folder}: {len(store.missing)} of {len(store.rows)} samples are missing; the "
                f"same command as before generates them"
            )
        if not (folder / SUMS).exists():
            raise StoreError(
                f"{folder} has no {SUMS}, so {path.name} may be of other samples; run "
                f"`paint grade {folder}`"
            )
        rows = read_grades(folder)
        expected = [(problem.id, sample) for problem, sample in store.rows]
        if [(row.get("problem"), row.get("sample")) for row in rows] != expected:
            raise StoreError(f"{path} does not have all stored samples; run `paint grade {folder}`")
        by_row = {(sample.problem, sample.sample): sample for sample in store.samples()}
        samples = [by_row[row] for row in expected]
    return Graded(
        store,
        to_graded_samples(store, rows, [(s.tokens, s.truncated) for s in samples]),
        rows,
        samples,
    )


def graded_validation(run: Path, display: Display) -> dict[tuple[int, str], GradedSamples]:
    """Graded validations of a run, by step and problem set.

    A validation that a training process is writing is skipped with a note.
    """
    found = {}
    for place in step_paths(run / "validation"):
        for folder in find_stores(place):
            try:
                found[step_of(place), folder.name] = read_graded(folder).graded
            except FolderInUse as error:
                display.warn(f"validation of step {step_of(place)} is skipped: {reason(error)}")
    return found


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

    graded = {}
    for policy, parts in by_policy.items():
        graded[policy] = {name: part.graded for name, part in parts.items()}
    count = sum(len(g.samples) for parts in by_policy.values() for g in parts.values())
    max_characters = max(TEXT_CHARACTERS // max(count, 1), 400)
    benchmarks = list(dict.fromkeys(name for parts in by_policy.values() for name in parts))
    return {
        "name": targets[0].resolve().name,
        "policies": list(by_policy),
        "rows": [asdict(row) for row in summary_rows(graded)],
        "pass": {policy: _pass_curves(parts) for policy, parts in graded.items()},
        "benchmarks": [benchmark_data(name, by_policy, max_characters) for name in benchmarks],
        "settings": {
            policy: {benchmark: part.store.settings for benchmark, part in parts.items()}
            for policy, parts in by_policy.items()
        },
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
    warnings = {warning.problem.id: str(warning) for warning in first.graded.gold_warnings}
    unparsed = {w.problem.id for w in first.graded.gold_warnings if not w.parses}
    answers: dict[str, dict[str, list[dict[str, Any]]]] = {p.id: {} for p in first.store.problems}
    for policy, part in having.items():
        for row, sample in zip(part.rows, part.samples, strict=True):
            if row["problem"] in answers:
                answers[row["problem"]].setdefault(policy, []).append(
                    {
                        **row["strict"],  # correct, answer and reason
                        "lenient": row.get("lenient", row["strict"])["correct"],
                        "vote": row.get("vote"),
                        "looping": row["looping"],
                        "tokens": sample.tokens,
                        "truncated": sample.truncated,
                        "text": shortened(sample.text, max_characters),
                    }
                )
    return {
        "name": name,
        "k": first.graded.correct.shape[1],
        "problems": [
            {
                "id": problem.id,
                "problem": problem.problem,
                "solution": problem.solution,
                "golds": list(problem.answers),
                "labels": dict(problem.labels),
                "doubt": warnings.get(problem.id),
                "never_parses": problem.id in unparsed,
                "answers": answers[problem.id],
            }
            for problem in first.store.problems
        ],
    }


def shortened(text: str, max_characters: int) -> str:
    """Shorten a text to its beginning and end, with a count of the characters between."""
    if len(text) <= max_characters:
        return text
    half = max_characters // 2
    return f"{text[:half]}\n[... {len(text) - 2 * half:,} characters ...]\n{text[-half:]}"
