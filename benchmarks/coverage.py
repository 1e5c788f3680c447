"""How often do the 95 % intervals of an evaluation hold the truth? In simulations, it is known.

    python benchmarks/coverage.py [SEED]

Every problem has a chance of being solved, drawn from a Beta distribution; every sample is right
with that chance. The share of 1,000 simulated evaluations whose interval holds the truth is the
coverage; its own standard error is 0.7 points. A cell has the coverage, in brackets that of the
former method (a bootstrap of whole problems, for figures bias-corrected and accelerated, its ends
moved out as far as Student's t), and the width beside the former one's.

Differences are between two policies that are alike; of which one gains 0.2 p (1 − p) on every
problem; and of which one solves a tenth of the problems, at random, without fail. "detectable" is
the share of p <= 0.05 where the true gain is the detectable difference (of 3,000 such problems):
80 is said; after it, the 5 to 95 % range of the estimate over the true one.

The second table is of several trainings with different seeds. Each moves all problems its own way,
by a spread of so many points of Avg@12 (of the difference, for pairs), and each problem a little
besides; 500 evaluations a row. "problems only" is the interval that takes the seeds as given.
"""

import math
import sys
from functools import lru_cache
from itertools import product
from statistics import NormalDist

import numpy as np
from jaxtyping import Bool, Float
from rich.console import Console
from rich.table import Table

from paint.evaluation.intervals import (
    SHARE,
    Interval,
    bootstrap,
    compare,
    compare_seeds,
    over_seeds,
    students_t,
)
from paint.evaluation.metrics import pass_at_k

RUNS, SEED_RUNS, K = 1_000, 500, 12
SETS = [
    *((n, a, b) for a, b in ((2, 0.2), (0.5, 0.5), (2, 2), (1, 5)) for n in (30, 100)),
    (30, 0.3, 0.6),
    (30, 4, 1),
    (30, 0.2, 2),
    (30, 0.1, 3),
    (60, 0.5, 0.5),
    (500, 2, 1),
    (10, 0.5, 0.5),
]
DIFFERENCE = (-1.0, 1.0)


@lru_cache(maxsize=4)
def counts(problems: int) -> Float[np.ndarray, "r p"]:
    """How often each problem is in each of 10,000 resamples."""
    chances = np.full(problems, 1 / problems)
    return np.random.default_rng(0).multinomial(problems, chances, 10_000).astype(float)


def former(values: Float[np.ndarray, " p"], bounds: tuple[float, float]) -> Interval:
    """The former method's interval."""
    n, mean = len(values), float(values.mean())
    if np.ptp(values) == 0:
        unseen = 1 - 0.025 ** (1 / n)
        low, high = (mean + (bound - mean) * unseen for bound in bounds)
        return Interval(mean, low, high)

    means, normal, bias, skew = counts(n) @ values / n, NormalDist(), 0.0, 0.0
    if bounds == SHARE:
        spread = values - mean
        skew = float((spread**3).sum() / (6 * (spread**2).sum() ** 1.5))
        below = float(np.mean([(means < mean - 1e-12).mean(), (means <= mean + 1e-12).mean()]))
        bias = normal.inv_cdf(min(max(below, 1e-4), 1 - 1e-4))
    reach = students_t(n - 1) * math.sqrt(n / (n - 1))
    shares = [normal.cdf(bias + x / max(1 - skew * x, 1e-6)) for x in (bias - reach, bias + reach)]
    return Interval(mean, *np.clip(np.quantile(means, shares), *bounds).tolist())


def chance_of_any(a: float, b: float, tries: int) -> float:
    """E[1 − (1−p)^tries] of p ~ Beta(a, b)."""
    return 1 - math.prod((b + i) / (a + b + i) for i in range(tries))


def over_problems(seed: int) -> Table:
    """Coverage and width by kind of benchmark."""
    passes = (2, 4, 12)
    names = ["Avg@12", *(f"pass@{j}" for j in passes)]
    names += [f"difference, {kind}" for kind in ("none", "gain", "leap")]
    table = Table("problems, skills", *names)
    for problems, a, b in SETS:
        rng = np.random.default_rng(seed)
        hits, widths = np.zeros((len(names), 2)), np.zeros((len(names), 2))
        mean = a / (a + b)
        gain = 0.2 * a * b / ((a + b) * (a + b + 1))  # of p + 0.2 p (1−p)
        truths = [mean, *(chance_of_any(a, b, j) for j in passes), 0, gain, 0.1 * (1 - mean)]
        for _ in range(RUNS):
            skill = rng.beta(a, b, size=problems)
            leapt = np.where(rng.random(problems) < 0.1, 1, skill)
            others = (skill, skill + 0.2 * skill * (1 - skill), leapt)
            base = samples(rng, skill)
            values = [base.mean(axis=1), *(pass_at_k(base, j) for j in passes)]
            values += [samples(rng, other).mean(axis=1) - values[0] for other in others]
            for row, x in enumerate(values):
                bounds = SHARE if row < 4 else DIFFERENCE
                made = bootstrap([x], bounds=bounds, reached=row < 4), former(x, bounds)
                hits[row] += [i.low - 1e-9 <= truths[row] <= i.high + 1e-9 for i in made]
                widths[row] += [i.high - i.low for i in made]
        cells = [
            f"{100 * now / RUNS:.1f} ({100 * before / RUNS:.1f}) x{width:.2f}"
            for (now, before), width in zip(hits, widths[:, 0] / widths[:, 1], strict=True)
        ]
        table.add_row(f"{problems}, Beta({a:g}, {b:g})", *cells)
    return table


