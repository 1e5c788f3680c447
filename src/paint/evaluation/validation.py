"""Validation during training: evaluation of every checkpoint on the user's problems.

RUN/validation is an ordinary evaluation with one folder per checkpoint, the student before the
first step included. No best checkpoint is selected; the table has all.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from accelerate import Accelerator

from paint.config.run_folder import step_folder
from paint.config.schema import Config
from paint.core.display import Display
from paint.core.distributed import all_gather_objects, run_on_rank0
from paint.data.benchmarks import load_benchmark
from paint.data.problems import Problem
from paint.data.row_checks import announce_benchmark
from paint.evaluation.defaults import (
    grader_needs_answer,
    protocol_differences,
    validation_protocol,
    with_protocol,
)
from paint.evaluation.generate import (
    EvalTask,
    SamplingProtocol,
    complete_samples,
    deployment_prompts,
    open_task,
    require_context_length,
)
from paint.evaluation.grade import grade
from paint.evaluation.intervals import Interval
from paint.evaluation.metrics import GradedSamples, compute_metrics
from paint.evaluation.store import (
    GRADES,
    Store,
    StoreError,
    find_stores,
    problem_digest,
    reopen_store,
)
from paint.grading.contract import Grader
from paint.inference.conversations import Conversations
from paint.inference.engine import Engine, sampling_from
from paint.models.policy import Policy
from paint.models.weights import trained_in


@dataclass(frozen=True)
class Validation:
    start: Sequence[EvalTask]  # of the student before training, of each problem set
    run: Path
    config: Config
    policy: Policy
    grader: Grader
    display: Display
    at_once: int  # samples in a batch over all ranks

    def tasks(self, step: int) -> list[EvalTask]:
        """Return the evaluations of a step's checkpoint; step 0 is the student before training."""
        name = step_folder(Path(), step).name
        trained = trained_in(self.run / "checkpoints" / name, self.policy.tuning) if step else None
        folder = self.run / "validation" / name
        return [
            replace(task, folder=folder / task.folder.name, trained=trained) for task in self.start
        ]


def load_validation(
    policy: Policy, config: Config, run: Path, ranks: int, grader: Grader, display: Display
) -> Validation | None:
    """Load the validation of ``config.validation``; None if it names no problems."""
    if not config.validation.path:
        return None

    options, rollout = config.validation, config.rollout
    protocol = validation_protocol(config)
    thinking = protocol["thinking"]
    sampling = sampling_from(with_protocol(rollout, protocol))
    needs_answer = grader_needs_answer(config.grading)
    benchmarks = [
        load_benchmark(path, limit=options.limit, needs_answer=needs_answer, trained_on=config.data)
        for path in options.paths
    ]
    changes = protocol_differences(config, protocol)
    if changes:
        names = ", ".join(benchmark.name for benchmark in benchmarks)
        display.note(f"validation on {names} is not sampled as in training: {changes}")
    start = [
        EvalTask(
            step_folder(run / "validation", 0) / benchmark.name,
            benchmark.problems,
            deployment_prompts(policy, benchmark.problems, thinking=thinking),
            SamplingProtocol(options.samples, thinking, sampling, config.train.seed),
        )
        for benchmark in benchmarks
    ]
    for task in start:
        require_context_length(policy, task, "validation.max_new_tokens")

    def check_problems() -> None:
        expected = {
            benchmark.name: [problem_digest(problem) for problem in benchmark.problems]
            for benchmark in benchmarks
        }
        for folder in find_stores(run / "validation"):
            with reopen_store(folder) as store:
                stored = [problem_digest(problem) for problem in store.problems]
            if expected.get(folder.name) != stored:
                raise StoreError(
                    f"{folder} has other problems or gold answers than validation.path has now, so "
                    f"checkpoints could not be compared; put the file back as it was, or move "
                    f"{run / 'validation'} away"
                )
        for benchmark in benchmarks:
            announce_benchmark(grader, benchmark, display)

    run_on_rank0(check_problems)
    # Every rank or server has a full batch; between two batches a run can be stopped.
    at_once = rollout.batch_size * max(ranks, len(rollout.urls), len(rollout.server_gpus))
    return Validation(start, run, config, policy, grader, display, at_once)


