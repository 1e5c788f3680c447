"""How often do the 95 % intervals of an evaluation hold the truth? Simulated graders whose accuracy is known.

    python benchmarks/coverage.py

Every problem has a chance of being solved, drawn from a Beta distribution; every answer is right with that chance. The
truth is known, so the share of 2,000 simulated evaluations whose interval holds it is the coverage. Its own standard
error is 0.5 points. "plain" is the percentile interval of the same resamples, as it stands in textbooks.
"""

import math

import numpy as np
from jaxtyping import Float
from rich.console import Console
from rich.table import Table

from paint.figures import SHARE, bootstrap, pass_at_k, resampled_means, sign_flip

RUNS, K = 2_000, 12
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


def main() -> None:
    """Print coverage by kind of benchmark, and the size of the sign-flip test."""
    table = Table("", "Avg@12", "Avg@12, plain", "pass@4", "paired difference", "sign flip p ≤ 0.05, no difference")
    rng = np.random.default_rng(0)
    for problems, a, b, name in SETS:
        hits = np.zeros(5)
        truth = a / (a + b)
        ever = 1 - math.prod((b + i) / (a + b + i) for i in range(4))  # E[1 − (1−p)⁴]
        gain = 0.2 * a * b / ((a + b) * (a + b + 1))  # of p + 0.2 p (1−p)
        for _ in range(RUNS):
            skill = rng.beta(a, b, size=problems)
            better = skill + 0.2 * skill * (1 - skill)
            base, same, after = (rng.random((problems, K)) < p[:, None] for p in (skill, skill, better))
            average = bootstrap([base.mean(axis=1)], bounds=SHARE)
            low, high = plain(base.mean(axis=1))
            passed = bootstrap([pass_at_k(base, 4)], bounds=SHARE)
            paired = bootstrap([after.mean(axis=1) - base.mean(axis=1)], bounds=(-1, 1), skewed=False)
            nothing = sign_flip([same.mean(axis=1) - base.mean(axis=1)])
            hits += [
                average.low <= truth <= average.high,
                low <= truth <= high,
                passed.low <= ever <= passed.high,
                paired.low <= gain <= paired.high,
                nothing <= 0.05,
            ]
        table.add_row(name, *(f"{100 * share:.1f}" for share in hits / RUNS))
    Console(width=160).print(table)


if __name__ == "__main__":
    main()
