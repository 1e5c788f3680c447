"""Comparison of recipes: the same model, problems and seeds, in one table.

`paint demo` is the comparison on the embedded model, with problems that are chains of operations
modulo 100. The model (made by ``tools/pretrain_demo.py``) makes arithmetic errors, and uses a
reference only for the steps that it states, so gains can be attributed to the context's content.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from paint.config.schema import Config, RolloutConfig
from paint.core.display import Display
from paint.demo.files import NAME
from paint.experiments.checkpoint_results import CheckpointResult
from paint.experiments.comparison_report import publish
from paint.experiments.eval_protocols import protocol_for
from paint.experiments.plots import side_by_side
from paint.experiments.runner import ExperimentRun, run_experiment
from paint.inference.engines import server_engine
from paint.training.check import check_config


def compare(
    recipes: Sequence[tuple[str, Config]],
    folder: Path,
    *,
    seeds: Sequence[int],
    benchmark: str | None = None,
    problems: int | None = None,
    samples: int = 12,
    thinking: bool | None = None,
    max_new_tokens: int | None = None,
    every_checkpoint: bool = False,
    against_last: bool = False,
    server_gpus: tuple[str, ...] = (),
) -> list[CheckpointResult]:
    """Train each recipe with each seed, evaluate them and the base model, print the tables.

    All pairs of recipes are compared, or each with the last one (``against_last``). With
    ``every_checkpoint``, the last checkpoint of the last recipe is compared with all checkpoints of
    the others.

    Args:
        recipes: names and configs, such as those of `paint.experiments.recipes.read_recipes`.
        benchmark, problems, samples: as for ``protocol_for``.
        thinking, max_new_tokens: of the evaluation; None is those of ``protocol_for``.
        server_gpus: GPUs of vLLM servers that generate; if empty, the training process generates.
    """

    def served(rollout: RolloutConfig) -> RolloutConfig:
        return replace(rollout, engine=server_engine(rollout.engine), server_gpus=server_gpus)

    def needs_servers(config: Config) -> bool:
        resolved = check_config(config)
        return resolved.algorithm.needs_rollouts and not resolved.engine.is_stored

    display, model = Display(), recipes[-1][1].model.path
    protocol = protocol_for(recipes[-1][1], benchmark, problems, samples)
    rollout = protocol.rollout
    if max_new_tokens is not None:
        rollout = replace(rollout, max_new_tokens=max_new_tokens)
    if server_gpus:
        rollout = served(rollout)
        recipes = [
            (name, replace(config, rollout=served(config.rollout)))
            if needs_servers(config)
            else (name, config)
            for name, config in recipes
        ]
    thinking = protocol.thinking if thinking is None else thinking
    results = run_experiment(
        [ExperimentRun(name, config) for name, config in recipes],
        seeds,
        folder,
        replace(protocol, thinking=thinking, rollout=rollout),
        display,
        every_checkpoint=every_checkpoint,
    )
    title = "The demo" if model == NAME else model
    names = []
    for name, _ in recipes:
        names.append(name)
    publish(side_by_side(title, names, all_pairs=not against_last), results, folder, display)
    return results
