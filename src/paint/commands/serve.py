"""``paint serve``."""

from pathlib import Path
from typing import Annotated

from paint.commands.api import arguments
from paint.commands.api.configure import configure, open_recipe
from paint.core.settings import within
from paint.training import launcher
from paint.training.launcher import LaunchRequest


def serve(
    recipe: arguments.AnyRecipe,
    *,
    model: arguments.Model = None,
    host: str = "0.0.0.0",
    port: Annotated[int, *within("[1, 65000]")] = 8000,
    gpus: arguments.Gpus = 0,
    split: arguments.GpuSplit = None,
    dry_run: arguments.DryRun = False,
    **sections: arguments.Sections,
) -> int:
    """Run vLLM servers for a recipe's trainers on other machines, until they are stopped.

    There is one on each GPU, at ``port`` and the ports after it. Their key is the environment
    variable VLLM_API_KEY, here and where the training runs.

    Example: paint serve demo-paint --gpus 2 --dry-run

    Args:
        host: Address to listen on; 0.0.0.0 is all of the machine's, open to the network.
        port: Port of the first server, in [1, 65000].

    Returns:
        128 + n after signal n; 0 after a dry run.
    """
    _, run = configure(open_recipe(recipe).config, Path(), model, sections=sections)
    return launcher.serve(LaunchRequest(gpus, split, dry_run), run, host=host, port=port)


def status(result: int) -> int:
    """The exit status: 128 + n after signal n."""
    return result
