"""Own algorithm: likelihood of the student's completions, weighted by their reward."""

from typing import Any

import paint
from paint.objective.loss import token_weights
from paint.training import train_step as ts


class RewardWeighted(paint.Algorithm):
    needs_grades = True

    def step(self, setup: Any, batch: Any, step_index: int, clock: Any) -> Any:
        rollouts = ts.generate_rollouts(setup, batch, step_index, clock)

        def score(micro: Any) -> Any:
            log_prob = ts.student_log_probs(setup, micro, 1.0).log_prob
            rewards = [r.grade.reward for r in micro for _ in r.completion.ids]
            loss = -log_prob.new_tensor(rewards) * log_prob
            weights = token_weights(ts.completion_lengths(micro)).to(loss)
            return (weights * loss).sum(), {"loss": loss.detach()}

        return ts.learn(setup, rollouts, score, step_index, clock)


run = paint.train(
    "demo-paint",
    output_dir="runs/own-algorithm",
    train={"method": RewardWeighted, "steps": 2},
)
print(run.metrics[["loss", "accuracy", "gradient_norm"]])
