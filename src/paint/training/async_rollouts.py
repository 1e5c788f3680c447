"""Completions k steps ahead, so that servers and trainer need not wait for each other in turn.

As step t begins, its completions are waited for, and those of step t + k are asked for: by the
policy as it is then, all of each by one adapter. So completions are exactly k updates old (in the
first k steps: as many as there were), whatever is faster, and a run can be repeated. A checkpoint
keeps the k adapters that write what is under way, so that a resumed run asks for the same again.

Left out on purpose: completions by more than one adapter, queues whose lag is an upper bound, and
weights for what is old, which forward KL does not need (docs/concepts/off-policy.md).
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from paint.inference.adapter_sync_check import restoring, trainer_log_probs
from paint.inference.engine import Completion, Engine, PendingCompletions
from paint.models.policy import Policy
from paint.training.rollouts import Rollout

INFLIGHT_ADAPTERS = "behind.pt"
"""The file of a checkpoint with the adapters that write what is under way, by its steps."""

Submit = Callable[[Engine, int], PendingCompletions]
"""Asks an engine for this rank's completions of a step."""


class AsyncRollouts:
    """What is under way, and who writes it. All ranks call each method together.

    Args:
        engines: k of them, one for each step that is under way.
        steps: of the whole run; more are not asked for.
        measured: rows of a step, on each rank, whose log-probs under their author are computed.
    """

    def __init__(
        self, policy: Policy, engines: Sequence[Engine], ask: Submit, *, steps: int, measured: int
    ) -> None:
        self.policy, self.engines, self._measured = policy, engines, measured
        self._ask, self._steps = ask, steps
        self._pending: dict[int, PendingCompletions] = {}
        self._behavior_adapters: dict[int, list[Tensor]] = {}

    def get(self, step: int) -> list[Completion]:
        """This rank's completions of a step; those of a run's first k steps are asked for here."""
        for early in range(step, step + len(self.engines)):
            if early not in self._behavior_adapters:
                self._begin(early)
        self._behavior_adapters = {
            s: author for s, author in self._behavior_adapters.items() if s >= step
        }
        return self._pending.pop(step)()

    def submit(self, step: int) -> None:
        """Ask for what is trained on k steps after ``step``, by the policy as it is now."""
        self._begin(step + len(self.engines))

    def score_under_behavior_policy(self, rollouts: Sequence[Rollout], step: int) -> list[Rollout]:
        """Some of a step's rollouts with their log-probs under their author: each source in turn.

        As many as a micro-batch has, in one forward pass. All others have none.
        """
        start = step % len(rollouts)
        turned = [*rollouts[start:], *rollouts[:start]]
        firsts = list({r.completion.source: r for r in reversed(turned)}.values())
        chosen = (firsts + [r for r in turned if r not in firsts])[: self._measured]

        with restoring(self.policy):
            _put(self.policy, self._behavior_adapters[step])
            values = trainer_log_probs(
                self.policy, [r.prompt for r in chosen], [r.completion for r in chosen]
            )
        parts = values.split([len(r.completion.ids) for r in chosen])
        found = {r.row: tuple(part.tolist()) for r, part in zip(chosen, parts, strict=True)}
        return [replace(r, behavior_log_probs=found.get(r.row, ())) for r in rollouts]

    def save(self, checkpoint: Path, done: int) -> None:
        """Keep the adapters that write what is under way after ``done`` steps.

        The policy is not touched: a step may be under way.
        """
        steps = range(done, done + len(self.engines))
        torch.save(
            {step: self._behavior_adapters[step] for step in steps}, checkpoint / INFLIGHT_ADAPTERS
        )

    def restore(self, checkpoint: Path) -> None:
        """Ask for what was under way when the checkpoint was written."""
        authors = torch.load(checkpoint / INFLIGHT_ADAPTERS, map_location="cpu", weights_only=True)
        with restoring(self.policy):
            for step, author in authors.items():
                _put(self.policy, author)
                self._begin(step)

    def _begin(self, step: int) -> None:
        self._behavior_adapters[step] = [
            p.detach().to("cpu", copy=True) for p in self.policy.trainable
        ]
        if step < self._steps:
            engine = self.engines[step % len(self.engines)]
            engine.sync_weights()
            self._pending[step] = self._ask(engine, step)


@torch.no_grad()
def _put(policy: Policy, values: Sequence[Tensor]) -> None:
    for parameter, value in zip(policy.trainable, values, strict=True):
        parameter.copy_(value)
