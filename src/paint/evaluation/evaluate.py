"""``paint eval``: sample, grade and compare policies on benchmarks.

The base model and the policies trained from it get the same problems and seeds, and are compared
problem by problem. The same command resumes. No checkpoint is selected.
"""

import re
from collections.abc import Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from pathlib import Path

from paint.config.run_folder import checkpoints, read_run, run_of
from paint.config.schema import (
    PAPER_PROMPTS,
    Config,
    ConfigError,
    EvaluationConfig,
    LogConfig,
    ModelConfig,
    PromptsConfig,
)
from paint.core.demo_files import NAME
from paint.core.display import Display
from paint.core.distributed import require_one_process
from paint.core.storage import verify_export
from paint.data.benchmarks import Benchmark, folder_name, load_benchmark, require_distinct
from paint.data.problems import DataError, Problem
from paint.data.row_checks import announce_benchmark
from paint.evaluation.defaults import (
    default_benchmarks,
    grader_needs_answer,
    grading_of,
    protocol_differences,
    protocol_of,
)
from paint.evaluation.generate import (
    EvalTask,
    PromptIds,
    SamplingProtocol,
    base_as_rank1_adapter,
    collect_samples,
    deployment_prompts,
    fit_to_context,
    load_eval_policy,
    other_form,
    with_date,
)
from paint.evaluation.grade import grade, write_summary
from paint.evaluation.metrics import GradedSamples
from paint.evaluation.store import Store, recorded_engines, stored_samples
from paint.evaluation.summary import MACRO
from paint.grading.contract import Grader
from paint.grading.graders import open_grader
from paint.inference.engine import sampling_from
from paint.inference.machine import find_machine
from paint.models.model_errors import PromptError
from paint.models.policy import Policy
from paint.models.weights import own_dtype, read_adapter_shape, trained_in
from paint.resolve.check import resolve_evaluation

ADAPTER_SHAPE = ["lora_rank", "lora_alpha", "lora_targets"]
APART = "evaluate them in two calls, then compare with `paint grade`"
RUNS = LogConfig().folder  # name of the folder that runs lie in


@dataclass(frozen=True)
class EvalTarget:
    name: str  # in tables and folders
    checkpoint: Path | None  # folder of an adapter or of a trained model; None for the base model
    prompts: PromptsConfig = PAPER_PROMPTS  # of its run


Place = tuple[Path, EvalTarget, Benchmark]  # a store's folder, and who answers what in it


def evaluate(evaluation: EvaluationConfig, targets: Sequence[str]) -> Path:
    """Evaluate base and trained policies on all benchmarks, print the tables, return their folder.

    ``targets`` are runs (all their checkpoints), checkpoints, adapters, or a model; all with one
    base model.
    """
    display = Display()
    require_one_process("paint eval")
    model, policies = resolve_targets(evaluation, targets)
    run = run_of(Path(targets[0]))
    trained = read_run(run) if run else None
    note_benchmarks(evaluation, trained, targets[0], display)
    benchmarks = load_benchmarks(evaluation, trained, display)
    folder = Path(evaluation.output_dir) / name_of(targets, model)
    places: list[Place] = [
        (folder / target.name / benchmark.name, target, benchmark)
        for target in policies
        for benchmark in benchmarks
    ]

    earlier = recorded_engines(place for place, _, _ in places)
    rollout, notes = resolve_evaluation(evaluation.rollout, find_machine(), model, earlier=earlier)
    display.notes(notes)
    evaluation = replace(evaluation, rollout=rollout)

    missing = sum(count_missing(p, b.problems, evaluation.samples) for p, _, b in places)
    if missing:
        display.note(
            f"to generate: {missing:,} answers to {', '.join(evaluation.benchmarks)}, of at most "
            f"{evaluation.rollout.max_new_tokens:,} tokens; thinking: {evaluation.thinking}"
        )
    note_differences(evaluation, targets, display)
    config = Config(
        with_date(model, folder),
        rollout=rollout,
        conversation=evaluation.conversation,
        prompts=policies[0].prompts,
    )
    policy = open_policy(evaluation, config, benchmarks, display)
    protocol = SamplingProtocol(
        evaluation.samples, evaluation.thinking, sampling_from(evaluation.rollout), evaluation.seed
    )
    tasks = make_tasks(policy, places, protocol, display)
    with collect_samples(policy, config, tasks, folder, display) as stores:
        graded = grade_stores(evaluation, stores, places, display)
        write_summary(graded, folder, display)
    return folder


