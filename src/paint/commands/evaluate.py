"""``paint eval``."""

from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Annotated, Any

from tyro.conf import arg

from paint.arguments import DryRun, EvaluationSetting, Gpus, SplitArgument, Targets, agrees
from paint.config.recipe import from_table
from paint.config.schema import Config, ConfigError, EvaluationConfig, ModelConfig
from paint.configure import as_named, write_rows
from paint.data.sources import check_benchmark
from paint.evaluation.defaults import defaults_of
from paint.results import Evaluation, Run, path_of
from paint.training.check import check_engine
from paint.training.launcher import LaunchRequest, on_gpus

NAME = "eval"
CONTINUES = True


def evaluate(
    targets: Annotated[Targets, arg(metavar="TARGET")],
    *,
    benchmarks: Any = None,
    yes: bool = False,
    gpus: Gpus = 0,
    split: SplitArgument = None,
    dry_run: DryRun = False,
    **settings: EvaluationSetting,
) -> Evaluation:
    """Answer benchmarks, grade the samples, and compare with the base model.

    Every sample is stored; the same command continues where it was interrupted. The defaults are
    the paper's. Those of a run, named first, are its grader and, where it has a validation, the
    validation's problems and sampling; for a run on the demo's problems, the held-out ones and the
    run's lengths.

    Example: paint eval demo --benchmarks demo --limit 2 --samples 2 --rollout.max-new-tokens 64

    Args:
        targets: A run (all its checkpoints), a checkpoint, an adapter folder, or a model (folder or
            hub name); or several. On the command line they stand before the flags.
        benchmarks: Problem sets (a name, a file, or rows with problem and answer), or several names
            and files.
        yes: Start without asking; otherwise a terminal asks about more than an hour.
        settings: Settings of an evaluation, such as ``samples=4``; ``rollout`` and ``grading`` are
            sections, in which ``grader`` may be a function.
    """
    several = [targets] if isinstance(targets, Run | str | Path) else list(targets)
    paths = [str(path_of(target)) for target in several]
    if not paths:
        raise ConfigError(
            "nothing to evaluate; name a run, a checkpoint, an adapter folder or a model, before "
            "the flags"
        )
    evaluation = _configured(defaults_of(paths[0]), benchmarks, settings)
    check_engine(evaluation.rollout)
    for spec in evaluation.benchmarks:
        check_benchmark(spec)

    from paint.evaluation.evaluate import evaluate as evaluate_targets
    from paint.evaluation.evaluate import resolve_targets

    model = resolve_targets(evaluation, paths)[0] if gpus else ModelConfig()
    request = LaunchRequest(gpus, split, dry_run)
    with on_gpus(request, Config(model, rollout=evaluation.rollout), ranks=0) as config:
        if config is None:
            return Evaluation(Path(evaluation.output_dir))
        evaluation = replace(evaluation, rollout=config.rollout)
        return Evaluation(evaluate_targets(evaluation, paths, agree=lambda: _require_yes(yes)))


def _configured(
    default: EvaluationConfig, benchmarks: Any, settings: Mapping[str, Any]
) -> EvaluationConfig:
    """The default with the arguments of a call; rows are stored in the folder of evaluations."""
    known = [field.name for field in fields(EvaluationConfig)]
    for name in settings:
        if name not in known:
            raise ConfigError(f"evaluate has no setting {name}; it has {', '.join(sorted(known))}")
    changes = {name: as_named(value) for name, value in settings.items()}
    base = Config(rollout=default.rollout, grading=default.grading)
    for section in ("rollout", "grading"):
        values = changes.get(section, {})
        if isinstance(values, Mapping):
            table = {section: {key: as_named(value) for key, value in values.items()}}
            changes[section] = getattr(from_table(table, source="evaluate", base=base), section)
    evaluation = replace(default, **changes)
    if benchmarks is None:
        return evaluation
    are_names = isinstance(benchmarks, list | tuple) and all(
        isinstance(one, str | Path) for one in benchmarks
    )
    if isinstance(benchmarks, str | Path):
        names = [str(benchmarks)]
    elif are_names:
        names = [str(name) for name in benchmarks]
    else:
        names = [write_rows(benchmarks, Path(evaluation.output_dir) / "benchmarks")]
    return replace(evaluation, benchmarks=tuple(names))


def _require_yes(yes: bool) -> None:
    """Ask on a terminal. Raises ConfigError unless the answer is yes."""
    if not (yes or agrees()):
        raise ConfigError(
            "nothing was generated; fewer targets, --samples, --limit and "
            "--rollout.max-new-tokens make it shorter, --rollout.engine vllm faster"
        )
