"""The results of an experiment: a line of results.jsonl for every policy that was evaluated.

A policy is a cell, trained with one seed up to one step. What an experiment reports is the last
step; earlier checkpoints are there where they were asked for, and are shown beside it.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float

from paint import files
from paint.errors import explained
from paint.runs import RunError

BASE = "base"
"""The cell of the model that is not trained."""


@dataclass(frozen=True)
class Result:
    """One line of results.jsonl: a checkpoint of a cell that was trained with one seed.

    Attributes:
        config, exam: the settings, as nested plain values.
        trained_on: digest of the training problems; empty for the base model.
        steps: optimizer steps up to this checkpoint; 0 for the base model, as the next two.
        rollout_tokens: tokens that were sampled for these steps.
        seconds: wall time of these steps, without start-up, evaluation and work that a kill undid.
        problems: identity of each problem of the exam.
        right: number of right samples of each problem.
        answer_tokens: mean length of a sample in tokens.
    """

    cell: str
    seed: int
    config: dict[str, Any]
    exam: dict[str, Any]
    trained_on: str
    steps: int
    rollout_tokens: int
    seconds: float
    problems: list[str]
    right: list[int]
    answer_tokens: float

    @property
    def is_last(self) -> bool:
        """Whether it is the last checkpoint of its run, or the base model."""
        return self.cell == BASE or self.steps == self.config["train"]["steps"]


def read_results(folder: Path) -> list[Result]:
    """The lines of results.jsonl; none where there is no such file.

    Raises:
        Damaged: it was changed since it was written.
    """
    path = folder / "results.jsonl"
    advice = "delete it, and the same command makes it again from the runs and their samples"
    rows = list(files.read_rows(path, advice)) if path.exists() else []
    with explained(path, files.Damaged, advice):
        return [Result(**row) for row in rows]


def write_results(folder: Path, results: Sequence[Result]) -> None:
    """Write results.jsonl anew. Raises RunError where that fails."""
    path = folder / "results.jsonl"
    with explained(path, RunError, "free some space; the same command goes on"):
        files.write_rows(path, [asdict(result) for result in results])


def by_cell(results: Sequence[Result]) -> dict[str, list[Result]]:
    """The last checkpoints of each cell, by seed.

    Raises:
        RunError: of ``by_step``.
    """
    return {
        name: [result for group in steps.values() for result in group if result.is_last]
        for name, steps in by_step(results).items()
    }


def by_step(results: Sequence[Result]) -> dict[str, dict[int, list[Result]]]:
    """The results of each cell by step, those of a step by seed.

    Raises:
        RunError: they cannot be compared, for the problems of training or of the exam differ.
    """
    trained = [result for result in results if result.trained_on]
    for result in trained:
        if result.trained_on != trained[0].trained_on:
            raise RunError(
                f"{result.cell}, seed {result.seed} was trained on other problems than "
                f"{trained[0].cell}, seed {trained[0].seed} (the file behind data.path has "
                f"changed); choose another place (--folder)"
            )
    for result in results:
        if result.problems != results[0].problems:
            raise RunError(
                f"{result.cell}, seed {result.seed} was asked other problems than "
                f"{results[0].cell}, seed {results[0].seed} (the file of problems has changed); "
                f"choose another place (--folder)"
            )
    ordered = sorted(results, key=lambda result: (result.cell, result.steps, result.seed))
    return {
        name: {step: list(same) for step, same in groupby(group, key=lambda result: result.steps)}
        for name, group in groupby(ordered, key=lambda result: result.cell)
    }


def shares(results: Sequence[Result]) -> Float[np.ndarray, "s p"]:
    """Share of right samples by seed and problem."""
    samples: int = results[0].exam["samples"]
    return np.array([result.right for result in results]) / samples
