"""``paint eval``: ask, grade and compare the policies that the targets name, on all benchmarks.

The base model and the policies that were trained from it get the same problems and the same seeds,
and are compared problem by problem. An evaluation is a folder; the same command goes on with it
wherever it was stopped.

Left out on purpose: choosing among checkpoints. All that were evaluated are shown.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from paint.config.run_folder import checkpoints, read_run
from paint.config.schema import ConfigError, EvaluationConfig, ModelConfig
from paint.core.display import Display
from paint.core.distributed import require_one_process
from paint.data.benchmarks import folder_name, load_benchmark
from paint.data.gold_answer_checks import name_unparsed
from paint.evaluation.generate import (
    EvalTask,
    SamplingProtocol,
    base_as_rank1_adapter,
    collect_samples,
    deployment_prompts,
    load_eval_policy,
)
from paint.evaluation.grade import summarise
from paint.evaluation.overrides import manual_labels
from paint.grading.math.grader import MathGrader
from paint.grading.registry import find_grader
from paint.inference.engine import sampling_from
from paint.inference.registry import engine_type
from paint.models.weights import own_dtype, read_adapter_shape, trained_in

ADAPTER_SHAPE = ("lora_rank", "lora_alpha", "lora_targets")


@dataclass(frozen=True)
class EvalTarget:
    """A policy that takes part.

    Attributes:
        name: in tables and folders.
        trained: folder of an adapter or of a trained model; None is the base model.
    """

    name: str
    checkpoint: Path | None


def evaluate(evaluation: EvaluationConfig, targets: Sequence[str]) -> Path:
    """Evaluate base and trained policies on all benchmarks, print the tables, return their folder.

    Args:
        targets: runs (all their checkpoints), checkpoints, adapters, or a model; all of one base
            model.

    Raises:
        ConfigError, DataError, EngineError, PolicyError, RunError, StoreError: the message says
            what is wrong and the way out.
        FolderInUse: another process works on the evaluation.
    """
    display = Display()
    require_one_process("paint eval")
    model, contestants = resolve(evaluation, targets)
    benchmarks = [load_benchmark(name, limit=evaluation.limit) for name in evaluation.benchmarks]
    _require_names([benchmark.name for benchmark in benchmarks])
    grader, deadline = evaluation.grader, evaluation.deadline
    if isinstance(find_grader(grader), MathGrader):
        for benchmark in benchmarks:
            name_unparsed(benchmark.name, benchmark.problems, display.note)
    if model.train_mode == "full" and not engine_type(evaluation.rollout.engine).takes_full_weights:
        raise ConfigError(
            f'rollout.engine must be "local" for runs of model.train_mode "full", got '
            f'"{evaluation.rollout.engine}": servers are given adapters. A checkpoint\'s model/ '
            f"folder is a model of its own: `paint eval RUN/checkpoints/step-.../model`"
        )

    verdicts = Path(evaluation.overrides) if evaluation.overrides else None
    asked_of_all = {
        (contestant.name, benchmark.name): (benchmark.problems, evaluation.samples)
        for contestant in contestants
        for benchmark in benchmarks
    }
    manual_labels(verdicts, asked_of_all)  # refuses what is wrong before anything is generated

    # A model named .. or a/.. has the name of its folder; a lone dot has none.
    path = Path(model.path)
    model_name = (path.resolve().name if path.name == ".." else path.name) or "model"
    folder = Path(evaluation.folder) / folder_name(model_name, f"the model {model.path}")
    protocol = SamplingProtocol(
        evaluation.samples, evaluation.thinking, sampling_from(evaluation.rollout), evaluation.seed
    )
    policy = load_eval_policy(model, evaluation.rollout)
    prompts = {
        benchmark.name: deployment_prompts(policy, benchmark.problems, thinking=evaluation.thinking)
        for benchmark in benchmarks
    }
    tasks = [
        EvalTask(
            folder / contestant.name / benchmark.name,
            benchmark.problems,
            prompts[benchmark.name],
            protocol,
            contestant.checkpoint,
        )
        for contestant in contestants
        for benchmark in benchmarks
    ]

    with collect_samples(policy, model, evaluation.rollout, tasks, folder, display) as stores:
        summarise(stores, folder, display, grader=grader, deadline=deadline, verdicts=verdicts)
    return folder


def resolve(
    evaluation: EvaluationConfig, targets: Sequence[str]
) -> tuple[ModelConfig, list[EvalTarget]]:
    """The model and the contestants that the targets name: a run is all its checkpoints.

    Raises:
        ConfigError: nothing there, or more than one model, shape of adapter or kind of tuning.
        RunError: a run without a checkpoint or with a damaged run.json.
    """
    models: dict[str, ModelConfig] = {}
    contestants: list[EvalTarget] = []
    for target in targets:
        models[target], trained = resolve_target(target)
        contestants += trained
    if not models:
        raise ConfigError(
            "nothing to evaluate; name a run, a checkpoint, an adapter folder or a model"
        )
    _require_same_model(models)

    names = [contestant.name for contestant in contestants]
    if evaluation.base:
        names.append("base")
    if twice := {name for name in names if names.count(name) > 1}:
        raise ConfigError(
            f"two targets are called {min(twice)}; rename a folder, or evaluate them in two calls"
        )
    if evaluation.base or not contestants:
        contestants = [EvalTarget("base", None), *contestants]

    shaped = [model for target, model in models.items() if _has_shape(model, target)]
    if shaped:
        model, dtype = shaped[0], evaluation.dtype or shaped[0].dtype
    else:
        model = base_as_rank1_adapter(next(iter(models.values())))
        dtype = evaluation.dtype or own_dtype(model.path)
    thinking = evaluation.thinking
    model = replace(model, dtype=dtype, student_thinking=thinking, gradient_checkpointing=False)
    return model, contestants


def resolve_target(target: str) -> tuple[ModelConfig, list[EvalTarget]]:
    """The base model of one target, and the policies trained from it; none where it is a model."""
    path = Path(target)
    if (path / "run.json").exists():
        model, run = read_run(path).model, path.resolve().name
        if not checkpoints(path):
            raise ConfigError(f"{path} has no checkpoint yet")
        trained = [(c.name, trained_in(c, model.train_mode)) for c in checkpoints(path)]
        return model, [EvalTarget(f"{run}-{name}", folder) for name, folder in trained]

    run_folder, name = path.resolve().parent.parent, path.resolve().name
    if (path / "state.json").exists() and (run_folder / "run.json").exists():
        model = read_run(run_folder).model
        return model, [EvalTarget(f"{run_folder.name}-{name}", trained_in(path, model.train_mode))]
    if (path / "adapter" / "adapter_config.json").exists():
        adapter = path / "adapter"
        return read_adapter_shape(adapter), [EvalTarget(f"{run_folder.name}-{name}", adapter)]
    if (path / "adapter_config.json").exists():
        return read_adapter_shape(path), [EvalTarget(name, path)]
    return ModelConfig(path=target), []


def _require_names(names: Sequence[str]) -> None:
    for name in names:
        if names.count(name) > 1 or name == "macro":
            raise ConfigError(
                f"the name {name} stands for one thing: evaluate each set once, and rename the file"
            )


def _require_same_model(models: Mapping[str, ModelConfig]) -> None:
    """Refuse targets of more than one model, shape of adapter or kind of tuning."""
    first = next(
        (model for target, model in models.items() if _has_shape(model, target)),
        next(iter(models.values())),
    )
    for target, model in models.items():
        names = ["path"]
        if _has_shape(model, target):
            names += ["train_mode", "quantization"]
            names += ADAPTER_SHAPE if model.train_mode == first.train_mode == "lora" else []

        for name in names:
            theirs, wanted = getattr(model, name), getattr(first, name)
            if theirs != wanted and (name != "lora_targets" or set(theirs) != set(wanted)):
                raise ConfigError(
                    f"{target}: its {name} is {theirs!r}, another target's is {wanted!r}; "
                    f"evaluate them in two calls, then compare with `paint grade`"
                )


def _has_shape(model: ModelConfig, target: str) -> bool:
    """Whether something was trained from the model, so that its adapter has a shape."""
    return model != ModelConfig(path=target)
