"""``paint ablate``."""

from pathlib import Path
from typing import TYPE_CHECKING, Literal

from paint.commands.api import arguments
from paint.commands.api.configure import configure, open_recipe
from paint.commands.api.results import frame_of_results
from paint.config.recipe import read_recipe
from paint.config.schema import ConfigError
from paint.core.settings import require_count
from paint.data.sources import check_sources
from paint.resolve.check import require_trainable
from paint.training.launcher import LaunchRequest, on_gpus

if TYPE_CHECKING:
    import pandas as pd


TableName = Literal[
    "mask-ratio",
    "mask-placement",
    "interpolation",
    "controls",
    "feedback",
]

CONTINUES = True


def ablate(
    table: TableName,
    recipe: arguments.AnyRecipe,
    *,
    model: arguments.Model = None,
    data: arguments.Data = None,
    benchmark: arguments.BenchmarkName = None,
    problems: arguments.EvaluatedProblems = None,
    seeds: arguments.Seeds = 3,
    seed: arguments.FirstSeed = 0,
    samples: arguments.Samples = 12,
    every_checkpoint: arguments.EveryCheckpoint = False,
    output_dir: arguments.OutputDir = None,
    gpus: arguments.Gpus = 0,
    split: arguments.GpuSplit = None,
    dry_run: arguments.DryRun = False,
    **sections: arguments.Sections,
) -> "pd.DataFrame":
    """Train and evaluate the rows of one of the paper's ablation tables, or controls.

    The varied settings replace the recipe's values (paper: Ablation Studies). The same command
    continues after an interruption, and started in parallel it works on other runs.

    Example: paint ablate mask-placement demo-paint --seeds 1 --train.steps 2 --problems 2

    Args:
        table: mask-ratio: rho_correct and rho_wrong; mask-placement: which part is hidden;
            interpolation: k_base and f_top; controls: what the teacher reads in place of the
            solution (ours); feedback: the same in place of what the grader says (ours).
        output_dir: Folder of results, runs and samples; existing results are reused. None:
            runs/ablate-RECIPE.

    Returns:
        One row per setting, seed and evaluated checkpoint, as in results.jsonl, with avg_at_k,
        and with reward if the grader gives numbers.
    """
    require_count("seeds", seeds)
    start = open_recipe(recipe)
    folder = Path(output_dir or Path("runs") / f"ablate-{start.path.stem}")
    configured, run = configure(start.config, folder, model, data, sections)
    unchanged = read_recipe(start.path)
    if (configured.log, configured.train.seed) != (unchanged.log, unchanged.train.seed):
        raise ConfigError(
            "rows have their own folders and seeds; set --output-dir, --seed and --seeds in place "
            "of --log and --train.seed"
        )
    require_trainable(run)
    check_sources(run.config, run.needed_fields)
    results = []
    with on_gpus(LaunchRequest(gpus, split, dry_run), run, ranks=1) as placed:
        if placed is not None:
            # Here, as it imports torch: errors in settings and dry runs come without it.
            from paint.lab import ablations

            results = ablations.ablate(
                table,
                placed,
                folder,
                seeds=range(seed, seed + seeds),
                benchmark=None if benchmark is None else str(benchmark),
                problems=problems,
                samples=samples,
                every_checkpoint=every_checkpoint,
            )
    return frame_of_results(results)
