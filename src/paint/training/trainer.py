"""The trainer: set-up, the loop over steps, checkpoints and logs."""

import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from signal import Signals
from time import monotonic
from typing import Any

from accelerate import Accelerator

from paint.config.recipe import to_table
from paint.config.run_folder import (
    RunError,
    checkpoints,
    latest_checkpoint,
    read_history,
    read_metrics,
    read_run,
    read_run_json,
    step_of,
    step_paths,
)
from paint.config.schema import ONE_TURN, Config, TrainConfig
from paint.core.collapse import describe_end
from paint.core.device import keep_compiled
from paint.core.display import Clock, Display
from paint.core.distributed import (
    all_gather_objects,
    any_rank_signal,
    gather_on_rank0,
    open_accelerator,
    report_once,
    run_on_rank0,
)
from paint.core.errors import ConfigError, Interrupted, NonFiniteError, is_unicode
from paint.core.extensions import extension_errors
from paint.core.metric_records import WINDOW
from paint.core.storage import digest
from paint.data.contexts import Contexts
from paint.data.mixtures import describe_mixture, draw_problems
from paint.data.problems import Problem, problems_digest, read_problems
from paint.data.row_checks import announce_rows
from paint.evaluation.change import describe_change, graded_validation
from paint.evaluation.defaults import training_tokens
from paint.evaluation.generate import other_form
from paint.evaluation.grade import summarise
from paint.evaluation.validation import Validation, load_validation, validate
from paint.grading.contract import Grader, describe_failures
from paint.grading.cost import Cost
from paint.grading.graders import open_grader
from paint.inference.conversations import open_conversations, with_tools
from paint.inference.engine import Completion, Engine, row_seed
from paint.inference.factory import EngineSetup, open_engine
from paint.inference.local import LocalEngine
from paint.inference.machine import find_machine
from paint.inference.rollouts import Rollout
from paint.models.conventions import today
from paint.models.policy import Policy, load_policy, open_model
from paint.models.prompts import ViewWriter
from paint.models.teacher import open_teacher
from paint.models.weights import model_digests
from paint.objective.fused import require_loss
from paint.resolve.algorithm import Algorithm, needs_of
from paint.resolve.check import (
    Resolved,
    check_training,
    require_same_beginning,
    resolve,
    with_resolved,
)
from paint.resolve.engines import LOCAL
from paint.resolve.optimizer import learning_rate, open_optimizer
from paint.resolve.plan import Machine
from paint.resolve.plan_report import start_details
from paint.training import checkpoint, run_log
from paint.training.callbacks import Callback, tell_callbacks
from paint.training.drift import open_drift
from paint.training.health import Health
from paint.training.log_probs import OFF_POLICY_KL_WARNING, ON_POLICY
from paint.training.off_policy_rollouts import (
    AsyncRollouts,
    BatchedRollouts,
    OffPolicyRollouts,
    Request,
)
from paint.training.prompt_filter import (
    FirstPrompts,
    describe_missing_answers,
    filter_problems,
    print_first_completion,
    print_first_prompts,
    warn_template_mismatch,
)
from paint.training.row_prompts import longest_rows, measure_rows, rows_to_count
from paint.training.solutions import add_gradient_of_solutions
from paint.training.step_checks import require_step
from paint.training.step_time import LongWork
from paint.training.teacher_views import prompt_limit
from paint.training.token_log import write_tokens
from paint.training.train_step import (
    NothingGradedError,
    PromptedRow,
    Setup,
    generation_request,
    prompted_rows,
    rollouts_of,
)

START_SECONDS = 600
# Seconds that ranks wait for each other, beyond the time of an engine.


