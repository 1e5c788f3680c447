"""What a run changed, in one sentence, from its graded validations."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from paint.config.run_folder import step_of, step_paths
from paint.core.display import Display
from paint.core.errors import reason
from paint.core.storage import FolderInUse
from paint.evaluation.frame import select_rows
from paint.evaluation.grade import graded_samples
from paint.evaluation.metrics import GradedSamples
from paint.evaluation.store import find_stores, reopen_store
from paint.evaluation.summary import MACRO, ByPolicy, main_metric, summary_rows

NO_CHANGE = "0 is in the interval, so no change is shown"

# The first that a run has is taken: rewards say more about answers than the loss does.
OF_ROLLOUTS = {
    "reward": ("Mean reward", "{:.3g}"),
    "accuracy": ("Right answers", "{:.1%}"),
    "loss": ("Loss", "{:.3g}"),
}
"""Metrics of the steps that take the place of a validation: their names in words, and formats."""


def graded_validation(run: Path, display: Display) -> dict[tuple[int, str], GradedSamples]:
    """Return the graded validations of a run, by step and problem set.

    A validation that a training process is writing is skipped with a note.
    """
    found = {}
    for place in step_paths(run / "validation"):
        for folder in find_stores(place):
            try:
                with reopen_store(folder) as store:
                    found[step_of(place), folder.name] = graded_samples(store)
            except FolderInUse as error:
                display.warn(f"validation of step {step_of(place)} is skipped: {reason(error)}")
    return found


def describe_change(
    validation: Mapping[tuple[int, str], GradedSamples],
    metrics: Sequence[Mapping[str, float]],
    *,
    is_evaluated: bool = False,
) -> str:
    """Return what a run changed: the sentence with which training ends and the run's page begins.

    That is the paired difference of the last validation to the first, with its 95 % interval and
    the difference that could have been detected, of several problem sets that of their mean.
    Without two validations the metrics of the first and last quarter of the steps take its place;
    "" before the first step. An evaluation says what the run changed, so then no validation is
    missed.
    """
    by_step: dict[int, dict[str, GradedSamples]] = {}
    for (step, name), graded in validation.items():
        by_step.setdefault(step, {})[name] = graded
    first, last = min(by_step, default=0), max(by_step, default=0)
    # A step whose validation was interrupted may lack one.
    names = [name for name in by_step.get(first, {}) if name in by_step[last]]
    if names and first < last:
        compared = {}
        for step in (first, last):
            policy = f"step {step}" if step else "the base"
            compared[policy] = {name: by_step[step][name] for name in names}
        return _describe_validation(compared)
    rollouts = _describe_rollouts(metrics)
    if not rollouts:
        return ""
    if validation:
        return f"{rollouts}; validated only once"
    if is_evaluated:
        return rollouts
    return f"{rollouts}; not validated (validation.path)"


def _describe_validation(compared: ByPolicy) -> str:
    before, after = compared
    benchmark, *others = compared[before]
    title = "Validation"
    if others:
        title = f"Validation, mean over {' and '.join(compared[before])},"
        benchmark = MACRO
    rows = summary_rows(compared)
    of_all = {"benchmark": benchmark, "metric": main_metric(compared)}
    found = select_rows(rows, policy=after, against=before, **of_all)
    if not found:
        return (
            f"{title.rstrip(',')}: {after} is not compared with {before}: some reward is beyond 0 "
            f"and 1, or no problem has one of both"
        )
    [difference] = found
    levels = []
    for policy, when in ((before, "before"), (after, "after")):
        [level] = select_rows(rows, policy=policy, **of_all)
        levels.append(f"{100 * level.mean:.1f} {when}")
    unit = "hundredths of reward" if of_all["metric"] == "reward" else "points"
    text = f"{title} {difference.text('points')} {unit} over {before} ({', '.join(levels)})"
    assert difference.low is not None
    assert difference.high is not None
    if difference.low <= 0 <= difference.high:
        text += f"; {NO_CHANGE}"
    if difference.detectable is None:
        return f"{text}; too few problems, or too alike, to say what could have been detected"
    return f"{text}; {100 * difference.detectable:.1f} could have been detected"


def _describe_rollouts(metrics: Sequence[Mapping[str, float]]) -> str:
    for name, (words, form) in OF_ROLLOUTS.items():
        values = [row[name] for row in metrics if name in row]
        if values:
            # One step is noise: its problems are others than those of the next.
            count = max(len(values) // 4, 1)
            first = form.format(sum(values[:count]) / count)
            last = form.format(sum(values[-count:]) / count)
            steps = "step" if count == 1 else f"{count} steps"
            return f"{words} while training {first} in the first {steps}, {last} in the last"
    return ""
