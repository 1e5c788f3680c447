"""``paint setup``."""

from dataclasses import dataclass
from typing import Annotated, Literal

from tyro.conf import Positional, arg

from paint.cli.options import agrees
from paint.core.errors import ConfigError


@dataclass(frozen=True)
class Setup:
    """Install vLLM in an environment of its own, where every run finds it.

    It has its own torch and transformers, several gigabytes. The folder is
    ~/.cache/paint/vllm-VERSION, or below XDG_CACHE_HOME. Without a GPU, vLLM for CPUs is installed.

    Example: paint setup vllm --yes
    """

    what: Annotated[Positional[Literal["vllm"]], arg(metavar="vllm")]
    """What to install."""
    yes: bool = False
    """Install without asking; otherwise a terminal asks."""

    def run(self) -> int:
        import torch

        from paint.core.display import Terminal
        from paint.inference.vllm.environment import VLLM_VERSION, install, own_environment

        say = Terminal().print
        say(f"vLLM {VLLM_VERSION} will be installed in {own_environment()}")
        if not (self.yes or agrees()):
            raise ConfigError("nothing was installed")
        command = install(cpu=not torch.cuda.is_available())
        say(f"installed: runs find {command}; `paint doctor` shows it")
        return 0
