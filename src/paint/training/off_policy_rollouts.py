"""Off-policy rollouts: completions of earlier policies, and the adapters that sampled them.

The policy that sampled a completion is its behavior policy. Its adapter is kept until the step is
over, to score the completion under it, and is in the checkpoint of a step before. Both kinds are
reproducible: how old the completions of a step are does not depend on which part is faster.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

import torch
from torch import Tensor

from paint.core.display import Clock
from paint.inference.adapter_sync_check import restoring, set_trained, trainer_log_probs
from paint.inference.engine import Completion, Engine, PendingCompletions, Sampling
from paint.inference.rollouts import Rollout
from paint.models.policy import Policy

BEHAVIOR_ADAPTERS = "behind.pt"
"""The file of a checkpoint with the behavior adapters of the pending steps, by step."""

Request = tuple[list[list[int]], Sampling, list[int]]
"""Prompts, sampling settings and seeds of this rank's rows of a step."""


@dataclass(kw_only=True)
class OffPolicyRollouts(ABC):
    """The rollouts of the steps to come. All ranks call each method together."""

    policy: Policy
    behind: int  # k, how many updates old completions may be (``rollout.off_policy_steps``)
    steps: int  # of the run; no completions are requested beyond them
    measured: int  # rows of a step, on each rank, that are scored under the behavior policy
    _behavior_adapters: dict[int, list[Tensor]] = field(default_factory=dict)  # by step

    @abstractmethod
    def get(self, step: int, clock: Clock) -> list[Rollout]:
        """Return this rank's rollouts of a step, and request those that are due."""

    @abstractmethod
    def pending(self, done: int) -> range:
        """The steps, after ``done`` steps, whose behavior policy is known by now."""

    def restore(self, checkpoint: Path) -> None:
        """Load the adapters that were pending when the checkpoint was written."""
        path = checkpoint / BEHAVIOR_ADAPTERS
        self._behavior_adapters = torch.load(path, map_location="cpu", weights_only=True)

    def score_under_behavior_policy(self, rollouts: Sequence[Rollout], step: int) -> list[Rollout]:
        """Give ``measured`` rollouts log-probs under the behavior policy, each source first."""
        # So that other rows are measured in each step.
        start = step % len(rollouts)
        turned = [*rollouts[start:], *rollouts[:start]]
        # Of equal keys a dict keeps the last value, so reversed: the first row of each source.
        firsts = list({r.completion.source: r for r in reversed(turned)}.values())
        chosen = (firsts + [r for r in turned if r not in firsts])[: self.measured]

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
        adapters = {step: self._behavior_adapters[step] for step in self.pending(done)}
        torch.save(adapters, checkpoint / BEHAVIOR_ADAPTERS)

    def _copy_adapter(self) -> list[Tensor]:
        """Return the policy's trained weights of now, on the CPU."""
        # copy: on a CPU, it would be the same tensor, which the optimizer changes in place.
        return [p.detach().to("cpu", copy=True) for p in self.policy.trainable]


@dataclass(kw_only=True)
class AsyncRollouts(OffPolicyRollouts):
    """Requests to servers, which generate while a step trains.

    When step t begins, the trainer waits for its completions and requests those of step t + k from
    the current policy. All completions of a step are therefore exactly k updates old; in the first
    k steps, as many as there were. A resumed run repeats the pending requests.
    """

    engine: Engine
    request: Callable[[int], Request]  # of a step, by its index
    finish: Callable[[int, Sequence[Completion]], list[Rollout]]  # of a step's completions
    _pending: dict[int, PendingCompletions] = field(default_factory=dict)  # by step

    @cached_property
    def _engines(self) -> list[Engine]:
        # A client has one adapter. The client of step t is free again for step t + k.
        return [self.engine.fork() for _ in range(self.behind)]

    def get(self, step: int, clock: Clock) -> list[Rollout]:
        with clock("wait"):
            for early in self.pending(step):
                if early not in self._behavior_adapters:  # the first steps of a run
                    self._submit(early)
            # That of this step stays, since its completions are scored under it.
            self._behavior_adapters = {
                s: adapter for s, adapter in self._behavior_adapters.items() if s >= step
            }
            completions = self._pending.pop(step)()
        rollouts = self.finish(step, completions)
        with clock("submit"):
            # Before this step's update: the completions are then exactly k updates old.
            self._submit(step + self.behind)
        return rollouts

    def pending(self, done: int) -> range:
        return range(done, done + self.behind)

    def restore(self, checkpoint: Path) -> None:
        super().restore(checkpoint)
        with restoring(self.policy):
            # Servers get the adapters that sampled before. The policy stays that of the checkpoint.
            for step, adapter in self._behavior_adapters.items():
                set_trained(self.policy, adapter)
                self._send(step)

    def _submit(self, step: int) -> None:
        self._behavior_adapters[step] = self._copy_adapter()
        self._send(step)

    def _send(self, step: int) -> None:
        if step < self.steps:
            engine = self._engines[step % self.behind]
            engine.sync_weights()
            self._pending[step] = engine.submit(*self.request(step))


@dataclass(kw_only=True)
class BatchedRollouts(OffPolicyRollouts):
    """The rows of k + 1 steps sampled at once, in the training process.

    Steps g to g + k, where k + 1 divides g, are a group. When its first step begins, the policy of
    now samples the completions of all of them in one call of the engine, which takes less time than
    k + 1 calls. Those of the group's i-th step, from 0, are i updates old. A run that is resumed
    within a group samples the same rows in one call again.
    """

    draw: Callable[[Sequence[int], Clock], list[Rollout]]  # of steps, by the policy of now
    _rollouts: dict[int, list[Rollout]] = field(default_factory=dict)  # by step

    def get(self, step: int, clock: Clock) -> list[Rollout]:
        if step not in self._rollouts:
            group = self._group_of(step)
            if step == group.start:
                self._behavior_adapters = dict.fromkeys(group, self._copy_adapter())
                self._sample(group, clock)
            else:  # the run was resumed within the group
                with restoring(self.policy):
                    set_trained(self.policy, self._behavior_adapters[step])
                    self._sample(group, clock)
        return self._rollouts.pop(step)

    def score_under_behavior_policy(self, rollouts: Sequence[Rollout], step: int) -> list[Rollout]:
        if step == self._group_of(step).start:  # the policy itself sampled them
            return list(rollouts)
        return super().score_under_behavior_policy(rollouts, step)

    def pending(self, done: int) -> range:
        group = self._group_of(done)
        # Before its first step, the group's behavior policy is that of the checkpoint itself.
        is_sampled = done > group.start
        return range(done, group.stop if is_sampled else done)

    def _group_of(self, step: int) -> range:
        first = step - step % (self.behind + 1)
        return range(first, first + self.behind + 1)

    def _sample(self, group: range, clock: Clock) -> None:
        """Sample the completions of a group's steps, but of none beyond the run's last one."""
        steps = range(group.start, min(group.stop, self.steps))
        rollouts = self.draw(steps, clock)
        size = len(rollouts) // len(steps)  # rows of a step, on this rank
        self._rollouts = {
            step: rollouts[place * size : (place + 1) * size] for place, step in enumerate(steps)
        }
