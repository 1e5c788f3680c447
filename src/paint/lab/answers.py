"""What advice, learning rates and bakes share: means of grades, held-out rows, the report."""

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from paint.config.schema import ConfigError
from paint.core.display import Display
from paint.core.errors import wrap_errors
from paint.core.storage import write_atomic
from paint.data.problems import Problem, batch_indices
from paint.evaluation.frame import Report, to_terminal, write_report
from paint.evaluation.intervals import (
    SHARE,
    Interval,
    bootstrap,
    compare_paired,
    is_comparable,
    mean_of_samples,
    with_value,
)
from paint.evaluation.metrics import GradedSamples, are_shares
from paint.evaluation.summary import SUMMARY

UNBOUNDED = (-np.inf, np.inf)


def mean(values: np.ndarray, bounds: tuple[float, float] = UNBOUNDED) -> Interval:
    """Return the mean over problems with its 95 % interval."""
    # Shares of 0 and 1 occur; other values have no bound that they could reach.
    return bootstrap([values], bounds=bounds, reached=bounds == SHARE)


def mean_reward(rewards: np.ndarray) -> Interval | None:
    """Return the mean of rewards by problem and answer (NaN: not graded); None without any."""
    values = with_value(mean_of_samples(rewards))
    if not len(values):
        return None
    return mean(values, SHARE if are_shares(rewards) else UNBOUNDED)


def truncated_share(graded: GradedSamples) -> Interval:
    return mean(graded.truncated.mean(axis=1), SHARE)


def reward_gain(graded: GradedSamples, other: GradedSamples) -> Interval | None:
    """Return the mean reward of answers less that of other answers to the same problems.

    None without a problem that both have graded, and for rewards outside of [0, 1], which are not
    compared.
    """
    before, after = other.scores, graded.scores
    if not (is_comparable(before, after) and are_shares(before) and are_shares(after)):
        return None
    return compare_paired([before], [after]).difference


def hold_out(
    problems: Sequence[Problem], count: int, seed: int
) -> tuple[list[Problem], list[Problem]]:
    """Return problems that are held out, at most half of all, and the others."""
    # As a batch is drawn, so that the same seed holds out the same rows.
    chosen = set(batch_indices(len(problems), min(count, len(problems) // 2), 0, seed))
    held_out = [problem for i, problem in enumerate(problems) if i in chosen]
    return held_out, [problem for i, problem in enumerate(problems) if i not in chosen]


def rows_text(problems: Sequence[Problem]) -> str:
    return "".join(f"{json.dumps(problem.fields)}\n" for problem in problems)


def write_input(path: Path, text: str) -> None:
    """Write what a training in the folder reads, whatever becomes of the files.

    Raises ConfigError where an earlier call wrote another text, whose results are not comparable.
    """
    with wrap_errors(path, ConfigError, "choose another place (--output-dir)"):
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists() and path.read_text("utf-8") != text:
            raise ValueError("it holds another text, or other rows were held out")
        write_atomic(path, text)


def publish_report(report: Report, folder: Path, display: Display) -> None:
    """Print a report, and write it to summary.json and summary.md."""
    write_report(folder, SUMMARY, report, ConfigError)
    to_terminal(report.tables, display.console)
    lines = [f"- {line}" for line in report.lines]
    lines.append(f"written to {folder}: {SUMMARY}.json, {SUMMARY}.md; page: `paint show {folder}`")
    display.note("\n".join(lines))
