"""The results of an experiment: results.jsonl, with one line per evaluated checkpoint."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from jaxtyping import Float

from paint.config.run_folder import RunError
from paint.core import storage
from paint.core.errors import wrap_errors
from paint.core.workspace import Workspace
from paint.evaluation.intervals import SHARE

BASE = "base"  # name of the untrained model's run


@dataclass(frozen=True)
class CheckpointResult:
    """One line of results.jsonl: an evaluated checkpoint of one run and seed."""

    run: str  # name of the experiment run
    seed: int
    config: dict[str, Any]  # the run's config and the evaluation protocol, as nested plain values
    protocol: dict[str, Any]
    trained_on: str  # digest of the training problems; empty for the base model
    steps: int  # up to this checkpoint, as the next two; 0 for the base model
    rollout_tokens: int
    seconds: float  # wall time, without start-up, evaluation and work lost to a kill
    problems: list[str]  # digest of each evaluation problem
    right: list[int]  # number of correct samples of each problem
    answer_tokens: float  # mean length of a sample in tokens
    graded: list[int] | None = None  # samples of each problem that have a verdict; None: all
    # Mean reward of each problem, None for one without a verdict; None: the grader gives answers.
    rewards: list[float | None] | None = None
    has_shares: bool = True  # every sample's reward is in [0, 1]
    control: list[float] | None = None  # share right of each control problem; None: no control

    @property
    def is_last(self) -> bool:
        """Whether this is the last checkpoint of its run, or the base model."""
        return self.run == BASE or self.steps == self.config["train"]["steps"]


Results = Sequence[CheckpointResult]
BySteps = Mapping[str, Mapping[int, list[CheckpointResult]]]  # by run and step


def results_workspace(folder: Path) -> Workspace:
    """Return the results of an experiment, as a folder that grows."""
    hint = "delete it, and the same command writes it again from the runs and their samples"
    return Workspace(folder, "results.jsonl", "an experiment", RunError, hint)


def read_results(folder: Path) -> list[CheckpointResult]:
    """Read results.jsonl; [] if it does not exist."""
    workspace = results_workspace(folder)
    results = []
    for number, row in enumerate(workspace.rows(), start=1):
        place = f"{workspace.rows_path} line {number}"
        with wrap_errors(place, storage.CorruptFileError, workspace.hint):
            results.append(CheckpointResult(**row))
    return results


def append_results(folder: Path, results: Results) -> None:
    """Append to results.jsonl, in a locked folder. Raises RunError if that fails."""
    workspace = results_workspace(folder)
    workspace.trim()  # a kill may have left half a line
    workspace.append(*(asdict(result) for result in results))


def by_run(results: Results) -> dict[str, list[CheckpointResult]]:
    """Group the last checkpoints' results by run, ordered by seed. Raises RunError."""
    return {
        name: [result for group in steps.values() for result in group if result.is_last]
        for name, steps in by_step(results).items()
    }


def by_step(results: Results) -> dict[str, dict[int, list[CheckpointResult]]]:
    """Group results by run and step, ordered by seed; RunError if their problems differ.

    A problem of which a result has no graded sample is left out of all: differences are paired.
    """
    # Paired differences are of the same problems, in the same order.
    trained = [result for result in results if result.trained_on]
    _require_one("trained", trained, [result.trained_on for result in trained])
    _require_one("evaluated", results, [result.problems for result in results])
    results = _where_all_are_graded(results)
    groups: dict[str, dict[int, list[CheckpointResult]]] = {}
    for result in sorted(results, key=lambda result: (result.run, result.steps, result.seed)):
        groups.setdefault(result.run, {}).setdefault(result.steps, []).append(result)
    return groups


def _where_all_are_graded(results: Results) -> Results:
    """Return the results on the problems that all have graded. Raises RunError without any."""
    graded = [result.graded for result in results if result.graded is not None]
    if not graded:
        return results
    kept = [i for i, counts in enumerate(zip(*graded, strict=True)) if min(counts)]
    if not kept:
        raise RunError(
            "no problem has a graded sample of every run, since the grader failed; mend the grader"
        )
    return [
        replace(
            result,
            problems=[result.problems[i] for i in kept],
            right=[result.right[i] for i in kept],
            graded=result.graded and [result.graded[i] for i in kept],
            rewards=result.rewards and [result.rewards[i] for i in kept],
        )
        for result in results
    ]


def _require_one(verb: str, results: Results, problems: Sequence[Any]) -> None:
    for result, digests in zip(results, problems, strict=True):
        if digests != problems[0]:
            raise RunError(
                f"{result.run}, seed {result.seed} was {verb} on other problems than "
                f"{results[0].run}, seed {results[0].seed} (the file of problems has changed); "
                f"choose another place (--output-dir)"
            )


def shares(results: Results) -> Float[np.ndarray, "s p"]:
    """Return the share of correct samples of the graded ones, by seed and problem, or NaN."""
    samples: int = results[0].protocol["samples"]
    right = np.array([result.right for result in results])
    graded = np.array([result.graded or [samples] * len(result.right) for result in results])
    share: np.ndarray = np.divide(right, graded, out=np.full(right.shape, np.nan), where=graded > 0)
    return share


def control_shares(results: Results) -> Float[np.ndarray, "s p"] | None:
    """Return the share of correct samples of the control, by seed and problem; None without one."""
    control = [result.control for result in results]
    return None if None in control else np.array(control)


@dataclass(frozen=True)
class ComparisonScore:
    """What the results of a comparison are measured by: the mean reward, or Avg@k."""

    metric: str  # name in rows
    name: str  # in titles and column heads
    unit: Literal["%", "hundredths"]
    points: Literal["points", "hundredths"]  # unit of a difference
    bounds: tuple[float, float]
    has_right: bool  # Avg@k and pass@k say something: some sample has a reward of 1

    @property
    def is_compared(self) -> bool:
        """Whether differences have an interval: those of values in [0, 1]."""
        return self.bounds == SHARE

    def values(self, results: Results) -> Float[np.ndarray, "s p"]:
        """Return the score by seed and problem; NaN for a problem without a graded sample."""
        return rewards_of(results) if self.metric == "reward" else shares(results)


def score_of(results: Results) -> ComparisonScore:
    """Return the mean reward as the score if all results have one; else Avg@k."""
    if any(result.rewards is None for result in results):
        return ComparisonScore("avg_at_k", avg_name(results), "%", "points", SHARE, has_right=True)
    bounds = SHARE if all(result.has_shares for result in results) else (-math.inf, math.inf)
    has_right = any(any(result.right) for result in results)
    return ComparisonScore("reward", "Mean reward", "hundredths", "hundredths", bounds, has_right)


def rewards_of(results: Results) -> Float[np.ndarray, "s p"]:
    """Return the mean reward by seed and problem; NaN without a graded sample."""
    return np.array([result.rewards for result in results], float)


def avg_name(results: Results) -> str:
    return f"Avg@{results[0].protocol['samples']}"


def benchmark_name(results: Results) -> str:
    return str(results[0].protocol["benchmark"])


def evaluation_name(results: Results) -> str:
    """Return the problems with a grade of every run, and the seeds, in words."""
    protocol, seeds = results[0].protocol, sorted({result.seed for result in results})
    trained = f"seed {seeds[0]}" if len(seeds) == 1 else f"seeds {seeds[0]} to {seeds[-1]}"
    count, kept = len(results[0].problems), len(_where_all_are_graded(results)[0].problems)
    problems = f"{count} problems of {protocol['benchmark']}"
    if kept < count:
        problems = f"{kept} of {problems} (the others have a run without a grade)"
    return f"{problems}, {trained}"
