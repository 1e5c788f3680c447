"""How sure is a figure? Intervals over problems and over seeds, and paired differences.

The samples of one problem resemble each other, so problems are resampled, not samples: every
interval is a problem-clustered bootstrap, and two policies are compared on the same problems. Over
several benchmarks, each benchmark's problems are resampled by themselves, and every benchmark
counts the same (the paper's macro average). Where a method was trained with several seeds, the
interval of its figure is widened by how much the seeds differ.

An interval says how much the figure would move on other problems like these and, over seeds, in
other trainings like these.

Left out on purpose: intervals for problems that were not drawn at random.
"""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from statistics import NormalDist

import numpy as np
from jaxtyping import Bool, Float, Int

RESAMPLES = 10_000
BLOCK = 500
"""Resamples that are drawn together, which bounds the memory."""

CONFIDENCE = 0.95
POWER = 0.80
ROUNDING = 1e-12
"""Differences up to this size are rounding errors."""

SHARE = (0.0, 1.0)
"""The bounds of a share."""


@dataclass(frozen=True)
class Interval:
    """An estimate with its 95 % interval."""

    mean: float
    low: float
    high: float

    def points(self, *, sign: bool = False) -> str:
        """In percentage points: ``83.1 [78.9, 87.0]``."""
        form = "{:+.1f}" if sign else "{:.1f}"
        mean, low, high = (form.format(100 * x) for x in (self.mean, self.low, self.high))
        return f"{mean} [{low}, {high}]"

    def table(self) -> dict[str, float | None]:
        """As JSON takes it: null where the interval has no end."""
        return {
            name: value if math.isfinite(value) else None for name, value in asdict(self).items()
        }


@dataclass(frozen=True)
class Comparison:
    """One policy less another, on the same problems.

    Attributes:
        difference: of Avg@k, in [-1, 1].
        p_value: share of sign flips with a difference at least as large; two-sided.
        problems_needed: problems like these, with as many samples each, that would show a
            difference of this size with 80 % power at the 5 % level; None where there is no
            difference, or the same one on every problem.
        samples_needed: samples a problem, of each policy, that would show it on these very
            problems; None also where there is one sample a problem, which does not tell noise from
            difficulty.
    """

    difference: Interval
    p_value: float
    problems_needed: int | None
    samples_needed: int | None


def bootstrap(
    groups: Sequence[Float[np.ndarray, " _"]], *, bounds: tuple[float, float], skewed: bool = True
) -> Interval:
    """The mean of the groups' means, with its 95 % interval over resampled problems; deterministic.

    The interval is bias-corrected and accelerated (Efron 1987, "Better Bootstrap Confidence
    Intervals"), which follows the skew of figures near 0 or 1. For few problems that is too narrow.
    So its tails are moved out by as much as Student's t exceeds the normal, and the population's
    variance the sample's (Hesterberg 2015, "What Teachers Should Know About the Bootstrap").

    Where all problems have the same value, there is nothing to resample. A share q of problems with
    other values, anywhere in ``bounds``, stays unseen in n problems with chance (1 − q)^n; the
    interval holds every mean for which that chance is 2.5 % or more. Where only a few problems
    differ, the interval stays too narrow, as every bootstrap does.

    Args:
        groups: one value a problem, by benchmark.
        skewed: whether to correct for bias and skew. Not for differences: most are near 0, the
            correction would follow noise, and plain percentiles hold the truth more often
            (docs/evaluation.md, docs/log.md).

    Raises:
        ValueError: a group is empty.
    """
    smallest = min(map(len, groups))
    if smallest == 0:
        raise ValueError("a figure needs at least one problem")

    mean = float(np.mean([group.mean() for group in groups]))
    if all(np.ptp(group) < ROUNDING for group in groups):
        unseen = 1 - ((1 - CONFIDENCE) / 2) ** (1 / smallest)
        low, high = (mean + (bound - mean) * unseen for bound in bounds)
        return Interval(mean, low, high)

    means = np.mean([resampled_means(group, seed) for seed, group in enumerate(groups)], axis=0)
    normal, bias, acceleration = NormalDist(), 0.0, 0.0
    if skewed:
        spread = np.concatenate([(group - group.mean()) / len(group) for group in groups])
        acceleration = float((spread**3).sum() / (6 * (spread**2).sum() ** 1.5))
        # Resamples that tie with the mean count half.
        below = np.mean([(means < mean - ROUNDING).mean(), (means <= mean + ROUNDING).mean()])
        bias = normal.inv_cdf(min(max(float(below), 1 / RESAMPLES), 1 - 1 / RESAMPLES))

    reach = expanded_reach(max(smallest, 2))
    # The divisor can reach 0: two problems make the reach long, another benchmark the skew large.
    shares = [
        normal.cdf(bias + x / max(1 - acceleration * x, 1e-6)) for x in (bias - reach, bias + reach)
    ]
    low, high = np.clip(np.quantile(means, shares), *bounds)
    return Interval(mean, float(low), float(high))


