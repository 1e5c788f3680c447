"""The parts of a training step that algorithms share: rollouts, micro-batches and the update.

An algorithm's ``step`` (paint.algorithms) scores completions. The functions here sample them,
accumulate the gradient and update the student. The loss does not depend on micro-batches or ranks.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from accelerate import Accelerator
from torch import Tensor, nn

from paint.algorithms.base import Algorithm, find_algorithm
from paint.config.schema import Config
from paint.core.display import Clock
from paint.core.distributed import barrier, gather_on_rank0, sum_gradients
from paint.core.errors import NonFiniteError
from paint.data.problems import Problem, item_of
from paint.grading.base import Grade, Grader
from paint.inference.engine import Engine, Sampling, derive_seed, sampling_from
from paint.models.policy import Policy
from paint.models.sharding import passes_missing
from paint.models.teacher import Teacher
from paint.objective.fused import LogProbs, fused_log_probs
from paint.objective.options import ObjectiveConfig
from paint.training.async_rollouts import AsyncRollouts
from paint.training.load_balancing import balance_rows, micro_batches
from paint.training.optim import learning_rate
from paint.training.rollouts import Rollout, ScoredRollout


@dataclass(frozen=True)
class Setup:
    """The model, data and services that a training step uses."""

    config: Config
    policy: Policy
    teacher: Teacher
    problems: Sequence[Problem]
    engine: Engine
    optimizer: torch.optim.Optimizer
    accelerator: Accelerator
    grader: Grader
    async_rollouts: AsyncRollouts | None = None

    @property
    def algorithm(self) -> Algorithm:
        """The algorithm that ``train.method`` names."""
        return find_algorithm(self.config.train.method)


Batch = Sequence[tuple[int, Problem]]
"""A rank's rows of a minibatch: place in the minibatch, and problem."""

Score = Callable[[Sequence[Rollout]], tuple[Tensor, dict[str, Tensor]]]
"""The mean loss of a micro-batch by ``objective.reduction``, and its values token by token.

The tokens of all completions are laid end to end.
"""


def generate_rollouts(setup: Setup, batch: Batch, step_index: int, clock: Clock) -> list[Rollout]:
    """One completion of the current student for every row; with steps ahead, of an earlier one.

    Source: Algorithm 1, 'Sample one student rollout'.
    """
    policy, ahead = setup.policy, setup.async_rollouts
    asked = prompts, _, _ = generation_request(setup, batch, step_index)

    if ahead is None:
        with clock("adopt"):  # first, so that an engine which fails finds no step half done
            setup.engine.sync_weights()
        with clock("rollout"):
            completions = setup.engine.generate(*asked)
    else:
        with clock("wait"):
            completions = ahead.get(step_index)
        with clock("ask"):
            ahead.submit(step_index)

    rollouts = [
        Rollout(row, problem, prompt, completion, policy.decode(completion.ids))
        for (row, problem), prompt, completion in zip(batch, prompts, completions, strict=True)
    ]
    if ahead is None:
        return rollouts
    with clock("author"):
        return ahead.score_under_behavior_policy(rollouts, step_index)


def generation_request(
    setup: Setup, batch: Batch, step_index: int
) -> tuple[list[list[int]], Sampling, list[int]]:
    """What an engine is asked for in a step: prompts, sampling, seeds."""
    config = setup.config
    prompts = [setup.policy.student_prompt(problem.problem) for _, problem in batch]
    seeds = [derive_seed(config.train.seed, step_index, row) for row, _ in batch]
    return prompts, sampling_from(config.rollout), seeds


def student_log_probs(
    setup: Setup, rollouts: Sequence[Rollout], temperature: float, *, head: nn.Linear | None = None
) -> LogProbs:
    """Log-probs of the completions' tokens under the current policy, after the student's prompt."""
    prompts = [rollout.prompt for rollout in rollouts]
    completions = [rollout.completion.ids for rollout in rollouts]
    hidden = setup.policy.hidden_states(prompts, completions)
    tokens = completion_ids(rollouts, hidden.device)
    return fused_log_probs(hidden, head or setup.policy.lm_head, tokens, temperature=temperature)


