"""``paint compare``."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from tyro.conf import Positional, arg

from paint.cli.options import ONE_PROCESS, THREE_SEEDS, GpuOptions, OptionalCount, Place, Trainings
from paint.experiments.recipes import read_recipes
from paint.training.launcher import on_gpus


@dataclass(frozen=True)
class Compare:
    """Train and evaluate several recipes from the same model, and print one table.

    All have the same model, problems and seeds, and each is compared with each
    (docs/how-to/compare.md). The same command continues after an interruption. Started again in
    parallel, in another terminal or on another machine, it works on other runs.

    Example: paint compare demo-opsd demo-paint --seeds 1 --problems 4 --samples 2
    """

    recipes: Annotated[Positional[tuple[str, ...]], arg(metavar="RECIPE")]
    """Recipes to compare: shipped ones, or TOML files. They stand before the flags."""
    base: str = ""
    """Recipe whose settings take the place of those that the others omit, such as demo-paint for
    paint-on-correct; empty: the paper's settings."""
    model: Annotated[str, arg(name="model.path")] = ""
    """Model of all recipes; empty: the recipes' own."""
    data: Annotated[str, arg(name="data.path")] = ""
    """Training problems of all recipes; empty: the recipes' own."""
    benchmark: str | None = None
    """Problem set to evaluate on, named as in `paint eval`; None: aime_2024 (paper), and for the
    embedded model its held-out problems."""
    problems: OptionalCount = None
    """Number of these problems to evaluate on, from the first; None is all."""
    thinking: bool | None = None
    """Thinking mode of the evaluation; None: on (paper), and for the embedded model off."""
    max_new_tokens: OptionalCount = None
    """Longest answer in tokens; None: 38,912 (paper), and for the embedded model 96."""
    stored: str = ""
    """Completions to train on, as rollout.stored, for every recipe whose method allows it; empty:
    each run samples its own."""
    controls: tuple[Literal["none", "other", "answer", "wrong_answer"], ...] = ()
    """Repeat the last recipe with a teacher that reads nothing, another problem's solution, the
    right answer or a wrong one."""
    against_last: bool = False
    """Compare each recipe with the last one alone: fewer pairs, and a smaller correction of p.
    Decide it beforehand."""
    trainings: Annotated[Trainings, arg(name="")] = THREE_SEEDS
    folder: Place = Path("runs/compare")
    """Folder of results, runs and samples; existing results are reused."""
    gpus: GpuOptions = ONE_PROCESS

    def run(self) -> int:
        recipes = read_recipes(
            self.recipes,
            base=self.base,
            model=self.model,
            data=self.data,
            stored=self.stored,
            controls=self.controls,
        )
        with on_gpus(self.gpus, recipes[-1][1], ranks=1) as config:
            if config is not None:
                from paint.experiments.compare import compare

                compare(
                    recipes,
                    self.folder,
                    seeds=self.trainings.all_seeds,
                    benchmark=self.benchmark,
                    problems=self.problems,
                    samples=self.trainings.samples,
                    thinking=self.thinking,
                    max_new_tokens=self.max_new_tokens,
                    every_checkpoint=self.trainings.every_checkpoint,
                    against_last=self.against_last,
                    server_gpus=config.rollout.server_gpus if self.gpus.gpus else (),
                )
        return 0
