"""What does the overlap tell, with and without the boxed answer, and how far does the ratio move?

    python benchmarks/overlap.py FILE

FILE has a problem a line: solution, completions, and whether each is correct. Shown: the AUC of
right against wrong completions (how often a right one overlaps more; ties count half), within
problems that have both and over all pairs; the mean overlaps; mean and spread of the mask ratio.
Intervals are 95 %, over problems.
"""

import json
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import numpy as np
from jaxtyping import Float

from paint.context import mask_ratio, overlaps
from paint.evaluation.intervals import SHARE, bootstrap

Scores = dict[bool, Float[np.ndarray, " _"]]
RESAMPLES = 10_000


def auc(scores: Scores) -> float:
    """How often a right completion scores higher than a wrong one."""
    difference = scores[True][:, None] - scores[False]
    return float(np.mean((difference > 0) + 0.5 * (difference == 0)))


def pooled(problems: Sequence[Scores]) -> Scores:
    return {side: np.concatenate([scores[side] for scores in problems]) for side in (True, False)}


def resampled(figure: Callable[[Scores], float], problems: Sequence[Scores]) -> str:
    """A figure of all completions, with its percentiles over resampled problems."""
    rng, found = np.random.default_rng(0), []
    for _ in range(RESAMPLES):
        scores = pooled([problems[i] for i in rng.integers(len(problems), size=len(problems))])
        if scores[True].size and scores[False].size:
            found.append(figure(scores))
    low, high = np.quantile(found, (0.025, 0.975))
    return f"{figure(pooled(problems)):.3f} [{low:.3f}, {high:.3f}]"


def mean_of(side: bool, scores: Scores) -> float:
    return float(scores[side].mean())


def everything(scores: Scores) -> Float[np.ndarray, " _"]:
    return np.concatenate([scores[True], scores[False]])


def main() -> None:
    """Print the figures, one a line."""
    rows = [json.loads(line) for line in Path(sys.argv[1]).read_text().splitlines()]
    for name in ("overlap", "overlap_without_answer"):
        problems: list[Scores] = []
        for row in rows:
            scores = [overlaps(text, row["solution"])[name] for text in row["completions"]]
            sides = np.array(row["correct"], dtype=bool)
            problems.append({side: np.array(scores)[sides == side] for side in (True, False)})

        mixed = [scores for scores in problems if scores[True].size and scores[False].size]
        within = bootstrap([np.array([auc(scores) for scores in mixed])], bounds=SHARE)
        print(f"{name}: AUC within {len(mixed)} problems {within.points()} %")
        print(f"  AUC over all pairs {resampled(auc, problems)}")
        for side, word in ((True, "right"), (False, "wrong")):
            mean = resampled(partial(mean_of, side), problems)
            print(f"  mean of the {word} ones {mean}")
        if name == "overlap":
            ratios = [
                {side: np.array([mask_ratio(a) for a in part]) for side, part in scores.items()}
                for scores in problems
            ]
            print(f"  mask ratio, mean {resampled(lambda s: float(everything(s).mean()), ratios)}")
            print(f"  mask ratio, sd {resampled(lambda s: float(everything(s).std()), ratios)}")


if __name__ == "__main__":
    main()
