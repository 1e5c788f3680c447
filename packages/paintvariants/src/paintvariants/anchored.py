"""The teacher is held near the base model at every token (ours).

    p ∝ p_T(· | x, ỹ*, ŷ_<n)^(1−k) p_base(· | x, ŷ_<n)^k,     k = base_weight

p_base is the model before training, which has not read the context. With k = 1 there is nothing to
learn. Costs one more forward pass.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from paint.algorithms.paint import rollout_loss, teacher_hidden_states
from paint.algorithms.variant import Variant
from paint.config.schema import Config
from paint.core.errors import ConfigError
from paint.core.settings import setting, within
from paint.inference.rollouts import Rollout
from paint.training import train_step as ts


@dataclass(frozen=True)
class Options:
    base_weight: float = setting(0.2, within("[0, 1]"), "default: 0.2")
    """Weight k of the base model, without context, in the teacher, in [0, 1]."""


class Anchored(Variant):
    options: Options

    def check(self, config: Config) -> None:
        if config.model.train_mode == "full" and config.teacher.weights != "frozen":
            raise ConfigError(
                "teacher.weights must be frozen with model.train_mode full and an anchored "
                f"teacher, got {config.teacher.weights}: the base model is not kept"
            )

    def score(self, setup: ts.Setup, rollouts: Sequence[Rollout]) -> ts.Scores:
        teacher = teacher_hidden_states(setup, rollouts)
        with setup.teacher.base.view():
            base = ts.student_hidden_states(setup, rollouts)
        # The head is linear, so this interpolates energies.
        target = teacher.lerp(base, self.options.base_weight)
        return rollout_loss(setup, rollouts, ts.student_hidden_states(setup, rollouts), target)
