"""``paint advise``."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from paint.cli.options import (
    ONE_PROCESS,
    Count,
    GpuOptions,
    OptionalPlace,
    Recipe,
    Settings,
    bounded,
)
from paint.config.recipe import find_recipe
from paint.config.schema import MAX_COUNT
from paint.training.launcher import on_gpus


@dataclass(frozen=True)
class Advise:
    """Measure, before any training, what each context would teach, and advise on it.

    The student answers each problem several times; the same rollouts are scored under every
    context. A context teaches what separates right rollouts from wrong ones. The same command
    continues where it was interrupted. --rollout.engine stored uses rollouts that exist.

    Example: paint advise demo-paint --problems 4 --samples 2 --ratios 0.4 --context solution other
    """

    recipe: Recipe
    """The recipe to be trained, such as demo-paint. It stands before the flags."""
    config: Settings
    problems: Count = 100
    """Training problems, in the order in which training takes them."""
    samples: Annotated[int, bounded(int, 2, MAX_COUNT)] = 4
    """Rollouts of each problem, at least 2: right ones are compared with wrong ones."""
    ratios: tuple[float, ...] = (0.0, 0.3, 0.5)
    """Mask ratios of the contexts that can be masked, each in [0, 1); 0 shows all."""
    context: tuple[str, ...] = ("solution", "other", "none", "answer")
    """Sources of contexts, beside the recipe's own: as context.source has them."""
    answers: bool = False
    """Let the teacher answer under each context, too, as often as the student, and compare the
    accuracies. That takes as many completions for every context."""
    both_modes: bool = False
    """Score every context in the teacher's other thinking mode, too."""
    folder: OptionalPlace = None
    """Folder of rollouts and tables; None: advice/RECIPE."""
    gpus: GpuOptions = ONE_PROCESS

    def run(self) -> int:
        with on_gpus(self.gpus, self.config, ranks=0) as config:
            if config is not None:
                from paint.experiments.advise import advise

                advise(
                    config,
                    self.folder or Path("advice") / find_recipe(self.recipe).stem,
                    problems=self.problems,
                    samples=self.samples,
                    sources=self.context,
                    ratios=self.ratios,
                    answers=self.answers,
                    both_modes=self.both_modes,
                )
        return 0