def train(
    config: Config,
    folder: Path,
    *,
    checked: Resolved | None = None,
    resume: bool = False,
    display: Display | None = None,
    callbacks: Sequence[Callback] = (),
    note: str = "",
    confirm: bool = True,
) -> Path:
    """Train in ``folder``, or resume there, and return the last checkpoint.

    Settings, data and files are refused before the first step wherever that is possible. SIGINT and
    SIGTERM raise Interrupted when the step under way is finished and saved. Callbacks are called on
    the first rank. The note is printed first. Without ``confirm``, a terminal asks before what may
    take more than an hour.
    ``checked`` is what ``check_training`` made of the config, where it was called before.
    """
    began = monotonic()
    if not is_unicode(str(folder.absolute())):
        raise RunError(
            f"{folder.absolute()} is not valid UTF-8, and what reads adapters needs that; rename "
            f"the folder, or choose another with --log.folder"
        )
    if checked is None and resume:
        config = with_resolved(config, read_run(folder))
    run = checked or check_training(config)
    if resume:
        run = replace(run, warnings=(*run.warnings, *require_same_beginning(run, folder)))
    # One rank's rows may take longer than another's.
    patience = START_SECONDS + run.rollout.server_timeout + run.rollout.timeout
    accelerator = open_accelerator(folder, run.config.log.trackers, patience)
    ranks, is_main = accelerator.num_processes, accelerator.is_main_process
    display = (is_main and display) or Display(enabled=is_main)
    with report_once(folder) as signals, ExitStack() as stack:
        if note:
            display.note(note)
        # Refused now, not after the model is loaded or after the first rollouts.
        with display.working("reading the problems"):
            candidates = read_problems(run.config.data, needs=run.needed_fields)
        contexts = Contexts(run.config.context, candidates.problems)
        display.notes(filter(None, [keep_compiled(accelerator.device)]))
        reason = require_loss(run.objective, accelerator.device)
        if reason and run.algorithm.needs_context:  # what the divergence applies to
            display.warn(f"the loss is computed without Triton kernels: {reason}")
        day = run.config.model.date
        if day == "auto":
            day = run_on_rank0(today)  # one for all ranks
        files = open_model(run.config.model.path)
        views = ViewWriter.of(files.tokenizer, run.changed("model", date=day).config)
        measured = measure_rows(
            run,
            views,
            contexts,
            candidates.problems,
            display,
            limit=prompt_limit(files.config, run),
            counted={*rows_to_count(run, contexts, candidates.problems)},
        )
        longest = longest_rows(run, files.tokenizer, candidates.problems, measured)
        run = resolve(replace(run, longest=longest), _find_machine(accelerator))
        rank = accelerator.process_index
        grader = stack.enter_context(open_grader(run.config.grading, folder, rank))
        display.notes([line for line in (*run.notes, grader.describe()) if line])
        _warn_of(display, [*run.warnings, grader.warning()])
        if run.plan is not None:
            display.detail(start_details(run.plan))

        with display.working("loading the model"):
            policy = load_policy(
                replace(run.config.model, date=day),
                seed=run.config.train.seed,
                device=accelerator.device,
                prompts=run.config.prompts,
                files=files,
            )
        policy = with_tools(policy, run.config.conversation)
        # Stored conversations are answered already.
        answering = ONE_TURN if run.engine.is_stored else run.config.conversation
        conversations = stack.enter_context(
            open_conversations(policy, answering, run.config.data.max_prompt_tokens)
        )
        # Before a checkpoint is restored: it is made of the weights of the start.
        teacher = open_teacher(policy, run.teacher)
        display.notes(policy.notes)
        _warn_of(display, policy.warnings)
        validation = load_validation(policy, run.config, folder, ranks, grader, display)
        if policy.conventions.date is not None:
            # For run.json: a resumed run must render the same prompts on another day (C33).
            run = run.changed("model", date=policy.conventions.date)
        problems = filter_problems(policy, run, candidates, display, contexts, measured)
        run = with_steps(run, problems, display)
        display.notes(describe_mixture(problems, run.config.data, drawn_count(run.config)))
        _check_rows(run, policy, grader, problems, display)

        if ranks == 1 and not confirm:  # ranks cannot end together in the middle of a step
            then = f"`paint resume {folder}` goes on all the same"
            display.on_estimate = LongWork(display, then=then)

        def enter_folder() -> None:
            with display.working("digests of model and problems"):
                facts = _facts(policy, problems, contexts, run.algorithm)
            stack.enter_context(run_log.entered(run.config, folder, facts, display, resume=resume))

        # Rank 0 alone writes there, so it alone holds the lock.
        run_on_rank0(enter_folder)
        last, done = _last_checkpoint(folder)
        optimizer = open_optimizer(run.optimizer, policy.trainable, run.config.train)
        if last:
            checkpoint.restore(last, policy, optimizer, teacher)
        if resume:
            run_on_rank0(lambda: run_log.truncate_to_step(run.config, folder, done))
            display.note(f"resuming after step {done} of {folder}")
        history = read_history(folder, done)
        _open_trackers(run.config, folder, accelerator)

        engine, run = stack.enter_context(_open_engine(run, policy, problems, folder, display))
        setup = Setup(run, policy, teacher, problems, engine, optimizer, accelerator, grader)
        setup = replace(
            setup,
            callbacks=[Health(run.config, history, display.warn), *callbacks],
            drift=open_drift(run.config, policy, teacher),
            conversations=conversations,
            context_file=contexts.file_content,
        )
        if run.rollout.off_policy_steps:
            setup = replace(setup, off_policy_rollouts=_open_off_policy_rollouts(setup, last))
        if is_main and not done:
            setup = replace(setup, first_prompts=_print_first_prompts(setup, display))
        stack.callback(accelerator.end_training)
        loop(setup, validation, folder, display, done, signals)
    if is_main:
        _describe_end(folder, done, monotonic() - began, display)
    return latest_checkpoint(folder) or folder


