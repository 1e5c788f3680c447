"""The loop over steps, with their logs, checkpoints and validations, and the end of a run."""

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from signal import Signals

from paint.config.collapse import WINDOW, describe_end
from paint.config.context_sources import context_source
from paint.config.metric_records import step_values
from paint.config.run_folder import (
    RunError,
    checkpoints,
    latest_checkpoint,
    read_metrics,
    step_of,
    step_paths,
)
from paint.config.schema import TrainConfig
from paint.core.display import LOGGER, Clock, Display
from paint.core.distributed import any_rank_signal, gather_on_rank0
from paint.core.errors import ConfigError, Interrupted, NonFiniteError
from paint.core.extensions import extension_errors
from paint.evaluation.change import describe_change, graded_validation
from paint.evaluation.grade import summarise
from paint.evaluation.validation import Validation, validate
from paint.grading.contract import describe_failures
from paint.inference.rollouts import Rollout
from paint.models.policy import Policy
from paint.models.prompts import differing_lines
from paint.resolve.optimizer import learning_rate
from paint.training import checkpoint, run_log
from paint.training.callbacks import Callback, tell_callbacks
from paint.training.health import Health
from paint.training.log_probs import OFF_POLICY_KL_WARNING, ON_POLICY
from paint.training.solutions import add_gradient_of_solutions
from paint.training.step_checks import require_step
from paint.training.token_log import write_tokens
from paint.training.train_step import NothingGradedError, Setup, minibatch


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
    updates: list[None] = []  # of a step that is not complete
    setup.optimizer.register_step_pre_hook(lambda *_: updates.append(None))

    def stop() -> None:
        _raise_if_stopped(any_rank_signal(signals), folder)

    def validate_checkpoint() -> None:
        if validation is not None:
            # The engine that was opened, which may have taken the place of servers.
            own = replace(validation, config=setup.config)
            metrics = validate(own, setup.engine, accelerator, done, stop, setup.conversations)
            accelerator.log(metrics, step=done)

    with run_log.stop_signals(signals), display.running(config.steps, done):
        try:
            if _is_checkpoint(config, done):
                validate_checkpoint()  # the initial student, or one that a kill interrupted
            while done < config.steps:
                clock = Clock(display)
                step = _take_step(setup, done, clock)
                ended_by = log_step(setup, folder, display, *step, clock, done + 1)
                done += 1
                updates.clear()

                # Callbacks run on rank 0 alone, and all ranks must end after the same step.
                is_stopped = bool(any_rank_signal([int(bool(ended_by))]))
                signal_number = any_rank_signal(signals)
                is_due = _is_checkpoint(config, done) or is_stopped
                if is_due or signal_number:
                    _save_checkpoint(setup, folder, done)
                # Before the validation, which may take long: a resumed run begins with it.
                _raise_if_stopped(signal_number, folder)
                if is_due:
                    validate_checkpoint()
                if is_stopped:
                    display.note(f"ended after step {done} by {' and '.join(ended_by)}; saved")
                    display.warnings(_way_on(setup, folder, done))
                    break
        # The step is saved already, or must not be saved.
        except (Interrupted, checkpoint.RanksDiffer):
            raise
        except Exception:
            # A failure between the updates of a step, before the teacher's update or before logging
            # leaves a partial step, which is not saved.
            if not updates:
                _save_after_failure(setup, folder, done)
            raise


def _take_step(
    setup: Setup, step_index: int, clock: Clock
) -> tuple[list[Rollout], dict[str, float]]:
    """Take a step of the algorithm; return its rollouts with their values, and other metrics."""
    rows = minibatch(setup, step_index)
    with ExitStack() as stack:
        batch = stack.enter_context(setup.accelerator.split_between_processes(rows))
        of_solutions = add_gradient_of_solutions(setup, batch, step_index, clock)
        # From here on, errors are those of the algorithm.
        stack.enter_context(extension_errors("train.method", setup.config.train.method))
        setup.ungraded.clear()
        try:
            scored, gradient_norm = setup.resolved.algorithm.step(setup, batch, step_index, clock)
        except NothingGradedError:  # raised on all ranks, before any update
            scored, gradient_norm = [], 0.0
        if of_solutions:  # a step that learns from no completion updates nothing, and leaves it
            setup.optimizer.zero_grad()
        left_out = gather_on_rank0(setup.ungraded)
        scored = sorted([*scored, *left_out], key=lambda s: s.row)
        if setup.accelerator.is_main_process:
            require_step(setup.config, scored, float(gradient_norm))
    further = {"gradient_norm": float(gradient_norm), **of_solutions}
    if setup.drift is not None:
        with clock("drift"):  # on all ranks, which may share layers
            further["drift"] = setup.drift.measure()
    return scored, further


