"""How good is a policy? The figures of k graded samples a problem, each with its interval.

Left out on purpose: a figure without an interval (paint.evaluation.intervals).
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Int

from paint.evaluation.intervals import SHARE, Interval, bootstrap


@dataclass(frozen=True)
class GradedSamples:
    """The graded samples of one policy on one benchmark: p problems in order, k samples each.

    Attributes:
        problems: what tells each from all others.
        correct, lenient: the strict and the lenient verdict (paint.grading.grader).
        votes: number of the samples whose answers are equal among a problem's k, by verified equality; -1 where there is none.
        tokens: length of the completion.
        truncated, unboxed, looping: it was cut; it has no strict answer; it repeats itself at its end.
    """

    problems: list[str]
    correct: Bool[np.ndarray, "p k"]
    lenient: Bool[np.ndarray, "p k"]
    votes: Int[np.ndarray, "p k"]
    tokens: Int[np.ndarray, "p k"]
    truncated: Bool[np.ndarray, "p k"]
    unboxed: Bool[np.ndarray, "p k"]
    looping: Bool[np.ndarray, "p k"]


def avg_at_k(correct: Bool[np.ndarray, "p k"]) -> Interval:
    """Mean share of right answers over problems, each the mean of its k samples (paper: 'Avg@12'), in [0, 1]."""
    return bootstrap([correct.mean(axis=1)], bounds=SHARE)


def pass_at_k(correct: Bool[np.ndarray, "p n"], k: int) -> Float[np.ndarray, " p"]:
    """Chance that one of k answers is right, for each problem, without bias from n >= k answers of which c are right.

    1 − C(n − c, k) / C(n, k) (Chen et al. 2021, "Evaluating Large Language Models Trained on Code", equation 1).

    Raises:
        ValueError: k is not in [1, n].
    """
    n = correct.shape[1]
    if not 1 <= k <= n:
        raise ValueError(f"pass@{k} needs at least {k} answers a problem, there are {n}")
    return np.array([1 - math.comb(n - c, k) / math.comb(n, k) for c in correct.sum(axis=1).tolist()])


def maj_at_k(votes: Int[np.ndarray, "p k"], correct: Bool[np.ndarray, "p k"]) -> Float[np.ndarray, " p"]:
    """Chance that a majority vote is right, for each problem, ties being drawn by lot.

    Equal votes are answers of verified equality; no answer (-1) is no vote.
    """

    def one(row: Int[np.ndarray, " k"], right: Bool[np.ndarray, " k"]) -> float:
        voted = row[row >= 0]
        if not len(voted):
            return 0.0
        counts = np.bincount(voted)
        winners = np.flatnonzero(counts == counts.max())
        return float(np.mean([right[row == winner].any() for winner in winners]))

    return np.array([one(row, right) for row, right in zip(votes, correct, strict=True)])


def per_problem(answers: GradedSamples) -> dict[str, Float[np.ndarray, " p"]]:
    """Every figure, problem by problem; its mean over problems is the figure itself (names: docs/notation.md)."""
    k = answers.correct.shape[1]
    return {
        "avg_at_k": answers.correct.mean(axis=1),
        "maj_at_k": maj_at_k(answers.votes, answers.correct),
        **{f"pass_at_{j}": pass_at_k(answers.correct, j) for j in sorted({2, 4, 8, k}) if 1 < j <= k},
        "lenient_avg_at_k": answers.lenient.mean(axis=1),
        "truncated_share": answers.truncated.mean(axis=1),
        "unboxed_share": answers.unboxed.mean(axis=1),
        "looping_share": answers.looping.mean(axis=1),
        "completion_tokens": answers.tokens.mean(axis=1),
    }


def figures(benchmarks: Mapping[str, GradedSamples], shared: Sequence[str] | None = None) -> dict[str, dict[str, Interval]]:
    """Benchmark, figure, interval; also the macro average over ``shared`` (default: all), if several, as "macro".

    What not all of these have (pass@8 where one has 4 answers) has no macro average.
    """
    parts = {name: per_problem(answers) for name, answers in benchmarks.items()}
    found = {
        name: {figure: bootstrap([x], bounds=_bounds(figure)) for figure, x in part.items()}
        for name, part in parts.items()
    }
    averaged = [parts[name] for name in (parts if shared is None else shared)]
    if len(averaged) > 1:
        common = [figure for figure in averaged[0] if all(figure in part for part in averaged)]
        found["macro"] = {
            figure: bootstrap([part[figure] for part in averaged], bounds=_bounds(figure)) for figure in common
        }
    return found


def _bounds(figure: str) -> tuple[float, float]:
    return (0.0, math.inf) if figure == "completion_tokens" else SHARE
