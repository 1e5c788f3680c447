"""The trainer: set-up, the loop over steps, checkpoints and logs.

The loop adds the order of the data, checkpoints, resuming and stopping to the steps of
paint.algorithms.
"""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from signal import Signals

import psutil
import torch
from accelerate import Accelerator
from accelerate.utils import InitProcessGroupKwargs

from paint.algorithms.base import find_algorithm
from paint.config.recipe import require_trainable, to_table
from paint.config.run_folder import RunError, latest_checkpoint, step_paths
from paint.config.schema import Config, ConfigError, TeacherConfig, TrainConfig
from paint.core.display import Clock, Display
from paint.core.distributed import (
    any_rank_signal,
    equal_on_all_ranks,
    report_once,
    require_all_ranks,
    require_torchrun,
    run_on_rank0,
)
from paint.core.errors import Interrupted, wrap_errors
from paint.core.storage import lock_folder
from paint.data.problems import Problem, batch_indices, problems_digest, read_problems
from paint.estimate.plan import Split, make_plan, require_fit
from paint.estimate.report import start_line
from paint.evaluation.grade import summarise_folders
from paint.evaluation.validation import Validation, load_validation, validate
from paint.grading.base import Grade
from paint.grading.registry import find_grader
from paint.inference.engine import Engine, PendingCompletions
from paint.inference.factory import EngineSetup, open_engine
from paint.inference.local import LocalEngine
from paint.inference.vllm.process import training_tokens
from paint.models.policy import Policy, load_policy
from paint.models.teacher import open_teacher
from paint.models.weights import model_digests
from paint.objective.divergences import DIVERGENCES, FORWARD_KL, find_divergence
from paint.objective.fused import triton_row_work
from paint.objective.loss import require_slope
from paint.training import checkpoint, run_log
from paint.training.async_rollouts import AsyncRollouts
from paint.training.callbacks import Callback
from paint.training.optim import learning_rate, open_optimizer
from paint.training.prompt_filter import (
    filter_problems,
    print_first_prompts,
    warn_template_mismatch,
)
from paint.training.rollouts import OFF_POLICY_KL_WARNING, ScoredRollout
from paint.training.token_log import write_tokens
from paint.training.train_step import (
    Setup,
    generation_request,
    grade_rollouts,
    is_whole_step,
)

AtEnd = Callable[[Path, Accelerator, Display], None]
"""A function that is called with the run's folder after the last step."""

START_SECONDS = 600
# Seconds that ranks wait for each other, beyond the time of an engine.


def train(
    config: Config,
    folder: Path,
    *,
    resume: bool = False,
    display: Display | None = None,
    callbacks: Sequence[Callback] = (),
    at_end: AtEnd | None = None,
) -> Path:
    """Train in ``folder``, or resume there, and return the last checkpoint.

    Args:
        callbacks: their methods are called on the first rank.
        at_end: called on the first rank, before trackers are closed.

    Raises:
        ConfigError, DataError, ImplError, PolicyError, RunError: before the first step wherever
            that is possible.
        Interrupted: after SIGINT or SIGTERM, when the step under way is finished and saved.
    """
    require_trainable(config)
    accelerator = _open_accelerator(config, folder)
    with report_once(folder) as signals:
        return _train(config, folder, accelerator, signals, resume, display, callbacks, at_end)


