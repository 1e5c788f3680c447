"""SIPO: GRPO with credit for each token, by a teacher that reads the answer and one that errs.

    A_n = A + κ clip(log p(y_n | answer) − log p(y_n | mistake), −ε, ε)

The mistake is a completion's own wrong answer; for a right one, the commonest of its group. A_n
never has another sign than A. Source: Self-Instructing Policy Optimization,
https://arxiv.org/abs/2609.36742; theirs does not divide advantages by their deviation.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from paint.algorithms.grpo import token_advantages
from paint.algorithms.paint import add_teacher_prompts
from paint.core.display import Clock
from paint.core.distributed import all_gather_objects
from paint.core.settings import NOT_NEGATIVE, setting
from paint.inference.rollouts import Rollout
from paint.objective.loss import weighted_sum
from paint.training import train_step as ts
from paintvariants.rewarded_variant import RewardedVariant, teacher_log_probs
from strictgrade.comparer import answer_text


@dataclass(frozen=True)
class Options:
    kappa: float = setting(0.5, NOT_NEGATIVE, "default: 0.5")
    """Weight κ of the credit, at least 0; 0 is GRPO."""
    epsilon: float = setting(0.2, NOT_NEGATIVE, "default: 0.2")
    """Largest credit ε, in nats."""


class Sipo(RewardedVariant):
    options: Options

    def step(
        self, setup: ts.Setup, batch: ts.Batch, step_index: int, clock: Clock
    ) -> ts.StepResult:
        rollouts = self.rollouts(setup, batch, step_index, clock)
        wrong = [(r.problem.id, answer_text(r.text)) for r in rollouts if not r.is_correct]
        # A problem's completions may lie on several ranks.
        mistakes = Counter(all_gather_objects(wrong))
        temperature, epsilon = setup.config.rollout.temperature, self.options.epsilon

        def score(micro: Sequence[Rollout]) -> ts.Scores:
            other = [erring(rollout, mistakes) for rollout in micro]
            erred = teacher_log_probs(setup, add_teacher_prompts(setup, other, step_index))
            credit = (teacher_log_probs(setup, micro) - erred).clamp(-epsilon, epsilon)
            advantage = token_advantages(micro, credit.device)
            total = advantage + self.options.kappa * credit
            # The credit changes the size of an advantage, never its sign.
            total = total.where(total * advantage >= 0, 0.0)
            loss = -total * ts.student_log_probs(setup, micro, temperature).log_prob
            lengths = ts.completion_lengths(micro)
            value = weighted_sum(loss, lengths, setup.resolved.objective)
            return value, {"loss": loss.detach(), "credit": credit}

        return ts.learn(setup, rollouts, score, step_index, clock)


def erring(rollout: Rollout, mistakes: Mapping[tuple[str, str | None], int]) -> Rollout:
    """The rollout with a wrong answer in place of its problem's; without one, as it is."""
    problem, mistake = rollout.problem, answer_text(rollout.text)
    if rollout.is_correct:
        group = []
        for (name, answer), n in mistakes.items():
            if name == problem.id and answer:
                group.append((n, answer))
        # Equal counts are decided by the text, so that all ranks choose the same.
        mistake = max(group, default=(0, None))[1]
    # Without a mistake both teachers read the answer, and the credit is 0.
    return replace(rollout, problem=replace(problem, answer=mistake or problem.answer))