def over_seeds(
    values: Float[np.ndarray, "s p"], *, bounds: tuple[float, float] = SHARE, skewed: bool = True
) -> Interval:
    """The mean over s trainings with different seeds and over p problems, with its 95 % interval.

    An end of ``bootstrap``'s interval lies t(p − 1) √V_p from the mean, but for its skew. It is
    moved out to t(ν) √(V_p + V_s), where V_p is the variance of the problems' means divided by p,
    V_s that of the seeds' means divided by s, and
    ν = (V_p + V_s)² / (V_p² / (p − 1) + V_s² / (s − 1)).

    Source: Welch 1947, "The Generalization of 'Student's' Problem when Several Different Population
    Variances are Involved".

    The noise of single samples is in both variances, so the interval is too wide where seeds do not
    differ; without the noise, it would be too narrow where they do (docs/log.md). With one seed the
    interval is ``bootstrap``'s, which knows nothing of other seeds.

    Raises:
        ValueError: no seed, or no problem.
    """
    seeds, problems = values.shape
    if seeds == 0:
        raise ValueError("a figure over seeds needs at least one seed")

    interval = bootstrap([values.mean(axis=0)], bounds=bounds, skewed=skewed)
    by_seed = values.mean(axis=1)
    if problems == 1 or np.ptp(by_seed) < ROUNDING:
        return interval

    v_s = float(by_seed.var(ddof=1)) / seeds
    v_p = float(values.mean(axis=0).var(ddof=1)) / problems
    freedom = (v_p + v_s) ** 2 / (v_p**2 / (problems - 1) + v_s**2 / (seeds - 1))

    stretch = students_t(freedom) / students_t(problems - 1)
    margin = students_t(freedom) * math.sqrt(v_s)
    mean = interval.mean
    below, above = (
        math.hypot(stretch * (end - mean), margin) for end in (interval.low, interval.high)
    )
    return Interval(mean, max(mean - below, bounds[0]), min(mean + above, bounds[1]))


def compare_seeds(before: Float[np.ndarray, "s p"], after: Float[np.ndarray, "_ _"]) -> Interval:
    """One method's share of right samples less another's, of the same seeds and problems in order.

    What a seed or a problem does to both methods cancels.

    Raises:
        ValueError: not the same numbers of seeds and problems, or none.
    """
    if before.shape != after.shape:
        raise ValueError(
            f"a paired difference needs the same seeds and problems, "
            f"got {before.shape} and {after.shape}"
        )
    return over_seeds(after - before, bounds=(-1, 1), skewed=False)


