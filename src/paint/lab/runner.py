"""Experiments: runs of several settings and seeds, with one file of results for their tables.

    runs/demo/
      results.jsonl                       one line per evaluated checkpoint
      results.md, results.json            the tables, made from these lines
      demo-paint/seed-0/                  an ordinary run folder, with a log.txt
      evaluation/seed-0/demo-paint/demo/  its samples (paint.evaluation.store)
      evaluation/seed-0/demo-paint-step-000005/demo/    samples of an earlier checkpoint

Runs are ordered by seed, so that an interrupted experiment has complete seeds. The same command
resumes; started in a second terminal, it works on other runs.
"""

import logging
import math
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from time import monotonic
from typing import IO

import numpy as np

from paint.config.collapse import describe_end
from paint.config.recipe import WRITTEN_HINT, differences, from_table, to_table
from paint.config.run_folder import (
    RunError,
    fixed_differences,
    latest_checkpoint,
    read_history,
    read_run,
    read_run_json,
    step_folder,
    step_of,
)
from paint.config.schema import Config, ConfigError, ModelConfig
from paint.core.display import LOG_WIDTH, Counter, Display, Terminal, format_duration
from paint.core.distributed import require_one_process
from paint.core.errors import Interrupted, wrap_errors
from paint.core.storage import FolderInUse, lock_folder
from paint.core.workspace import refuse_differences, setting_differences
from paint.data.row_checks import announce_benchmark
from paint.evaluation.generate import (
    EvalTask,
    SamplingProtocol,
    base_as_rank1_adapter,
    collect_samples,
    deployment_prompts,
    load_eval_policy,
    with_date,
)
from paint.evaluation.grade import grade
from paint.evaluation.intervals import mean_of_samples
from paint.evaluation.metrics import GradedSamples, are_shares
from paint.grading.graders import open_grader
from paint.inference.machine import find_machine
from paint.lab.checkpoint_results import (
    BASE,
    CheckpointResult,
    append_results,
    by_step,
    read_results,
)
from paint.lab.eval_protocols import EvalProtocol
from paint.lab.recipes import require_shared
from paint.models.weights import trained_in
from paint.resolve.check import (
    Resolved,
    check_training,
    resolve_engine,
    resolve_evaluation,
    with_resolved,
)
from paint.training.callbacks import Callback
from paint.training.trainer import train

# Config keys that may differ between two calls that work on one experiment: they change no number.
CHANGEABLE_SETTINGS = {
    "rollout.urls",
    "rollout.server_gpus",
    "rollout.max_logprob_mismatch",
    "health.stop_on",
}


@dataclass(frozen=True)
class ExperimentRun:
    """A config to train and evaluate, and its name in tables and of its folder."""

    name: str
    config: Config

    def __post_init__(self) -> None:
        require_steps(self.name, self.config)

    @property
    def seed(self) -> int:
        return self.config.train.seed

    @property
    def label(self) -> str:
        return f"{self.name}, seed {self.seed}"

    def steps(self, *, every_checkpoint: bool) -> list[int]:
        """Return the steps whose checkpoints are evaluated, in order; 0 is the base model."""
        # From the config, since an interrupted run has checkpoints at other steps, too.
        if self.name == BASE:
            return [0]
        train = self.config.train
        earlier = range(train.checkpoint_every, train.steps, train.checkpoint_every)
        return [*(earlier if every_checkpoint else ()), train.steps]

    def is_trained(self, run_folder: Path) -> bool:
        """Return whether the last checkpoint is there."""
        checkpoint = latest_checkpoint(run_folder)
        return checkpoint is not None and step_of(checkpoint) == self.config.train.steps

    def folder(self, experiment: Path) -> Path:
        return experiment / self.name / f"seed-{self.seed}"

    @cached_property
    def checked(self) -> Resolved:
        """The resolved config, with the engine that ``auto`` is on this machine."""
        return resolve_engine(check_training(self.config), find_machine())


def require_steps(name: str, config: Config) -> None:
    """Raise ConfigError for epochs: an experiment chooses checkpoints by steps beforehand."""
    if config.train.epochs is not None:
        raise ConfigError(
            f"{name}: train.epochs must be None in an experiment, got {config.train.epochs:g}; set "
            f"train.steps, by which its checkpoints are chosen"
        )