def open_policy(
    evaluation: EvaluationConfig, config: Config, benchmarks: Sequence[Benchmark], display: Display
) -> Policy:
    """Load the policy, and warn of what of its template and prompts an evaluation meets."""
    with display.working("loading the model"):
        policy = load_eval_policy(config)
    display.note(policy.summary)
    display.warnings(policy.conventions.warnings(thinking=evaluation.thinking))
    display.warnings([policy.call_warning])
    for benchmark in benchmarks:
        named = grading_of(benchmark, evaluation.grading).grader
        display.warnings([other_form(policy.prompts, named, benchmark.problems[0])])
    return policy


def grade_stores(
    evaluation: EvaluationConfig, stores: Sequence[Store], places: Sequence[Place], display: Display
) -> dict[Path, GradedSamples]:
    """Grade all stores, those of one grading by one grader."""
    graded = {}
    graders: dict[tuple[str, ...], Grader] = {}
    with ExitStack() as opened:
        for store, (_, _, benchmark) in zip(stores, places, strict=True):
            grading = grading_of(benchmark, evaluation.grading)
            if grading.grader not in graders:
                graders[grading.grader] = opened.enter_context(open_grader(grading))
            grader = graders[grading.grader]
            graded[store.folder] = grade(store, grader, grading, display)
    return graded


def make_tasks(
    policy: Policy, places: Sequence[Place], protocol: SamplingProtocol, display: Display
) -> list[EvalTask]:
    """Return what each policy answers; all get the same prompts and lengths."""
    prompts: dict[str, PromptIds] = {}
    fitted: dict[str, SamplingProtocol] = {}
    tasks = []
    for folder, target, benchmark in places:
        name, problems = benchmark.name, benchmark.problems
        if name not in prompts:
            try:
                prompts[name] = deployment_prompts(policy, problems, thinking=protocol.thinking)
            except PromptError as error:
                raise DataError(f"benchmark {name}: {error}") from error
            fitted[name] = fit_to_context(policy, protocol, name, prompts[name], display)
        tasks.append(EvalTask(folder, problems, prompts[name], fitted[name], target.checkpoint))
    return tasks


def load_benchmarks(
    evaluation: EvaluationConfig, trained: Config | None, display: Display
) -> list[Benchmark]:
    """Load the benchmarks, and note gold answers that do not parse."""
    require_distinct(evaluation.benchmarks)
    benchmarks: list[Benchmark] = []
    for spec in evaluation.benchmarks:
        benchmark = load_benchmark(
            spec,
            limit=evaluation.limit,
            needs_answer=grader_needs_answer(evaluation.grading),
            trained_on=trained.data if trained else None,
        )
        if benchmark.name == MACRO:
            raise ConfigError(
                f"the name {MACRO} is that of the mean over benchmarks; rename {spec}"
            )
        benchmarks.append(benchmark)
        grading = grading_of(benchmark, evaluation.grading)
        if grading != evaluation.grading:
            display.note(f"{benchmark.name} is graded by {', '.join(grading.grader)}")
        with closing(open_grader(grading)) as grader:
            announce_benchmark(grader, benchmark, display)
            display.warnings([grader.warning()])
    return benchmarks


def note_differences(
    evaluation: EvaluationConfig, targets: Sequence[str], display: Display
) -> None:
    runs = dict.fromkeys(filter(None, (run_of(Path(target)) for target in targets)))
    for run in runs:
        changes = protocol_differences(read_run(run), protocol_of(evaluation))
        if changes:
            display.note(f"{run}: not sampled as in training: {changes}")


def note_benchmarks(
    evaluation: EvaluationConfig, trained: Config | None, target: str, display: Display
) -> None:
    """Note what the problems are where they are the default, or the rows of the training."""
    paths = trained.data.paths if trained else (NAME,)
    if paths != (NAME,) and evaluation.benchmarks == paths:
        display.warn(
            f"{', '.join(paths)} holds the rows that {target} was trained on; --benchmarks names "
            f"others"
        )
        return
    names, what = EvaluationConfig().benchmarks, "the paper's benchmarks"
    if trained is not None:
        names, what = default_benchmarks(trained)
    if evaluation.benchmarks == names:
        display.note(f"evaluated on {', '.join(names)}: {what}; --benchmarks names others")


def count_missing(store: Path, problems: Sequence[Problem], samples: int) -> int:
    """Return the number of samples of these problems that a store has not."""
    stored = stored_samples(store)  # it may hold further problems and samples
    asked = [(problem.id, sample) for problem in problems for sample in range(samples)]
    return sum(key not in stored for key in asked)


