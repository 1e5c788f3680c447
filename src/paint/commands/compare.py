"""``paint compare``."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from paint.api import arguments
from paint.api.configure import configure
from paint.api.results import frame_of_results
from paint.config.schema import ConfigError
from paint.core.settings import require_count
from paint.data.sources import check_sources
from paint.lab.recipes import read_recipes
from paint.resolve.check import check_training
from paint.training.launcher import LaunchRequest, on_gpus

if TYPE_CHECKING:
    import pandas as pd

CONTINUES = True


def compare(
    recipes: Sequence[str | Path],
    *,
    base: str | Path = "",
    model: arguments.Model = None,
    data: arguments.Data = None,
    benchmark: arguments.BenchmarkName = None,
    problems: arguments.EvaluatedProblems = None,
    thinking: bool | None = None,
    max_new_tokens: arguments.OptionalCount = None,
    stored: str | Path = "",
    controls: Sequence[arguments.Control] = (),
    against_last: bool = False,
    seeds: arguments.Seeds = 3,
    seed: arguments.FirstSeed = 0,
    samples: arguments.Samples = 12,
    every_checkpoint: arguments.EveryCheckpoint = False,
    output_dir: arguments.OutputDir = "runs/compare",
    gpus: arguments.Gpus = 0,
    split: arguments.GpuSplit = None,
    dry_run: arguments.DryRun = False,
    **sections: arguments.Sections,
) -> "pd.DataFrame":
    """Train and evaluate several recipes from the same model, and print one table.

    All have the same model, problems and seeds, and each is compared with each
    (docs/how-to/compare.md). A setting that is given, such as --train.steps, is that of all
    recipes; what is not given is each recipe's own. The same command continues after an
    interruption, and started in parallel it works on other runs.

    Example: paint compare demo-opsd demo-paint --seeds 1 --problems 4 --samples 2

    Args:
        recipes: Recipes to compare: shipped ones, or TOML files. On the command line they stand
            before the flags.
        base: Recipe whose settings the others have where they name none; empty: the paper's.
        thinking: Thinking mode of the evaluation; None: as trained, on published benchmarks on
            (paper), and for the embedded model off.
        max_new_tokens: Longest answer in tokens; None: as trained, on published benchmarks 38,912
            (paper), and for the embedded model 96.
        stored: Completions to train on, as rollout.stored, where the method allows it.
        controls: Repeat the last recipe with these context.source, by which a gain is told from
            that of reading anything (docs/concepts/teacher-and-controls.md).
        against_last: Compare each recipe with the last one alone: fewer pairs, and a smaller
            correction of p. Decide it beforehand.
        output_dir: Folder of results, runs and samples; existing results are reused.

    Returns:
        One row per recipe, seed and evaluated checkpoint, as in results.jsonl, with avg_at_k.
    """
    require_count("seeds", seeds)
    folder = Path(output_dir or "runs/compare")
    own = {"folder", "name"} & set(sections.get("log", {}))
    if own or "seed" in sections.get("train", {}):
        raise ConfigError(
            "runs of a comparison have their own folders and seeds; set --output-dir, --seed and "
            "--seeds in place of --log.folder, --log.name and --train.seed"
        )
    read = read_recipes(
        [str(recipe) for recipe in recipes],
        base=str(base),
        stored=str(stored),
        controls=controls,
        change=lambda config: configure(config, folder, model, data, sections),
    )
    for _, recipe_config in read:
        check_sources(recipe_config, check_training(recipe_config).needed_fields)
    results = []
    with on_gpus(LaunchRequest(gpus, split, dry_run), read[-1][1], ranks=1) as config:
        if config is not None:
            from paint.lab import compare

            results = compare.compare(
                read,
                folder,
                seeds=range(seed, seed + seeds),
                benchmark=None if benchmark is None else str(benchmark),
                problems=problems,
                samples=samples,
                thinking=thinking,
                max_new_tokens=max_new_tokens,
                every_checkpoint=every_checkpoint,
                against_last=against_last,
                server_gpus=config.rollout.server_gpus if gpus else (),
            )
    return frame_of_results(results)
