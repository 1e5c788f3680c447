"""How good a policy is, and how sure we are: k samples a problem, Avg@k with an interval that knows its problems.

The samples of one problem are alike, so problems and not samples are what is resampled: the intervals are
problem-clustered bootstraps. Two policies are compared on the same problems, pair by pair.

Left out for now: benchmarks other than one's own problems, pass@k, maj@k and symbolic grading.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float

from paint.data import Problem
from paint.grading import is_correct
from paint.policy import Policy
from paint.rollout import Engine, Sampling
from paint.train import seed_of

PAPER_SAMPLING = Sampling(temperature=1.0, top_p=0.95, top_k=-1, max_new_tokens=38_912)
RESAMPLES = 10_000


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


@dataclass(frozen=True)
class Evaluation:
    """Every answer of one policy: per problem (in order) k texts, and whether each is right."""

    problems: list[Problem]
    texts: list[list[str]]
    correct: Bool[np.ndarray, "p k"]
    completion_tokens: float
    truncated_share: float


def evaluate(
    policy: Policy,
    engine: Engine,
    problems: Sequence[Problem],
    *,
    samples: int = 12,
    sampling: Sampling = PAPER_SAMPLING,
    thinking: bool = True,
    seed: int = 0,
) -> Evaluation:
    """Answer every problem ``samples`` times from its deployment prompt (paper: section 'Experimental Details')."""
    prompts = [policy.student_prompt(problem.problem, thinking=thinking) for problem in problems]
    seeds = [seed_of(seed, sample, problem.id) for problem in problems for sample in range(samples)]
    completions = engine.generate([prompt for prompt in prompts for _ in range(samples)], sampling, seeds)
    flat = [policy.decode(completion.ids) for completion in completions]
    texts = [flat[i : i + samples] for i in range(0, len(flat), samples)]
    correct = [[is_correct(text, problem.answer) for text in row] for problem, row in zip(problems, texts, strict=True)]
    return Evaluation(
        list(problems),
        texts,
        np.array(correct),
        sum(len(c.ids) for c in completions) / len(completions),
        sum(c.truncated for c in completions) / len(completions),
    )


def avg_at_k(correct: Bool[np.ndarray, "p k"]) -> Interval:
    """Mean share of right answers over problems, each the mean of its k samples (paper: 'Avg@12'), in [0, 1]."""
    return bootstrap(correct.mean(axis=1))


def paired_difference(before: Bool[np.ndarray, "p k"], after: Bool[np.ndarray, "q l"]) -> Interval:
    """Avg@k after less Avg@k before, on the same problems in the same order, in [-1, 1].

    Raises:
        ValueError: not the same number of problems.
    """
    if len(before) != len(after):
        raise ValueError(f"a paired difference needs the same problems, got {len(before)} and {len(after)}")
    return bootstrap(after.mean(axis=1) - before.mean(axis=1))


def bootstrap(per_problem: Float[np.ndarray, " p"]) -> Interval:
    """The mean over problems with its 95 % percentile interval over resampled problems; the same every time."""
    draws = np.random.default_rng(0).integers(len(per_problem), size=(RESAMPLES, len(per_problem)))
    low, high = np.quantile(per_problem[draws].mean(axis=1), [0.025, 0.975])
    return Interval(float(per_problem.mean()), float(low), float(high))
