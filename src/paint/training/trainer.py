"""The trainer: what a run opens before its first step, in its order."""

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from time import monotonic
from typing import NamedTuple

from accelerate import Accelerator

from chatforms.conventions import today
from paint.config.run_folder import RunError, latest_checkpoint, read_history
from paint.config.schema import ONE_TURN
from paint.core.display import Display
from paint.core.distributed import open_accelerator, report_once, run_on_rank0
from paint.core.errors import is_unicode
from paint.data.contexts import Contexts
from paint.data.mixtures import describe_mixture
from paint.data.problems import Problem, ValidRows, read_problems
from paint.evaluation.validation import load_validation
from paint.grading.contract import Grader
from paint.grading.graders import open_grader
from paint.inference.conversations import Conversations, open_conversations, with_tools
from paint.models.policy import ModelFiles, Policy, load_policy, open_model
from paint.models.prompts import ViewWriter
from paint.models.teacher import Teacher, open_teacher
from paint.objective.fused import require_loss
from paint.resolve.check import Resolved, require_same_beginning, resolve
from paint.resolve.optimizer import open_optimizer
from paint.resolve.plan import LongestRows
from paint.training import checkpoint, run_log
from paint.training.callbacks import Callback
from paint.training.drift import open_drift
from paint.training.health import Health
from paint.training.loop import loop, print_end
from paint.training.opening import (
    check_problems,
    drawn_count,
    last_checkpoint,
    machine_of_ranks,
    open_run_engine,
    open_trackers,
    run_facts,
    with_steps,
)
from paint.training.prompt_filter import filter_problems
from paint.training.row_prompts import RowPrompts, longest_rows, measure_rows, rows_to_count
from paint.training.teacher_views import prompt_limit
from paint.training.train_step import Setup

START_SECONDS = 600
# Seconds that ranks wait for each other, beyond the time of an engine.


def train(
    run: Resolved,
    folder: Path,
    *,
    rows: ValidRows | None = None,
    resume: bool = False,
    display: Display | None = None,
    callbacks: Sequence[Callback] = (),
    note: str = "",
) -> Path:
    """Train in ``folder``, or resume there, and return the last checkpoint.

    Settings, data and files are refused before the first step wherever that is possible. SIGINT and
    SIGTERM raise Interrupted when the step under way is finished and saved. Callbacks are called on
    the first rank. The note is printed first. ``rows`` are those of data.path, where they were read
    before.
    """
    began = monotonic()
    if not is_unicode(str(folder.absolute())):
        raise RunError(
            f"{folder.absolute()} is not valid UTF-8, and what reads adapters needs that; rename "
            f"the folder, or choose another with --log.folder"
        )
    # One rank's rows may take longer than another's.
    patience = START_SECONDS + run.rollout.server_timeout + run.rollout.timeout
    warnings = (*run.warnings, *(require_same_beginning(run, folder) if resume else ()))
    accelerator = open_accelerator(folder, run.config.log.trackers, patience)
    is_main = accelerator.is_main_process
    display = (is_main and display) or Display(enabled=is_main)
    with report_once(folder) as signals, ExitStack() as stack:
        site = _Site(folder, accelerator, display, stack)
        display.notes([note])
        data = _read_data(run, rows, site)
        found = replace(run, longest=data.longest, warnings=warnings)
        model = _open_model(resolve(found, machine_of_ranks(accelerator)), data, site)
        validation = load_validation(
            model.policy, model.run.config, folder, accelerator.num_processes, model.grader, display
        )
        setup, done = _open_setup(model, data, callbacks, site, resume=resume)
        loop(setup, validation, folder, display, done, signals)
    if is_main:
        print_end(folder, done, monotonic() - began, display)
    return latest_checkpoint(folder) or folder


@dataclass(frozen=True)
class _Site:
    folder: Path
    accelerator: Accelerator
    display: Display
    stack: ExitStack  # of what is closed when the run ends


class _Data(NamedTuple):
    """The problems, and what is known of their prompts before the weights are loaded."""

    rows: ValidRows
    contexts: Contexts
    files: ModelFiles
    day: str  # that prompts tell of, one for all ranks
    measured: Sequence[RowPrompts]
    longest: LongestRows