def _warn_of(display: Display, lines: Iterable[str]) -> None:
    for line in filter(None, lines):
        display.warn(line)


def _find_machine(accelerator: Accelerator) -> Machine:
    machine = find_machine(accelerator.device, accelerator.num_processes)
    # Ranks that divide the rows must agree: the smallest memory counts, and one rank's timings.
    memory = min(all_gather_objects([machine.memory]))
    slowdown = all_gather_objects([machine.slowdown])[0]
    return replace(machine, memory=memory, slowdown=slowdown)


def _facts(
    policy: Policy, problems: Sequence[Problem], contexts: Contexts, algorithm: Algorithm
) -> dict[str, Any]:
    """What run.json has next to the config: digests, by which a run is resumed, and what a page
    needs to know of the model and the method.
    """
    return {
        "problems": problems_digest(problems),
        "context": digest(contexts.shared),
        "model": model_digests(policy),
        "conventions": policy.conventions.table(),
        "needs": needs_of(algorithm),
        # As data: a page writes prompts with them where their functions are not importable.
        "tools": list(policy.tools),
    }


def _last_checkpoint(folder: Path) -> tuple[Path | None, int]:
    last = latest_checkpoint(folder)
    done = step_of(last) if last else 0
    if len(set(all_gather_objects([done]))) > 1:
        raise RunError(
            f"not every rank sees the same checkpoints in {folder}; put it on a disk that all share"
        )
    return last, done


def _print_first_prompts(setup: Setup, display: Display) -> FirstPrompts:
    row, problem = minibatch(setup, 0)[0]
    contexts = setup.contexts if setup.resolved.algorithm.needs_context else None
    seed = row_seed(setup.config.train.seed, 0, row)
    return print_first_prompts(display, setup.policy, contexts, problem, seed)


def _open_trackers(config: Config, folder: Path, accelerator: Accelerator) -> None:
    """Open the trackers of ``log.trackers``; a resumed run resumes there, by its id or name."""
    if not config.log.trackers:
        return
    table = to_table(config)
    # TensorBoard takes no nested tables, no lists and no None.
    flat = {f"{name}.{k}": str(v) for name in table for k, v in table[name].items()}
    name, run_id = folder.absolute().name, read_run_json(folder)["id"]
    own = {
        "wandb": {"name": name, "id": run_id, "resume": "allow"},
        "trackio": {"name": f"{name}-{run_id}", "resume": "allow"},
    }
    project = os.environ.get("WANDB_PROJECT") or os.environ.get("TRACKIO_PROJECT") or "paint"
    accelerator.init_trackers(project, config=flat, init_kwargs=own)


@contextmanager
def _open_engine(
    run: Resolved, policy: Policy, problems: Sequence[Problem], folder: Path, display: Display
) -> Iterator[tuple[Engine, Resolved]]:
    """Open the engine; yields it and the run, which reports it if it generates itself after all."""
    config = run.config
    if not run.generates:  # SFT without validation samples nothing, and starts no server
        yield LocalEngine(policy, batch_size=1), run
        return
    setup = EngineSetup(
        policy,
        config.model,
        config.rollout,
        folder,
        display,
        max_tokens=training_tokens(config),
        problems=drawn_problems(config, problems),
        server_flags=run.server_flags,
        falls_back=run.falls_back,
    )
    with open_engine(setup) as engine:
        if setup.has_fallen_back(engine):
            run = run.changed("rollout", engine=LOCAL, colocate=False)
            run_log.replace_config(folder, run.config)
        yield engine, run


def _check_rows(
    run: Resolved,
    policy: Policy,
    grader: Grader,
    problems: Sequence[Problem],
    display: Display,
) -> None:
    """Warn of prompts that do not match, of missing answers, and of rows that cannot be graded."""
    if run.algorithm.needs_context:
        warn_template_mismatch(display, policy)
    _warn_of(display, [describe_missing_answers(run, problems)])

    def try_rows() -> None:
        with display.working("trying the rows by their own solutions"):
            announce_rows(grader, problems, run.config.data.place, display)

    is_graded = run.algorithm.needs_rollouts and not run.config.conversation.environment
    if is_graded:
        run_on_rank0(try_rows)
    if run.generates:
        graders = run.config.grading.grader
        _warn_of(display, [other_form(policy.prompts, graders, problems[0])])