def run_experiment(
    runs: Sequence[ExperimentRun],
    seeds: Sequence[int],
    folder: Path,
    protocol: EvalProtocol,
    display: Display,
    *,
    every_checkpoint: bool = False,
) -> list[CheckpointResult]:
    """Train and evaluate every run with every seed, and the base model; return their results.

    Results in results.jsonl are reused, and unfinished runs and evaluations are resumed. With
    ``every_checkpoint``, all checkpoints of each run are evaluated, in order, not the last alone.
    """
    seeded = _seeded_runs([replace(run, config=run.checked.config) for run in runs], seeds, folder)
    protocol = _prepare(protocol, runs, folder, display)

    def missing_steps(run: ExperimentRun) -> list[int]:
        # Read again each time: other processes append to it.
        results = _stored(folder)
        steps = run.steps(every_checkpoint=every_checkpoint)
        return [step for step in steps if (run.name, run.seed, step) not in results]

    with lock_folder(folder, waiting=display.note):
        missing = list(filter(missing_steps, seeded))
        _require_same(folder, seeded, missing, list(_stored(folder).values()), protocol)
    _announce(folder, len(seeded), missing, display)
    spent: list[float] = []
    # First the runs that no other process works on; then the others, each as soon as it is free.
    for waiting in (None, display.note):
        for number, run in enumerate(seeded, start=1):
            if not missing_steps(run):
                continue
            lock = folder / f".lock-{run.name}-seed-{run.seed}"
            with ExitStack() as stack:
                try:
                    stack.enter_context(lock_folder(folder, lock.name, waiting=waiting))
                except FolderInUse:
                    continue
                steps_left = missing_steps(run)  # the other process may have just finished it
                if steps_left:
                    left = _time_left(spent, len(list(filter(missing_steps, seeded))))
                    display.note(f"{number} of {len(seeded)}: {run.label}{left}")
                    began = monotonic()
                    _add_results(folder, _run(run, steps_left, folder, protocol, display), display)
                    # The base is not trained: its time says nothing about that of the others.
                    if run.name != BASE:
                        spent.append(monotonic() - began)
                # After an error it stays, so that a waiting and a later process lock the same file.
                lock.unlink(missing_ok=True)

    results, found = _stored(folder), list[CheckpointResult]()
    for run in seeded:
        steps = run.steps(every_checkpoint=every_checkpoint)
        found += [results[run.name, run.seed, step] for step in steps]
    return found


def _prepare(
    protocol: EvalProtocol, runs: Sequence[ExperimentRun], folder: Path, display: Display
) -> EvalProtocol:
    """Make the folder, and return the evaluation with the engine that it has on this machine."""
    models = [run.config.model for run in runs]
    rollout, notes = resolve_evaluation(protocol.rollout, find_machine(), *models)
    display.notes(notes)
    with closing(open_grader(runs[0].config.grading)) as grader:
        announce_benchmark(grader, protocol.benchmark, display)
    with wrap_errors(folder, RunError, "choose another place (--output-dir)"):
        folder.mkdir(parents=True, exist_ok=True)
    return replace(protocol, rollout=rollout)


def _announce(folder: Path, count: int, missing: Sequence[ExperimentRun], display: Display) -> None:
    """Say what there is already, and prepare the estimate of the time of what is trained."""
    if len(missing) < count:
        rest = ""
        if not missing:
            rest = "; nothing was trained or evaluated (another --output-dir repeats it)"
        done = count - len(missing)
        display.note(f"{done} of {count} are in {folder / 'results.jsonl'} already{rest}")
    trained = [
        run for run in missing if run.name != BASE and not run.is_trained(run.folder(folder))
    ]
    display.trainings = len(trained)


def _time_left(spent: Sequence[float], runs: int) -> str:
    if not spent:
        return ""
    return f"; about {format_duration(float(np.mean(spent)) * runs)} left"


def _add_results(folder: Path, results: Sequence[CheckpointResult], display: Display) -> None:
    """Append results to those of the experiment. Raises RunError for those of other problems."""
    # For the file alone: while this process trained, others could train, too.
    with lock_folder(folder, waiting=display.note):
        by_step([*read_results(folder), *results])
        append_results(folder, results)


def _seeded_runs(
    runs: Sequence[ExperimentRun], seeds: Sequence[int], folder: Path
) -> list[ExperimentRun]:
    """Return the base model's run and the others with each seed, by seed, all with one date."""
    base = _require_comparable(runs)
    # A template may write the date: policies of one table get the same prompts.
    date = with_date(runs[0].config.model, folder).date
    seeded = []
    for seed in seeds:
        for run in [base, *runs]:
            config = run.config.changed("model", date=date).changed("train", seed=seed)
            # What is compared is equal steps, and a collapse is a result.
            config = config.changed("health", stop_on=())
            seeded.append(replace(run, config=config))
    return seeded


