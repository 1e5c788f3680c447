"""PAINT's training step, and the loop around it.

``step`` is the paper's Algorithm 1 for one minibatch, top to bottom. OPSD is the same step with nothing hidden and
nothing interpolated (recipes/lab-opsd.toml). The loop adds data order, checkpoints, resuming and stopping, for this
step and those of ``paint.baselines``; what all of them share is ``paint.update``.

Everything random is a pure function of (seed, step, row), so a resumed run repeats what the first one would have done.
"""

import os
import random
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import timedelta
from functools import partial
from pathlib import Path

import torch
from accelerate import Accelerator
from accelerate.utils import InitProcessGroupKwargs
from torch import Tensor

from paint import Stopped, runlog
from paint.answers import at_sight
from paint.baselines import grpo_step, sft_step
from paint.canary import require_agreement
from paint.config import Config, ConfigError
from paint.config import Teacher as TeacherConfig
from paint.context import MARKER, anchors, mask_ratio, mask_solution, overlap
from paint.data import DataError, Problem, ProblemSet, batch_indices, digest, read_problems
from paint.display import Clock, Display
from paint.evaluate import summarise_again
from paint.fused import loss_from_hidden, triton_row_work
from paint.grading import Grader, Item
from paint.policy import Policy, load_policy
from paint.recipe import require_trainable, to_table
from paint.rollout import Engine, LocalEngine, MergedEngine, Rollout, Scored, View, seed_of
from paint.teacher import open_teacher
from paint.update import (
    Batch,
    Setup,
    Step,
    accumulate,
    completion_ids,
    learning_rate,
    lengths_of,
    sample,
    sampling_of,
    stands_after,
    update,
)
from paint.validation import load_validation, validate
from paint.vllm import open_vllm


def step(setup: Setup, batch: Batch, number: int, clock: Clock) -> tuple[list[Scored], float]:
    """One update of the student on this rank's rows of a minibatch (paper: Algorithm 1).

    Returns the rollouts of all ranks with their per-token values, in the order of the minibatch, and the gradient norm.
    """
    rollouts = sample(setup, batch, number, clock)

    with clock("context"):
        rollouts = [privilege(setup, rollout, number) for rollout in rollouts]
    if setup.config.teacher.reason_first:
        with clock("rationale"):
            rollouts = reason(setup, rollouts, number)

    with clock("loss"):
        scored = accumulate(setup, rollouts, partial(score, setup))
        require_agreement(scored, setup.config.rollout.max_engine_gap, number + 1)

    with clock("update"):
        norm = update(setup, number)
    return scored, norm


STEPS: dict[str, Step] = {"distillation": step, "grpo": grpo_step, "sft": sft_step}


def privilege(setup: Setup, rollout: Rollout, number: int) -> Rollout:
    """Overlap, mask ratio, masked solution, teacher prompt (paper: section 'Overlap-Adaptive ... Conditioning')."""
    options, problem = setup.config.context, rollout.problem
    alpha = overlap(rollout.text, problem.solution)
    ratio = mask_ratio(alpha, wrong=options.wrong, correct=options.correct)
    seed = seed_of(setup.config.train.seed, number, rollout.row)
    solution = context = reference_shown(setup.problems, problem, options.shown, seed)
    if solution is not None and options.shown in ("own", "other"):
        context = mask_solution(solution, ratio, placement=options.placement, seed=seed)
    complete = context == solution
    prompt = setup.policy.teacher_prompt(problem.problem, context, complete=complete)
    return replace(rollout, view=View(context, complete, prompt), figures={"overlap": alpha, "mask_ratio": ratio})