def _is_checkpoint(config: TrainConfig, done: int) -> bool:
    return done % config.checkpoint_every == 0 or done == config.steps


def _save_checkpoint(setup: Setup, folder: Path, done: int) -> None:
    checkpoint.require_same_weights(folder, setup, done)
    if setup.accelerator.is_main_process:
        saved = checkpoint.save(folder, setup, done)
        tell_callbacks(setup.callbacks, "on_checkpoint", saved)


def _save_after_failure(setup: Setup, folder: Path, done: int) -> None:
    if setup.accelerator.is_main_process and done:
        # The first error is the one to report.
        with suppress(RunError, NonFiniteError, ConfigError):
            checkpoint.save(folder, setup, done)


def _raise_if_stopped(signal_number: int, folder: Path) -> None:
    """Raise Interrupted for a signal that a rank received; 0 is none."""
    if signal_number:
        raise Interrupted(
            f"stopped by {Signals(signal_number).name}, all is saved; "
            f"resume with `paint resume {folder}`",
            signal_number,
        )


def log_step(
    setup: Setup,
    folder: Path,
    display: Display,
    scored: Sequence[Rollout],
    further: Mapping[str, float],
    clock: Clock,
    step_number: int,
) -> list[str]:
    """Log a step, from 1, with ``further`` metrics; return what of the callbacks ends the run."""
    if not setup.accelerator.is_main_process:
        return []
    if step_number == 1:
        shown = next((s for s in scored if s.tokens), scored[0])
        _print_rollout(display, setup.policy, shown)

    options, rollout, log = setup.resolved.objective, setup.config.rollout, setup.config.log
    metrics: dict[str, float] = {"step": step_number}
    metrics |= run_log.step_metrics(
        scored,
        options,
        gives_answers=setup.grader.gives_answers,
        unanswered=setup.grader.unanswered,
    )
    if rollout.off_policy_steps and all(r.behavior_log_probs is None for r in scored):
        metrics |= ON_POLICY
    algorithm = setup.resolved.algorithm
    if algorithm.needs_grades and algorithm.min_samples > 1:
        # An algorithm's own value, which counts what it has learned from, stays.
        metrics = run_log.equal_rewards(scored, rollout.samples_per_problem) | metrics
    if not setup.policy.tools:  # an environment alone offers none
        for name in ("tool_calls", "tool_errors"):
            metrics.pop(name, None)
    metrics |= clock.rates(sum(len(r.completion.ids) for r in scored))
    metrics |= further
    optimizer = setup.resolved.optimizer
    metrics["learning_rate"] = learning_rate(optimizer, setup.config.train, step_number - 1)
    metrics["seconds_left"] = display.seconds_left(step_number)

    warnings = filter(None, _step_warnings(setup, scored, metrics))
    display.warnings(f"step {step_number}: {text}" for text in warnings)
    records = list(map(run_log.record, scored))
    run_log.write_rollouts(folder, step_number, records)
    write_tokens(folder, step_number, scored, log.token_rows, setup.policy.tokenizer)
    run_log.append_metrics(folder, metrics)
    # The step is the axis; trackio warns of a value by that name.
    tracked = {name: value for name, value in metrics.items() if name != "step"}
    setup.accelerator.log(tracked, step=step_number)
    display.step(metrics, step_values(metrics, in_full=LOGGER.isEnabledFor(logging.DEBUG)))
    ended = tell_callbacks(setup.callbacks, "on_step", step_number, metrics, records)
    return [_name_of(callback) for callback in ended]