class RunDisplay(Display):
    """A display that writes messages to a file and progress to a counter.

    Warnings are shown, too, with the name of the run, on the display that draws the counter.
    """

    def __init__(self, file: IO[str], counter: Counter, label: str) -> None:
        super().__init__()
        self.console, self.counter = Terminal(file, width=LOG_WIDTH), counter
        self.label = label

    def log(self, level: int, text: str) -> None:
        self.console.print(text)
        if level >= logging.WARNING:
            self.counter.display.warn(f"{self.label}: {text}")

    def estimate(self, text: str) -> None:
        super().estimate(text)
        self.counter.display.note(f"{self.label}: {text}")

    def step(self, metrics: Mapping[str, float], values: Iterable[str]) -> None:
        super().step(metrics, values)
        self.counter.to(int(metrics["step"]))


def _run(
    run: ExperimentRun, steps: Sequence[int], folder: Path, protocol: EvalProtocol, display: Display
) -> list[CheckpointResult]:
    began = monotonic()
    checkpoints: dict[int, Path | None] = dict.fromkeys(steps)
    history, trained_on = [], ""
    if run.name != BASE:
        run_folder = run.folder(folder)
        train_run(run, run_folder, display)
        checkpoints = {step: step_folder(run_folder / "checkpoints", step) for step in steps}
        history = read_history(run_folder, max(steps))
        trained_on = str(read_run_json(run_folder)["problems"])
    graded = _evaluate(run, checkpoints, folder, protocol, display)
    display.note(f"{run.label} took {format_duration(monotonic() - began)}")
    return [
        _result(run, step, history[:step], protocol, trained_on, *samples)
        for step, samples in graded.items()
    ]


def _result(
    run: ExperimentRun,
    step: int,
    history: Sequence[Mapping[str, float]],
    protocol: EvalProtocol,
    trained_on: str,
    samples: GradedSamples,
    control: GradedSamples | None = None,
) -> CheckpointResult:
    # The clocks of the steps: start-up and work lost to a kill are not a method's cost.
    seconds = 0.0
    for row in history:
        for name, value in row.items():
            if name.startswith("seconds_") and name != "seconds_left":
                seconds += value
    shares = rewards = None
    if control is not None:
        shares = (control.correct & control.graded).mean(axis=1).tolist()
    if samples.rewards is not None:
        means = mean_of_samples(samples.rewards).tolist()
        rewards = [None if math.isnan(mean) else mean for mean in means]  # JSON has no NaN
    return CheckpointResult(
        run=run.name,
        seed=run.seed,
        config=to_table(run.config),
        protocol=protocol.table,
        trained_on=trained_on,
        steps=step,
        rollout_tokens=round(sum(row["rollout_tokens"] for row in history)),
        seconds=seconds,
        problems=samples.problems,
        right=(samples.correct & samples.graded).sum(axis=1).tolist(),
        answer_tokens=float(samples.tokens.mean()),
        graded=None if samples.graded.all() else samples.graded.sum(axis=1).tolist(),
        rewards=rewards,
        has_shares=are_shares(samples.scores),
        control=shares,
    )


def refuse_other_settings(run_folder: Path, config: Config) -> None:
    """Raise ConfigError where the folder has a run of other settings.

    A run that is complete would not be trained again, and stand for these settings.
    """
    if (run_folder / "run.json").exists():
        begun = read_run(run_folder, is_compared=True)
        changes = fixed_differences(begun, with_resolved(config, begun))
        refuse_differences(f"{run_folder} holds a run", changes, ConfigError)


def train_run(
    run: ExperimentRun, run_folder: Path, display: Display, callbacks: Sequence[Callback] = ()
) -> None:
    """Train in the run's folder up to the last checkpoint, resuming if the folder has a run."""
    steps = run.config.train.steps
    if run.is_trained(run_folder):
        ended = describe_end(read_history(run_folder, steps))
        if ended:
            display.warn(f"{run.label}: {ended}")
        return

    checkpoint = latest_checkpoint(run_folder)
    done = step_of(checkpoint) if checkpoint else 0
    has_begun = (run_folder / "run.json").exists()
    config = with_resolved(run.config, read_run(run_folder)) if has_begun else run.config
    run_folder.mkdir(parents=True, exist_ok=True)
    try:
        with (
            # Line by line, so that the log can be followed.
            (run_folder / "log.txt").open("a", 1, "utf-8", "replace") as log,
            display.counting(f"training {run.label}", steps, done) as counter,
        ):
            shown = RunDisplay(log, counter, run.label)
            shown.trainings, display.trainings = display.trainings, 1  # the first speaks for all
            checked = check_training(config)
            train(checked, run_folder, resume=has_begun, display=shown, callbacks=callbacks)
    except Interrupted as stopped:
        message = f"stopped in {run.label}, and saved; the same command resumes"
        raise Interrupted(message, stopped.signal_number) from None


