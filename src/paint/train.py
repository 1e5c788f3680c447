"""PAINT's training step, and the loop around it.

``step`` is the paper's Algorithm 1 for one minibatch, top to bottom. OPSD is the same step with nothing hidden and
nothing interpolated (recipes/lab-opsd.toml). The loop adds data order, checkpoints, resuming and stopping.

Everything random is a pure function of (seed, step, row), so a resumed run repeats what the first one would have done.

Left out: gradient hooks and wrappers for data parallelism. The adapter is small; its gradient is summed over ranks
once a step, which makes the loss of a step the same whatever the micro-batches and ranks.
"""

import os
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path

import torch
from accelerate import Accelerator
from accelerate.utils import InitProcessGroupKwargs, gather_object

from paint import Diverged, Stopped, runlog
from paint.canary import require_agreement
from paint.config import Config, ConfigError
from paint.context import MARKER, anchors, mask_ratio, mask_solution, overlap
from paint.data import DataError, Problem, ProblemSet, batch_indices, read_problems
from paint.display import Clock, Display
from paint.evaluate import summarise_again
from paint.fused import fused_paint_loss, triton_row_work
from paint.grading import Grader, Item
from paint.objective import Loss
from paint.policy import Policy, load_policy
from paint.recipe import require_paths, to_table
from paint.rollout import Completion, Engine, LocalEngine, MergedEngine, Rollout, Sampling, Scored, seed_of
from paint.validation import Validation, load_validation, validate
from paint.vllm import open_vllm


@dataclass(frozen=True)
class Setup:
    """What a step works with."""

    config: Config
    policy: Policy
    engine: Engine
    optimizer: torch.optim.Optimizer
    accelerator: Accelerator
    grader: Grader
    validation: Validation | None


def step(setup: Setup, batch: Sequence[tuple[int, Problem]], number: int, clock: Clock) -> list[Scored]:
    """One update of the student on this rank's rows of a minibatch (paper: Algorithm 1).

    Returns the rollouts of all ranks with their per-token values, in the order of the minibatch.
    """
    config, policy = setup.config, setup.policy

    with clock("adopt"):  # first, so that an engine which fails finds no step half done
        setup.engine.adopt()

    with clock("rollout"):
        prompts = [policy.student_prompt(problem.problem) for _, problem in batch]
        seeds = [seed_of(config.train.seed, number, row) for row, _ in batch]
        completions = setup.engine.generate(prompts, sampling_of(config), seeds)

    with clock("context"):
        rollouts = [
            privilege(policy, config, row, problem, prompt, completion, seed)
            for (row, problem), prompt, completion, seed in zip(batch, prompts, completions, seeds, strict=True)
        ]

    with clock("loss"):
        total = totals(setup.accelerator, rollouts)
        scored: list[Scored] = []
        for micro in micro_batches(rollouts, config.train.micro_batch_size):
            loss, tokens = score(policy, config, micro)
            setup.accelerator.backward(loss.value * share(micro, total, config.objective.reduction))
            scored += tokens
        everyone = sorted(gather_object(scored), key=lambda item: item.rollout.row)
        require_agreement(everyone, config.rollout.max_engine_gap, number + 1)

    with clock("update"):
        sum_over_ranks(setup.accelerator, policy.trainable)
        norm = torch.nn.utils.clip_grad_norm_(policy.trainable, config.train.max_grad_norm)
        if not torch.isfinite(norm):
            raise Diverged(
                f"step {number + 1}: the gradient is not finite (norm {norm}), and the adapter was not updated; "
                f"start a new run with a lower train.learning_rate or with model.dtype float32"
            )
        for group in setup.optimizer.param_groups:
            group["lr"] = learning_rate(config, number)
        setup.optimizer.step()
        setup.optimizer.zero_grad()
    return everyone


def privilege(
    policy: Policy,
    config: Config,
    row: int,
    problem: Problem,
    prompt: list[int],
    completion: Completion,
    seed: int,
) -> Rollout:
    """Overlap, mask ratio, masked solution, teacher prompt (paper: section 'Overlap-Adaptive ... Conditioning')."""
    text = policy.decode(completion.ids)
    alpha = overlap(text, problem.solution)
    ratio = mask_ratio(alpha, wrong=config.context.wrong, correct=config.context.correct)
    shown = mask_solution(problem.solution, ratio, placement=config.context.placement, seed=seed)
    teacher_prompt = policy.teacher_prompt(problem.problem, shown, complete=shown == problem.solution)
    return Rollout(row, problem, prompt, completion, text, alpha, ratio, shown, teacher_prompt)


