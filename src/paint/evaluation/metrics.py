"""Evaluation metrics of k graded samples per problem, each with its interval."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from jaxtyping import Bool, Float, Int

from paint.evaluation.intervals import SHARE, Interval, bootstrap, mean_of_samples, with_value


@dataclass(frozen=True)
class GradedSamples:
    """The graded samples of one policy on one benchmark: p problems in order, k samples each.

    A grader that gives answers has no rewards here, since they are its verdicts. Where no grade has
    an answer, there are no votes. Rewards are NaN where there is none: the grader failed there, or
    said nothing. Such samples are in no mean of rewards and verdicts.
    """

    problems: list[str]  # digest of each
    correct: Bool[np.ndarray, "p k"]  # the reward is 1
    votes: Int[np.ndarray, "p k"] | None  # equal answers share a number; -1 without an answer
    tokens: Int[np.ndarray, "p k"]  # length of the completion
    truncated: Bool[np.ndarray, "p k"]  # the completion reached the token limit
    unboxed: Bool[np.ndarray, "p k"] | None  # the completion has no answer
    repetitive: Bool[np.ndarray, "p k"]  # the completion ends in repetition
    rewards: Float[np.ndarray, "p k"] | None = None
    parts: Mapping[str, Float[np.ndarray, "p k"]] = field(default_factory=dict)  # by grader
    metrics: Mapping[str, Float[np.ndarray, "p k"]] = field(default_factory=dict)  # of grades
    reasons: Mapping[str, int] = field(default_factory=dict)  # counts
    failures: int = 0  # samples on which the grader failed

    @property
    def graded(self) -> Bool[np.ndarray, "p k"]:
        """The samples that have a verdict."""
        if self.rewards is None:
            return np.ones_like(self.correct)
        known: np.ndarray = ~np.isnan(self.rewards)
        return known

    @property
    def ungraded(self) -> list[str]:
        """The problems of which no sample has a verdict; they are in no mean."""
        without = np.flatnonzero(~self.graded.any(axis=1))
        return [self.problems[i] for i in without]

    @property
    def has_right(self) -> bool:
        """Whether some sample is right; else Avg@k, maj@k and pass@k are 0."""
        return bool((self.correct & self.graded).any())

    @property
    def verdicts(self) -> Bool[np.ndarray, "p k"] | Float[np.ndarray, "p k"]:
        """1 for a right sample and 0 for another one; NaN without a verdict."""
        if self.graded.all():
            return self.correct
        return np.where(self.graded, self.correct, np.nan)

    @property
    def has_verdicts(self) -> bool:
        """Whether every reward is the verdict, 1 or 0, not another number of a judge."""
        return self.rewards is None or bool((~self.graded | (self.rewards == self.correct)).all())

    @property
    def scores(self) -> Bool[np.ndarray, "p k"] | Float[np.ndarray, "p k"]:
        """The rewards; of a grader that gives answers, the verdicts."""
        return self.correct if self.rewards is None else self.rewards

    @property
    def sampled(self) -> dict[str, np.ndarray]:
        """The metrics that every sample has, by name: arrays of p problems and k samples."""
        values: dict[str, np.ndarray | None] = {"reward": self.rewards}
        for name, rewards in self.parts.items():
            values[f"rewards/{name}"] = rewards
        values["avg_at_k"] = self.verdicts
        values |= self.metrics
        values |= {
            "truncated_frac": self.truncated,
            "unboxed_frac": self.unboxed,
            "repetitive_frac": self.repetitive,
            "completion_tokens": self.tokens,
        }
        return {name: table for name, table in values.items() if table is not None}


def are_shares(values: np.ndarray) -> bool:
    """Return whether all values but NaN are in [0, 1], which bounds intervals and comparisons."""
    return not bool((values < 0).any() or (values > 1).any())


def avg_at_k(verdicts: Bool[np.ndarray, "p k"] | Float[np.ndarray, "p k"]) -> Interval:
    """Return the mean over problems of the share of correct samples, in [0, 1] (paper: 'Avg@12').

    Samples and problems without a verdict (NaN) are left out. Raises ValueError where none has one.
    """
    return bootstrap([with_value(mean_of_samples(verdicts))], bounds=SHARE)


def pass_at_k(
    verdicts: Bool[np.ndarray, "p n"] | Float[np.ndarray, "p n"], k: int
) -> Float[np.ndarray, " p"]:
    """Return the probability that at least one of k samples is correct, for each problem.

    The unbiased estimate from n >= k samples, c of them correct: 1 − C(n − c, k) / C(n, k). NaN for
    a problem of which fewer than k samples have a verdict.
    Source: Chen et al. 2021, "Evaluating Large Language Models Trained on Code", equation 1.
    """
    values = []
    for row in verdicts:
        known = with_value(row)
        n, c = len(known), int(known.sum())
        values.append(1 - math.comb(n - c, k) / math.comb(n, k) if n >= k else math.nan)
    return np.array(values)


def maj_at_k(
    votes: Int[np.ndarray, "p k"], correct: Bool[np.ndarray, "p k"]
) -> Float[np.ndarray, " p"]:
    """Return the chance that the majority vote (-1: none) is right, by problem; ties are random."""

    def chance(row: Int[np.ndarray, " k"], is_right: Bool[np.ndarray, " k"]) -> float:
        voted = row[row >= 0]  # no answer is no vote
        if not len(voted):
            return 0.0
        counts = np.bincount(voted)
        # Of several answers with the most votes, one is drawn by lot.
        winners = np.flatnonzero(counts == counts.max())
        # Equal answers have one verdict: any sample of a winner tells whether it is right.
        return float(np.mean([is_right[row == winner].any() for winner in winners]))

    return np.array([chance(row, is_right) for row, is_right in zip(votes, correct, strict=True)])


def per_problem(graded: GradedSamples) -> dict[str, Float[np.ndarray, " p"]]:
    """Return metrics of each problem, whose means are reported; NaN without a value."""
    k = graded.correct.shape[1]
    metrics = {name: mean_of_samples(values) for name, values in graded.sampled.items()}
    if graded.votes is not None:
        metrics["maj_at_k"] = maj_at_k(graded.votes, graded.correct)
    # pass@1 is Avg@k: both are c / n.
    for j in sorted({2, 4, 8, k}):
        if 1 < j <= k:
            metrics[f"pass_at_{j}"] = pass_at_k(graded.verdicts, j)
    return metrics


def compute_metrics(
    benchmarks: Mapping[str, GradedSamples], shared: Sequence[str] | None = None
) -> dict[str, dict[str, Interval]]:
    """Return the interval of every metric, by benchmark and metric; of macro averages as "macro".

    These are over the benchmarks ``shared`` (None: all), of metrics that all of them have. A
    problem without a value of a metric is left out of it, and a metric without any value is
    missing.
    """
    values: dict[str, dict[str, np.ndarray]] = {}
    for name, graded in benchmarks.items():
        metrics = {metric: with_value(column) for metric, column in per_problem(graded).items()}
        values[name] = {metric: column for metric, column in metrics.items() if len(column)}

    def interval(metric: str, names: Sequence[str]) -> Interval:
        bounds = SHARE
        if metric == "completion_tokens":
            bounds = 0.0, math.inf
        # pass@k and maj@k are of problems, not samples, and are shares by definition.
        elif not all(are_shares(benchmarks[n].sampled.get(metric, np.zeros(0))) for n in names):
            bounds = -math.inf, math.inf
        return bootstrap([values[name][metric] for name in names], bounds=bounds)

    intervals = {name: {m: interval(m, [name]) for m in row} for name, row in values.items()}
    # Macro averages over other benchmarks could not be compared with each other.
    names = list(values if shared is None else shared)
    if len(names) > 1:
        intervals["macro"] = {
            metric: interval(metric, names)
            for metric in values[names[0]]
            if all(metric in values[name] for name in names)
        }
    return intervals
