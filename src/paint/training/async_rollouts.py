"""Asynchronous rollouts: completions are requested k steps before they are trained on.

When step t begins, the trainer waits for its completions and requests those of step t + k from the
current policy. All completions of a step are therefore exactly k updates old (in the first k steps:
as many as there were), whichever of servers and trainer is faster, and a run is reproducible. A
checkpoint stores the behavior adapters of the pending requests, which a resumed run repeats.
"""

from collections.abc import Callable, Sequence
from pathlib import Path

from paint.core.display import Clock
from paint.inference.adapter_sync_check import restoring, set_trained
from paint.inference.engine import Completion, Engine, PendingCompletions
from paint.models.policy import Policy
from paint.training.off_policy_rollouts import OffPolicyRollouts, load_behavior_adapters

Submit = Callable[[Engine, int], PendingCompletions]
"""Requests this rank's completions of a step from an engine."""


class AsyncRollouts(OffPolicyRollouts):
    """The pending requests of servers, which generate while a step trains."""

    def __init__(
        self,
        policy: Policy,
        engines: Sequence[Engine],  # k of them, one for each pending step
        request: Submit,
        *,
        steps: int,
        measured: int,
    ) -> None:
        super().__init__(policy, steps=steps, measured=measured)
        self.engines, self._request = engines, request
        self._pending: dict[int, PendingCompletions] = {}

    def get(self, step: int, clock: Clock) -> list[Completion]:
        """Return this rank's completions of a step; request those of step ``step`` + k."""
        with clock("wait"):
            for early in range(step, step + len(self.engines)):
                if early not in self._behavior_adapters:  # the first steps of a run
                    self._submit(early)
            self._behavior_adapters = {
                s: adapter for s, adapter in self._behavior_adapters.items() if s >= step
            }
            completions = self._pending.pop(step)()
        with clock("submit"):
            self._submit(step + len(self.engines))
        return completions

    def pending(self, done: int) -> range:
        return range(done, done + len(self.engines))

    def restore(self, checkpoint: Path) -> None:
        adapters = load_behavior_adapters(checkpoint)
        with restoring(self.policy):
            for step, adapter in adapters.items():
                set_trained(self.policy, adapter)
                self._submit(step)

    def _submit(self, step: int) -> None:
        self._behavior_adapters[step] = self._copy_adapter()
        if step < self._steps:
            engine = self.engines[step % len(self.engines)]
            engine.sync_weights()
            self._pending[step] = self._request(engine, step)