def reference_shown(problems: Sequence[Problem], problem: Problem, shown: str, seed: int) -> str | None:
    """What stands for the solution in the teacher's prompt before anything is masked; all but "own" are controls.

    Raises:
        DataError: another problem, or another answer, is asked for, and there is none.
    """
    match shown:
        case "own":
            return problem.solution
        case "none":
            return None
        case "answer":
            return f"The answer is $\\boxed{{{problem.answer}}}$."
    start = random.Random(seed).randrange(len(problems))
    for place in range(len(problems)):
        other = problems[(start + place) % len(problems)]
        if shown == "other" and other.id != problem.id:
            return other.solution
        if shown == "wrong_answer" and at_sight(other.answer, problem.answer) == "wrong":
            return f"The answer is $\\boxed{{{other.answer}}}$."
    wanted = "a second problem" if shown == "other" else f"a problem with another answer than {problem.answer!r}"
    raise DataError(f"context.shown {shown} needs {wanted}, and there is none")


def reason(setup: Setup, rollouts: Sequence[Rollout], number: int) -> list[Rollout]:
    """The teacher writes a rationale about what it is shown, and will score with it in view (paper: 'reason-first')."""
    policy, config = setup.policy, setup.config
    shown = [(r, r.view.context, r.view.complete) for r in rollouts if r.view and r.view.context is not None]
    prompts = [policy.rationale_prompt(r.problem.problem, context, complete=c) for r, context, c in shown]
    seeds = [seed_of(config.train.seed, "rationale", number, r.row) for r in rollouts]
    sampling = replace(sampling_of(config), max_new_tokens=config.teacher.rationale_tokens)
    with setup.teacher.view():  # in this process: servers hold the student
        written = LocalEngine(policy, batch_size=config.rollout.batch_size).generate(prompts, sampling, seeds)
    found = []
    for (rollout, context, complete), completion in zip(shown, written, strict=True):
        rationale = policy.decode(completion.ids).strip()
        prompt = policy.teacher_prompt(rollout.problem.problem, context, complete=complete, rationale=rationale)
        figures = {**rollout.figures, "rationale_tokens": len(completion.ids)}
        found.append(replace(rollout, view=View(context, complete, prompt, rationale), figures=figures))
    return found


def score(setup: Setup, rollouts: Sequence[Rollout]) -> tuple[Tensor, dict[str, Tensor]]:
    """Both views of the same completions, and the loss between them (paper: section 'Sparse Teacher Energy ...')."""
    policy, config = setup.policy, setup.config
    completions = [rollout.completion.ids for rollout in rollouts]
    with setup.teacher.view():
        teacher_hidden = policy.hidden_states([r.view.prompt for r in rollouts if r.view], completions)
    student_hidden = policy.hidden_states([r.prompt for r in rollouts], completions)
    loss = loss_from_hidden(
        student_hidden,
        teacher_hidden,
        policy.lm_head,
        lengths_of(rollouts),
        config.objective.resolve(config.rollout.temperature),
        tokens=completion_ids(rollouts, student_hidden.device),
        teacher_lm_head=setup.teacher.lm_head,
    )
    return loss.value, {"loss": loss.per_token, **loss.stats}