def grade_rollouts(setup: Setup, rollouts: Sequence[Rollout]) -> list[Grade]:
    """The grade of each completion."""
    transcript = setup.policy.transcript
    items = [
        item_of(r.problem, transcript(r.prompt, r.completion.ids), truncated=r.completion.truncated)
        for r in rollouts
    ]
    return list(setup.grader.grade(items))


def accumulate(setup: Setup, rollouts: Sequence[Rollout], score: Score) -> list[ScoredRollout]:
    """The gradient of the whole step's loss, micro-batch by micro-batch, on ranks of equal work.

    Returns the scored rollouts in the order of their rows: on the first rank those of all ranks, on
    the others their own.
    """
    config = setup.config
    barrier()  # one rank may have generated for much longer than another
    rollouts = balance_rows(setup.accelerator, rollouts, setup.policy, config)
    total = global_counts(setup.accelerator, rollouts, config.objective)

    scored: list[ScoredRollout] = []
    micros = list(micro_batches(rollouts, config))
    missing = passes_missing(setup.accelerator, setup.policy.base, len(micros))
    for micro in micros:
        loss, values = score(micro)
        setup.accelerator.backward(loss * micro_batch_weight(micro, total, config.objective))

        columns = {name: column.split(completion_lengths(micro)) for name, column in values.items()}
        for i, rollout in enumerate(micro):
            tokens = {name: parts[i].tolist() for name, parts in columns.items()}
            scored.append(ScoredRollout(rollout, tokens))

    for _ in range(missing):  # the other ranks need this one's part of the layers
        setup.accelerator.backward(0 * score(micros[-1])[0])
    return sorted(gather_on_rank0(scored), key=lambda item: item.rollout.row)


def update(setup: Setup, step_index: int) -> float:
    """One step of the optimizer with the accumulated gradient; the teacher follows.

    Returns the norm of the gradient before it was scaled down.

    Raises:
        NonFiniteError: the gradient is not finite; nothing was updated.
    """
    trainable, config = setup.policy.trainable, setup.config
    sum_gradients(setup.accelerator, trainable)
    norm = torch.nn.utils.clip_grad_norm_(trainable, config.train.max_grad_norm)
    if not torch.isfinite(norm):
        raise NonFiniteError(
            f"step {step_index + 1}: the gradient is not finite (norm {norm}), and nothing was "
            f"updated by it; start a new run with a lower train.learning_rate or with "
            f"model.dtype float32"
        )

    for group in setup.optimizer.param_groups:
        group["lr"] = learning_rate(config.train, step_index)
    setup.optimizer.step()
    setup.optimizer.zero_grad()
    setup.teacher.follow()
    return float(norm)


def is_whole_step(setup: Setup, steps: int) -> bool:
    """Whether the optimizer has taken all updates of so many steps, and no further one."""
    states = setup.optimizer.state.values()
    updates = setup.algorithm.updates_per_batch(setup.config)
    return max((int(state["step"]) for state in states), default=0) == steps * updates


def completion_lengths(rollouts: Sequence[Rollout]) -> list[int]:
    """Completion tokens of each rollout."""
    return [len(rollout.completion.ids) for rollout in rollouts]


def completion_ids(rollouts: Sequence[Rollout], device: torch.device) -> Tensor:
    """The completions' token ids, laid end to end (n)."""
    return torch.tensor([i for rollout in rollouts for i in rollout.completion.ids], device=device)


def global_counts(
    accelerator: Accelerator, rollouts: Sequence[Rollout], options: ObjectiveConfig
) -> tuple[int, int]:
    """Completions and weighed tokens of the whole optimizer step, over all ranks."""
    counts = torch.tensor(
        [len(rollouts), loss_tokens(rollouts, options)], device=accelerator.device
    )
    completions, tokens = accelerator.reduce(counts, "sum").tolist()
    return completions, tokens


def micro_batch_weight(
    micro: Sequence[Rollout], total: tuple[int, int], options: ObjectiveConfig
) -> float:
    """The weight of a micro-batch's mean loss in the step's: its share of completions or tokens."""
    completions, tokens = total
    if options.reduction == "token":
        return loss_tokens(micro, options) / max(tokens, 1)
    return len(micro) / completions


def loss_tokens(rollouts: Sequence[Rollout], options: ObjectiveConfig) -> int:
    """Completion tokens that are not left out of the loss."""
    return sum(max(length - options.skip_tokens, 0) for length in completion_lengths(rollouts))