def _evaluate(
    run: ExperimentRun,
    checkpoints: Mapping[int, Path | None],
    folder: Path,
    protocol: EvalProtocol,
    display: Display,
) -> dict[int, list[GradedSamples]]:
    """Generate missing samples, and grade those of each benchmark, by step.

    A checkpoint of None is the base model.
    """
    model = replace(
        run.config.model, student_thinking=protocol.thinking, gradient_checkpointing=False
    )
    # One seed for all policies of a training seed: they differ in weights, not in luck.
    sampling = SamplingProtocol(protocol.samples, protocol.thinking, protocol.sampling, run.seed)
    samples_folder = folder / "evaluation" / f"seed-{run.seed}"

    # The base, once; the checkpoints' weights are loaded into it one after the other.
    config = replace(run.config, model=model, rollout=protocol.rollout)
    policy = load_eval_policy(config)
    prompt_sets = [
        deployment_prompts(policy, benchmark.problems, thinking=protocol.thinking)
        for benchmark in protocol.benchmarks
    ]
    tasks = []
    for step, checkpoint in checkpoints.items():
        is_last = [step] == run.steps(every_checkpoint=False)
        # The last has the run's name alone: its samples stay when --every-checkpoint is added.
        name = run.name if is_last else f"{run.name}-step-{step:06d}"
        trained = trained_in(checkpoint, model.train_mode) if checkpoint else None
        for benchmark, prompts in zip(protocol.benchmarks, prompt_sets, strict=True):
            store = samples_folder / name / benchmark.name
            tasks.append(EvalTask(store, benchmark.problems, prompts, sampling, trained))

    place = samples_folder / run.name
    with (
        collect_samples(policy, config, tasks, place, display) as stores,
        open_grader(run.config.grading) as grader,
    ):
        graded = [grade(store, grader, run.config.grading, display) for store in stores]
        count = len(prompt_sets)
        return {step: graded[i * count : (i + 1) * count] for i, step in enumerate(checkpoints)}


def _require_comparable(runs: Sequence[ExperimentRun]) -> ExperimentRun:
    """Check that all runs have one base model, data path and grader; return that model's run."""
    require_one_process("an experiment")
    names = [run.name for run in runs]
    for run in runs:
        if names.count(run.name) > 1 or run.name in (BASE, "evaluation"):
            raise ConfigError(
                f"{run.name} names two recipes, or is reserved (base, evaluation); rename one"
            )
    require_shared([(run.name, run.config) for run in runs])

    # The base has no adapter to speak of: one of rank 1 is the identity, and cheap to serve.
    config = runs[0].config
    model = base_as_rank1_adapter(ModelConfig(path=config.model.path, dtype=config.model.dtype))
    return ExperimentRun(
        BASE, Config(model=model, grading=config.grading, conversation=config.conversation)
    )


def _require_same(
    folder: Path,
    seeded: Sequence[ExperimentRun],
    missing: Sequence[ExperimentRun],
    results: Sequence[CheckpointResult],
    protocol: EvalProtocol,
) -> None:
    path = folder / "results.jsonl"
    for run in seeded:
        stored = [
            (from_table(result.config, source=str(path), hint=WRITTEN_HINT), result.protocol)
            for result in results
            if (result.run, result.seed) == (run.name, run.seed)
        ]
        run_folder = run.folder(folder)
        # A run that was interrupted has no result yet, but its settings.
        if run in missing and (run_folder / "run.json").exists():
            stored.append((read_run(run_folder), protocol.table))

        for config, stored_protocol in stored:
            lines = setting_differences(stored_protocol, protocol.table)
            changes = differences(config, with_resolved(run.config, config))
            lines += [line for line in changes if line.split(":")[0] not in CHANGEABLE_SETTINGS]
            refuse_differences(f"{folder} holds {run.label},", lines, RunError)


def _stored(folder: Path) -> dict[tuple[str, int, int], CheckpointResult]:
    return {(result.run, result.seed, result.steps): result for result in read_results(folder)}
