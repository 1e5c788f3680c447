"""``paint serve``."""

from dataclasses import dataclass
from typing import Annotated

from paint.cli.options import ONE_PROCESS, GpuOptions, Recipe, Settings, bounded
from paint.training.launcher import serve


@dataclass(frozen=True)
class Serve:
    """Run vLLM servers for a recipe's trainers on other machines, until they are stopped.

    There is one on each GPU, at --port and the ports after it. Their key is the environment
    variable VLLM_API_KEY, here and where the training runs.

    Example: paint serve demo-paint --gpus 2 --dry-run
    """

    recipe: Recipe
    """The recipe that is trained. It stands before the flags."""
    config: Settings
    host: str = "0.0.0.0"
    """Address to listen on; 0.0.0.0 is all of the machine's, open to the network."""
    port: Annotated[int, bounded(int, 1, 65_000)] = 8000
    """Port of the first server, in [1, 65000]."""
    gpus: GpuOptions = ONE_PROCESS

    def run(self) -> int:
        return serve(self.gpus, self.config, host=self.host, port=self.port)
