"""The embedded demo: several methods with a tiny model on arithmetic problems, in one table.

The problems are chains of operations modulo 100. The model (made by ``tools/pretrain_demo.py``,
shipped with the package) solves them step by step with occasional arithmetic errors. It uses a
reference only for the steps that it states: errors become rare in these steps and keep their rate
in all others. Gains can therefore be attributed to the content of the teacher's context, in
experiments that take minutes.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from paint.config.recipe import read_recipe
from paint.config.schema import ConfigError, RolloutConfig
from paint.core.display import Display
from paint.demo.files import NAME
from paint.experiments.eval_protocols import demo_protocol
from paint.experiments.report import Result, publish, side_by_side
from paint.experiments.runner import ExperimentRun, run_experiment
from paint.inference.registry import server_engine


def run_demo(
    recipes: Sequence[Path],
    folder: Path,
    *,
    seeds: Sequence[int],
    problems: int,
    samples: int,
    every_checkpoint: bool = False,
    server_gpus: tuple[str, ...] = (),
) -> list[Result]:
    """Train each recipe with each seed, evaluate them and the base model, print the tables.

    The last recipe is compared with each of the others. With ``every_checkpoint``, its last
    checkpoint is compared with all of theirs.

    Args:
        server_gpus: GPUs of vLLM servers that generate; if empty, the training process generates.

    Raises:
        ConfigError: a recipe trains another model than the demo's.
        PaintError: as `paint.experiments.runner.run_experiment`.
    """

    def served(rollout: RolloutConfig) -> RolloutConfig:
        return replace(rollout, engine=server_engine(rollout.engine), server_gpus=server_gpus)

    display = Display()
    runs = [ExperimentRun(recipe.stem, read_recipe(recipe)) for recipe in recipes]
    for run in runs:
        if run.config.model.path != NAME:
            raise ConfigError(
                f"{run.name} trains {run.config.model.path!r}, and the demo's problems are for "
                f'model.path "demo"; use `paint train` and `paint eval`, or `paint ablate`'
            )

    protocol = demo_protocol(problems, samples)
    if server_gpus:
        runs = [
            ExperimentRun(run.name, replace(run.config, rollout=served(run.config.rollout)))
            if run.config.algorithm.needs_rollouts
            else run
            for run in runs
        ]
        protocol = replace(protocol, rollout=served(protocol.rollout))
    results = run_experiment(
        runs, seeds, folder, protocol, display, every_checkpoint=every_checkpoint
    )
    report = side_by_side("The demo", [run.name for run in runs])
    publish(report, results, folder, display)
    return results