def _print_rollout(display: Display, policy: Policy, rollout: Rollout) -> None:
    """Print a completion and its prompts as the model reads them, special tokens included."""
    # A template that differs by accident shows here (D2).
    student = policy.decode(rollout.prompt, special=True)
    parts = [("first student prompt", rollout.prompt, student)]
    if view := rollout.teacher_prompt:
        teacher = differing_lines(policy.decode(view.prompt, special=True), student)
        parts.append(("first teacher prompt", view.prompt, teacher))
    ids = list(rollout.completion.ids)
    parts.append(("completion", ids, policy.decode(ids, special=True)))
    for title, tokens, text in parts:
        display.note(f"--- {title}, {len(tokens)} tokens ---\n{text}")
    display.note("---")


def _name_of(callback: Callback) -> str:
    if isinstance(callback, Health):
        return f"health.stop_on {', '.join(callback.ended_on)}"
    return f"the callback {type(callback).__name__}"


def _way_on(setup: Setup, folder: Path, done: int) -> Iterator[str]:
    """Yield a line on the checkpoint from before the warning that ended the run, if one did."""
    if not any(isinstance(callback, Health) and callback.ended_on for callback in setup.callbacks):
        return
    before = [path for path in checkpoints(folder) if step_of(path) <= done - WINDOW]
    kept = before[-1] if before else "missing"
    yield (
        f"the last checkpoint before it is {kept}; `paint resume {folder}` goes on all the same "
        f"(health.stop_on)"
    )


def _step_warnings(
    setup: Setup, scored: Sequence[Rollout], metrics: Mapping[str, float]
) -> Iterator[str]:
    if metrics.get("kept_completions") == 0:
        yield "no completion was learned from, so nothing was updated (kept_completions 0)"
    kl = metrics.get("off_policy_kl", 0.0)
    if kl > OFF_POLICY_KL_WARNING:
        lag = "" if setup.resolved.engine.is_stored else "rollout.off_policy_steps or "
        yield (
            f"the completions are off-policy: off_policy_kl is {kl:.2g} nats, over "
            f"{OFF_POLICY_KL_WARNING:g}; lower {lag}train.learning_rate"
        )
    if metrics["step"] == 1:
        yield _describe_unmasked(setup, scored)
    graded = [(r.grade, r.problem.name) for r in scored if r.grade]
    yield describe_failures([grade for grade, _ in graded], [name for _, name in graded])
    long = [r for r in scored if r.teacher_prompt and r.teacher_prompt.refused_tokens]
    if long and long[0].teacher_prompt:
        yield (
            f"what the teacher reads of {len(long)} of {len(scored)} completions makes a prompt "
            f"over the limit, and they are passed over; first on problem {long[0].problem.id}: "
            f"{long[0].teacher_prompt.refused_tokens:,} tokens (data.max_prompt_tokens)"
        )


def _describe_unmasked(setup: Setup, scored: Sequence[Rollout]) -> str:
    """Return a warning of contexts that would be masked and have no anchors; "" for none."""
    options = setup.config.context
    is_masked = any(context_source(source).masked for source in options.source)
    if not is_masked or options.mask_ratio_wrong == options.mask_ratio_correct == 0:
        return ""
    problems = {r.problem.id: r.problem for r in scored if r.teacher_prompt}
    without_anchors = 0
    for problem in problems.values():
        text = setup.contexts.aligned(problem, setup.contexts.of_own_row(problem))
        without_anchors += not setup.contexts.is_masked(text)
    if not without_anchors:
        return ""
    return (
        f"{without_anchors} of {len(problems)} contexts have no anchors: their overlap counts as "
        f"0, and they are shown in full (context.alignment words or fixed masks them, too)"
    )


def print_end(folder: Path, done: int, seconds: float, display: Display) -> None:
    """Print the summary of the validations, the time of steps after ``done``, and what changed."""
    validations = step_paths(folder / "validation")
    if validations:
        summarise(validations, folder / "validation", display)
    steps = read_metrics(folder)
    display.note(run_log.describe_phases(steps[done:], seconds))
    validated = graded_validation(folder, display)
    done_at = f"done: {latest_checkpoint(folder) or folder}"
    display.notes([describe_change(validated, steps), done_at])
    display.warnings([describe_end(steps)])