def _describe_end(
    folder: Path,
    done: int,
    seconds: float,
    display: Display,
) -> None:
    """Print the summary of the validations, the time of steps after ``done``, and what changed."""
    validations = step_paths(folder / "validation")
    if validations:
        summarise(validations, folder / "validation", display)
    steps = read_metrics(folder)
    times = run_log.describe_phases(steps[done:], seconds)
    display.note(times)
    validated = graded_validation(folder, display)
    # Of the complete run, what was done before it was resumed included.
    costs = [*map(Cost.of, steps), *(graded.cost for graded in validated.values())]
    cost = sum(costs, Cost()).describe()
    if cost:
        display.note(f"all steps and validations: {cost}")
    change = describe_change(validated, steps)
    if change:
        display.note(change)
    display.note(f"done: {latest_checkpoint(folder) or folder}")
    _warn_of(display, [describe_end(steps)])


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
                scored, further = _take_step(setup, done, clock)
                ended_by: list[str] = []
                if accelerator.is_main_process:
                    ended_by = log_step(setup, folder, display, scored, further, clock, done + 1)
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
                    _warn_of(display, _way_on(setup, folder, done))
                    break
        # The step is saved already, or must not be saved.
        except (Interrupted, checkpoint.RanksDiffer):
            raise
        except Exception:
            # Only complete steps are saved. A failure between the updates of a step, before the
            # teacher's update or before logging leaves a partial one.
            if accelerator.is_main_process and done and not updates:
                # The first error is the one to report.
                with suppress(RunError, NonFiniteError, ConfigError):
                    checkpoint.save(folder, setup, done)
            raise


def _take_step(
    setup: Setup, step_index: int, clock: Clock
) -> tuple[list[Rollout], dict[str, float]]:
    """One step of the algorithm: its rollouts with their values, and metrics next to theirs."""
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
    further = {"gradient_norm": float(gradient_norm), **of_solutions, **grading_cost(setup)}
    if setup.drift is not None:
        with clock("drift"):  # on all ranks, which may share layers
            further["drift"] = setup.drift.measure()
    return scored, further


def _is_checkpoint(config: TrainConfig, done: int) -> bool:
    """Whether the student after so many steps is kept and validated."""
    return done % config.checkpoint_every == 0 or done == config.steps


def _save_checkpoint(setup: Setup, folder: Path, done: int) -> None:
    checkpoint.require_same_weights(folder, setup, done)
    if setup.accelerator.is_main_process:
        saved = checkpoint.save(folder, setup, done)
        tell_callbacks(setup.callbacks, "on_checkpoint", saved)


def _raise_if_stopped(signal_number: int, folder: Path) -> None:
    """Raise Interrupted for a signal that a rank received; 0 is none."""
    if signal_number:
        raise Interrupted(
            f"stopped by {Signals(signal_number).name}, all is saved; "
            f"resume with `paint resume {folder}`",
            signal_number,
        )


def minibatch(setup: Setup, step_index: int) -> list[tuple[int, Problem]]:
    """The rows of a step: ``samples_per_problem`` neighbours of a problem (paper: Algorithm 1)."""
    config, problems = setup.config, setup.problems
    samples = config.rollout.samples_per_problem
    count = config.train.batch_size // samples
    indices = draw_problems(problems, config.data, count, step_index, config.train.seed)
    return list(enumerate(problems[i] for i in indices for _ in range(samples)))


def with_steps(run: Resolved, problems: Sequence[Problem], display: Display) -> Resolved:
    """The run with the steps of ``train.epochs``, which they take the place of. Raises ConfigError.

    run.json has the steps, as it has what other settings became.
    """
    train = run.config.train
    if train.epochs is None:
        return run
    at_once = train.batch_size // run.rollout.samples_per_problem
    steps = math.ceil(train.epochs * len(problems) / at_once)
    display.note(
        f"train.epochs {train.epochs:g}: {steps:,} steps of {at_once} of {len(problems):,} problems"
    )
    return run.changed("train", steps=steps, epochs=None)


