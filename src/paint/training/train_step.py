"""The parts of a training step that algorithms share: rollouts, weights, micro-batches, update.

The loss does not depend on micro-batches or ranks.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial, reduce
from itertools import chain
from typing import Any, NamedTuple

import torch
from accelerate import Accelerator
from torch import Tensor, nn

from paint.config.schema import Config, ObjectiveConfig
from paint.core.device import to_device
from paint.core.display import Clock
from paint.core.distributed import all_gather_objects, barrier, gather_on_rank0, sum_gradients
from paint.core.errors import NonFiniteError, PaintError
from paint.core.extensions import extension_errors
from paint.data.contexts import Attempt, Contexts, with_others
from paint.data.mixtures import draw_problems
from paint.data.problems import Problem
from paint.grading.contract import Grader, require_some_grade
from paint.inference.conversations import Conversations, complete
from paint.inference.engine import Completion, Engine, row_seed, sampling_from
from paint.inference.rollout_grades import (
    grade_rollouts,
    is_gradable,
    name_of_grader,
    transcript_of,
)
from paint.inference.rollouts import Rollout, rollout_of
from paint.models.policy import Policy
from paint.models.sharding import is_sharded, passes_missing
from paint.models.teacher import Teacher
from paint.objective.fused import LogProbs, fused_log_probs
from paint.resolve.check import Resolved
from paint.resolve.optimizer import learning_rate, set_learning_rate
from paint.training.callbacks import Callback
from paint.training.drift import Drift
from paint.training.load_balancing import balance_rows, micro_batches, token_passes
from paint.training.log_probs import check_logprob_mismatch
from paint.training.off_policy_rollouts import (
    AsyncRollouts,
    BatchedRollouts,
    OffPolicyRollouts,
    Request,
)
from paint.training.step_checks import require_finite, require_scores
from paint.training.teacher_views import count_teacher_tokens, with_shared_beginning


@dataclass(frozen=True)
class Setup:
    """The model, data and services that a training step uses."""

    resolved: Resolved
    policy: Policy
    teacher: Teacher
    problems: Sequence[Problem]
    engine: Engine
    optimizer: torch.optim.Optimizer
    accelerator: Accelerator
    grader: Grader
    conversations: Conversations | None = None  # None where a completion is one turn
    callbacks: Sequence[Callback] = ()
    drift: Drift | None = None
    context_file: str | None = None  # the content of context.file, as it was at the start
    # This rank's completions of the step that an algorithm with needs_grades does not see.
    ungraded: list[Rollout] = field(default_factory=list)

    @property
    def config(self) -> Config:
        return self.resolved.config

    @cached_property
    def contexts(self) -> Contexts:
        """Texts that the teacher may read of each problem."""
        return Contexts(self.config.context, self.problems, self.context_file)

    @cached_property
    def off_policy_rollouts(self) -> OffPolicyRollouts | None:
        """The rollouts of the steps to come; None where each step samples its own."""
        return _open_off_policy_rollouts(self) if self.config.rollout.off_policy_steps else None


FORWARD = 0.5
"""Share of a micro-batch's time that its forward passes take (assumed)."""

Batch = Sequence[tuple[int, Problem]]
"""A rank's rows of a minibatch: pairs of place in the minibatch and problem."""

Scores = tuple[Tensor, dict[str, Tensor]]
"""The mean loss of some completions by ``objective.reduction``, and named values of their tokens.

The tokens of all completions are concatenated.
"""

Score = Callable[[Sequence[Rollout]], Scores]
"""Scores a micro-batch."""

StepResult = tuple[list[Rollout], float]
"""The scored rollouts in the order of their rows, and the norm of the gradient.

The rollouts are those of all ranks on the first rank, and a rank's own on the others.
"""


class PromptedRow(NamedTuple):
    """A row of a step, and the prompt that its completion is sampled after."""

    step: int  # from 0
    row: int  # in the minibatch
    problem: Problem
    prompt: list[int]


class NothingGradedError(PaintError):
    """No completion of a step has a reward, and the algorithm learns from rewards."""


