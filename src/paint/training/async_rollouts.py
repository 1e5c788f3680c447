"""Asynchronous rollouts: completions are requested k steps before they are trained on.

When step t begins, the trainer waits for its completions and requests those of step t + k from the
current policy. All completions of a step are therefore exactly k updates old (in the first k steps:
as many as there were), whichever of servers and trainer is faster, and a run is reproducible. A
checkpoint stores the behavior adapters of the pending requests, which a resumed run repeats.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from paint.inference.adapter_sync_check import restoring, set_trained, trainer_log_probs
from paint.inference.engine import Completion, Engine, PendingCompletions
from paint.models.policy import Policy
from paint.training.rollouts import Rollout

INFLIGHT_ADAPTERS = "behind.pt"
"""The file of a checkpoint with the behavior adapters of the pending steps, by step."""

Submit = Callable[[Engine, int], PendingCompletions]
"""Requests this rank's completions of a step from an engine."""


class AsyncRollouts:
    """The pending requests and their behavior adapters. All ranks call each method together."""

    def __init__(
        self,
        policy: Policy,
        engines: Sequence[Engine],  # k of them, one for each pending step
        request: Submit,
        *,
        steps: int,  # of the run; no completions are requested beyond them
        measured: int,  # rows of a step, on each rank, that are scored under the behavior policy
    ) -> None:
        self.policy, self.engines, self._measured = policy, engines, measured
        self._request, self._steps = request, steps
        self._pending: dict[int, PendingCompletions] = {}
        self._behavior_adapters: dict[int, list[Tensor]] = {}

    def get(self, step: int) -> list[Completion]:
        """Return this rank's completions of a step; request those of the next steps if missing."""
        for early in range(step, step + len(self.engines)):
            if early not in self._behavior_adapters:
                self._submit(early)
        self._behavior_adapters = {
            s: adapter for s, adapter in self._behavior_adapters.items() if s >= step
        }
        return self._pending.pop(step)()

    def submit(self, step: int) -> None:
        """Request the completions of step ``step`` + k from the current policy."""
        self._submit(step + len(self.engines))

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
        found = {r.row: tuple(part.tolist()) for r, part in zip(chosen, parts, strict=True)}
        return [replace(r, behavior_log_probs=found.get(r.row, ())) for r in rollouts]

    def save(self, checkpoint: Path, done: int) -> None:
        """Write the behavior adapters of the steps that are pending after ``done`` steps."""
        # The policy is left alone, since a step may be running.
        steps = range(done, done + len(self.engines))
        torch.save(
            {step: self._behavior_adapters[step] for step in steps}, checkpoint / INFLIGHT_ADAPTERS
        )

    def restore(self, checkpoint: Path) -> None:
        """Repeat the requests that were pending when the checkpoint was written."""
        adapters = torch.load(checkpoint / INFLIGHT_ADAPTERS, map_location="cpu", weights_only=True)
        with restoring(self.policy):
            for step, adapter in adapters.items():
                set_trained(self.policy, adapter)
                self._submit(step)

    def _submit(self, step: int) -> None:
        self._behavior_adapters[step] = [
            p.detach().to("cpu", copy=True) for p in self.policy.trainable
        ]
        if step < self._steps:
            engine = self.engines[step % len(self.engines)]
            engine.sync_weights()
            self._pending[step] = self._request(engine, step)