def compare(
    before: Sequence[Bool[np.ndarray, "_ _"]], after: Sequence[Bool[np.ndarray, "_ _"]]
) -> Comparison:
    """Avg@k after less Avg@k before, by benchmark on the same problems in the same order.

    Raises:
        ValueError: not the same numbers of benchmarks and problems.
    """
    sizes = [len(x) for x in before], [len(x) for x in after]
    if sizes[0] != sizes[1]:
        raise ValueError(
            f"a paired difference needs the same problems, got {sizes[0]} and {sizes[1]}"
        )

    groups = [b.mean(axis=1) - a.mean(axis=1) for a, b in zip(before, after, strict=True)]
    difference = bootstrap(groups, bounds=(-1, 1), skewed=False)

    problems = samples = None
    if difference.mean and min(sizes[0]) > 1:
        between = sum(group.var(ddof=1) / len(group) for group in groups) / len(groups) ** 2
        problems = math.ceil(sum(sizes[0]) * _times_needed(difference.mean, between)) or None
    if difference.mean and min(x.shape[1] for x in [*before, *after]) > 1:
        noise = sum(_noise(x) for x in [*before, *after]) / len(groups) ** 2
        samples = max(1, math.ceil(_times_needed(difference.mean, noise)))
    return Comparison(difference, sign_flip(groups), problems, samples)


def sign_flip(groups: Sequence[Float[np.ndarray, " _"]]) -> float:
    """Two-sided p-value of paired differences: how often random signs give a mean as far from zero.

    (1 + hits) / (1 + flips) over 10,000 random flips, so never 0; exact under the hypothesis that
    the two policies are exchangeable on every problem.
    """
    scaled = np.concatenate([group / (len(group) * len(groups)) for group in groups])
    rng = np.random.default_rng(0)
    signs = rng.integers(2, size=(RESAMPLES, len(scaled)), dtype=np.int8) * 2 - 1
    hits = np.abs(signs @ scaled) >= abs(scaled.sum()) - ROUNDING
    return float((1 + hits.sum()) / (1 + RESAMPLES))


@lru_cache(maxsize=4)
def _counts(problems: int, seed: int) -> Int[np.ndarray, "r p"]:
    """How often each problem is in each resample."""
    rng, chances = np.random.default_rng(seed), np.full(problems, 1 / problems)
    blocks = [
        rng.multinomial(problems, chances, size=BLOCK).astype(np.int16)
        for _ in range(RESAMPLES // BLOCK)
    ]
    return np.concatenate(blocks)


def resampled_means(values: Float[np.ndarray, " p"], seed: int = 0) -> Float[np.ndarray, " r"]:
    """The mean of each bootstrap resample of one benchmark's problems.

    Benchmarks of one size need different seeds, or their problems would be resampled together.
    """
    counts = _counts(len(values), seed)
    blocks = [
        counts[start : start + BLOCK].astype(float) @ values for start in range(0, RESAMPLES, BLOCK)
    ]
    return np.concatenate(blocks) / len(values)


def expanded_reach(problems: int) -> float:
    """Half an interval's width, in standard errors of the resamples: t(n − 1) √(n / (n − 1))."""
    return students_t(problems - 1) * math.sqrt(problems / (problems - 1))


@lru_cache(maxsize=256)
def students_t(freedom: float) -> float:
    """The 97.5 % quantile of Student's t, for any degrees of freedom ν >= 1.

    t = √ν tan θ, where the angle θ has a density in proportion to cos^(ν − 1) θ.
    """
    angles = np.linspace(0, math.pi / 2, 20_001)
    density = np.cos(angles) ** (freedom - 1)
    inside = np.concatenate([[0.0], np.cumsum(density[1:] + density[:-1])])
    return math.sqrt(freedom) * math.tan(np.interp(CONFIDENCE * inside[-1], inside, angles))


def _noise(correct: Bool[np.ndarray, "p k"]) -> float:
    """Variance of Avg@1 from sampling alone, on fixed problems; that of Avg@k is a k-th of it."""
    p, k = correct.shape
    share = correct.mean(axis=1)
    return float((share * (1 - share)).sum() * k / (k - 1) / p**2)


def _times_needed(difference: float, variance: float) -> float:
    normal = NormalDist()
    errors = normal.inv_cdf((1 + CONFIDENCE) / 2) + normal.inv_cdf(POWER)
    return errors**2 * float(variance) / difference**2
