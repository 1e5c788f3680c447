"""Batched rollouts: the rows of k + 1 steps are sampled at once, in the training process.

Steps g to g + k, where k + 1 divides g, are a group. When its first step begins, the policy of now
samples the completions of all of them in one call of the engine, which takes less time than k + 1
calls. The completions of the group's i-th step, from 0, are i updates old. A checkpoint within a
group stores its behavior adapter, with which a resumed run samples the same rows in one call again.
"""

from collections.abc import Callable, Sequence
from pathlib import Path

from paint.core.display import Clock
from paint.core.distributed import all_gather_objects
from paint.inference.adapter_sync_check import restoring, set_trained
from paint.inference.engine import Completion, Engine, Sampling
from paint.models.policy import Policy
from paint.training.off_policy_rollouts import OffPolicyRollouts, load_behavior_adapters
from paint.training.rollouts import Rollout

Request = Callable[[int], tuple[list[list[int]], list[int]]]
"""Prompts and seeds of this rank's rows of a step."""


class BatchedRollouts(OffPolicyRollouts):
    """The completions of a group of steps, of which each is trained on in turn."""

    def __init__(
        self,
        policy: Policy,
        engine: Engine,
        request: Request,
        sampling: Sampling,
        *,
        group: int,  # steps whose rows are sampled at once, k + 1
        steps: int,
        measured: int,
    ) -> None:
        super().__init__(policy, steps=steps, measured=measured)
        self.engine, self._request, self._sampling = engine, request, sampling
        self._group = group
        self._completions: dict[int, list[Completion]] = {}  # by step

    def get(self, step: int, clock: Clock) -> list[Completion]:
        """Return this rank's completions of a step; sample its group's if there are none."""
        if step not in self._completions:
            group = self._group_of(step)
            if step == group.start:
                self._behavior_adapters = dict.fromkeys(group, self._copy_adapter())
                self._sample(group, clock)
            else:  # the run was resumed within the group
                with restoring(self.policy):
                    set_trained(self.policy, self._behavior_adapters[step])
                    self._sample(group, clock)
        return self._completions.pop(step)

    def score_under_behavior_policy(self, rollouts: Sequence[Rollout], step: int) -> list[Rollout]:
        """Score as for servers; in a group's first step the policy itself is that policy."""
        if step == self._group_of(step).start:
            return list(rollouts)
        return super().score_under_behavior_policy(rollouts, step)

    def pending(self, done: int) -> range:
        group = self._group_of(done)
        is_sampled = done > group.start
        return range(done, group.stop if is_sampled else done)

    def restore(self, checkpoint: Path) -> None:
        # ``get`` samples the rows, whose time then counts as the step's.
        self._behavior_adapters = load_behavior_adapters(checkpoint)

    def _group_of(self, step: int) -> range:
        first = step - step % self._group
        return range(first, first + self._group)

    def _sample(self, group: range, clock: Clock) -> None:
        """Sample the completions of a group's steps, but of none beyond the run's last one."""
        steps = range(group.start, min(group.stop, self._steps))
        prompts: list[list[int]] = []
        seeds: list[int] = []
        counts = []
        for step in steps:
            prompts_of_step, seeds_of_step = self._request(step)
            prompts += prompts_of_step
            seeds += seeds_of_step
            counts.append(len(prompts_of_step))
        with clock("sync"):
            self.engine.sync_weights()
        with clock("rollout"):
            completions = self.engine.generate(prompts, self._sampling, seeds)

        tokens = sum(len(completion.ids) for completion in completions)
        clock.tokens["rollout"] = sum(all_gather_objects([tokens]))
        self._completions = {}
        start = 0
        for step, count in zip(steps, counts, strict=True):
            self._completions[step] = completions[start : start + count]
            start += count
