from collections.abc import Mapping, Sequence
from dataclasses import replace
from operator import attrgetter
from pathlib import Path
from typing import Annotated, Any

from paint.commands.api import arguments
from paint.commands.api.configure import as_named, write_rows
from paint.commands.api.results import Evaluation, Run, path_of
from paint.config.recipe import executables_of, to_table, with_table
from paint.config.run_folder import read_run, run_of
from paint.config.schema import Config, ConfigError, EvaluationConfig
from paint.core.demo_files import model_path
from paint.core.errors import format_value, naming, wrap_errors
from paint.core.hub import require_model
from paint.core.trust import require_trusted, trust_records, vouch_for
from paint.data.sources import check_benchmark
from paint.evaluation.defaults import defaults_of, grader_needs_answer
from paint.resolve.check import check_config, check_engine
from paint.training.launcher import on_gpus

NAME = "eval"
CONTINUES = True

ADAPTER = "adapter_config.json"
"""File of a folder that holds an adapter."""

SHARED = (
    "conversation.tools",
    "conversation.environment",
    "conversation.options",
    "conversation.max_turns",
    "grading.grader",
    "grading.weights",
    "grading.options",
)
"""Settings by which a policy is measured, so that all targets share them."""


def evaluate(
    targets: Run | str | Path | Sequence[Run | str | Path],
    *,
    gpus: arguments.Gpus = 0,
    trust: arguments.Trust = False,
    **settings: Annotated[Any, arguments.SettingsOf(EvaluationConfig)],
) -> Evaluation:
    """Answer benchmarks, grade the samples, and compare with the base model.

    Every sample is stored; the same command continues where it was interrupted. A run, named
    first, is evaluated as it was trained: its grader, prompts, thinking mode and sampling, on the
    problems of its validation or on those that are named. The defaults of other targets, and of
    competition mathematics, are the paper's.

    Example: paint eval demo --benchmarks demo --limit 2 --samples 2 --rollout.max-new-tokens 64

    Args:
        targets: A run (all its checkpoints), a checkpoint, an adapter folder, or a model (folder or
            hub name); or several. On the command line they stand before the flags.
        settings: Settings of an evaluation, such as ``samples=4``. ``benchmarks`` are problem sets:
            a name, a file, several of them, or rows with problem and answer; ``rollout`` and
            ``grading`` are sections, in which ``grader`` may be a function.
    """
    if trust:
        trust_records()
    several = [targets] if isinstance(targets, Run | str | Path) else list(targets)
    paths = [str(path_of(target)) for target in several]
    _require_targets(paths)
    evaluation = _configured(paths[0], settings)
    for path in paths[1:]:
        if run_of(Path(path)) is not None:
            _require_shared(paths[0], evaluation, path, _configured(path, settings))
    sections = {name: getattr(evaluation, name) for name in ("rollout", "conversation", "grading")}
    named = executables_of(to_table(Config(**sections)))
    require_trusted(named, "name your own with --grading.grader and --conversation.tools")
    check_engine(evaluation.rollout)
    _require_benchmarks(evaluation, paths[0])

    from paint.evaluation.evaluate import evaluate as evaluate_targets
    from paint.evaluation.evaluate import resolve_targets

    if not gpus:
        return Evaluation(evaluate_targets(evaluation, paths))
    # Only the division of GPUs needs the model: how many of them a server takes.
    model = resolve_targets(evaluation, paths)[0]
    sampled = check_config(Config(model, rollout=evaluation.rollout))
    with on_gpus(gpus, sampled, ranks=0) as placed:
        evaluation = replace(evaluation, rollout=placed.rollout)
        return Evaluation(evaluate_targets(evaluation, paths))


def _require_targets(paths: Sequence[str]) -> None:
    """Raise ConfigError for what is no run, no checkpoint, no adapter and no complete model."""
    if not paths:
        raise ConfigError(
            "nothing to evaluate; name a run, a checkpoint, an adapter folder or a model, before "
            "the flags"
        )
    for path in paths:
        folder = Path(path)
        is_adapter = any((folder / name).is_file() for name in (ADAPTER, f"adapter/{ADAPTER}"))
        if run_of(folder) or is_adapter:
            continue
        with wrap_errors(path, ConfigError, "name a run, a checkpoint, an adapter or a model"):
            require_model(model_path(path))


def _require_benchmarks(evaluation: EvaluationConfig, target: str) -> None:
    run, needs_answer = run_of(Path(target)), grader_needs_answer(evaluation.grading)
    trained_on = read_run(run).data if run else None
    for spec in evaluation.benchmarks:
        with naming("benchmarks"):
            check_benchmark(spec, needs_answer=needs_answer, trained_on=trained_on)


def _require_shared(
    first: str, evaluation: EvaluationConfig, target: str, other: EvaluationConfig
) -> None:
    """Raise ConfigError for a run with other tools, environment or grader than the evaluation.

    What the command names is that of all targets, in ``other``, too.
    """
    for setting in SHARED:
        wanted, found = (attrgetter(setting)(one) for one in (evaluation, other))
        if wanted != found:
            raise ConfigError(
                f"{target} has {setting} {format_value(found)}, and {first}, which is named first, "
                f"{format_value(wanted)}: all targets of an evaluation have one task; name it with "
                f"--{setting.replace('_', '-')}, or evaluate them in two calls"
            )


def _configured(target: str, settings: Mapping[str, Any]) -> EvaluationConfig:
    """Return what fits the target, with the arguments; store rows in the folder of evaluations."""
    changes = dict(settings)
    benchmarks, names = changes.pop("benchmarks", None), list[str]()
    changes = {name: as_named(value) for name, value in changes.items()}
    if benchmarks is not None:
        folder = changes.get("output_dir", EvaluationConfig().output_dir)
        names = _names(benchmarks, Path(folder) / "benchmarks")
    default = defaults_of(target, names)
    with naming("evaluate"):
        evaluation = with_table(default, changes)
    vouch_for(code.name for code in executables_of(changes))
    return evaluation


def _names(benchmarks: Any, folder: Path) -> list[str]:
    several = [benchmarks] if isinstance(benchmarks, str | Path) else benchmarks
    if isinstance(several, list | tuple) and all(isinstance(one, str | Path) for one in several):
        return list(map(str, several))
    with naming("benchmarks"):
        return [write_rows(benchmarks, folder)]
