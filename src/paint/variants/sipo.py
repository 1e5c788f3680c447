"""SIPO: GRPO with credit for each token, by a teacher that reads the answer and one that errs.

    A_n = A + κ clip(log p(y_n | answer) − log p(y_n | mistake), −ε, ε)

The mistake is a completion's own wrong answer; for a right one, the commonest of its group. A_n
never has another sign than A. Source: Self-Instructing Policy Optimization,
https://arxiv.org/abs/2609.36742; theirs does not divide advantages by their deviation.

    paint train sipo --model.path MODEL --data.path FILE
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from paint.algorithms.base import Algorithm
from paint.algorithms.grpo import reward, token_advantages
from paint.algorithms.paint import add_teacher_prompts, teacher_hidden_states
from paint.core.display import Clock
from paint.core.distributed import all_gather_objects
from paint.core.settings import NOT_NEGATIVE, setting
from paint.grading.math.grader import answer_text
from paint.objective.loss import weighted_sum
from paint.training import train_step as ts
from paint.training.rollouts import Rollout


@dataclass(frozen=True)
class Options:
    """The credit of a token."""

    kappa: float = setting(0.5, NOT_NEGATIVE, "default: 0.5")
    """Weight κ of the credit, at least 0; 0 is GRPO."""
    epsilon: float = setting(0.2, NOT_NEGATIVE, "default: 0.2")
    """Largest credit ε, in nats."""


class Sipo(Algorithm):
    """GRPO with a credit from two contexts; ``context.source`` is "answer"."""

    needs_context = True
    needs_grades = True
    uses_policy_gradient = True
    min_samples = 2
    options: Options

    def step(
        self, setup: ts.Setup, batch: ts.Batch, step_index: int, clock: Clock
    ) -> ts.StepResult:
        rollouts = ts.generate_rollouts(setup, batch, step_index, clock)
        with clock("reward"):
            rollouts = reward(setup, rollouts)
        with clock("context"):
            rollouts = add_teacher_prompts(setup, rollouts, step_index)
        given = []
        for r in rollouts:
            if not r.is_correct:
                given.append((r.problem.id, answer_text(r.text)))
        mistakes = Counter(all_gather_objects(given))
        temperature, head = setup.config.rollout.temperature, setup.teacher.lm_head

        def score(micro: Sequence[Rollout]) -> ts.Scores:
            other = []
            for rollout in micro:
                other.append(erring(rollout, mistakes))
            other = add_teacher_prompts(setup, other, step_index)
            hidden = teacher_hidden_states(setup, micro)
            read = ts.student_log_probs(setup, micro, temperature, hidden=hidden, head=head)
            hidden = teacher_hidden_states(setup, other)
            erred = ts.student_log_probs(setup, other, temperature, hidden=hidden, head=head)
            epsilon = self.options.epsilon
            credit = (read.log_prob - erred.log_prob).clamp(-epsilon, epsilon)
            advantage = token_advantages(micro, credit.device)
            total = advantage + self.options.kappa * credit
            total = total.where(total * advantage >= 0, 0.0)
            loss = -total * ts.student_log_probs(setup, micro, temperature).log_prob
            lengths = ts.completion_lengths(micro)
            value = weighted_sum(loss, lengths, setup.resolved.objective)
            return value, {"loss": loss.detach(), "credit": credit}

        return ts.learn(setup, rollouts, score, step_index, clock)


def erring(rollout: Rollout, mistakes: Mapping[tuple[str, str | None], int]) -> Rollout:
    """The rollout with a wrong answer in place of its problem's; without one, as it is."""
    mistake = answer_text(rollout.text)
    if rollout.is_correct:
        problem = rollout.problem.id
        group = [
            (n, answer) for (name, answer), n in mistakes.items() if name == problem and answer
        ]
        mistake = max(group, default=(0, None))[1]
    # Without a mistake both teachers read the answer, and the credit is 0.
    answer = mistake or rollout.problem.answer
    return replace(rollout, problem=replace(rollout.problem, answer=answer))
