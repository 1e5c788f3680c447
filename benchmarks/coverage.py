"""How often do the 95 % intervals of an evaluation hold the truth? In simulations, it is known.

    python benchmarks/coverage.py

Every problem has a chance of being solved, drawn from a Beta distribution; every sample is right
with that chance. The share of 2,000 simulated evaluations whose interval holds the truth is the
coverage; its own standard error is 0.5 points. "plain" is the percentile interval of the same
resamples, as it stands in textbooks.

The second table is of several trainings with different seeds. Each moves all problems its own way,
by a spread of so many points of Avg@12 (of the difference, for pairs), and each problem a little
besides; 1,000 evaluations a row. "problems only" is the interval that takes the seeds as given.
"""

import math
from itertools import product

import numpy as np
from jaxtyping import Float
from rich.console import Console
from rich.table import Table

from paint.evaluation.intervals import (
    SHARE,
    bootstrap,
    compare_seeds,
    over_seeds,
    resampled_means,
    sign_flip,
)
from paint.evaluation.metrics import pass_at_k

RUNS, SEED_RUNS, K = 2_000, 1_000, 12
SETS = [
    (30, 0.5, 0.5, "30 problems, most always or never solved (a contest)"),
    (30, 0.3, 0.6, "30 problems, a third solved"),
    (30, 2.0, 2.0, "30 problems of middling difficulty"),
    (60, 0.5, 0.5, "60 problems, two contests"),
    (500, 2.0, 1.0, "500 problems, two thirds solved"),
    (30, 4.0, 1.0, "30 easy problems: pass@4 is 0.99"),
    (30, 2.0, 0.2, "30 problems, 91 % solved"),
    (30, 0.2, 2.0, "30 problems, 9 % solved (a small model on a hard contest)"),
    (30, 0.1, 3.0, "30 problems, 3 % solved"),
    (10, 0.5, 0.5, "10 problems"),
]


def plain(values: Float[np.ndarray, " p"]) -> tuple[float, float]:
    """The percentile interval of the textbook."""
    low, high = np.quantile(resampled_means(values), [0.025, 0.975])
    return float(low), float(high)


def over_problems() -> Table:
    """Coverage by kind of benchmark, and the size of the sign-flip test."""
    table = Table(
        "",
        "Avg@12",
        "Avg@12, plain",
        "pass@4",
        "paired difference",
        "sign flip p ≤ 0.05, no difference",
    )
    rng = np.random.default_rng(0)
    for problems, a, b, name in SETS:
        hits = np.zeros(5)
        truth = a / (a + b)
        ever = 1 - math.prod((b + i) / (a + b + i) for i in range(4))  # E[1 − (1−p)⁴]
        gain = 0.2 * a * b / ((a + b) * (a + b + 1))  # of p + 0.2 p (1−p)
        for _ in range(RUNS):
            skill = rng.beta(a, b, size=problems)
            better = skill + 0.2 * skill * (1 - skill)
            base, same, after = (
                rng.random((problems, K)) < p[:, None] for p in (skill, skill, better)
            )
            average = bootstrap([base.mean(axis=1)], bounds=SHARE)
            low, high = plain(base.mean(axis=1))
            passed = bootstrap([pass_at_k(base, 4)], bounds=SHARE)
            paired = bootstrap(
                [after.mean(axis=1) - base.mean(axis=1)], bounds=(-1, 1), skewed=False
            )
            nothing = sign_flip([same.mean(axis=1) - base.mean(axis=1)])
            hits += [
                average.low <= truth <= average.high,
                low <= truth <= high,
                passed.low <= ever <= passed.high,
                paired.low <= gain <= paired.high,
                nothing <= 0.05,
            ]
        table.add_row(name, *(f"{100 * share:.1f}" for share in hits / RUNS))
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


def over_trainings() -> Table:
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
    rng = np.random.default_rng(0)
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
                (bootstrap([(after - before).mean(axis=0)], bounds=(-1, 1), skewed=False), 0.2 / 8),
            ]
            hits += [interval.low <= truth <= interval.high for interval, truth in cases]
            width += paired.high - paired.low
        shares = [f"{100 * share:.1f}" for share in [*hits / SEED_RUNS, width / SEED_RUNS]]
        table.add_row(str(problems), str(seeds), f"{100 * spread:.0f}", *shares)
    return table


def main() -> None:
    """Print coverage over problems, then over seeds and problems."""
    console = Console(width=160)
    console.print(over_problems())
    console.print(over_trainings())


if __name__ == "__main__":
    main()