def samples(rng: np.random.Generator, skill: Float[np.ndarray, " p"]) -> Bool[np.ndarray, "p k"]:
    """Twelve samples of each problem."""
    return np.asarray(rng.random((len(skill), K)) < skill[:, None])


def detection(seed: int) -> Table:
    """How often the detectable difference is detected, and how sure its estimate is."""
    table = Table("problems, skills", "true, points", "detected, %", "estimate / true, 5 to 95 %")
    for problems, a, b in SETS[:8]:
        rng = np.random.default_rng(seed)
        # The gain c p (1−p) whose mean is the detectable difference, found by iteration.
        skill, c = rng.beta(a, b, size=30_000), 0.3
        for _ in range(8):
            better = skill + c * skill * (1 - skill)
            d = samples(rng, better).mean(axis=1) - samples(rng, skill).mean(axis=1)
            reach = students_t(problems - 1) + students_t(problems - 1, 0.6)
            true = reach * float(d.std()) / math.sqrt(problems)
            c = true / float((skill * (1 - skill)).mean())
        found, estimates = 0, []
        for _ in range(RUNS):
            p = rng.beta(a, b, size=problems)
            before, after = (samples(rng, np.clip(x, 0, 1)) for x in (p, p + c * p * (1 - p)))
            comparison = compare([before], [after])
            found += comparison.p_value <= 0.05
            estimates.append((comparison.detectable or 0) / true)
        low, high = np.quantile(estimates, [0.05, 0.95])
        table.add_row(
            f"{problems}, Beta({a:g}, {b:g})",
            f"{100 * true:.1f}",
            f"{100 * found / RUNS:.1f}",
            f"{low:.2f} to {high:.2f}",
        )
    return table


def trained(
    rng: np.random.Generator,
    skill: Float[np.ndarray, " p"],
    seeds: int,
    spread: float,
    gain: float = 0.0,
) -> Float[np.ndarray, "s p"]:
    """Shares of right samples after trainings that move skills p, of Beta(0.5, 0.5), by c p (1−p).

    E[p (1−p)] is 1/8. The factor c is a gain, plus what the seed does to all problems
    (with the given spread in Avg@12), plus what it does to each.
    """
    own = 8 * spread * rng.normal(size=(seeds, 1)) + 0.2 * rng.normal(size=(seeds, len(skill)))
    moved = skill + np.clip(gain + own, -0.8, 0.8) * skill * (1 - skill)
    return np.asarray(rng.binomial(K, moved) / K)


def over_trainings(seed: int) -> Table:
    """Coverage of figures and paired differences over seeds; the differences' width in points."""
    table = Table(
        "problems",
        "seeds",
        "spread",
        "Avg@12",
        "problems only",
        "difference",
        "problems only",
        "width",
    )
    rng = np.random.default_rng(seed)
    for problems, seeds, spread in product((30, 100), (1, 3, 5), (0.0, 0.01, 0.02)):
        hits, width = np.zeros(4), 0.0
        for _ in range(SEED_RUNS):
            skill = rng.beta(0.5, 0.5, size=problems)
            alone = trained(rng, skill, seeds, spread)
            before, after = (
                trained(rng, skill, seeds, spread / math.sqrt(2), gain) for gain in (0.0, 0.2)
            )
            paired = compare_seeds(before, after)
            cases = [
                (over_seeds(alone), 0.5),
                (bootstrap([alone.mean(axis=0)], bounds=SHARE), 0.5),
                (paired, 0.2 / 8),
                (
                    bootstrap([(after - before).mean(axis=0)], bounds=DIFFERENCE, reached=False),
                    0.2 / 8,
                ),
            ]
            hits += [interval.low <= truth <= interval.high for interval, truth in cases]
            width += paired.high - paired.low
        shares = [f"{100 * share:.1f}" for share in [*hits / SEED_RUNS, width / SEED_RUNS]]
        table.add_row(str(problems), str(seeds), f"{100 * spread:.0f}", *shares)
    return table


def main() -> None:
    """Print coverage over problems, detectable differences, then coverage over seeds, too."""
    seed = int(sys.argv[1]) if len(sys.argv) > 1 else 0
    console = Console(width=200)
    for table in (over_problems, detection, over_trainings):
        console.print(table(seed))


if __name__ == "__main__":
    main()