def score(policy: Policy, config: Config, rollouts: Sequence[Rollout]) -> tuple[Loss, list[Scored]]:
    """Both views of the same completions, and the loss between them (paper: section 'Sparse Teacher Energy ...')."""
    completions = [rollout.completion.ids for rollout in rollouts]
    lengths = [len(ids) for ids in completions]
    with policy.as_teacher():
        teacher_hidden = policy.hidden_states([r.teacher_prompt for r in rollouts], completions)
    student_hidden = policy.hidden_states([r.prompt for r in rollouts], completions)
    options = config.objective
    loss = fused_paint_loss(
        student_hidden,
        teacher_hidden,
        policy.lm_head,
        lengths,
        temperature=options.temperature or config.rollout.temperature,
        mix=options.mix,
        top_fraction=options.top_fraction,
        kind=options.kind,
        clip=options.clip,
        clip_mode=options.clip_mode,
        reduction=options.reduction,
        tokens=torch.tensor([i for ids in completions for i in ids], device=student_hidden.device),
        impl=options.impl,
    )
    columns = {name: value.split(lengths) for name, value in (loss.stats | {"loss": loss.per_token}).items()}
    scored = [
        Scored(rollout, {name: parts[i].tolist() for name, parts in columns.items()})
        for i, rollout in enumerate(rollouts)
    ]
    return loss, scored


def train(config: Config, folder: Path, *, resume: bool = False) -> Path:
    """Run (or go on with) a training run in ``folder`` and return its last checkpoint.

    Raises:
        ConfigError, DataError, ImplError, PolicyError, RunError: before the first step wherever that is possible.
        Stopped: after SIGINT or SIGTERM, when the step under way is finished and saved.
    """
    require_paths(config)
    # Ranks wait for the first one's engine: while it starts, generates, or is waited for.
    seconds = 600 + config.rollout.patience + config.rollout.timeout
    waiting = InitProcessGroupKwargs(timeout=timedelta(seconds=seconds))
    accelerator = Accelerator(log_with=list(config.log.trackers) or None, project_dir=folder, kwargs_handlers=[waiting])
    display = Display(enabled=accelerator.is_main_process)
    ranks = int(os.environ.get("WORLD_SIZE", "1"))
    if ranks != accelerator.num_processes:  # each would train alone, and write to the same folder
        raise ConfigError(
            f"{ranks} processes were launched, and accelerate sees {accelerator.num_processes}; launch with "
            f"`accelerate launch`, or without a GPU with torchrun and ACCELERATE_USE_CPU=true"
        )
    if ranks > 1:
        display.note(f"{ranks} ranks")
    if config.train.batch_size < accelerator.num_processes:
        raise ConfigError(f"train.batch_size {config.train.batch_size} is smaller than the {ranks} ranks")
    found = read_problems(config.data)
    if config.objective.impl == "triton":
        triton_row_work(accelerator.device)  # refused now, not after the first rollouts
    policy = load_policy(config.model, seed=config.train.seed, device=accelerator.device)
    problems = prepare(policy, config, found, display)
    validation = load_validation(policy, config, folder, accelerator.num_processes)
    optimizer = torch.optim.AdamW(
        policy.trainable, lr=config.train.learning_rate, weight_decay=config.train.weight_decay
    )
    if accelerator.is_main_process:
        if resume:
            runlog.continue_run(config, folder)
        else:
            runlog.new_run(config, folder)
    accelerator.wait_for_everyone()
    done = runlog.restore(folder, policy, optimizer) if resume else 0
    ranks_done = accelerator.gather(torch.tensor([done], device=accelerator.device))
    if ranks_done.min() != ranks_done.max():
        raise runlog.RunError(f"not every rank sees the same checkpoints in {folder}; put it on a disk that all share")
    if resume and accelerator.is_main_process:
        runlog.forget_after(folder, done)
        display.note(f"going on after step {done} of {folder}")
    with open_engine(policy, config, folder, display, problems) as engine, Grader() as grader:
        if config.log.trackers:
            accelerator.init_trackers(config.log.project, config=flat_table(config))
        try:
            setup = Setup(config, policy, engine, optimizer, accelerator, grader, validation)
            loop(setup, problems, folder, done, display)
        finally:
            accelerator.end_training()
    if validation is not None and accelerator.is_main_process:
        summarise_again([folder / "validation"], folder / "validation", display)
    checkpoint = runlog.latest_checkpoint(folder) or folder
    display.note(f"done: {checkpoint}")
    return checkpoint


