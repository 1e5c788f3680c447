"""Drift of the student from its base on fixed prompts, measured after each step (``health``; ours).

    D = mean over tokens of KL(base ‖ student)

The tokens are those of completions that the base samples once, at the start. Both read the
student's prompt, so D is 0 before the first update. A step costs one forward pass of them.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor

from paint.config.schema import Config
from paint.data.problems import read_problems
from paint.inference.engine import derive_seed, sampling_from
from paint.inference.local import LocalEngine
from paint.models.policy import Policy
from paint.models.teacher import Teacher
from paint.objective.fused import fused_paint_loss
from paint.objective.loss_options import Objective

MOST_TOKENS = 256  # longest completion of the base
PROMPTS = 8  # each costs a step one forward pass

# Without the clip, with which it would be no divergence (docs/fidelity.md, D1), and without
# interpolation: D must not depend on the settings of the loss.
KL = Objective(temperature=1.0, clip_mode="none", interpolation_weight=0.0, top_fraction=0.0)


@dataclass(frozen=True)
class Drift:
    """Completions of the base model on fixed prompts, and its hidden states of their tokens."""

    policy: Policy
    base: Teacher
    prompts: Sequence[Sequence[int]]
    completions: Sequence[Sequence[int]]
    base_hidden: Float[Tensor, "n h"]

    @torch.no_grad()
    def measure(self) -> float:
        """KL(base ‖ student) in nats, at temperature 1: the mean over the completions' tokens."""
        loss = fused_paint_loss(
            self.policy.hidden_states(self.prompts, self.completions),
            self.base_hidden,
            self.policy.lm_head,
            [len(ids) for ids in self.completions],
            KL,
            teacher_lm_head=self.base.lm_head,
        )
        return float(loss.stats["kl"].mean())


def open_drift(config: Config, policy: Policy, teacher: Teacher) -> Drift | None:
    """Sample the base's completions of ``health.drift_path``, by the seed alone; None without."""
    if not config.health.drift_path:
        return None
    data = replace(config.data.of(config.health.drift_path), limit=PROMPTS)
    # Rows need neither solution nor answer, since nothing is graded.
    problems = read_problems(data, needs={}).problems
    prompts = [policy.student_prompt(problem) for problem in problems]
    seeds = [derive_seed(config.train.seed, "drift", row) for row in range(len(prompts))]
    sampling = sampling_from(config.rollout)
    sampling = replace(sampling, max_new_tokens=min(sampling.max_new_tokens, MOST_TOKENS))
    # In this process, as servers hold the student.
    engine = LocalEngine(policy, batch_size=config.rollout.batch_size)
    with teacher.base.view():
        completions = [c.ids for c in engine.generate(prompts, sampling, seeds)]
        # Once, as the base never changes.
        base_hidden = policy.hidden_states(prompts, completions)
    return Drift(policy, teacher.base, prompts, completions, base_hidden)