def _read_data(run: Resolved, rows: ValidRows | None, site: _Site) -> _Data:
    # All of it is refused now, not after the model is loaded or after the first rollouts.
    display, device = site.display, site.accelerator.device
    if rows is None:
        with display.working("reading the problems"):
            rows = read_problems(run.config.data, needs=run.needed_fields)
    contexts = Contexts(run.config.context, rows.problems)
    reason = require_loss(run.objective, device)
    if reason and run.algorithm.needs_context:  # what the divergence applies to
        display.warn(f"the loss is computed without Triton kernels: {reason}")
    day = run.config.model.date
    day = run_on_rank0(today) if day == "auto" else day
    files = open_model(run.config.model.path)
    measured = measure_rows(
        run,
        ViewWriter.of(files.tokenizer, run.changed("model", date=day).config),
        contexts,
        rows.problems,
        display,
        limit=prompt_limit(files.config, run),
        counted={*rows_to_count(run, contexts, rows.problems)},
    )
    longest = longest_rows(run, files.tokenizer, rows.problems, measured)
    return _Data(rows, contexts, files, day, measured, longest)


class _Model(NamedTuple):
    """The policy with what stands beside it, and the problems that fit its prompts."""

    run: Resolved  # as run.json has it
    policy: Policy
    teacher: Teacher
    problems: Sequence[Problem]
    grader: Grader
    conversations: Conversations | None


def _open_model(run: Resolved, data: _Data, site: _Site) -> _Model:
    display, accelerator = site.display, site.accelerator
    grader = site.stack.enter_context(open_grader(run.config.grading))
    display.notes(run.notes)
    display.warnings([*run.warnings, grader.warning()])

    with display.working("loading the model"):
        policy = load_policy(
            replace(run.config.model, date=data.day),
            seed=run.config.train.seed,
            device=accelerator.device,
            prompts=run.config.prompts,
            files=data.files,
        )
    policy = with_tools(policy, run.config.conversation)
    # Stored conversations are answered already.
    answering = ONE_TURN if run.engine.is_stored else run.config.conversation
    conversations = site.stack.enter_context(
        open_conversations(policy, answering, run.config.data.max_prompt_tokens)
    )
    # Before a checkpoint is restored: it is made of the weights of the start.
    teacher = open_teacher(policy, run.teacher)
    display.notes(policy.notes)
    display.warnings(policy.warnings)
    problems = filter_problems(policy, run, data.rows, display, data.contexts, data.measured)
    if policy.conventions.date is not None:
        # For run.json: a resumed run must render the same prompts on another day (C33).
        run = run.changed("model", date=policy.conventions.date)
    settled = with_steps(run, problems, display)
    display.notes(describe_mixture(problems, run.config.data, drawn_count(settled.config)))
    check_problems(settled, policy, grader, problems, display)
    return _Model(settled, policy, teacher, problems, grader, conversations)


def _open_setup(
    model: _Model, data: _Data, callbacks: Sequence[Callback], site: _Site, *, resume: bool
) -> tuple[Setup, int]:
    """What the steps work with, restored from the last checkpoint, and the steps that are done."""
    run, policy, folder, display = model.run, model.policy, site.folder, site.display

    def enter_folder() -> None:
        with display.working("digests of model and problems"):
            facts = run_facts(policy, model.problems, data.contexts, run.algorithm)
        entered = run_log.entered(run.config, folder, facts, display, resume=resume)
        site.stack.enter_context(entered)

    # Rank 0 alone writes there, so it alone holds the lock.
    run_on_rank0(enter_folder)
    last, done = last_checkpoint(folder)
    optimizer = open_optimizer(run.optimizer, policy.trainable, run.config.train)
    if last:
        checkpoint.restore(last, policy, optimizer, model.teacher)
    if resume:
        run_on_rank0(lambda: run_log.truncate_to_step(run.config, folder, done))
        display.note(f"resuming after step {done} of {folder}")
    open_trackers(run.config, folder, site.accelerator)
    opened = open_run_engine(run, policy, model.problems, folder, display)
    engine = site.stack.enter_context(opened)
    setup = Setup(
        run,
        policy,
        model.teacher,
        model.problems,
        engine,
        optimizer,
        site.accelerator,
        model.grader,
        conversations=model.conversations,
        callbacks=[Health(run.config, read_history(folder, done), display.warn), *callbacks],
        drift=open_drift(run.config, policy, model.teacher),
        context_file=data.contexts.file_content,
    )
    if last and setup.off_policy_rollouts:
        setup.off_policy_rollouts.restore(last)
    site.stack.callback(site.accelerator.end_training)
    return setup, done
