"""RLSD: GRPO whose tokens get more or less of the advantage by a teacher with the solution.

    A_n = A clip(w_n, 1 - EPSILON, 1 + EPSILON),     w_n = (p_T / p_S)^sign(A) of the sampled token

The reward decides the direction of an update, the teacher only its size (Self-Distilled RLVR,
arXiv 2604.03128).
"""

from typing import Any

import paint
from paint.algorithms.grpo import reward
from paint.algorithms.paint import add_contexts, teacher_hidden_states
from paint.objective.loss import token_weights
from paint.training import train_step as ts

EPSILON = 0.2


class Rlsd(paint.Algorithm):
    needs_context = True
    needs_grades = True
    min_samples = 2
    uses_policy_gradient = True

    def step(self, setup: Any, batch: Any, step_index: int, clock: Any) -> Any:
        rollouts = reward(setup, ts.generate_rollouts(setup, batch, step_index, clock))
        rollouts = add_contexts(setup, rollouts, step_index, clock)
        temperature = setup.config.rollout.temperature

        def score(micro: Any) -> Any:
            student = ts.student_log_probs(setup, micro, temperature)
            hidden, head = teacher_hidden_states(setup, micro), setup.teacher.lm_head
            teacher = ts.student_log_probs(setup, micro, temperature, hidden=hidden, head=head)
            log_prob = student.log_prob
            advantage = log_prob.new_tensor(
                [r.metrics["advantage"] for r in micro for _ in r.completion.ids]
            )
            gain = advantage.sign() * (teacher.log_prob - log_prob).detach()
            advantage = advantage * gain.exp().clamp(1 - EPSILON, 1 + EPSILON)
            # The ratio is 1 in the only update; its gradient is that of log p.
            loss = -advantage * (log_prob - log_prob.detach()).exp()
            weights = token_weights(ts.completion_lengths(micro)).to(loss)
            return (weights * loss).sum(), {"loss": loss.detach(), "gain": gain}

        return ts.learn(setup, rollouts, score, step_index, clock)


if __name__ == "__main__":
    run = paint.train(
        "demo-paint",
        output_dir="runs/rlsd",
        train={"method": Rlsd, "steps": 2},
        rollout={"samples_per_problem": 8},
    )
    print(run.metrics[["loss", "reward", "gradient_norm"]])