def generate_rollouts(setup: Setup, batch: Batch, step_index: int, clock: Clock) -> list[Rollout]:
    """Sample one completion for every row from the student; off-policy, from an earlier student.

    For an algorithm with ``needs_grades`` these have a reward. Source: Algorithm 1, 'Sample one
    student rollout'. Raises GradingError, and NothingGradedError where none is left.
    """
    off_policy = setup.off_policy_rollouts
    if off_policy is None:
        rollouts = _draw(setup, prompted_rows(setup, batch, step_index), clock)
    else:
        rollouts = off_policy.get(step_index, clock)
        with clock("behavior"):
            rollouts = off_policy.score_under_behavior_policy(rollouts, step_index)
    if setup.config.grading.is_off and setup.conversations is None:
        return rollouts
    with clock("reward"):
        rollouts = add_grades(setup, rollouts, step_index)
    if not setup.resolved.algorithm.needs_grades:
        return rollouts
    return set_ungraded_aside(setup, rollouts)


def minibatch(setup: Setup, step_index: int) -> list[tuple[int, Problem]]:
    """Return the rows of a step: ``samples_per_problem`` neighbours for each problem."""
    config, problems = setup.config, setup.problems
    samples = config.rollout.samples_per_problem
    count = config.train.batch_size // samples
    indices = draw_problems(problems, config.data, count, step_index, config.train.seed)
    return list(enumerate(problems[i] for i in indices for _ in range(samples)))


def prompted_rows(setup: Setup, batch: Batch, step_index: int) -> list[PromptedRow]:
    write = setup.policy.student_prompt
    return [PromptedRow(step_index, row, problem, write(problem)) for row, problem in batch]


def generation_request(setup: Setup, rows: Sequence[PromptedRow]) -> Request:
    """Return prompts, sampling settings and seeds of a request to the engine."""
    config = setup.config
    seeds = [row_seed(config.train.seed, one.step, one.row) for one in rows]
    return [one.prompt for one in rows], sampling_from(config.rollout), seeds


def _draw(setup: Setup, rows: Sequence[PromptedRow], clock: Clock) -> list[Rollout]:
    """Return the rollouts of this rank's rows, sampled from the current student."""
    with clock("sync"):  # first, so that a failing engine leaves no partial step
        setup.engine.sync_weights()
    request, teacher = generation_request(setup, rows), None
    if setup.conversations and setup.resolved.algorithm.needs_context:
        teacher = count_teacher_tokens(setup.policy, setup.contexts)
    with clock("rollout", len(rows) * setup.config.rollout.max_new_tokens):
        problems = [one.problem for one in rows]
        completions = complete(
            setup.engine, setup.conversations, problems, *request, teacher=teacher
        )
    tokens = sum(len(completion.ids) for completion in completions)
    # With off-policy steps of all rows that are sampled now.
    clock.tokens["rollout"] = sum(all_gather_objects([tokens]))
    return list(map(partial(_rollout, setup), rows, completions))


def _rollout(setup: Setup, one: PromptedRow, completion: Completion) -> Rollout:
    # Stored completions have their engine's log-probs, if any: the behavior policy is not here.
    behavior = completion.log_probs if setup.resolved.engine.is_stored else None
    _, row, problem, prompt = one
    return rollout_of(
        setup.policy.decode, row, problem, prompt, completion, behavior_log_probs=behavior
    )


def _open_off_policy_rollouts(setup: Setup) -> OffPolicyRollouts:
    def rows_of(step_index: int) -> list[PromptedRow]:
        rows = minibatch(setup, step_index)
        with setup.accelerator.split_between_processes(rows) as batch:
            return prompted_rows(setup, batch, step_index)

    def request(step_index: int) -> Request:
        return generation_request(setup, rows_of(step_index))

    def finish(step_index: int, completions: Sequence[Completion]) -> list[Rollout]:
        return list(map(partial(_rollout, setup), rows_of(step_index), completions))

    def draw(steps: Sequence[int], clock: Clock) -> list[Rollout]:
        return _draw(setup, [*chain.from_iterable(map(rows_of, steps))], clock)

    config = setup.config
    shared: dict[str, Any] = {
        "policy": setup.policy,
        "behind": config.rollout.off_policy_steps,
        "steps": config.train.steps,
        # One micro-batch, so that the measurement is one forward pass.
        "measured": config.train.row_limit,
    }
    if setup.resolved.engine.is_remote:
        return AsyncRollouts(engine=setup.engine, request=request, finish=finish, **shared)
    return BatchedRollouts(draw=draw, **shared)


def student_hidden_states(setup: Setup, rollouts: Sequence[Rollout]) -> Tensor:
    """Return states of the completions' tokens (n h) of the current policy."""
    parts = [part for rollout in rollouts for part in rollout.student_parts]
    return setup.policy.hidden_states([prompt for prompt, _ in parts], [ids for _, ids in parts])