@contextmanager
def open_engine(
    policy: Policy, config: Config, folder: Path, display: Display, problems: Sequence[Problem]
) -> Iterator[Engine]:
    """The engine that the config asks for; servers have proved that they serve the adapter which they are given.

    Raises:
        EngineError, EngineGap: it cannot be used, or it is not the policy that is trained.
    """
    if config.rollout.engine == "vllm":
        # All rows are asked for at once and go to the least busy server: four for each reach every one.
        asked = [problems[i % len(problems)] for i in range(4 * max(len(config.rollout.urls), 1))]
        prompts = [policy.student_prompt(problem.problem) for problem in asked]
        sampling = replace(sampling_of(config), max_new_tokens=min(64, config.rollout.max_new_tokens))
        with open_vllm(policy, config, folder, display, prompts, sampling) as engine:
            yield engine
    else:
        kind = MergedEngine if config.rollout.engine == "merged" else LocalEngine
        yield kind(policy, batch_size=config.rollout.batch_size)


def loop(setup: Setup, problems: Sequence[Problem], folder: Path, done: int, display: Display) -> None:
    """Step after step from ``done`` on, with what a step leaves behind."""
    config, main = setup.config.train, setup.accelerator.is_main_process

    def due() -> bool:
        return done % config.checkpoint_every == 0 or done == config.steps

    def stop_for(number: int) -> None:
        if number:
            name = signal.Signals(number).name
            raise Stopped(f"stopped by {name}, all is saved; go on with `paint resume {folder}`", number)

    def evaluate_checkpoint() -> None:
        if setup.validation is not None and due():
            figures = validate(
                setup.validation,
                setup.policy,
                setup.engine,
                setup.accelerator,
                setup.grader,
                display,
                done,
                lambda: stop_for(first_signal(setup.accelerator, asked)),
            )
            setup.accelerator.log(figures, step=done)

    with runlog.stop_signals() as asked, display.running(config.steps, done):
        try:
            evaluate_checkpoint()  # of the student as it starts, or what a kill left undone
            while done < config.steps:
                indices = batch_indices(len(problems), config.batch_size, done, config.seed)
                batch = [(row, problems[i]) for row, i in enumerate(indices)]
                clock = Clock(display)
                with setup.accelerator.split_between_processes(batch) as mine:
                    scored = step(setup, mine, done, clock)
                done += 1
                if main:
                    report(setup, folder, display, scored, clock, done)
                stop = first_signal(setup.accelerator, asked)
                if main and (stop or due()):
                    runlog.save_checkpoint(folder, setup.policy, setup.optimizer, done)
                stop_for(stop)
                evaluate_checkpoint()
        except Stopped:
            raise
        except Exception:
            # The adapter stands after ``done`` whole steps: a failure in a later one must not lose them.
            if main and done:
                with suppress(runlog.RunError):
                    runlog.save_checkpoint(folder, setup.policy, setup.optimizer, done)
            raise


def report(setup: Setup, folder: Path, display: Display, scored: Sequence[Scored], clock: Clock, number: int) -> None:
    """Show and store step ``number`` (counted from 1)."""
    if number == 1:
        prompts(display, setup.policy, scored[0].rollout)
    answers = [
        Item(setup.policy.transcript(r.prompt, r.completion.ids), r.problem.answer, r.completion.truncated)
        for r in (s.rollout for s in scored)
    ]
    correct = [grade.strict.correct for grade in setup.grader.grade(answers)]
    metrics = {"step": number, **runlog.summarise(scored, correct, setup.config.objective.reduction)}
    metrics |= clock.rates(sum(len(s.rollout.completion.ids) for s in scored))
    metrics["learning_rate"] = learning_rate(setup.config, number - 1)
    metrics["seconds_left"] = display.seconds_left(number)
    if setup.config.log.keep_rollouts:
        runlog.write_rollouts(folder, number, scored, correct)
    runlog.append_metrics(folder, metrics)
    setup.accelerator.log(metrics, step=number)
    display.step(metrics)


def prompts(display: Display, policy: Policy, rollout: Rollout) -> None:
    """Show once what student and teacher really read: a template that differs by accident is seen at a glance."""
    for name, ids in (("student", rollout.prompt), ("teacher", rollout.teacher_prompt)):
        display.note(f"--- first {name} prompt, {len(ids)} tokens ---\n{policy.decode(ids, special=True)}")
    display.note(f"--- completion, {len(rollout.completion.ids)} tokens ---")
    display.note(policy.decode(rollout.completion.ids, special=True) + "\n---")