def _train(
    config: Config,
    folder: Path,
    accelerator: Accelerator,
    signals: list[int],
    resume: bool,
    display: Display | None,
    callbacks: Sequence[Callback],
    at_end: AtEnd | None,
) -> Path:
    """Run the training on one rank."""
    if config.train.batch_size < accelerator.num_processes:
        raise ConfigError(
            f"train.batch_size {config.train.batch_size} is smaller than the "
            f"{accelerator.num_processes} ranks"
        )
    is_main = accelerator.is_main_process
    display = (is_main and display) or Display(enabled=is_main)
    if accelerator.num_processes > 1:
        display.note(f"{accelerator.num_processes} ranks")

    _plan(config, accelerator.num_processes, accelerator.device, display)
    grading = config.grading
    find_grader(grading.grader)  # refused now, not after the model is loaded
    candidates = read_problems(config.data)
    divergence = find_divergence(config.objective.divergence)
    if divergence not in DIVERGENCES.values():
        require_slope(divergence)
    if config.objective.impl == "triton":
        triton_row_work(accelerator.device)  # refused now, not after the first rollouts
    policy = load_policy(config.model, seed=config.train.seed, device=accelerator.device)
    # The teacher is the policy as it is before a checkpoint is loaded.
    algorithm = find_algorithm(config.train.method)
    needs_teacher = algorithm.needs_teacher(config)
    # Live weights are the policy itself: no copy is kept.
    teacher = open_teacher(
        policy, config.teacher if needs_teacher else TeacherConfig(weights="live")
    )
    validation = load_validation(policy, config, folder, accelerator.num_processes)
    problems = filter_problems(policy, config, candidates, display)
    if algorithm.needs_context:
        warn_template_mismatch(display, policy)
    optimizer = open_optimizer(policy.trainable, config.train)

    with _run_folder_lock(folder, is_new=not resume):
        model = run_on_rank0(lambda: model_digests(policy))
        trained_on = problems_digest(problems)
        if resume:
            run_on_rank0(lambda: _check_resumable(config, folder, trained_on, model, display))
            done = checkpoint.restore(folder, policy, optimizer, teacher)
        else:
            run_on_rank0(lambda: run_log.new_run(config, folder, trained_on, model))
            done = 0
        if not equal_on_all_ranks(done):
            raise RunError(
                f"not every rank sees the same checkpoints in {folder}; put it on a disk that all "
                f"share"
            )
        if resume:
            run_on_rank0(lambda: run_log.truncate_to_step(config, folder, done))
            display.note(f"resuming after step {done} of {folder}")

        with (
            _open_engine(policy, config, folder, display, problems) as engine,
            find_grader(grading.grader, deadline=grading.deadline) as grader,
        ):
            if config.log.trackers:
                accelerator.init_trackers(config.log.project, config=_flat_table(config))
            setup = Setup(
                config,
                policy,
                teacher,
                problems,
                engine,
                optimizer,
                accelerator,
                grader,
                callbacks=callbacks,
            )
            if config.rollout.off_policy_steps:
                setup = replace(
                    setup, async_rollouts=_open_async_rollouts(setup, folder, display, done)
                )
            try:
                loop(setup, validation, folder, display, done, signals)
                if at_end is not None and is_main:
                    at_end(folder, accelerator, display)
            finally:
                accelerator.end_training()

        if validation is not None and is_main:
            validated = folder / "validation"
            summarise_folders(
                step_paths(validated),
                validated,
                display,
                grader=grading.grader,
                deadline=grading.deadline,
            )
    last = latest_checkpoint(folder) or folder
    display.note(f"done: {last}")
    return last


def loop(
    setup: Setup,
    validation: Validation | None,
    folder: Path,
    display: Display,
    done: int,
    signals: list[int],
) -> None:
    """Run the steps after ``done``, with their logs, checkpoints and validations."""
    config, accelerator = setup.config.train, setup.accelerator

    with run_log.stop_signals(signals), display.running(config.steps, done):
        stop_if_signalled = partial(_stop_if_signalled, signals, folder)
        try:
            if _is_due(
                config, done
            ):  # the initial student, or a validation that a kill interrupted
                _validate(validation, setup, display, done, stop_if_signalled)

            while done < config.steps:
                clock = Clock(display)
                with accelerator.split_between_processes(minibatch(setup, done)) as batch:
                    scored, gradient_norm = setup.algorithm.step(setup, batch, done, clock)

                is_stopped = False
                if accelerator.is_main_process:
                    is_stopped = log_step(
                        setup, folder, display, scored, gradient_norm, clock, done + 1
                    )
                done += 1
                if setup.callbacks:
                    is_stopped = bool(any_rank_signal([int(is_stopped)]))
                is_due, signal_number = _is_due(config, done), any_rank_signal(signals)
                is_due = is_due or is_stopped
                if is_due or signal_number:
                    checkpoint.require_same_weights(folder, setup, done)
                    if accelerator.is_main_process:
                        saved = checkpoint.save(folder, setup, done)
                        for callback in setup.callbacks:
                            callback.on_checkpoint(saved)
                _raise_stopped(signal_number, folder)
                if is_due:
                    _validate(validation, setup, display, done, stop_if_signalled)
                if is_stopped:
                    display.note(f"a callback ended the training after step {done}")
                    break
        except (Interrupted, checkpoint.RanksDiffer):
            raise
        except Exception:
            # Checkpoint complete steps only. A failure between the updates of a step, before the
            # teacher's update or before logging leaves a partial step.
            if accelerator.is_main_process and done and is_whole_step(setup, done):
                with suppress(RunError):
                    checkpoint.save(folder, setup, done)
            raise


