"""``paint compare``."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paint.commands.api import arguments
from paint.commands.api.configure import configure, with_sections
from paint.commands.api.results import frame_of_results
from paint.config.recipe import find_recipe, read_recipe
from paint.config.schema import Config, ConfigError, RolloutConfig
from paint.core.settings import require_count
from paint.data.sources import check_sources
from paint.lab.recipes import read_recipes
from paint.resolve.check import require_trainable
from paint.resolve.engines import server_engine
from paint.training.launcher import on_gpus

if TYPE_CHECKING:
    import pandas as pd

CONTINUES = True


def compare(
    recipes: arguments.Recipes,
    *,
    sweep: arguments.Sweep = None,
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
    confirm: arguments.Confirm = False,
    gpus: arguments.Gpus = 0,
    **sections: arguments.Sections,
) -> "pd.DataFrame":
    """Train and evaluate several recipes from the same model, and print one table.

    All have the same model, problems and seeds, and each is compared with each
    (docs/how-to/compare.md). A setting that is given, such as --train.steps, is that of all
    recipes; what is not given is each recipe's own. The same command continues after an
    interruption, and started in parallel it works on other runs.

    With a sweep, a recipe is compared with itself with other settings (docs/how-to/sweeps.md).

    A folder of recipes is a table: ablations/mask-ratio, ablations/mask-placement and
    ablations/interpolation are the paper's (docs/how-to/paper-tables.md).

    Example: paint compare demo-opsd demo-paint --seeds 1 --problems 4 --samples 2

    Args:
        recipes: Recipes to compare, one or several: shipped ones, TOML files, or folders, which
            stand for their TOML files in the order of names; in Python also a paint.Config, or a
            dict of sections. On the command line they stand before the flags.
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
        One row per recipe, seed and evaluated checkpoint, as in results.jsonl, with avg_at_k,
        with reward if the grader gives numbers, and with each setting in which the rows differ,
        such as ``train.learning_rate``.
    """
    require_count("seeds", seeds)
    require_count("gpus", gpus, least=0)
    folder = Path(output_dir or "runs/compare")
    log_names = {"folder", "name"} & set(sections.get("log", {}))
    if log_names or "seed" in sections.get("train", {}):
        raise ConfigError(
            "runs of a comparison have their own folders and seeds; set --output-dir, --seed and "
            "--seeds in place of --log.folder, --log.name and --train.seed"
        )
    given = {**sections, "model": model, "data": data}
    for name in sweep if isinstance(sweep, Mapping) else ():
        _require_not_set(str(name), given)
    start = read_recipe(find_recipe(str(base))) if base else Config()
    if isinstance(recipes, str | Path | Config | Mapping):
        recipes = [recipes]
    named: list[str | Config] = []
    for recipe in recipes:
        if isinstance(recipe, Mapping):
            recipe = with_sections(start, recipe)
        named.append(recipe if isinstance(recipe, Config) else str(recipe))
    read = read_recipes(
        named,
        base=str(base),
        stored=str(stored),
        controls=controls,
        sweep=sweep,
        change=lambda config: configure(config, folder, model, data, sections)[0],
    )
    for _, run in read:
        require_trainable(run)
        check_sources(run.config, run.needed_fields)
    # The last recipe decides: it is the one that the others are compared with.
    last = read[-1][1]
    with on_gpus(gpus, last, ranks=1) as placed:
        from paint.core.display import Display
        from paint.lab.comparison_report import Layout, publish, title_of
        from paint.lab.eval_protocols import protocol_for
        from paint.lab.runner import ExperimentRun, run_experiment

        protocol = protocol_for(
            last.config,
            None if benchmark is None else str(benchmark),
            problems,
            samples,
            thinking=thinking,
            max_new_tokens=max_new_tokens,
        )
        configs = {name: run.config for name, run in read}
        if gpus:
            servers = placed.rollout.server_gpus
            protocol = replace(protocol, rollout=_served(protocol.rollout, servers))
            for name, run in read:
                # Servers would wait for a recipe that samples nothing.
                if run.algorithm.needs_rollouts and not run.engine.is_stored:
                    rollout = _served(run.config.rollout, servers)
                    configs[name] = replace(run.config, rollout=rollout)
        display = Display()
        results = run_experiment(
            [ExperimentRun(name, config) for name, config in configs.items()],
            range(seed, seed + seeds),
            folder,
            protocol,
            display,
            every_checkpoint=every_checkpoint,
            confirm=confirm,
        )
        title = title_of(last.config, protocol.benchmark.name)
        layout = Layout(title, list(configs), all_pairs=not against_last, is_sweep=bool(sweep))
        publish(layout, results, folder, display)
    return frame_of_results(results)


def _served(rollout: RolloutConfig, gpus: tuple[str, ...]) -> RolloutConfig:
    return replace(rollout, engine=server_engine(rollout.engine), server_gpus=gpus)


def _require_not_set(name: str, sections: Mapping[str, Any]) -> None:
    """Raise ConfigError for a swept setting that is also given one value for all rows."""
    value: Any = sections
    for part in name.replace("-", "_").split("."):
        if not isinstance(value, Mapping) or part not in value:
            return
        value = value[part]
    raise ConfigError(f"sweep: {name} is set for all recipes, too; leave one of both out")
