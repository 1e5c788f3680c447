"""``paint plan``."""

from dataclasses import dataclass
from typing import Annotated

from paint.cli.options import Recipe, Settings, bounded


@dataclass(frozen=True)
class Plan:
    """Estimate memory use and the split of GPUs between training and serving.

    The estimate comes from the model's config.json: nothing is loaded, and no GPU is needed
    (docs/how-to/large-models.md).

    Example: paint plan demo-paint --gpus 0
    """

    recipe: Recipe
    """The recipe to be trained, such as paint-qwen3-8b. It stands before the flags."""
    config: Settings
    gpus: Annotated[int, bounded(int, 0, 1024)] = 1
    """GPUs of each machine, in [0, 1024]; 0 is a laptop's CPU."""
    nodes: Annotated[int, bounded(int, 1, 1024)] = 1
    """Machines, in [1, 1024]."""
    memory: Annotated[float | None, bounded(float, 1, 10_000, optional=True)] = None
    """Memory of each GPU in GB, in [1, 10000]. None: 80, and 16 of a laptop."""

    def run(self) -> int:
        from paint.api import plan

        plan(self.config, gpus=self.gpus, nodes=self.nodes, memory=self.memory)
        return 0
