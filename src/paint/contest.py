"""``paint eval`` and ``paint grade``: which policies are asked, on which benchmarks, and what comes of it.

The base model and what was trained from it answer the same problems with the same seeds; they are compared problem by
problem. An evaluation is a folder, and the same command goes on with it wherever it was stopped.

Left out on purpose: choosing among checkpoints. All that were evaluated are shown.
"""

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from accelerate import PartialState

from paint.benchmarks import load_benchmark
from paint.config import Config, ConfigError, Data, Evaluation, Model
from paint.display import Display
from paint.evaluate import Protocol, generate, open_evaluation, require_room, summarise
from paint.policy import load_policy, load_trained, own_dtype, read_adapter_shape, trained_in
from paint.rollout import Sampling
from paint.runlog import read_run
from paint.train import open_engine


@dataclass(frozen=True)
class Contestant:
    """A name for tables and folders, and the folder of an adapter or a trained model; None is the base model."""

    name: str
    trained: Path | None


def evaluate(evaluation: Evaluation, targets: Sequence[str]) -> Path:
    """Evaluate base and trained policies on all benchmarks, print the tables, and return the folder that holds it all.

    Args:
        targets: runs (all their checkpoints), checkpoints, adapters, or a model; all of one base model.

    Raises:
        ConfigError, DataError, EngineError, PolicyError, StoreError: with what was found and the way out.
    """
    display = Display()
    if PartialState().num_processes > 1:
        raise ConfigError("paint eval is one process; for many GPUs, start vLLM servers and name them: --rollout.urls")
    model, contestants = enter(evaluation, targets)
    benchmarks = [load_benchmark(name, limit=evaluation.limit) for name in evaluation.benchmarks]
    names = [benchmark.name for benchmark in benchmarks]
    for name in names:
        if names.count(name) > 1 or name == "macro":
            raise ConfigError(f"the name {name} stands for one thing: evaluate each set once, and rename the file")
    problems = [problem for benchmark in benchmarks for problem in benchmark.problems]
    options = evaluation.rollout
    sampling = Sampling(options.temperature, options.top_p, options.top_k, options.max_new_tokens)
    protocol = Protocol(evaluation.samples, evaluation.thinking, sampling, evaluation.seed)
    if model.tuning == "full" and options.engine != "local":
        raise ConfigError(
            f'rollout.engine must be "local" for runs of model.tuning "full", got "{options.engine}": servers are '
            f"given adapters. A checkpoint's model/ folder is a model of its own: `paint eval "
            f"RUN/checkpoints/step-.../model`"
        )
    config = Config(model=model, rollout=options)
    folder = Path(evaluation.folder) / (Path(model.path).name or "model")
    # With servers, this process only writes adapters and checks log-probs: the GPU is theirs.
    device = "cpu" if options.engine == "vllm" else PartialState().device
    policy = load_policy(model, seed=0, device=device)
    longest = require_room(policy, problems, protocol)
    with ExitStack() as stack:
        stores = {
            contestant: [
                stack.enter_context(
                    open_evaluation(
                        policy,
                        folder / contestant.name / benchmark.name,
                        model.path,
                        contestant.trained,
                        benchmark.problems,
                        protocol,
                        options.engine,
                    )
                )
                for benchmark in benchmarks
            ]
            for contestant in contestants
        }
        every = [store for group in stores.values() for store in group]
        for store in every:
            if store.dropped:
                display.note(f"{store.folder}: {store.dropped} damaged lines are dropped and asked for again")
        if any(store.missing for store in every):
            config = replace(config, data=Data(max_prompt_tokens=longest))
            with open_engine(policy, config, folder, display, problems) as engine:
                for contestant, group in stores.items():
                    if contestant.trained is not None:  # the base came first: nothing has changed it yet
                        load_trained(policy, contestant.trained)
                    engine.adopt()
                    for store in group:
                        generate(policy, engine, store, protocol, display, f"{contestant.name}, {store.folder.name}")
        summarise(every, folder, display, deadline=evaluation.deadline)
    return folder


def enter(evaluation: Evaluation, targets: Sequence[str]) -> tuple[Model, list[Contestant]]:
    """The model and the contestants that the targets name: a run is all its checkpoints.

    Raises:
        ConfigError: nothing there, or more than one model, shape of adapter or kind of tuning.
        RunError: a run without a checkpoint or with a damaged run.json.
    """
    models: dict[str, Model] = {}
    contestants: list[Contestant] = []
    for target in targets:
        models[target], found = named(target)
        contestants += found
    if not models:
        raise ConfigError("nothing to evaluate; name a run, a checkpoint, an adapter folder or a model")
    with_shape = [model for target, model in models.items() if model != Model(path=target)]
    model = (with_shape or list(models.values()))[0]
    for target, other in models.items():
        shape = ["path"]
        if other != Model(path=target):
            shape += ["tuning"]
            shape += ["lora_rank", "lora_alpha", "lora_targets"] if model.tuning == other.tuning == "lora" else []
        for name in shape:
            mine, first = getattr(other, name), getattr(model, name)
            if mine != first and (name != "lora_targets" or set(mine) != set(first)):
                raise ConfigError(
                    f"{target}: its {name} is {mine!r}, another target's is {first!r}; evaluate them in two calls, "
                    f"then compare with `paint grade`"
                )
    names = [*(["base"] if evaluation.base else []), *(contestant.name for contestant in contestants)]
    if twice := {name for name in names if names.count(name) > 1}:
        raise ConfigError(f"two targets are called {sorted(twice)[0]}; rename a folder, or evaluate them in two calls")
    if evaluation.base or not contestants:
        contestants = [Contestant("base", None), *contestants]
    dtype = evaluation.dtype or (model.dtype if with_shape else own_dtype(model.path))
    if not with_shape:  # the base alone: as small an adapter as there can be, which changes nothing
        model = replace(model, lora_rank=1, lora_alpha=1)
    thinking = evaluation.thinking
    return replace(model, dtype=dtype, student_thinking=thinking, gradient_checkpointing=False), contestants


def named(target: str) -> tuple[Model, list[Contestant]]:
    """The base model behind one target, and what was trained from it: nothing, where the target is a model itself."""
    path = Path(target)
    if (path / "run.json").exists():
        model, checkpoints = read_run(path).model, sorted((path / "checkpoints").glob("step-*"))
        if not checkpoints:
            raise ConfigError(f"{path} has no checkpoint yet")
        run = path.resolve().name
        return model, [Contestant(f"{run}-{c.name}", trained_in(c, model.tuning)) for c in checkpoints]
    run_folder, name = path.resolve().parent.parent, path.resolve().name
    if (path / "state.json").exists() and (run_folder / "run.json").exists():
        model = read_run(run_folder).model
        return model, [Contestant(f"{run_folder.name}-{name}", trained_in(path, model.tuning))]
    if (path / "adapter" / "adapter_config.json").exists():
        adapter = path / "adapter"
        return read_adapter_shape(adapter), [Contestant(f"{run_folder.name}-{name}", adapter)]
    if (path / "adapter_config.json").exists():
        return read_adapter_shape(path), [Contestant(name, path)]
    return Model(path=target), []
