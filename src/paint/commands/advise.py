"""``paint advise``."""

from pathlib import Path
from typing import Annotated

from paint.arguments import (
    AnyRecipe,
    Count,
    Data,
    DryRun,
    Gpus,
    Model,
    OutputDir,
    SectionArgument,
    SplitArgument,
    Texts,
    bounded,
)
from paint.config.recipe import require_paths
from paint.config.schema import MAX_COUNT
from paint.configure import configure, open_recipe
from paint.data.sources import check_sources
from paint.results import Result
from paint.training.check import check_config
from paint.training.launcher import LaunchRequest, on_gpus

CONTINUES = True


def advise(
    recipe: AnyRecipe,
    *,
    model: Model = None,
    data: Data = None,
    output_dir: OutputDir = None,
    problems: Count = 100,
    samples: Annotated[int, bounded(int, 2, MAX_COUNT)] = 4,
    contexts: Texts = (),
    ratios: tuple[float, ...] = (0.0, 0.3, 0.5),
    answers: bool = False,
    gpus: Gpus = 0,
    split: SplitArgument = None,
    dry_run: DryRun = False,
    **sections: SectionArgument,
) -> Result:
    """Measure, before any training, what each context would teach, and advise on it.

    The student answers each problem several times; the same rollouts are scored under every
    context. A context teaches what separates right rollouts from wrong ones. The same command
    continues where it was interrupted. --rollout.engine stored uses rollouts that exist.

    Example: paint advise demo-paint --problems 4 --samples 2 --ratios 0.4 --contexts solution other

    Args:
        output_dir: Folder of rollouts and tables; None: advice/RECIPE.
        problems: Training problems, in the order in which training takes them.
        samples: Rollouts of each problem, at least 2: right ones are compared with wrong ones.
        contexts: Sources of contexts, in addition to the recipe's own: as context.source has them.
            Empty: solution, other, none and answer, where all rows have them; of a recipe whose
            context is a text or a file, none and other_text.
        ratios: Mask ratios of the contexts that can be masked, each in [0, 1); 0 shows all.
        answers: Let the teacher answer under each context, too, as often as the student, and
            compare the accuracies. That takes as many completions for every context.
    """
    start = open_recipe(recipe)
    folder = Path(output_dir or Path("advice") / start.path.stem)
    configured = configure(start.config, folder, model, data, sections)
    require_paths(configured)
    check_sources(configured, check_config(configured).needed_fields)
    with on_gpus(LaunchRequest(gpus, split, dry_run), configured, ranks=0) as config:
        if config is not None:
            from paint.experiments import advise

            advise.advise(
                config,
                folder,
                problems=problems,
                samples=samples,
                sources=contexts,
                ratios=ratios,
                answers=answers,
            )
    return Result(folder)