def student_log_probs(
    setup: Setup,
    rollouts: Sequence[Rollout],
    temperature: float,
    *,
    head: nn.Linear | None = None,
    hidden: Tensor | None = None,
) -> LogProbs:
    """Return log-probs of the completions' tokens under the policy, after the student's prompt."""
    if hidden is None:
        hidden = student_hidden_states(setup, rollouts)
    tokens = completion_ids(rollouts, hidden.device)
    return fused_log_probs(hidden, head or setup.policy.lm_head, tokens, temperature=temperature)


def add_grades(setup: Setup, rollouts: Sequence[Rollout], step_index: int) -> list[Rollout]:
    """Return this rank's rollouts with their grades.

    Raises GradingError if the grader failed on those of all ranks, or said nothing of any, unless
    ``grading.stop_on_failure`` is off.
    """
    needs_answer, grading = setup.resolved.needs_answer, setup.config.grading
    grades = grade_rollouts(
        setup.grader,
        rollouts,
        [transcript_of(setup.policy, r) for r in rollouts],
        tags=setup.policy.conventions.tags,
        needs_answer=needs_answer,
    )
    found = [replace(r, grade=grade) for r, grade in zip(rollouts, grades, strict=True)]
    if not grading.stop_on_failure:
        return found
    mine = [
        (r.grade, r.problem.id, before.grade is not None)  # given by an environment
        for before, r in zip(rollouts, found, strict=True)
        if r.grade and is_gradable(before, needs_answer=needs_answer)
    ]
    every = all_gather_objects(mine)
    are_given = all(is_given for _, _, is_given in every)
    if are_given or not grading.is_off:
        environment = setup.config.conversation.environment
        who = name_of_grader(grading.grader, environment, is_given=are_given)
        given, ids = [grade for grade, _, _ in every], [name for _, name, _ in every]
        go_on = "resume the run by `paint resume`"
        require_some_grade(given, ids, who, f"step {step_index + 1}", go_on)
    return found


def set_ungraded_aside(setup: Setup, rollouts: Sequence[Rollout]) -> list[Rollout]:
    """Return this rank's rollouts that have a reward; the others are kept in ``setup.ungraded``.

    A failed call says nothing: with the reward 0 it would move the baseline of its group. Raises
    NothingGradedError, on all ranks, where too few are left to learn from.
    """
    graded: list[Rollout] = []
    setup.ungraded.clear()
    for r in rollouts:
        has_reward = r.grade is not None and r.grade.reward is not None
        (graded if has_reward else setup.ungraded).append(r)
    # Where ranks share layers, each needs a row for its passes.
    least = setup.accelerator.num_processes if is_sharded(setup.policy.base) else 1
    if len(all_gather_objects([r.row for r in graded])) < least:
        setup.ungraded[:] = rollouts
        raise NothingGradedError
    return graded


def attempts_by_row(setup: Setup, rollouts: Sequence[Rollout]) -> dict[int, Attempt]:
    """Return, by row, what the teacher may read of the completions of a step, on all ranks."""
    mine = [r.attempt for r in rollouts]
    if not setup.contexts.needs_attempts:
        return {one.row: one for one in mine}
    # By row: they come in the order of ranks, which differs with their number.
    return with_others(sorted(all_gather_objects(mine), key=lambda one: one.row))


def accumulate(
    setup: Setup, rollouts: Sequence[Rollout], score: Score, clock: Clock | None = None
) -> list[Rollout]:
    """Add up the gradient of the step's loss over micro-batches, with rows balanced over ranks.

    Returns the scored rollouts by their rows; the clock is told the share that is done.
    """
    accelerator, config = setup.accelerator, setup.config
    # Here, with the long timeout: that of the sums below, which are of tensors, is short.
    barrier()  # ranks may differ much in how long they generated
    rollouts = with_shared_beginning(rollouts)
    rollouts = balance_rows(accelerator, rollouts, config.train)
    micros = list(micro_batches(rollouts, config.train))
    missing = passes_missing(accelerator, setup.policy.base, len(micros))
    count = torch.tensor(loss_count(rollouts, config.objective), device=accelerator.device)
    # With reduction "token" it is 0 where all tokens are among objective.skip_tokens.
    total = max(int(accelerator.reduce(count, "sum")), 1)  # |B| of Algorithm 1, over all ranks

    scored: list[Rollout] = []
    passes, done = list(map(token_passes, micros)), 0.0
    for micro, own in zip(micros, passes, strict=True):
        scores = score(micro)
        if clock and len(micros) == 1:  # nothing else tells how long the step takes
            clock.portion(FORWARD)
        require_scores(config, scores[1], sum(completion_lengths(micro)))
        # A micro-batch weighs as its fraction of the step's completions or tokens.
        share = loss_count(micro, config.objective) / total
        accelerator.backward(scores[0] * share)  # ∇θ of 1/|B| Σ ℓ(x, y*)
        scored += split_scores(config, micro, scores)  # waits for the device
        done += own
        if clock:
            clock.portion(done / sum(passes))

    for _ in range(missing):  # sharded layers: every rank takes part in every pass
        accelerator.backward(0 * score(micros[-1])[0])
    return sorted(gather_on_rank0(scored), key=lambda r: r.row)