def drawn_count(config: Config) -> int:
    """How many problems the steps of a run draw, repeated ones included."""
    return config.train.steps * (config.train.batch_size // config.rollout.samples_per_problem)


def drawn_problems(config: Config, problems: Sequence[Problem]) -> list[Problem]:
    """The problems that the steps of a run draw, in the order of the data."""
    drawn = drawn_count(config)
    if len(config.data.sources) < 2:
        drawn = min(drawn, len(problems))  # the first epoch has each problem once
    found = set(draw_problems(problems, config.data, drawn, 0, config.train.seed))
    return [problems[i] for i in sorted(found)]


def grading_cost(setup: Setup) -> dict[str, float]:
    """What a custom grader's calls took in a step, over all ranks; {} without calls."""
    cost = sum(all_gather_objects([setup.grader.take_cost()]), Cost())
    return cost.metrics()


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
    if setup.first_prompts and step_number == 1:
        shown = next((s for s in scored if s.tokens), scored[0])
        print_first_completion(display, setup.policy, shown, setup.first_prompts)

    options, rollout, log = setup.resolved.objective, setup.config.rollout, setup.config.log
    metrics: dict[str, float] = {"step": step_number}
    metrics |= run_log.step_metrics(scored, options, gives_answers=setup.grader.gives_answers)
    if rollout.off_policy_steps and all(r.behavior_log_probs is None for r in scored):
        metrics |= ON_POLICY
    metrics |= run_log.unanswered(scored, setup.grader.unanswered)
    if setup.resolved.algorithm.learns_from == "differences":
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
    _warn_of(display, (f"step {step_number}: {text}" for text in warnings))
    records = list(map(run_log.record, scored))
    run_log.write_rollouts(folder, step_number, records)
    write_tokens(folder, step_number, scored, log.token_rows, setup.policy.tokenizer)
    run_log.append_metrics(folder, metrics)
    # The step is the axis; trackio warns of a value by that name.
    tracked = {name: value for name, value in metrics.items() if name != "step"}
    setup.accelerator.log(tracked, step=step_number)
    display.step(metrics)
    ended = tell_callbacks(setup.callbacks, "on_step", step_number, metrics, records)
    return [_name_of(callback) for callback in ended]


def _name_of(callback: Callback) -> str:
    if isinstance(callback, Health):
        return f"health.stop_on {', '.join(callback.ended_on)}"
    return f"the callback {type(callback).__name__}"


def _way_on(setup: Setup, folder: Path, done: int) -> Iterator[str]:
    """A line on the checkpoint from before the warning that ended the run, if one did."""
    if not any(isinstance(callback, Health) and callback.ended_on for callback in setup.callbacks):
        return
    before = [path for path in checkpoints(folder) if step_of(path) <= done - WINDOW]
    kept = (
        f"the last checkpoint before it is {before[-1]}" if before else "none was saved before it"
    )
    yield f"{kept}; `paint resume {folder}` goes on all the same (health.stop_on)"


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
    graded = [(r.grade, r.problem.name) for r in scored if r.grade]
    yield describe_failures([grade for grade, _ in graded], [name for _, name in graded])
    long = [r for r in scored if r.teacher_prompt and r.teacher_prompt.refused_tokens]
    if long and long[0].teacher_prompt:
        yield (
            f"what the teacher reads of {len(long)} of {len(scored)} completions makes a prompt "
            f"over the limit, and they are passed over; first on problem {long[0].problem.id}: "
            f"{long[0].teacher_prompt.refused_tokens:,} tokens (data.max_prompt_tokens)"
        )


def _open_off_policy_rollouts(setup: Setup, last: Path | None) -> OffPolicyRollouts:
    """Rollouts of the steps to come, with those that were pending at the last checkpoint."""

    def rows_of(step_index: int) -> list[PromptedRow]:
        rows = minibatch(setup, step_index)
        with setup.accelerator.split_between_processes(rows) as batch:
            return prompted_rows(setup, batch, step_index)

    def request(step_index: int) -> Request:
        return generation_request(setup, rows_of(step_index))

    def finish(
        engine: Engine, steps: Sequence[int], completions: list[Completion], clock: Clock
    ) -> list[Rollout]:
        every = [row for step_index in steps for row in rows_of(step_index)]
        return rollouts_of(setup, engine, every, completions, clock)

    kind = AsyncRollouts if setup.resolved.engine.is_remote else BatchedRollouts
    rollouts = kind(
        setup.policy,
        setup.engine,
        request,
        finish,
        behind=setup.config.rollout.off_policy_steps,
        steps=setup.config.train.steps,
        # One micro-batch, so that the measurement is one forward pass.
        measured=setup.config.train.row_limit,
    )
    if last:
        rollouts.restore(last)
    return rollouts
