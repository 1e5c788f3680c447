"""Confidence intervals over problems and seeds, and paired differences.

Samples of one problem are correlated, so problems are resampled, and policies are compared on the
same problems. The problems of each benchmark are resampled separately and every benchmark has the
same weight (the paper's macro average). With several seeds, the variance between them widens the
interval. Intervals assume that problems were drawn at random.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from jaxtyping import Bool, Float

RESAMPLES = 10_000
CONFIDENCE = 0.95
POWER = 0.80
FEW = 10  # with fewer problems, an unseen problem is assumed to lie at the bound of its range
ROUNDING = 1e-12  # differences up to this size are rounding errors
SHARE = (0.0, 1.0)  # bounds of a fraction
UNBOUNDED = "unbounded"  # an end of an interval that has no bound, as text

_TAILS = ((1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2)


@dataclass(frozen=True)
class Interval:
    """An estimate with its 95 % interval."""

    mean: float
    low: float
    high: float

    def points(self, *, sign: bool = False) -> str:
        """Return it in percentage points: ``83.1 [78.9, 87.0]``."""
        return self.text("+.1f" if sign else ".1f", 100)

    def text(self, form: str, scale: float = 1) -> str:
        """Return it times the scale, by a format specification: ``831 [789, 870]``."""
        return interval_text(self.mean, self.low, self.high, form, scale)


def interval_text(
    mean: float, low: float | None, high: float | None, form: str, scale: float = 1
) -> str:
    """Return a mean with its interval; an end that is None or infinite is "unbounded"."""
    ends = []
    for end in (low, high):
        is_known = end is not None and math.isfinite(end)
        ends.append(format(scale * end, form) if is_known else UNBOUNDED)  # type: ignore[operator]
    text = format(scale * mean, form)
    if ends == [UNBOUNDED, UNBOUNDED]:
        return text
    return f"{text} [{ends[0]}, {ends[1]}]"


@dataclass(frozen=True)
class Comparison:
    """Paired difference of two policies on the same problems.

    ``detectable`` is the minimum detectable effect of this many problems and samples, with 80 %
    power at the two-sided 5 % level; None for fewer than ten problems of a benchmark, or if all
    have the same difference.
    """

    difference: Interval  # of Avg@k, in [-1, 1]
    p_value: float  # two-sided (``sign_flip``)
    detectable: float | None
    problems: int  # that both have, of the benchmark with the fewest


def bootstrap(
    groups: Sequence[Float[np.ndarray, " _"]], *, bounds: tuple[float, float], reached: bool = True
) -> Interval:
    """The mean of the groups' means, with its 95 % interval over resampled problems; deterministic.

    Each resample draws the weights of the problems uniformly from the simplex (Rubin 1981, "The
    Bayesian Bootstrap"). For each end, one unseen problem with the value of that bound is added, so
    that the ends cover rare problems. For values that are 0 or 1 this is the interval of Clopper
    and Pearson.

    Source: Learned-Miller & Thomas 2019, "A New Confidence Interval for the Mean of a Bounded
    Random Variable" (arXiv:1905.06208); Gaffke 2005. Coverage of 95 % for any distribution is
    their conjecture; docs/concepts/statistics.md has the measured coverage.

    Args:
        groups: one value for each problem, by benchmark.
        reached: whether values at finite bounds occur. Differences rarely reach −1 and 1: if False,
            the unseen problem has plus or minus the largest absolute value and weight one half
            (ours). The bounds are still used for fewer than ten problems and for equal values.
    """
    smallest = min(map(len, groups))
    if smallest == 0:
        raise ValueError("an interval needs at least one problem")

    mean = float(np.mean([group.mean() for group in groups]))
    # Resamples of equal values are equal: only a problem at the bound gives the interval a width.
    is_constant = all(np.ptp(group) < ROUNDING for group in groups)
    farthest = max(float(np.abs(group).max()) for group in groups)

    # Each benchmark has its own seed: problems of different benchmarks are independent.
    draws = [_draws(len(group), seed) for seed, group in enumerate(groups)]
    sums = [weights @ group for (weights, *_), group in zip(draws, groups, strict=True)]
    ends = []
    for bound, side, share in zip(bounds, (-1, 1), _TAILS, strict=True):
        is_known = smallest < FEW or is_constant or (reached and math.isfinite(bound))
        # Else as far from 0 as the farthest value that was seen, and with weight one half (ours).
        unseen = bound if is_known else side * farthest
        # Lengths have no upper bound: a few of them do not bound the next one.
        if not math.isfinite(unseen):
            ends.append(unseen)
            continue
        means = []
        for value, (_, total, one, half) in zip(sums, draws, strict=True):
            extra = one if is_known else half
            # Weights are not normalised before: the unseen problem's is a part of their sum.
            means.append((value + extra * unseen) / (total + extra))
        ends.append(float(np.quantile(np.mean(means, axis=0), share)))
    # Rounding may pass a bound.
    low, high = np.clip(ends, *bounds).tolist()
    return Interval(mean, low, high)


def over_seeds(
    values: Float[np.ndarray, "s p"], *, bounds: tuple[float, float] = SHARE, reached: bool = True
) -> Interval:
    """The mean over s training seeds and p problems, with its 95 % interval.

    ``bootstrap``'s interval is about t(p − 1) √V_p from the mean. It is widened to
    t(ν) √(V_p + V_s), where V_p is the variance of the problems' means divided by p, V_s that of
    the seeds' means divided by s, and ν = (V_p + V_s)² / (V_p² / (p − 1) + V_s² / (s − 1)).

    Source: Welch 1947, "The Generalization of 'Student's' Problem when Several Different Population
    Variances are Involved". Sampling noise is in both variances, so the interval is too wide if
    seeds do not differ (docs/dev/log.md). One seed shows no variation between seeds.
    """
    interval = bootstrap([values.mean(axis=0)], bounds=bounds, reached=reached)
    if not _seeds_differ(values):
        return interval

    _, v_s, freedom = _variances(values)
    # The bootstrap's ends are t(p - 1) standard errors away, and not symmetric: both are stretched.
    stretch = students_t(freedom) / students_t(values.shape[1] - 1)
    margin = students_t(freedom) * math.sqrt(v_s)
    mean = interval.mean
    below, above = (
        math.hypot(stretch * (end - mean), margin) for end in (interval.low, interval.high)
    )
    # The stretch may pass the metric's bounds.
    return Interval(mean, max(mean - below, bounds[0]), min(mean + above, bounds[1]))


def compare_seeds(before: Float[np.ndarray, "s p"], after: Float[np.ndarray, "_ _"]) -> Interval:
    """Return the paired difference ``after - before`` of two methods, by the same seeds."""
    if before.shape != after.shape:
        raise ValueError(
            f"a paired difference needs the same seeds and problems, "
            f"got {before.shape} and {after.shape}"
        )
    return over_seeds(after - before, bounds=(-1, 1), reached=False)


def p_value_over_seeds(before: Float[np.ndarray, "s p"], after: Float[np.ndarray, "s p"]) -> float:
    """Two-sided p-value of no difference, for ``compare_seeds``.

    That of ``sign_flip`` on the problems' means. Where seeds differ, it is at least that of Welch's
    t with the variances of ``over_seeds``, since other seeds are not exchangeable problems.
    """
    differences = after - before
    p_value = sign_flip([differences.mean(axis=0)])
    if not _seeds_differ(differences):
        return p_value
    v_p, v_s, freedom = _variances(differences)
    angles, inside = _students_density(freedom)
    # As in students_t, t = √ν tan θ: this is the angle of the observed t.
    angle = math.atan(abs(differences.mean()) / math.sqrt((v_p + v_s) * freedom))
    return max(p_value, float(1 - np.interp(angle, angles, inside) / inside[-1]))


def holm(p_values: Sequence[float]) -> list[float]:
    """Return adjusted p-values of several tests, in the same order.

    Source: Holm 1979, "A Simple Sequentially Rejective Multiple Test Procedure".
    """
    order = np.argsort(p_values)
    # The smallest p-value is multiplied by the number of tests, the next by one less, and so on.
    scaled = np.asarray(p_values)[order] * np.arange(len(order), 0, -1)
    adjusted = np.empty(len(order))
    adjusted[order] = np.minimum(np.maximum.accumulate(scaled), 1)
    return [float(p) for p in adjusted]


def compare_paired(
    before: Sequence[Bool[np.ndarray, "_ _"] | Float[np.ndarray, "_ _"]],
    after: Sequence[Bool[np.ndarray, "_ _"] | Float[np.ndarray, "_ _"]],
) -> Comparison:
    """Paired difference of Avg@k, ``after - before``, on the same problems in the same order.

    Takes verdicts or rewards in [0, 1], by benchmark. Those that are NaN, and problems of which one
    side has no other, are left out; at least one problem of each benchmark must be left
    (``is_comparable``).
    """
    sizes = [len(x) for x in before], [len(x) for x in after]
    if sizes[0] != sizes[1]:
        raise ValueError(
            f"a paired difference needs the same problems, got {sizes[0]} and {sizes[1]}"
        )

    pairs = zip(before, after, strict=True)
    groups = [with_value(mean_of_samples(b) - mean_of_samples(a)) for a, b in pairs]
    left = [len(group) for group in groups]
    difference = bootstrap(groups, bounds=(-1, 1), reached=False)

    detectable = None
    # An interval of fewer problems has an unseen one at -1 or 1, and shows no effect of this size.
    if min(left) >= FEW:
        variances = [float(group.var(ddof=1)) / len(group) for group in groups]
        if sum(variances) > ROUNDING**2:
            detectable = _detectable(variances, left)
    return Comparison(difference, sign_flip(groups), detectable, min(left))


def is_comparable(before: np.ndarray, after: np.ndarray) -> bool:
    """Return whether some problem has a value on both sides, of samples that may be NaN."""
    return len(with_value(mean_of_samples(after) - mean_of_samples(before))) > 0


def mean_of_samples(values: np.ndarray) -> Float[np.ndarray, " p"]:
    """Return the mean of each row over its values that are not NaN; NaN for a row without any."""
    counts = (~np.isnan(values)).sum(axis=1)
    means: np.ndarray
    if (counts == values.shape[1]).all():
        means = values.mean(axis=1)
        return means
    sums = np.nansum(values, axis=1)
    means = np.divide(sums, counts, out=np.full(len(values), np.nan), where=counts > 0)
    return means


def with_value(values: np.ndarray) -> np.ndarray:
    known: np.ndarray = values[~np.isnan(values)]
    return known


def sign_flip(groups: Sequence[Float[np.ndarray, " _"]]) -> float:
    """Two-sided p-value of a sign-flip permutation test on paired differences.

    (1 + hits) / (1 + flips) over 10,000 random flips, hence never 0. Exact under the hypothesis
    that the two policies are exchangeable on every problem.
    """
    # Every benchmark has the same weight, whatever its number of problems (the paper's macro
    # average).
    scaled = np.concatenate([group / (len(group) * len(groups)) for group in groups])
    rng = np.random.default_rng(0)
    signs = rng.integers(2, size=(RESAMPLES, len(scaled)), dtype=np.int8) * 2 - 1
    # Ties count against the difference.
    hits = np.abs(signs @ scaled) >= abs(scaled.sum()) - ROUNDING
    return float((1 + hits.sum()) / (1 + RESAMPLES))


# All metrics and policies of a set of problems share its draws. Few are kept: those of 500 problems
# take 40 MB.
@lru_cache(maxsize=4)
def _draws(problems: int, seed: int) -> tuple[np.ndarray, ...]:
    """Weights of problems by resample (r p), their sums, and an unseen problem's: 1 and 1/2."""
    rng = np.random.default_rng(seed)
    one, half = (rng.standard_gamma(shape, RESAMPLES) for shape in (1.0, 0.5))
    # Divided by their sum, exponential weights are uniform on the simplex (Rubin 1981).
    weights = rng.standard_exponential((RESAMPLES, problems))
    return weights, weights.sum(axis=1), one, half


@lru_cache(maxsize=256)
def students_t(freedom: float, confidence: float = CONFIDENCE) -> float:
    """Two-sided quantile of Student's t at this confidence, for any degrees of freedom ν >= 1.

    t = √ν tan θ, where the angle θ has a density in proportion to cos^(ν − 1) θ.
    """
    angles, inside = _students_density(freedom)
    return math.sqrt(freedom) * math.tan(np.interp(confidence * inside[-1], inside, angles))


def _students_density(freedom: float) -> tuple[Float[np.ndarray, " a"], Float[np.ndarray, " a"]]:
    """Angles θ in [0, π/2], and the integral of their density up to each, not normalised."""
    angles = np.linspace(0, math.pi / 2, 20_001)
    density = np.cos(angles) ** (freedom - 1)
    # The trapezoidal rule; its constant factors cancel in the quotients that are used.
    return angles, np.concatenate([[0.0], np.cumsum(density[1:] + density[:-1])])


def _seeds_differ(values: Float[np.ndarray, "s p"]) -> bool:
    # A single seed or problem has no variance: ν would be divided by 0.
    return values.shape[1] > 1 and bool(np.ptp(values.mean(axis=1)) >= ROUNDING)


def _variances(values: Float[np.ndarray, "s p"]) -> tuple[float, float, float]:
    seeds, problems = values.shape
    v_p = float(values.mean(axis=0).var(ddof=1)) / problems
    v_s = float(values.mean(axis=1).var(ddof=1)) / seeds
    freedom = (v_p + v_s) ** 2 / (v_p**2 / (problems - 1) + v_s**2 / (seeds - 1))
    return v_p, v_s, freedom


def _detectable(variances: Sequence[float], sizes: Sequence[int]) -> float:
    """Minimum detectable effect of a paired t-test with 80 % power, from variances of means.

    (t(ν; 0.975) + t(ν; 0.8)) √(Σ V) over the number of benchmarks, with Welch's ν. Source: Bloom
    1995, "Minimum Detectable Effects: A Simple Way to Report the Statistical Power of Experimental
    Designs".
    """
    freedom = sum(variances) ** 2 / sum(
        variance**2 / (size - 1) for variance, size in zip(variances, sizes, strict=True)
    )
    # students_t is two-sided: its quantile at 60 % is the one-sided one at 80 %.
    errors = students_t(freedom) + students_t(freedom, 2 * POWER - 1)
    return errors * math.sqrt(sum(variances)) / len(sizes)