def split_scores(config: Config, micro: Sequence[Rollout], scores: Scores) -> list[Rollout]:
    """Return the rollouts with their values, which are moved to the host."""
    loss, values = scores
    lengths = completion_lengths(micro)
    # One transfer for all values, since each waits for the device. Wider floats change nothing.
    columns = [*values.values(), loss.expand(sum(lengths))]
    kind = reduce(torch.promote_types, (column.dtype for column in columns))
    table = torch.stack([column.detach().to(kind) for column in columns]).tolist()
    require_finite(config, zip([*values, "loss"], table, strict=True))

    scored: list[Rollout] = []
    start = 0
    for rollout, length in zip(micro, lengths, strict=True):
        pairs = zip(values, table[:-1], strict=True)
        tokens = {name: row[start : start + length] for name, row in pairs}
        scored.append(replace(rollout, tokens=tokens))
        start += length
    return scored


def update(setup: Setup, step_index: int) -> float:
    """Update student and teacher by the accumulated gradient; return its norm before clipping."""
    trainable, config = setup.policy.trainable, setup.config
    sum_gradients(setup.accelerator, trainable)
    # After the sum: the norm is of the complete step, whatever the ranks and micro-batches.
    norm = torch.nn.utils.clip_grad_norm_(trainable, config.train.max_grad_norm)
    if not torch.isfinite(norm):
        raise NonFiniteError(
            f"step {step_index + 1}: the gradient is not finite (norm {norm}), and nothing was "
            f"updated by it; start a new run with a lower train.learning_rate or with "
            f"model.dtype float32"
        )

    # A function of the step, so that no checkpoint needs the state of a schedule.
    rate = learning_rate(setup.resolved.optimizer, config.train, step_index)
    set_learning_rate(setup.optimizer, rate)
    with extension_errors("train.optimizer", config.train.optimizer):
        try:
            setup.optimizer.step()
        except RuntimeError as error:
            if "without overflow" not in str(error):
                raise
            raise NonFiniteError(
                f"step {step_index + 1}: the update is not a number of 32 bits; start a new run "
                f"with a lower train.learning_rate or train.weight_decay"
            ) from error
        setup.optimizer.zero_grad()
    setup.teacher.follow(step_index + 1)
    return float(norm)


def learn(
    setup: Setup, rollouts: Sequence[Rollout], score: Score, step_index: int, clock: Clock
) -> StepResult:
    """Update on these rollouts, unless engine and trainer disagree on them."""
    with clock("loss"):
        scored = accumulate(setup, rollouts, score, clock)
        # Before the update, so that nothing is learned from another policy's tokens (D7).
        check_logprob_mismatch(scored, setup.config.rollout.max_logprob_mismatch, step_index + 1)
    with clock("update"):
        return scored, update(setup, step_index)


def completion_lengths(rollouts: Sequence[Rollout]) -> list[int]:
    return [len(rollout.completion.ids) for rollout in rollouts]


def completion_ids(rollouts: Sequence[Rollout], device: torch.device) -> Tensor:
    """Return the token ids of all completions, concatenated (n)."""
    return to_device([i for rollout in rollouts for i in rollout.completion.ids], device)


def loss_count(rollouts: Sequence[Rollout], options: ObjectiveConfig) -> int:
    """Return over how many the loss is a mean: completions, or tokens that count in the loss."""
    if options.reduction == "completion":
        return len(rollouts)
    return sum(max(length - options.skip_tokens, 0) for length in completion_lengths(rollouts))
