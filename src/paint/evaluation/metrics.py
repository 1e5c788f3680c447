"""How good is a policy? The figures of k graded samples a problem, each with its interval.

Left out on purpose: a figure without an interval (paint.evaluation.intervals).
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from jaxtyping import Bool, Float, Int

from paint.data.gold_answer_checks import GoldWarning
from paint.evaluation.intervals import SHARE, Interval, bootstrap


@dataclass(frozen=True)
class GradedSamples:
    """The graded samples of one policy on one benchmark: p problems in order, k samples each.

    Attributes:
        problems: the identity of each.
        correct: whether the reward is 1; of the mathematics grader, the strict verdict.
        lenient: its lenient verdict; None with another grader.
        votes: the same number for samples of a problem whose answers are verified equal; -1 where
            a sample has no answer; None with another grader.
        tokens: length of the completion.
        truncated: whether the completion was cut.
        unboxed: whether it has no strict answer; None with another grader.
        looping: whether it repeats itself at its end.
        rewards: of another grader; None where ``correct`` says all.
        reasons: how many strict verdicts have each reason.
        by_hand: how many verdicts were given by hand, by the person's reason and verdict.
        labels: the level or the subject of each problem, by that name; "" where it has none.
        doubts: the gold answers that a person should look at.
    """

    problems: list[str]
    correct: Bool[np.ndarray, "p k"]
    lenient: Bool[np.ndarray, "p k"] | None
    votes: Int[np.ndarray, "p k"] | None
    tokens: Int[np.ndarray, "p k"]
    truncated: Bool[np.ndarray, "p k"]
    unboxed: Bool[np.ndarray, "p k"] | None
    repetitive: Bool[np.ndarray, "p k"]
    rewards: Float[np.ndarray, "p k"] | None = None
    reasons: Mapping[str, int] = field(default_factory=dict)
    overridden: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    labels: Mapping[str, Sequence[str]] = field(default_factory=dict)
    gold_warnings: Sequence[GoldWarning] = ()

    @property
    def scores(self) -> Bool[np.ndarray, "p k"] | Float[np.ndarray, "p k"]:
        """The rewards; of the mathematics grader, whether each is right."""
        return self.correct if self.rewards is None else self.rewards

    @property
    def are_shares(self) -> bool:
        """Whether all scores are in [0, 1], so that intervals and comparisons have bounds."""
        return bool((self.scores >= 0).all() and (self.scores <= 1).all())


def avg_at_k(correct: Bool[np.ndarray, "p k"]) -> Interval:
    """Mean share of right samples of a problem, over problems, in [0, 1] (paper: 'Avg@12')."""
    return bootstrap([correct.mean(axis=1)], bounds=SHARE)


def pass_at_k(correct: Bool[np.ndarray, "p n"], k: int) -> Float[np.ndarray, " p"]:
    """Chance that at least one of k samples is right, for each problem.

    The unbiased estimate from n >= k samples of which c are right, 1 − C(n − c, k) / C(n, k).
    Source: Chen et al. 2021, "Evaluating Large Language Models Trained on Code", equation 1.

    Raises:
        ValueError: k is not in [1, n].
    """
    n = correct.shape[1]
    if not 1 <= k <= n:
        raise ValueError(f"pass@{k} needs at least {k} samples a problem, there are {n}")

    counts = correct.sum(axis=1).tolist()
    return np.array([1 - math.comb(n - c, k) / math.comb(n, k) for c in counts])


def maj_at_k(
    votes: Int[np.ndarray, "p k"], correct: Bool[np.ndarray, "p k"]
) -> Float[np.ndarray, " p"]:
    """Chance that a majority vote is right, for each problem, when ties are drawn by lot.

    Samples with the same number vote together; one without an answer (-1) does not vote.
    """

    def chance(row: Int[np.ndarray, " k"], is_right: Bool[np.ndarray, " k"]) -> float:
        voted = row[row >= 0]
        if not len(voted):
            return 0.0
        counts = np.bincount(voted)
        winners = np.flatnonzero(counts == counts.max())
        return float(np.mean([is_right[row == winner].any() for winner in winners]))

    return np.array([chance(row, is_right) for row, is_right in zip(votes, correct, strict=True)])


def per_problem(graded: GradedSamples) -> dict[str, Float[np.ndarray, " p"]]:
    """The metrics problem by problem; a metric is the mean (names: docs/reference/metrics.md)."""
    k = graded.correct.shape[1]
    passes = {
        f"pass_at_{j}": pass_at_k(graded.correct, j) for j in sorted({2, 4, 8, k}) if 1 < j <= k
    }
    votes, lenient = graded.votes, graded.lenient
    unboxed, rewards = graded.unboxed, graded.rewards
    return {
        **({} if rewards is None else {"reward": rewards.mean(axis=1)}),
        "avg_at_k": graded.correct.mean(axis=1),
        **({} if votes is None else {"maj_at_k": maj_at_k(votes, graded.correct)}),
        **passes,
        **({} if lenient is None else {"lenient_avg_at_k": lenient.mean(axis=1)}),
        "truncated_frac": graded.truncated.mean(axis=1),
        **({} if unboxed is None else {"unboxed_frac": unboxed.mean(axis=1)}),
        "repetitive_frac": graded.repetitive.mean(axis=1),
        "completion_tokens": graded.tokens.mean(axis=1),
    }


def compute_metrics(
    benchmarks: Mapping[str, GradedSamples], shared: Sequence[str] | None = None
) -> dict[str, dict[str, Interval]]:
    """The interval of every figure, by benchmark and figure; macro averages under "macro".

    Args:
        shared: the benchmarks that the macro average is over, where there are several; None is all.
            A figure that one of them lacks (pass@8 of 4 samples) has no macro average.
    """
    values = {name: per_problem(graded) for name, graded in benchmarks.items()}
    intervals = {
        name: {
            figure: bootstrap([x], bounds=_bounds(figure, [benchmarks[name]]))
            for figure, x in by_figure.items()
        }
        for name, by_figure in values.items()
    }

    names = list(values if shared is None else shared)
    averaged = [values[name] for name in names]
    parts = [benchmarks[name] for name in names]
    if len(averaged) > 1:
        intervals["macro"] = {
            figure: bootstrap([part[figure] for part in averaged], bounds=_bounds(figure, parts))
            for figure in averaged[0]
            if all(figure in part for part in averaged)
        }
    return intervals


def by_label(graded: GradedSamples, label: str) -> dict[str, tuple[int, Interval]]:
    """The number of problems and Avg@k of each level or subject, in order."""
    values = np.array(graded.labels.get(label, []))
    return {
        value: (int((values == value).sum()), avg_at_k(graded.correct[values == value]))
        for value in sorted(set(values.tolist()), key=_natural)
    }


def _natural(text: str) -> list[tuple[bool, int, str]]:
    """The key of an order in which 9 comes before 10, and what is empty last."""
    parts = re.split("([0-9]+)", text) if text else ["\U0010ffff"]
    return [(not part.isdigit(), int(part) if part.isdigit() else 0, part) for part in parts]


def _bounds(figure: str, parts: Sequence[GradedSamples]) -> tuple[float, float]:
    if figure == "reward" and not all(part.are_shares for part in parts):
        return (-math.inf, math.inf)
    return (0.0, math.inf) if figure == "completion_tokens" else SHARE
