"""Graded evaluations as they are stored, and what a run changed, in one sentence."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paint.config.run_folder import step_of, step_paths
from paint.core.display import Display
from paint.core.errors import reason
from paint.core.storage import SUMS, FolderInUse
from paint.evaluation.grade import policy_names, stored_in, to_graded_samples, write_summary
from paint.evaluation.intervals import Comparison, compare_paired
from paint.evaluation.metrics import GradedSamples
from paint.evaluation.store import Sample, Store, StoreError, find_stores, read_grades, reopen_store

NO_CHANGE = "0 is in the interval, so no change is shown"


OF_ROLLOUTS = {
    "reward": ("Mean reward", "{:.3g}"),
    "accuracy": ("Right answers", "{:.1%}"),
    "loss": ("Loss", "{:.3g}"),
}
"""Metrics of the steps that take the place of a validation: their names in words, and formats."""


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
        by_row = {}
        for sample in store.samples():
            by_row[(sample.problem, sample.sample)] = sample
        samples = []
        for row in expected:
            samples.append(by_row[row])
    lengths = [(sample.tokens, sample.truncated) for sample in samples]
    return Graded(store, to_graded_samples(store, rows, lengths), rows, samples)


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


def summarise_graded(folders: Sequence[Path], out: Path, display: Display) -> None:
    """Write the summary of all stores below some folders by their stored grades.

    Nothing is graded again, since calls of a judge cost money and may end otherwise.
    """
    paths = stored_in(folders)
    names = policy_names(paths)
    by_policy: dict[str, dict[str, GradedSamples]] = {}
    for path in paths:
        by_policy.setdefault(names[path], {})[path.name] = read_graded(path).graded
    write_summary(by_policy, out, display)


def describe_change(
    validation: Mapping[tuple[int, str], GradedSamples], metrics: Sequence[Mapping[str, float]]
) -> str:
    """What a run changed: the sentence with which training ends and the run's page begins.

    That is the paired difference of the last validation to the first, with its 95 % interval and
    the difference that could have been detected. Without two validations the metrics of the first
    and last quarter of the steps take its place; "" before the first step.
    """
    if len(validation) > 1:
        (first, _), base = min(validation.items(), key=_step)
        (last, _), after = max(validation.items(), key=_step)
        return _describe_validation(base, after, first, last)
    rollouts = _describe_rollouts(metrics)
    if not rollouts:
        return ""
    if validation:
        return f"{rollouts}; validated only once"
    return f"{rollouts}; not validated (validation.path)"


def _step(item: tuple[tuple[int, str], GradedSamples]) -> int:
    return item[0][0]


def _describe_validation(base: GradedSamples, after: GradedSamples, first: int, last: int) -> str:
    before = "the base" if first == 0 else f"step {first}"
    if not (base.are_shares and after.are_shares):
        return (
            f"Validation: mean reward {base.scores.mean():.3g} of {before}, "
            f"{after.scores.mean():.3g} after step {last}; rewards beyond 0 and 1 are not compared"
        )
    found = compare_paired([base.scores], [after.scores])
    unit = "points" if base.rewards is None else "hundredths of reward"
    levels = f"{100 * base.scores.mean():.1f} before, {100 * after.scores.mean():.1f} after"
    text = f"Validation {found.difference.points(sign=True)} {unit} over {before} ({levels})"
    return f"{text}; {_describe_test(found)}"


def _describe_test(found: Comparison) -> str:
    """What the interval shows, and what could have been detected."""
    interval = found.difference
    parts = []
    if interval.low <= 0 <= interval.high:
        parts.append(NO_CHANGE)
    if found.detectable is None:
        parts.append("too few problems, or too alike, to say what could have been detected")
    else:
        parts.append(f"{100 * found.detectable:.1f} could have been detected")
    return "; ".join(parts)


def _describe_rollouts(metrics: Sequence[Mapping[str, float]]) -> str:
    """The change of the best metric that the steps have, which is of other problems each time."""
    for name, (words, form) in OF_ROLLOUTS.items():
        values = []
        for row in metrics:
            if name in row:
                values.append(row[name])
        if values:
            count = max(len(values) // 4, 1)
            first = form.format(sum(values[:count]) / count)
            last = form.format(sum(values[-count:]) / count)
            steps = "step" if count == 1 else f"{count} steps"
            return f"{words} while training {first} in the first {steps}, {last} in the last"
    return ""
