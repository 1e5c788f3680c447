"""``paint resume``."""

from dataclasses import dataclass
from typing import Any

from tyro.conf import Positional

from paint.api import run_training
from paint.cli.options import ONE_PROCESS, GpuOptions, OptionalCount, Place
from paint.config.run_folder import read_run


@dataclass(frozen=True)
class Resume:
    """Resume a run from its last checkpoint; the result is bit for bit that of an unstopped run.

    Example: paint resume runs/first --steps 4
    """

    run_folder: Positional[Place]
    """Folder of the run; it holds run.json."""
    steps: OptionalCount = None
    """Optimizer steps in all, where they are more than the run was started with."""
    urls: tuple[str, ...] | None = None
    """Addresses of the vLLM servers, where they have changed."""
    server_gpus: tuple[str, ...] | None = None
    """GPUs of the servers that are started, one each, where they have changed; --gpus sets them."""
    max_logprob_mismatch: float | None = None
    """Another limit on the mean difference between the engine's and the trainer's log-probs, above
    0, in nats; it changes no value."""
    gpus: GpuOptions = ONE_PROCESS

    def run(self) -> int:
        config = read_run(self.run_folder)
        changes: dict[str, Any] = {}
        if self.urls is not None:
            changes = {"urls": self.urls, "server_gpus": ()}
        if self.server_gpus is not None:
            changes = {"urls": (), "server_gpus": self.server_gpus}
        if self.max_logprob_mismatch is not None:
            changes["max_logprob_mismatch"] = self.max_logprob_mismatch
        config = config.changed("rollout", **changes)
        if self.steps is not None:
            config = config.changed("train", steps=self.steps)
        return run_training(config, self.run_folder, self.gpus)