def train(config: Config, folder: Path, *, resume: bool = False, display: Display | None = None) -> Path:
    """Run (or go on with) a training run in ``folder`` and return its last checkpoint.

    Raises:
        ConfigError, DataError, ImplError, PolicyError, RunError: before the first step wherever that is possible.
        Stopped: after SIGINT or SIGTERM, when the step under way is finished and saved.
    """
    require_trainable(config)
    # Ranks wait for the first one's engine: while it starts, generates, or is waited for.
    seconds = 600 + config.rollout.patience + config.rollout.timeout
    waiting = InitProcessGroupKwargs(timeout=timedelta(seconds=seconds))
    accelerator = Accelerator(log_with=list(config.log.trackers) or None, project_dir=folder, kwargs_handlers=[waiting])
    display = (accelerator.is_main_process and display) or Display(enabled=accelerator.is_main_process)
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
    # As it is before a checkpoint is loaded; a baseline that asks no teacher keeps no copy of the weights.
    asked = config.train.method == "distillation" or (config.train.method == "grpo" and config.grpo.kl > 0)
    teacher = open_teacher(policy, config.teacher if asked else TeacherConfig(weights="live"))
    problems = prepare(policy, config, found, display)
    validation = load_validation(policy, config, folder, accelerator.num_processes)
    optimizer = torch.optim.AdamW(
        policy.trainable, lr=config.train.learning_rate, weight_decay=config.train.weight_decay
    )
    if accelerator.is_main_process:
        if resume:
            runlog.continue_run(config, folder, digest(problems))
        else:
            runlog.new_run(config, folder, digest(problems))
    accelerator.wait_for_everyone()
    done = runlog.restore(folder, policy, optimizer, teacher) if resume else 0
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
            setup = Setup(config, policy, teacher, problems, engine, optimizer, accelerator, grader, validation)
            loop(setup, folder, done, display)
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
    idle = config.train.method == "sft" and not config.validation.path  # references need no engine
    if config.rollout.engine == "vllm" and not idle:
        # All rows are asked for at once and go to the least busy server: four for each reach every one.
        asked = [problems[i % len(problems)] for i in range(4 * max(len(config.rollout.urls), 1))]
        prompts = [policy.student_prompt(problem.problem) for problem in asked]
        sampling = replace(sampling_of(config), max_new_tokens=min(64, config.rollout.max_new_tokens))
        with open_vllm(policy, config, folder, display, prompts, sampling) as engine:
            yield engine
    else:
        kind = MergedEngine if config.rollout.engine == "merged" else LocalEngine
        yield kind(policy, batch_size=config.rollout.batch_size)


def loop(setup: Setup, folder: Path, done: int, display: Display) -> None:
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
                clock = Clock(display)
                with setup.accelerator.split_between_processes(minibatch(setup, done)) as mine:
                    scored, norm = STEPS[config.method](setup, mine, done, clock)
                done += 1
                if main:
                    report(setup, folder, display, scored, norm, clock, done)
                stop = first_signal(setup.accelerator, asked)
                if main and (stop or due()):
                    runlog.save_checkpoint(folder, setup.policy, setup.optimizer, done, setup.teacher)
                stop_for(stop)
                evaluate_checkpoint()
        except Stopped:
            raise
        except Exception:
            # A failure must not lose whole steps; one within GRPO's updates, or before the teacher followed, left half.
            if main and done and stands_after(setup, done):
                with suppress(runlog.RunError):
                    runlog.save_checkpoint(folder, setup.policy, setup.optimizer, done, setup.teacher)
            raise