def minibatch(setup: Setup, step_index: int) -> list[tuple[int, Problem]]:
    """The rows of a step: as many neighbouring rows of each problem as a group has.

    Source: Algorithm 1, 'Sample a minibatch'.
    """
    config, problems = setup.config.train, setup.problems
    group_size = setup.algorithm.group_size(setup.config)
    indices = batch_indices(len(problems), config.batch_size // group_size, step_index, config.seed)
    return list(enumerate(problems[i] for i in indices for _ in range(group_size)))


def log_step(
    setup: Setup,
    folder: Path,
    display: Display,
    scored: Sequence[ScoredRollout],
    gradient_norm: float,
    clock: Clock,
    step_number: int,
) -> bool:
    """Print and store the metrics and rollouts of a step, counted from 1.

    Returns:
        Whether a callback ends the training.
    """
    if step_number == 1:
        print_first_prompts(display, setup.policy, scored[0].rollout)

    grades = grades_of(setup, scored)
    metrics: dict[str, float] = {"step": step_number}
    options = setup.config.objective
    metrics |= run_log.step_metrics(scored, grades, options.reduction, options.skip_tokens)
    metrics |= clock.rates(sum(len(s.rollout.completion.ids) for s in scored))
    metrics["gradient_norm"] = gradient_norm
    metrics["learning_rate"] = learning_rate(setup.config.train, step_number - 1)
    metrics["seconds_left"] = display.seconds_left(step_number)

    if metrics.get("off_policy_kl", 0.0) > OFF_POLICY_KL_WARNING:
        display.note(
            f"step {step_number}: the completions are off-policy: off_policy_kl is "
            f"{metrics['off_policy_kl']:.2g} "
            f"nats, over {OFF_POLICY_KL_WARNING:g}; lower rollout.off_policy_steps or "
            "train.learning_rate"
        )
    if failed := [i for i, grade in enumerate(grades) if grade.failed]:
        first = failed[0]
        display.note(
            f"step {step_number}: the grader failed on {len(failed)} of {len(grades)} completions, "
            f"which count 0; first on problem {scored[first].rollout.problem.id}: "
            f"{grades[first].reason}"
        )
    if setup.config.log.keep_rollouts:
        run_log.write_rollouts(folder, step_number, scored, grades)
        rows, tokenizer = setup.config.log.token_rows, setup.policy.tokenizer
        write_tokens(folder, step_number, scored, rows, tokenizer)
    run_log.append_metrics(folder, metrics)
    setup.accelerator.log(metrics, step=step_number)
    display.step(metrics)
    if not setup.callbacks:
        return False
    records = run_log.rollout_records(scored, grades)
    answers = [callback.on_step(step_number, metrics, records) for callback in setup.callbacks]
    return any(answers)


def _open_async_rollouts(setup: Setup, folder: Path, display: Display, done: int) -> AsyncRollouts:
    """Asynchronous rollouts, with those that were in flight after ``done`` steps."""
    config = setup.config
    if find_divergence(config.objective.divergence) is not FORWARD_KL:
        display.note(
            "rollout.off_policy_steps: forward KL tolerates off-policy completions, reverse KL "
            f"does not (arXiv 2606.24143), and objective.divergence is "
            f"{config.objective.divergence}; watch off_policy_kl"
        )

    def submit(engine: Engine, step_index: int) -> PendingCompletions:
        rows = minibatch(setup, step_index)
        with setup.accelerator.split_between_processes(rows) as batch:
            return engine.submit(*generation_request(setup, batch, step_index))

    engines = [setup.engine.fork() for _ in range(config.rollout.off_policy_steps)]
    measured = config.train.micro_batch_size
    pending = AsyncRollouts(
        setup.policy, engines, submit, steps=config.train.steps, measured=measured
    )
    if done and (last := latest_checkpoint(folder)):
        pending.restore(last)
    return pending


def grades_of(setup: Setup, scored: Sequence[ScoredRollout]) -> list[Grade]:
    """The grade of each completion; references count as right."""
    rollouts = [item.rollout for item in scored]
    if not setup.algorithm.needs_rollouts:
        return [Grade(1.0, "reference")] * len(rollouts)
    graded = [rollout.grade for rollout in rollouts if rollout.grade is not None]
    return graded or grade_rollouts(setup, rollouts)


def _open_accelerator(config: Config, folder: Path) -> Accelerator:
    require_torchrun()
    # One rank's rows may take longer than another's.
    seconds = START_SECONDS + config.rollout.server_timeout + config.rollout.timeout
    waiting = InitProcessGroupKwargs(timeout=timedelta(seconds=seconds))
    accelerator = Accelerator(
        log_with=list(config.log.trackers) or None,
        project_dir=folder,
        kwargs_handlers=[waiting],
    )

    require_all_ranks(accelerator)
    return accelerator


def _plan(config: Config, ranks: int, device: torch.device, display: Display) -> None:
    """Say what lies where; on a GPU, refuse what cannot fit."""
    on_gpu = device.type == "cuda"
    properties = torch.cuda.get_device_properties(device) if on_gpu else None
    local = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    # Without sleep, an own server may be on another GPU: its command says so, and nothing else.
    serves = config.rollout.owns_servers
    split = Split(ranks, int(serves), serves and config.rollout.colocate, "as it was started")
    try:
        plan = make_plan(
            config,
            local if properties else 0,
            max(ranks // local, 1),
            properties.total_memory if properties else psutil.virtual_memory().total / local,
            split=split,
        )
    except ConfigError as error:  # a model that the plan does not know may be trained all the same
        display.note(f"no plan: {error}")
        return

    if properties:
        require_fit(plan)
    display.note(start_line(plan))


@contextmanager
def _run_folder_lock(folder: Path, *, is_new: bool) -> Iterator[None]:
    """Keep other runs out of the folder; where another is there, all ranks refuse together."""

    def enter() -> None:
        if is_new:
            with wrap_errors(folder, RunError, "choose another with --log.folder"):
                folder.mkdir(parents=True, exist_ok=True)
        stack.enter_context(lock_folder(folder))

    with ExitStack() as stack:
        run_on_rank0(enter)
        yield


def _check_resumable(
    config: Config, folder: Path, problems: str, model: Mapping[str, str], display: Display
) -> None:
    changed = run_log.validate_resume(config, folder, problems, model)
    if changed:
        display.note(
            f"versions have changed since {folder} began, which may change its last digits: "
            + ", ".join(changed)
        )


@contextmanager
def _open_engine(
    policy: Policy, config: Config, folder: Path, display: Display, problems: Sequence[Problem]
) -> Iterator[Engine]:
    """The engine of a run; SFT without validation asks none, and starts no server."""
    if not config.generates:
        yield LocalEngine(policy, batch_size=config.rollout.batch_size)
        return

    max_tokens = training_tokens(config)
    setup = EngineSetup(policy, config.model, config.rollout, folder, display, max_tokens)
    with open_engine(setup, problems) as engine:
        yield engine


def _validate(
    validation: Validation | None,
    setup: Setup,
    display: Display,
    done: int,
    stop: Callable[[], None],
) -> None:
    """Evaluate the checkpoint of this step, where problems were named for it."""
    if validation is not None:
        metrics = validate(
            validation,
            setup.policy,
            setup.engine,
            setup.accelerator,
            setup.grader,
            display,
            done,
            stop,
        )
        setup.accelerator.log(metrics, step=done)


def _is_due(config: TrainConfig, done: int) -> bool:
    """Whether a checkpoint is due after so many steps."""
    return done % config.checkpoint_every == 0 or done == config.steps


def _stop_if_signalled(signals: Sequence[int], folder: Path) -> None:
    _raise_stopped(any_rank_signal(signals), folder)


def _raise_stopped(signal_number: int, folder: Path) -> None:
    if signal_number:
        raise Interrupted(
            f"stopped by {Signals(signal_number).name}, all is saved; "
            f"resume with `paint resume {folder}`",
            signal_number,
        )


def _flat_table(config: Config) -> dict[str, str]:
    """The config as trackers take it: one level, text."""
    return {
        f"{section}.{key}": str(value)
        for section, keys in to_table(config).items()
        for key, value in keys.items()
    }