def prepare(policy: Policy, config: Config, found: ProblemSet, display: Display) -> list[Problem]:
    """The problems of which no prompt will ever have to be cut.

    Raises:
        ConfigError: completions as long as the model's positions.
        DataError: a prompt over ``data.max_prompt_tokens``, unless data.on_bad_row is skip.
    """
    limit = config.data.max_prompt_tokens
    positions = getattr(policy.model.config, "max_position_embeddings", None)
    if positions is not None:
        limit = min(limit, positions - config.rollout.max_new_tokens)
    if limit < 1:
        raise ConfigError(
            f"rollout.max_new_tokens {config.rollout.max_new_tokens} leaves no room for a prompt: "
            f"the model has {positions} positions"
        )
    problems, long = [], 0
    for problem in found.problems:
        # The longest that the teacher may read: little hidden, and the marker on top.
        length = len(policy.teacher_prompt(problem.problem, f"{problem.solution} {MARKER}", complete=False))
        if length <= limit:
            problems.append(problem)
        elif config.data.on_bad_row == "skip":
            long += 1
        else:
            raise DataError(
                f"{config.data.path}: problem {problem.id} makes a teacher prompt of {length} tokens, over the limit "
                f"of {limit} (data.max_prompt_tokens, or the model's positions less rollout.max_new_tokens). Nothing "
                f"is ever cut: shorten it, raise the limit, or skip such rows with --data.on-bad-row skip"
            )
    if not problems:
        raise DataError(f"{config.data.path}: no problem is left; all {long} are over {limit} tokens")
    for reason, count in (found.skipped | ({"over the token limit": long} if long else {})).items():
        display.note(f"skipped {count} rows: {reason}")
    bare = sum(not anchors(problem.solution) for problem in problems)
    if bare:
        display.note(f"{bare} of {len(problems)} solutions have no anchors; their overlap counts as 0")
    return problems


def sampling_of(config: Config) -> Sampling:
    """How training rollouts are drawn (paper: section 'Experimental Details')."""
    rollout = config.rollout
    return Sampling(rollout.temperature, rollout.top_p, rollout.top_k, rollout.max_new_tokens)


def learning_rate(config: Config, number: int) -> float:
    """Linear warm-up, then constant: lr · min(1, (step + 1) / warmup_steps)."""
    warmup = config.train.warmup_steps
    return config.train.learning_rate * (min(1.0, (number + 1) / warmup) if warmup else 1.0)


def micro_batches(rollouts: Sequence[Rollout], size: int) -> Iterator[list[Rollout]]:
    """Groups of similar length: little padding, and the same sum whatever the grouping."""
    ordered = sorted(rollouts, key=lambda r: len(r.teacher_prompt) + len(r.completion.ids), reverse=True)
    for i in range(0, len(ordered), size):
        yield ordered[i : i + size]


def totals(accelerator: Accelerator, rollouts: Sequence[Rollout]) -> tuple[int, int]:
    """Completions and completion tokens of the whole optimizer step, over all ranks."""
    counts = torch.tensor([len(rollouts), sum(len(r.completion.ids) for r in rollouts)], device=accelerator.device)
    completions, tokens = accelerator.reduce(counts, "sum").tolist()
    return completions, tokens


def share(micro: Sequence[Rollout], total: tuple[int, int], reduction: str) -> float:
    """What a micro-batch's mean loss counts for in the step's: its share of the completions, or of the tokens."""
    if reduction == "token":
        return sum(len(r.completion.ids) for r in micro) / total[1]
    return len(micro) / total[0]


def flat_table(config: Config) -> dict[str, str]:
    """The config as trackers take it: one level, text."""
    return {f"{name}.{key}": str(value) for name, keys in to_table(config).items() for key, value in keys.items()}


def sum_over_ranks(accelerator: Accelerator, parameters: Sequence[torch.nn.Parameter]) -> None:
    """Add the ranks' gradients, in one message."""
    if accelerator.num_processes == 1:
        return
    grads = [p.grad if p.grad is not None else torch.zeros_like(p) for p in parameters]
    flat = accelerator.reduce(torch.cat([grad.flatten() for grad in grads]), "sum")
    for parameter, part in zip(parameters, flat.split([p.numel() for p in parameters]), strict=True):
        parameter.grad = part.view_as(parameter)


def first_signal(accelerator: Accelerator, asked: Sequence[int]) -> int:
    """The signal that any rank got, so that all stop after the same step; 0 for none."""
    mine = torch.tensor([max(asked, default=0)], device=accelerator.device)
    return int(accelerator.gather(mine).max().item())
