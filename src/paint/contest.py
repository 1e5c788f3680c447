"""``paint eval`` and ``paint grade``: which policies are asked, on which benchmarks, and what comes of it.

The base model and every adapter answer the same problems with the same seeds; they are compared problem by problem.
An evaluation is a folder, and the same command goes on with it wherever it was stopped.

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
from paint.policy import load_adapter, load_policy, own_dtype, read_adapter_shape
from paint.rollout import Sampling
from paint.runlog import read_run
from paint.train import open_engine


@dataclass(frozen=True)
class Contestant:
    """A name for tables and folders, and the adapter; None is the base model."""

    name: str
    adapter: Path | None


def evaluate(evaluation: Evaluation, targets: Sequence[str]) -> Path:
    """Evaluate base and adapters on all benchmarks, print the tables, and return the folder that holds it all.

    Args:
        targets: runs (all their checkpoints), checkpoints, adapters, or a model; all of one model.

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
                        contestant.adapter,
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
            config = Config(model=model, rollout=options, data=Data(max_prompt_tokens=longest))
            with open_engine(policy, config, folder, display, problems) as engine:
                for contestant, group in stores.items():
                    if contestant.adapter is not None:
                        load_adapter(policy, contestant.adapter)  # the base came first: its adapter changes nothing
                    engine.adopt()
                    for store in group:
                        generate(policy, engine, store, protocol, display, f"{contestant.name}, {store.folder.name}")
        summarise(every, folder, display, deadline=evaluation.deadline)
    return folder


def enter(evaluation: Evaluation, targets: Sequence[str]) -> tuple[Model, list[Contestant]]:
    """The model and the contestants that the targets name: a run is all its checkpoints.

    Raises:
        ConfigError: nothing there, or more than one model or shape of adapter.
        RunError: a run without a checkpoint or with a damaged run.json.
    """
    models: dict[str, Model] = {}
    contestants: list[Contestant] = []
    for target in targets:
        path = Path(target)
        if (path / "run.json").exists():
            checkpoints = sorted((path / "checkpoints").glob("step-*"))
            if not checkpoints:
                raise ConfigError(f"{path} has no checkpoint yet")
            models[target] = read_run(path).model
            contestants += [Contestant(f"{path.resolve().name}-{c.name}", c / "adapter") for c in checkpoints]
        elif (path / "adapter" / "adapter_config.json").exists():
            run = path.resolve().parent.parent
            models[target] = (
                read_run(run).model if (run / "run.json").exists() else read_adapter_shape(path / "adapter")
            )
            contestants.append(Contestant(f"{run.name}-{path.resolve().name}", path / "adapter"))
        elif (path / "adapter_config.json").exists():
            models[target] = read_adapter_shape(path)
            contestants.append(Contestant(path.resolve().name, path))
        else:
            models[target] = Model(path=target)
    if not models:
        raise ConfigError("nothing to evaluate; name a run, a checkpoint, an adapter folder or a model")
    with_shape = [model for target, model in models.items() if model != Model(path=target)]
    model = (with_shape or list(models.values()))[0]
    for target, other in models.items():
        shape = ("path",) if other == Model(path=target) else ("path", "lora_rank", "lora_alpha", "lora_targets")
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