def validate(
    validation: Validation,
    engine: Engine,
    accelerator: Accelerator,
    step: int,
    stop: Callable[[], None],
    conversations: Conversations | None,
) -> dict[str, float]:
    """Evaluate the policy after ``step`` steps; stored samples are not generated again.

    ``stop`` is called between batches of samples, and raises to interrupt the run. Returns metrics
    for the trackers, on rank 0, of several problem sets with their names; {} on others and if the
    checkpoint was evaluated before.
    """
    metrics: dict[str, float] = {}
    for task in validation.tasks(step):
        found = _validate_task(validation, task, engine, accelerator, step, stop, conversations)
        ending = f"/{task.folder.name}" if len(validation.start) > 1 else ""
        metrics |= {f"{name}{ending}": value for name, value in found.items()}
    return metrics


def _validate_task(
    validation: Validation,
    task: EvalTask,
    engine: Engine,
    accelerator: Accelerator,
    step: int,
    stop: Callable[[], None],
    conversations: Conversations | None,
) -> dict[str, float]:
    policy, display = validation.policy, validation.display
    total = len(task.problems) * task.protocol.samples

    with ExitStack() as stack:
        stores: list[Store] = []  # one on rank 0, none on others

        def open_store() -> list[tuple[Problem, int]]:
            stores.append(stack.enter_context(open_task(policy, validation.config, task)))
            return stores[0].missing

        missing = run_on_rank0(open_store)

        if missing:
            # The step's rollouts were drawn with the weights before its update.
            engine.sync_weights()
        title = f"validation after step {step}"
        if len(validation.start) > 1:
            title += f", {task.folder.name}"
        with display.counting(title, total, total - len(missing)) as count:
            for start in range(0, len(missing), validation.at_once):
                batch = missing[start : start + validation.at_once]
                # A rank without rows calls the engine all the same.
                with accelerator.split_between_processes(batch) as mine:
                    own = complete_samples(policy, engine, conversations, task, mine)
                    samples = all_gather_objects(own)
                for store in stores:
                    for sample in samples:
                        store.add(sample)
                        count.add(len(sample.completion.ids))
                stop()
        for store in stores:
            store.write_sums()

        # A run that was killed after this checkpoint comes here again.
        is_graded = not missing and (task.folder / GRADES).exists()
        if not stores or is_graded:
            return {}
        graded = grade(stores[0], validation.grader, validation.config.grading, display)

    return _note_scores(graded, task.protocol.samples, title, display)


def _note_scores(
    graded: GradedSamples, samples: int, title: str, display: Display
) -> dict[str, float]:
    """Print the scores of a validation, and return its metrics for the trackers."""
    if not graded.graded.any():
        display.warn(f"{title}: no sample has a reward")
        return tracker_metrics(graded, {})
    metrics = compute_metrics({"": graded})[""]
    scores = []
    if graded.rewards is not None:
        scores.append(f"mean reward {metrics['reward'].text('.3g')}")
    # 1 counts as right, which few completions of a judge reach.
    if graded.rewards is None or graded.has_right:
        scores.append(f"Avg@{samples} {metrics['avg_at_k'].points()}")
    display.note(f"{title}: {', '.join(scores)} (95 % interval)")
    return tracker_metrics(graded, metrics)


def tracker_metrics(graded: GradedSamples, intervals: Mapping[str, Interval]) -> dict[str, float]:
    """Return the metrics of a validation for the trackers; ``intervals`` are theirs by name."""
    metrics: dict[str, float] = {}
    scores = ["avg_at_k"] if graded.rewards is None else ["reward", "avg_at_k"]
    for name in scores:
        interval = intervals.get(name)
        if interval is not None:
            metrics[f"validation_{name}"] = interval.mean
            # A mean of few rewards beyond 0 and 1 has no bounds, and a tracker takes numbers.
            if math.isfinite(interval.low) and math.isfinite(interval.high):
                metrics[f"validation_{name}_low"] = interval.low
                metrics[f"validation_{name}_high"] = interval.high
    if graded.rewards is not None:
        metrics["validation_grader_failures"] = graded.failures
    metrics["validation_truncated_frac"] = float(graded.truncated.mean())
    metrics["validation_completion_tokens"] = float(graded.tokens.mean())
    return metrics
