"""PAINT next to GRPO's reward, in one loss on the same completions (ours).

    loss = ℓ(x, y*) + w ℓ_GRPO,     w = reward_weight

``grpo_loss`` is ℓ_GRPO without w.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from paint.algorithms.grpo import score_group
from paint.algorithms.paint import rollout_loss, teacher_hidden_states
from paint.core.settings import NOT_NEGATIVE, setting
from paint.inference.rollouts import Rollout
from paint.resolve.algorithm import GrpoOptions
from paint.training import train_step as ts
from paintvariants.rewarded_variant import RewardedVariant


@dataclass(frozen=True)
class Options:
    reward_weight: float = setting(0.1, NOT_NEGATIVE, "default: 0.1")
    """Weight of GRPO's loss next to the distillation's, at least 0."""


class Rewarded(RewardedVariant):
    options: Options

    def score(self, setup: ts.Setup, rollouts: Sequence[Rollout]) -> ts.Scores:
        weight = self.options.reward_weight
        student = ts.student_hidden_states(setup, rollouts)
        teacher = teacher_hidden_states(setup, rollouts)
        distilled, values = rollout_loss(setup, rollouts, student, teacher)
        # There is one update: the ratio is 1, no tokens are old, and the clip is idle.
        rewarded, of_grpo = score_group(setup, GrpoOptions(), {}, rollouts, student)
        loss = {"loss": values["loss"] + weight * of_grpo["loss"], "grpo_loss": of_grpo["loss"]}
        # Later tables win: of names in both, such as clipped, the values are the distillation's.
        return distilled + weight * rewarded, of_grpo | values | loss