def name_of(targets: Sequence[str], model: ModelConfig) -> str:
    """Return the name of an evaluation's folder: that of its runs, or else of the model."""
    runs = [name_of_run(run) for run in map(run_of, map(Path, targets)) if run is not None]
    if runs:
        return "+".join(dict.fromkeys(runs))
    # A model named .. or a/.. is named after its folder; a lone dot has no name.
    path = Path(model.path)
    name = (path.resolve().name if path.name == ".." else path.name) or "model"
    return folder_name(name, f"the model {model.path}")


def name_of_run(run: Path) -> str:
    """Return the name of a run's evaluations: a-seed-0 of runs/a/seed-0, or that of its folder."""
    *above, name = run.resolve().parts
    if RUNS not in above:
        # seed-0 of two experiments' rows would be one name.
        is_seed = re.fullmatch(r"seed-\d+", name) is not None
        return f"{above[-1]}-{name}" if is_seed else name
    # The last folder of that name: a folder of runs may lie in another one.
    after = len(above) - above[::-1].index(RUNS)
    return "-".join([*above[after:], name])


def resolve_targets(
    evaluation: EvaluationConfig, targets: Sequence[str]
) -> tuple[ModelConfig, list[EvalTarget]]:
    """Return the model of the targets and the policies to evaluate; a run is all its checkpoints.

    Raises ConfigError where they have more than one model, adapter shape, train mode or prompts.
    """
    models: dict[str, ModelConfig] = {}
    policies: list[EvalTarget] = []
    for target in targets:
        models[target], found = resolve_target(target)
        policies += found
    # Of a model that is named by its path, only the path is known.
    trained = {name: model for name, model in models.items() if model != ModelConfig(path=name)}
    # A run's model stands for all, since more than its path is known.
    first = next(iter({**trained, **models}.values()))
    for target, model in models.items():
        fields = ["path"]
        if target in trained:
            fields += ["train_mode", "quantization"]
            # Full models have no adapter whose shape could differ.
            if model.train_mode == first.train_mode == "lora":
                fields += ADAPTER_SHAPE
        for name in fields:
            value, expected = getattr(model, name), getattr(first, name)
            # The order in which an adapter's file names its layers does not count.
            if value != expected and (name != "lora_targets" or set(value) != set(expected)):
                raise ConfigError(
                    f"{target}: its {name} is {value!r}, another target's is {expected!r}; {APART}"
                )

    names = [policy.name for policy in policies] + ["base"] * evaluation.base
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(
                f"two targets are called {name}; rename a folder, or evaluate them in two calls"
            )
    prompts = {policy.prompts for policy in policies}
    if len(prompts) > 1:
        raise ConfigError(f"the targets were trained with different prompts; {APART}")
    if evaluation.base or not policies:
        # The base comes first: all differences are to the first policy.
        policies = [EvalTarget("base", None, *prompts), *policies]

    model = replace(
        first if trained else base_as_rank1_adapter(first),
        dtype=evaluation.dtype or (first.dtype if trained else own_dtype(first.path)),
        # One date for all, so that they get the same prompts: that of the earliest run.
        date=min(model.date for model in models.values()),
        student_thinking=evaluation.thinking,
        gradient_checkpointing=False,
    )
    return model, policies


def resolve_target(target: str) -> tuple[ModelConfig, list[EvalTarget]]:
    """Return the base model of a target, and its trained policies; none if it is a model."""
    path = Path(target)
    run_folder, name = run_of(path), path.resolve().name
    if run_folder is not None:
        config, run = read_run(run_folder), name_of_run(run_folder)
        saved = checkpoints(path) if run_folder == path else [path.resolve()]
        if not saved:
            raise ConfigError(f"{path} has no checkpoint yet")
        policies = []
        for checkpoint in saved:
            trained = trained_in(checkpoint, config.model.train_mode)
            policies.append(EvalTarget(f"{run}-{checkpoint.name}", trained, config.prompts))
        return config.model, policies
    if (path / "adapter" / "adapter_config.json").exists():
        run = path.resolve().parent.parent.name
        adapter = path / "adapter"
        return read_adapter_shape(adapter), [EvalTarget(f"{run}-{name}", adapter)]
    if (path / "adapter_config.json").exists():
        verify_export(path)
        return read_adapter_shape(path), [EvalTarget(name, path)]
    return ModelConfig(path=target), []
