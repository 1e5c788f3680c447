"""Comparison of recipes: the same model, problems and seeds, in one table.

`paint demo` is the comparison on the embedded model, with problems that are chains of operations
modulo 100. The model (made by ``tools/pretrain_demo.py``) does not know the rules that give words
their values, and reads them where a reference states them: gains are those of its content.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from paint.config.schema import Config, RolloutConfig
from paint.core.demo_files import NAME
from paint.core.display import Display
from paint.lab.checkpoint_results import CheckpointResult
from paint.lab.comparison_report import publish
from paint.lab.eval_protocols import protocol_for
from paint.lab.plots import Layout
from paint.lab.runner import ExperimentRun, run_experiment
from paint.resolve.check import Resolved
from paint.resolve.engines import server_engine


def compare(
    recipes: Sequence[tuple[str, Resolved]],
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
    is_sweep: bool = False,
    confirm: bool = True,
) -> list[CheckpointResult]:
    """Train each recipe with each seed, evaluate them and the base model, print the tables.

    ``recipes`` are names and what they resolve to; with ``server_gpus``, vLLM servers on them
    generate; of a sweep, the best row is named. The other arguments are those of ``paint.compare``.
    """
    # The last recipe decides: it is the one that the others are compared with.
    display = Display()
    protocol = protocol_for(recipes[-1][1].config, benchmark, problems, samples)
    rollout = protocol.rollout
    if thinking is not None:
        protocol = replace(protocol, thinking=thinking)
    if max_new_tokens is not None:
        rollout = replace(rollout, max_new_tokens=max_new_tokens)
    if server_gpus:
        rollout = _served(rollout, server_gpus)
    runs, names = [], []
    for name, run in recipes:
        config = run.config
        # Servers would wait for a recipe that samples nothing.
        if server_gpus and run.algorithm.needs_rollouts and not run.engine.is_stored:
            config = replace(config, rollout=_served(config.rollout, server_gpus))
        runs.append(ExperimentRun(name, config))
        names.append(name)
    protocol = replace(protocol, rollout=rollout)
    results = run_experiment(
        runs,
        seeds,
        folder,
        protocol,
        display,
        every_checkpoint=every_checkpoint,
        confirm=confirm,
    )
    title = title_of(recipes[-1][1].config, protocol.benchmark.name)
    layout = Layout(title, names, all_pairs=not against_last, is_sweep=is_sweep)
    publish(layout, results, folder, display)
    return results


def title_of(config: Config, benchmark: str) -> str:
    """What was compared: the demo, if model, problems and benchmark are its own; or the model."""
    if config.model.path != NAME:
        return config.model.path
    return "The demo" if config.data.path == benchmark == NAME else "The demo's model"


def _served(rollout: RolloutConfig, gpus: tuple[str, ...]) -> RolloutConfig:
    return replace(rollout, engine=server_engine(rollout.engine), server_gpus=gpus)
