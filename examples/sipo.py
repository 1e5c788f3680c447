"""SIPO: GRPO with credit for each token, by a teacher that reads the answer and one that errs.

    A_n = A + KAPPA clip(log p(y_n | answer) - log p(y_n | mistake), -EPSILON, EPSILON)

The mistake is a completion's own wrong answer; for a right one, the commonest of its group. A_n
never has another sign than A (Self-Instructing Policy Optimization, arXiv 2609.36742).
"""

from collections import Counter
from dataclasses import replace
from typing import Any

import paint
from paint.algorithms.grpo import reward
from paint.algorithms.paint import add_contexts, add_teacher_prompts, teacher_hidden_states
from paint.core.distributed import all_gather_objects
from paint.grading.math.grader import answer_text
from paint.objective.loss import token_weights
from paint.training import train_step as ts

KAPPA, EPSILON = 0.5, 0.2


class Sipo(paint.Algorithm):
    needs_context = needs_grades = uses_policy_gradient = True
    min_samples = 2

    def step(self, setup: Any, batch: Any, step_index: int, clock: Any) -> Any:
        rollouts = reward(setup, ts.generate_rollouts(setup, batch, step_index, clock))
        rollouts = add_contexts(setup, rollouts, step_index, clock)  # context.source is "answer"
        given = [(r.problem.id, answer_text(r.text)) for r in rollouts if not r.is_correct]
        mistakes = Counter(all_gather_objects(given))

        def erring(r: Any) -> Any:
            group = [
                (n, a) for (problem, a), n in mistakes.items() if problem == r.problem.id and a
            ]
            mistake = max(group, default=(0, None))[1] if r.is_correct else answer_text(r.text)
            # Without a mistake both teachers read the answer, and the credit is 0.
            return replace(r, problem=replace(r.problem, answer=mistake or r.problem.answer))

        def score(micro: Any) -> Any:
            def log_prob(**teacher: Any) -> Any:
                temperature = setup.config.rollout.temperature
                return ts.student_log_probs(setup, micro, temperature, **teacher).log_prob

            other = add_teacher_prompts(setup, [erring(r) for r in micro], step_index)
            hidden = [teacher_hidden_states(setup, view) for view in (micro, other)]
            read, erred = (log_prob(hidden=h, head=setup.teacher.lm_head) for h in hidden)
            credit = (read - erred).clamp(-EPSILON, EPSILON)
            by_token = [r.metrics["advantage"] for r in micro for _ in r.completion.ids]
            advantage = credit.new_tensor(by_token)
            total = advantage + KAPPA * credit
            loss = -total.where(total * advantage >= 0, 0.0) * log_prob()
            weights = token_weights(ts.completion_lengths(micro)).to(loss)
            return (weights * loss).sum(), {"loss": loss.detach(), "credit": credit}

        return ts.learn(setup, rollouts, score, step_index, clock)
