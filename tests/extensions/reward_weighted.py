"""An algorithm that lives outside of the package: likelihood of completions, weighted by reward."""

from dataclasses import dataclass

from paint.objective.loss import token_weights
from paint.resolve.algorithm import Algorithm
from paint.training import train_step as ts


@dataclass(frozen=True)
class RewardOptions:
    baseline: float = 0.0
    """What is subtracted from every reward."""


class RewardWeighted(Algorithm):
    options: RewardOptions
    needs_grades = True

    def step(self, setup, batch, step_index, clock):  # type: ignore[no-untyped-def]
        rollouts = ts.generate_rollouts(setup, batch, step_index, clock)

        def score(micro):  # type: ignore[no-untyped-def]
            log_prob = ts.student_log_probs(setup, micro, 1.0).log_prob
            rewards = [
                r.grade.reward - self.options.baseline for r in micro for _ in r.completion.ids
            ]
            loss = -log_prob.new_tensor(rewards) * log_prob
            weights = token_weights(ts.completion_lengths(micro)).to(loss)
            return (weights * loss).sum(), {"loss": loss.detach()}

        return ts.learn(setup, rollouts, score, step_index, clock)
