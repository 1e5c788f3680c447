"""``paint probe``."""

from dataclasses import dataclass
from pathlib import Path

from paint.cli.options import ONE_PROCESS, Count, GpuOptions, OptionalPlace, Recipe, Settings
from paint.config.recipe import find_recipe
from paint.training.launcher import on_gpus


@dataclass(frozen=True)
class Probe:
    """Measure, before any training, how much more accurate the teacher is than the student.

    It compares the accuracy of the student with that of the teacher at several mask ratios, on the
    same problems. What training gains follows that difference. Completions are sampled as the
    recipe samples rollouts: problems * samples for the student and for each teacher; own and other
    have a teacher at each ratio, the rest one. The same command continues where it was interrupted.

    Example: paint probe demo-paint --problems 4 --samples 1 --ratios 0.4 --context solution other
    """

    recipe: Recipe
    """The recipe to be trained, such as demo-paint. It stands before the flags."""
    config: Settings
    problems: Count = 100
    """Training problems, in the order in which training takes them."""
    samples: Count = 4
    """Samples per problem, of the student and of each teacher."""
    ratios: tuple[float, ...] = (0.0, 0.25, 0.30, 0.40, 0.50, 0.75)
    """Mask ratios rho of the teacher, each in [0, 1); 0 is the complete solution (paper: those of
    table mask_ratio_ablation)."""
    context: tuple[str, ...] = ("solution",)
    """What the teacher reads: the problem's own solution, and as controls another problem's,
    nothing, the right answer, a wrong one."""
    folder: OptionalPlace = None
    """Folder of samples and tables; None: probes/RECIPE."""
    gpus: GpuOptions = ONE_PROCESS

    def run(self) -> int:
        """Sample, grade, and print the table."""
        with on_gpus(self.gpus, self.config, ranks=0) as config:
            if config is not None:
                from paint.experiments import probe

                probe.probe(
                    config,
                    self.folder or Path("probes") / find_recipe(self.recipe).stem,
                    problems=self.problems,
                    samples=self.samples,
                    ratios=self.ratios,
                    shown=self.context,
                )
        return 0
