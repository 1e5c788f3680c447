"""What lies where, what fits, and how long a step takes: estimated before anything is loaded."""

from dataclasses import dataclass

from paint.config import Config


@dataclass(frozen=True)
class Split:
    """Which GPUs train, and which serve completions.

    Attributes:
        trainers: GPUs that train, one rank on each, over all machines.
        servers: GPUs that serve, over all machines; 0 where the ranks generate by themselves.
        shared: every GPU does both, in turns (``rollout.sleep``).
        reason: why, in words.
    """

    trainers: int
    servers: int
    shared: bool
    reason: str


def divide(config: Config, gpus: int, nodes: int = 1, memory: float = 80e9) -> Split:
    """The GPUs of a run: so many in each machine, so many machines, bytes of each GPU."""
    total = gpus * nodes
    if config.rollout.engine != "vllm" or config.rollout.urls:
        return Split(total, 0, False, "the ranks generate by themselves")
    if config.rollout.sleep or total == 1:
        return Split(total, total, True, "each GPU serves and trains in turns")

    servers = gpus * (nodes // 2) or total // 2
    return Split(total - servers, servers, False, "half of the GPUs serve")
