"""Off-policy rollouts: completions of earlier policies, and the adapters that sampled them.

The policy that sampled a completion is its behavior policy. Its adapter is kept until the step is
over, to score the completion under it, and is in the checkpoint of a step before.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from paint.core.display import Clock
from paint.inference.adapter_sync_check import restoring, set_trained, trainer_log_probs
from paint.inference.engine import Completion
from paint.models.policy import Policy
from paint.training.rollouts import Rollout

BEHAVIOR_ADAPTERS = "behind.pt"
"""The file of a checkpoint with the behavior adapters of the pending steps, by step."""


class OffPolicyRollouts(ABC):
    """The completions of the steps to come. All ranks call each method together."""

    def __init__(
        self,
        policy: Policy,
        *,
        steps: int,  # of the run; no completions are requested beyond them
        measured: int,  # rows of a step, on each rank, that are scored under the behavior policy
    ) -> None:
        self.policy, self._steps, self._measured = policy, steps, measured
        self._behavior_adapters: dict[int, list[Tensor]] = {}  # by step

    @abstractmethod
    def get(self, step: int, clock: Clock) -> list[Completion]:
        """Return this rank's completions of a step, and request those that are due."""

    @abstractmethod
    def pending(self, done: int) -> range:
        """The steps, after ``done`` steps, whose behavior policy is known by now."""

    @abstractmethod
    def restore(self, checkpoint: Path) -> None:
        """Repeat the requests that were pending when the checkpoint was written."""

    def score_under_behavior_policy(self, rollouts: Sequence[Rollout], step: int) -> list[Rollout]:
        """Give ``measured`` rollouts log-probs under the behavior policy, each source first."""
        start = step % len(rollouts)
        turned = [*rollouts[start:], *rollouts[:start]]
        firsts = list({r.completion.source: r for r in reversed(turned)}.values())
        chosen = (firsts + [r for r in turned if r not in firsts])[: self._measured]

        with restoring(self.policy):
            set_trained(self.policy, self._behavior_adapters[step])
            values = trainer_log_probs(
                self.policy, [r.prompt for r in chosen], [r.completion for r in chosen]
            )
        parts = values.split([len(r.completion.ids) for r in chosen])
        found = {}
        for r, part in zip(chosen, parts, strict=True):
            found[r.row] = tuple(part.tolist())
        return [replace(r, behavior_log_probs=found.get(r.row, ())) for r in rollouts]

    def save(self, checkpoint: Path, done: int) -> None:
        """Write the behavior adapters of the steps that are pending after ``done`` steps."""
        # The policy is left alone, since a step may be running.
        adapters = {}
        for step in self.pending(done):
            adapters[step] = self._behavior_adapters[step]
        torch.save(adapters, checkpoint / BEHAVIOR_ADAPTERS)

    def _copy_adapter(self) -> list[Tensor]:
        """The policy's trained weights of now, on the CPU."""
        copies: list[Tensor] = []
        for p in self.policy.trainable:
            copies.append(p.detach().to("cpu", copy=True))
        return copies


def load_behavior_adapters(checkpoint: Path) -> dict[int, list[Tensor]]:
    """The behavior adapters of a checkpoint's pending steps, by step."""
    path = checkpoint / BEHAVIOR_ADAPTERS
    adapters: dict[int, list[Tensor]] = torch.load(path, map_location="cpu", weights_only=True)
    return adapters