def minibatch(setup: Setup, number: int) -> list[tuple[int, Problem]]:
    """The rows of a step: one a problem, or with GRPO a group of neighbours on each (paper: 'Sample a minibatch')."""
    config, problems = setup.config.train, setup.problems
    group = setup.config.grpo.group_size if config.method == "grpo" else 1
    indices = batch_indices(len(problems), config.batch_size // group, number, config.seed)
    return list(enumerate(problems[i] for i in indices for _ in range(group)))


def report(
    setup: Setup, folder: Path, display: Display, scored: Sequence[Scored], norm: float, clock: Clock, number: int
) -> None:
    """Show and store step ``number`` (counted from 1)."""
    if number == 1:
        prompts(display, setup.policy, scored[0].rollout)
    correct = verdicts(setup, scored)
    metrics = {"step": number, **runlog.summarise(scored, correct, setup.config.objective.reduction)}
    metrics |= clock.rates(sum(len(s.rollout.completion.ids) for s in scored))
    metrics["gradient_norm"] = norm
    metrics["learning_rate"] = learning_rate(setup.config, number - 1)
    metrics["seconds_left"] = display.seconds_left(number)
    if setup.config.log.keep_rollouts:
        runlog.write_rollouts(folder, number, scored, correct)
    runlog.append_metrics(folder, metrics)
    setup.accelerator.log(metrics, step=number)
    display.step(metrics)


def verdicts(setup: Setup, scored: Sequence[Scored]) -> list[bool]:
    """Whether each completion's answer is right; references are."""
    rollouts = [item.rollout for item in scored]
    if setup.config.train.method == "sft":
        return [True] * len(rollouts)
    if setup.config.train.method == "grpo":
        return [rollout.figures["reward"] == 1 for rollout in rollouts]
    answers = [
        Item(setup.policy.transcript(r.prompt, r.completion.ids), r.problem.answer, r.completion.truncated)
        for r in rollouts
    ]
    return [grade.strict.correct for grade in setup.grader.grade(answers)]


def prompts(display: Display, policy: Policy, rollout: Rollout) -> None:
    """Show once what student and teacher really read: a template that differs by accident is seen at a glance."""
    read = {"student": rollout.prompt} | ({"teacher": rollout.view.prompt} if rollout.view else {})
    for name, ids in read.items():
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
    written = 0 if config.train.method == "sft" else config.rollout.max_new_tokens
    if positions is not None:
        limit = min(limit, positions - written)
    if limit < 1:
        raise ConfigError(
            f"rollout.max_new_tokens {config.rollout.max_new_tokens} leaves no room for a prompt: "
            f"the model has {positions} positions"
        )

    def that_fit(problems: Sequence[Problem], other: int) -> Iterator[Problem]:
        for problem in problems:
            length = longest_prompt(policy, config, problem, other)
            if length <= limit:
                yield problem
            elif config.data.on_bad_row == "error":
                raise DataError(
                    f"{config.data.path}: problem {problem.id} makes a {READ[config.train.method]} of {length} tokens, "
                    f"over the limit of {limit} (data.max_prompt_tokens, or the model's positions less {written}). "
                    f"Nothing is ever cut: shorten it, raise the limit, or skip such rows with --data.on-bad-row skip"
                )

    problems = list(that_fit(found.problems, 0))
    if config.context.shown == "other" and problems:
        longest = max(len(policy.solution_ids(problem.solution)) for problem in problems)
        problems = list(that_fit(problems, longest))
    long = len(found.problems) - len(problems)
    if not problems:
        raise DataError(f"{config.data.path}: no problem is left; all {long} are over {limit} tokens")
    for reason, count in (found.skipped | ({"over the token limit": long} if long else {})).items():
        display.note(f"skipped {count} rows: {reason}")
    bare = sum(not anchors(problem.solution) for problem in problems)
    if bare and config.train.method == "distillation":
        display.note(f"{bare} of {len(problems)} solutions have no anchors; their overlap counts as 0")
    return problems


READ = {"distillation": "teacher prompt", "grpo": "prompt", "sft": "prompt with its solution"}


def longest_prompt(policy: Policy, config: Config, problem: Problem, other: int) -> int:
    """Tokens of the longest text that will ever stand before a completion; with sft, the completion included.

    ``other``: tokens of the longest solution of another problem that may be shown; 0 for none.
    """
    student = len(policy.student_prompt(problem.problem))
    if config.train.method == "grpo":
        return student
    if config.train.method == "sft":
        return student + len(policy.solution_ids(problem.solution))
    rationale = "" if config.teacher.reason_first else None

    def teacher(context: str) -> int:
        return len(policy.teacher_prompt(problem.problem, context, complete=False, rationale=rationale))

    # Little hidden, and the marker on top.
    longest = max(teacher(f"{problem.solution} {MARKER}"), teacher(MARKER) + other if other else 0)
    return longest + (config.teacher.rationale_tokens if config.teacher.reason_first else 0)


def flat_table(config: Config) -> dict[str, str]:
    """The config as trackers take it: one level, text."""
    return {f"{name}.{key}": str(value) for name, keys in to_table(config).items() for key, value in keys.items()}


def first_signal(accelerator: Accelerator, asked: Sequence[int]) -> int:
    """The signal that any rank got, so that all stop after the same step; 0 for none."""
    mine = torch.tensor([max(asked, default=0)], device=accelerator.device)
    return int(accelerator.gather(mine).max().item())
