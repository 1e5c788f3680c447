"""A contrast of two contexts as target: the solution's teacher, away from a wrong answer's.

    target logits = z_solution + STRENGTH (z_solution - z_wrong_answer)

What both contexts change alike, such as style, cancels in the difference.
"""

from dataclasses import replace
from typing import Any

import paint
from paint.algorithms.paint import (
    add_contexts,
    add_teacher_prompts,
    score_rollouts,
    teacher_hidden_states,
)
from paint.training import train_step as ts

STRENGTH = 0.5
AGAINST = "wrong_answer"  # or none, other, a field of the row, module:function


class Contrast(paint.Algorithm):
    needs_context = True

    def step(self, setup: Any, batch: Any, step_index: int, clock: Any) -> Any:
        rollouts = ts.generate_rollouts(setup, batch, step_index, clock)
        rollouts = add_contexts(setup, rollouts, step_index, clock)
        context = replace(setup.config.context, source=(AGAINST,))
        other = replace(setup, config=replace(setup.config, context=context))

        def score(micro: Any) -> Any:
            mine = teacher_hidden_states(setup, micro)
            against = teacher_hidden_states(other, add_teacher_prompts(other, micro, step_index))
            # The head is linear, so this is the contrast of the logits.
            target = mine + STRENGTH * (mine - against)
            return score_rollouts(setup, micro, teacher_hidden=target)

        return ts.learn(setup, rollouts, score, step_index, clock)


if __name__ == "__main__":
    run = paint.train(
        "demo-paint", output_dir="runs/contrast", train={"method": Contrast, "steps": 2}
    )
    print(run.metrics[["loss", "kl", "gradient_norm"]])
