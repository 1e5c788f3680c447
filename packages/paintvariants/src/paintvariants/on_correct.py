"""Learn from correct completions alone, or weigh them otherwise than wrong ones (ours).

    loss = Σ_i w_i D_i / Σ_i w_i,     w = correct_weight where the grader accepts, else wrong_weight

``loss_weight`` is w over its mean.
"""

from dataclasses import dataclass, replace
from functools import partial

from paint.algorithms.paint import score_rollouts
from paint.algorithms.variant import Variant
from paint.core.display import Clock
from paint.core.settings import NOT_NEGATIVE, setting
from paint.inference.rollouts import Rollout
from paint.training.train_step import Batch, Setup, StepResult, accumulate, learn
from paint.training.weighting import mean_one


@dataclass(frozen=True)
class Options:
    correct_weight: float = setting(1.0, NOT_NEGATIVE, "default: 1")
    """Weight of the completions that the grader accepts, at least 0."""
    wrong_weight: float = setting(0.0, NOT_NEGATIVE, "default: 0")
    """Weight of all other completions, at least 0."""


class OnCorrect(Variant):
    needs_grades = True
    options: Options

    def step(self, setup: Setup, batch: Batch, step_index: int, clock: Clock) -> StepResult:
        rollouts = self.rollouts(setup, batch, step_index, clock)
        weights = mean_one(rollouts, self.weight, setup.config.objective)
        rollouts = [
            replace(r, metrics={**r.metrics, "loss_weight": weights[r.row]}) for r in rollouts
        ]
        # All completions are scored and logged, whatever their weight.
        score = partial(score_rollouts, setup, weights=weights)
        if any(weights.values()):
            return learn(setup, rollouts, score, step_index, clock)
        with clock("loss"):  # the gradient is 0, but momentum would still move the student
            scored = accumulate(setup, rollouts, score, clock)
            setup.optimizer.zero_grad()
        return scored, 0.0

    def weight(self, rollout: Rollout) -> float:
        if rollout.is_correct:
            return self.options.correct_weight
        return self.options.wrong_weight
