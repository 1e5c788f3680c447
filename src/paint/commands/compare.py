from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from paint.commands.api import arguments
from paint.commands.api.configure import configure, with_sections
from paint.commands.api.results import frame_of_results
from paint.config.recipe import find_recipe, read_recipe
from paint.config.schema import Config, ConfigError, RolloutConfig
from paint.data.sources import check_sources
from paint.lab.eval_protocols import EvalProtocol, protocol_for
from paint.lab.recipes import read_recipes
from paint.resolve.check import Resolved, require_trainable
from paint.resolve.engines import server_engine
from paint.training.launcher import on_gpus

if TYPE_CHECKING:
    import pandas as pd

CONTINUES = True

Rows = Sequence[tuple[str, Resolved]]


def compare(
    recipes: arguments.Recipes,
    *,
    sweep: Annotated[Any, arguments.ByName()] = None,
    base: str | Path = "",
    benchmark: str | Path | None = None,
    problems: arguments.OptionalCount = None,
    thinking: bool | None = None,
    max_new_tokens: arguments.OptionalCount = None,
    stored: str | Path = "",
    controls: Sequence[arguments.Control] = (),
    against_last: bool = False,
    seeds: arguments.Seeds = 3,
    seed: arguments.Seed = 0,
    samples: arguments.Samples = 12,
    every_checkpoint: arguments.EveryCheckpoint = False,
    output_dir: arguments.ResultsDir = "runs/compare",
    gpus: arguments.Gpus = 0,
    **sections: arguments.Sections,
) -> "pd.DataFrame":
    """Train and evaluate several recipes from the same model, and print one table.

    All have the same model, problems and seeds, and each is compared with each
    (docs/how-to/compare.md); a setting that is given is that of all. With a sweep, a recipe is
    compared with itself (docs/how-to/sweeps.md); a folder of recipes is a table, such as
    ablations/mask-ratio of the paper (docs/how-to/paper-tables.md). The same command continues
    after an interruption, and started in parallel it works on other runs.

    Example: paint compare demo-opsd demo-paint --seeds 1 --problems 4 --samples 2

    Args:
        sweep: A setting and its values: each recipe is repeated with each value, and with several
            --sweep with every combination (docs/how-to/sweeps.md). In Python, values by the
            setting's name: `sweep={"train.learning_rate": [2e-4, 6e-4]}`.
        base: Recipe whose settings the others have where they name none; empty: the paper's.
        benchmark: Problem set, named as in `paint eval`; None: aime_2024 (paper), and for the
            embedded model its held-out problems.
        problems: Number of these problems to evaluate on, from the first; None is all.
        thinking: Thinking mode of the evaluation; None: as trained, on published benchmarks on
            (paper), and for the embedded model off.
        max_new_tokens: Longest answer in tokens; None: as trained, on published benchmarks 38,912
            (paper), and for the embedded model 96.
        stored: Completions to train on, as rollout.stored, where the method allows it.
        controls: Repeat the last recipe with these context.source, by which a gain is told from
            that of reading anything (docs/concepts/teacher-and-controls.md).
        against_last: Compare each recipe with the last one alone: fewer pairs, and a smaller
            correction of p. Decide it beforehand.
        seed: The first seed, at least 0; each is that of data order, rollouts and evaluation.

    Returns:
        One row per recipe, seed and evaluated checkpoint, as in results.jsonl, with avg_at_k, with
        reward if the grader gives numbers, and with each setting in which the rows differ.
    """

    def change(config: Config) -> Config:
        return configure(config, folder, sections)[0]

    folder = Path(output_dir or "runs/compare")
    named = _named(recipes, base, sections)
    rows: Rows = read_recipes(named, str(base), str(stored), controls, sweep, change)
    for _, run in rows:
        require_trainable(run)
        check_sources(run.config, run.needed_fields)
    last = rows[-1][1]
    exam = protocol_for(last.config, benchmark, problems, samples, thinking, max_new_tokens)
    with on_gpus(gpus, last, ranks=1) as placed:
        if gpus:
            rows, exam = _with_servers(rows, exam, placed.rollout.server_gpus)
        # Imported here, since they import torch, which takes seconds.
        from paint.core.display import Display
        from paint.lab.comparison_report import Layout, publish, title_of
        from paint.lab.runner import ExperimentRun, run_experiment

        runs = [ExperimentRun(name, run.config) for name, run in rows]
        display, title = Display(), title_of(runs[-1].config, exam.benchmark.name)
        names, numbers = [run.name for run in runs], range(seed, seed + seeds)
        results = run_experiment(
            runs, numbers, folder, exam, display, every_checkpoint=every_checkpoint
        )
        layout = Layout(title, names, all_pairs=not against_last, is_sweep=bool(sweep))
        publish(layout, results, folder, display)
        return frame_of_results(results)


def _named(
    recipes: arguments.Recipes, base: str | Path, sections: Mapping[str, Any]
) -> list[str | Config]:
    """Return the recipes as names and configs. Raises ConfigError for settings of single rows."""
    log_names = {"folder", "name"} & set(sections.get("log", {}))
    if log_names or "seed" in sections.get("train", {}):
        raise ConfigError(
            "runs of a comparison have their own folders and seeds; set --output-dir, --seed and "
            "--seeds in place of --log.folder, --log.name and --train.seed"
        )
    start = read_recipe(find_recipe(str(base))) if base else Config()
    if isinstance(recipes, str | Path | Config | Mapping):
        recipes = [recipes]
    named: list[str | Config] = []
    for recipe in recipes:
        if isinstance(recipe, Mapping):
            recipe = with_sections(start, recipe)
        named.append(recipe if isinstance(recipe, Config) else str(recipe))
    return named


def _with_servers(
    rows: Rows, exam: EvalProtocol, gpus: tuple[str, ...]
) -> tuple[Rows, EvalProtocol]:
    def served(rollout: RolloutConfig) -> RolloutConfig:
        return replace(rollout, engine=server_engine(rollout.engine), server_gpus=gpus)

    placed = []
    for name, run in rows:
        # Servers would wait for a recipe that samples nothing.
        if run.algorithm.needs_rollouts and not run.engine.is_stored:
            run = replace(run, config=replace(run.config, rollout=served(run.rollout)))
        placed.append((name, run))
    return placed, replace(exam, rollout=served(exam.rollout))
