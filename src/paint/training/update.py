"""What the steps of all methods share: rollouts, micro-batches, one update over all ranks.

A method's step (``paint.step``, ``paint.baselines``) says what is learnt from a completion. This
module makes a step of the optimizer of it: the same loss, whatever the micro-batches and ranks.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from accelerate import Accelerator
from torch import Tensor

from paint.config import Config
from paint.data.problems import Problem, item_of
from paint.display import Clock
from paint.engines.protocol import Engine, Sampling, sampling_of, seed_of
from paint.errors import Diverged
from paint.grading.base import Grade, Grader
from paint.model.policy import Policy
from paint.model.sharding import passes_missing
from paint.model.teacher import Teacher
from paint.options import Objective
from paint.ranks import gathered_on_first, meet, sum_gradients
from paint.training.ahead import Ahead
from paint.training.dealing import deal, micro_batches
from paint.training.rollouts import Rollout, Scored


@dataclass(frozen=True)
class Setup:
    """What a step works with."""

    config: Config
    policy: Policy
    teacher: Teacher
    problems: Sequence[Problem]
    engine: Engine
    optimizer: torch.optim.Optimizer
    accelerator: Accelerator
    grader: Grader
    ahead: Ahead | None = None


Batch = Sequence[tuple[int, Problem]]
"""A rank's rows of a minibatch: place in the minibatch, and problem."""

Step = Callable[[Setup, Batch, int, Clock], tuple[list[Scored], float]]
"""One update of the student.

Returns the rollouts with their values, in the order of their rows (on the first rank those of all
ranks), and the norm of the gradient before it was scaled down.
"""

Score = Callable[[Sequence[Rollout]], tuple[Tensor, dict[str, Tensor]]]
"""The mean loss of a micro-batch by ``objective.reduction``, and its values token by token.

The tokens of all completions are laid end to end.
"""


def generate_rollouts(setup: Setup, batch: Batch, step_index: int, clock: Clock) -> list[Rollout]:
    """One completion of the current student for every row; with steps ahead, of an earlier one.

    Source: Algorithm 1, 'Sample one student rollout'.
    """
    policy, ahead = setup.policy, setup.ahead
    asked = prompts, _, _ = wanted(setup, batch, step_index)

    if ahead is None:
        with clock("adopt"):  # first, so that an engine which fails finds no step half done
            setup.engine.adopt()
        with clock("rollout"):
            completions = setup.engine.generate(*asked)
    else:
        with clock("wait"):
            completions = ahead.take(step_index)
        with clock("ask"):
            ahead.ask(step_index)

    rollouts = [
        Rollout(row, problem, prompt, completion, policy.decode(completion.ids))
        for (row, problem), prompt, completion in zip(batch, prompts, completions, strict=True)
    ]
    if ahead is None:
        return rollouts
    with clock("author"):
        return ahead.measure(rollouts, step_index)


def wanted(
    setup: Setup, batch: Batch, step_index: int
) -> tuple[list[list[int]], Sampling, list[int]]:
    """What an engine is asked for in a step: prompts, sampling, seeds."""
    config = setup.config
    prompts = [setup.policy.student_prompt(problem.problem) for _, problem in batch]
    seeds = [seed_of(config.train.seed, step_index, row) for row, _ in batch]
    return prompts, sampling_of(config.rollout), seeds


def grade_rollouts(setup: Setup, rollouts: Sequence[Rollout]) -> list[Grade]:
    """The grade of each completion."""
    transcript = setup.policy.transcript
    items = [
        item_of(r.problem, transcript(r.prompt, r.completion.ids), truncated=r.completion.truncated)
        for r in rollouts
    ]
    return list(setup.grader.grade(items))


def accumulate(setup: Setup, rollouts: Sequence[Rollout], score: Score) -> list[Scored]:
    """The gradient of the whole step's loss, micro-batch by micro-batch, on ranks of equal work.

    Returns the scored rollouts in the order of their rows: on the first rank those of all ranks, on
    the others their own.
    """
    config = setup.config
    meet()  # one rank may have generated for much longer than another
    rollouts = deal(setup.accelerator, rollouts, setup.policy, config)
    total = totals(setup.accelerator, rollouts, config.objective)

    scored: list[Scored] = []
    micros = list(micro_batches(rollouts, config))
    missing = passes_missing(setup.accelerator, setup.policy.base, len(micros))
    for micro in micros:
        loss, values = score(micro)
        setup.accelerator.backward(loss * share(micro, total, config.objective))

        columns = {name: column.split(lengths_of(micro)) for name, column in values.items()}
        for i, rollout in enumerate(micro):
            tokens = {name: parts[i].tolist() for name, parts in columns.items()}
            scored.append(Scored(rollout, tokens))

    for _ in range(missing):  # the other ranks need this one's part of the layers
        setup.accelerator.backward(0 * score(micros[-1])[0])
    return sorted(gathered_on_first(scored), key=lambda item: item.rollout.row)


def update(setup: Setup, step_index: int) -> float:
    """One step of the optimizer with the accumulated gradient; the teacher follows.

    Returns the norm of the gradient before it was scaled down.

    Raises:
        Diverged: the gradient is not finite; nothing was updated.
    """
    trainable, config = setup.policy.trainable, setup.config
    sum_gradients(setup.accelerator, trainable)
    norm = torch.nn.utils.clip_grad_norm_(trainable, config.train.max_grad_norm)
    if not torch.isfinite(norm):
        raise Diverged(
            f"step {step_index + 1}: the gradient is not finite (norm {norm}), and nothing was "
            f"updated by it; start a new run with a lower train.learning_rate or with "
            f"model.dtype float32"
        )

    for group in setup.optimizer.param_groups:
        group["lr"] = learning_rate(config, step_index)
    setup.optimizer.step()
    setup.optimizer.zero_grad()
    setup.teacher.follow()
    return float(norm)


def is_whole_step(setup: Setup, steps: int) -> bool:
    """Whether the optimizer stands after so many whole steps.

    GRPO may take several updates on the same completions; the optimizer counts each.
    """
    config, states = setup.config, setup.optimizer.state.values()
    updates = config.grpo.iterations if config.train.method == "grpo" else 1
    return max((int(state["step"]) for state in states), default=0) == steps * updates


def learning_rate(config: Config, step_index: int) -> float:
    """Linear warm-up, then constant: lr · min(1, (step + 1) / warmup_steps)."""
    warmup = config.train.warmup_steps
    return config.train.learning_rate * (min(1.0, (step_index + 1) / warmup) if warmup else 1.0)


def lengths_of(rollouts: Sequence[Rollout]) -> list[int]:
    """Completion tokens of each rollout."""
    return [len(rollout.completion.ids) for rollout in rollouts]


def completion_ids(rollouts: Sequence[Rollout], device: torch.device) -> Tensor:
    """The completions' token ids, laid end to end (n)."""
    return torch.tensor([i for rollout in rollouts for i in rollout.completion.ids], device=device)


def totals(
    accelerator: Accelerator, rollouts: Sequence[Rollout], options: Objective
) -> tuple[int, int]:
    """Completions and weighed tokens of the whole optimizer step, over all ranks."""
    counts = torch.tensor(
        [len(rollouts), weighed_tokens(rollouts, options)], device=accelerator.device
    )
    completions, tokens = accelerator.reduce(counts, "sum").tolist()
    return completions, tokens


def share(micro: Sequence[Rollout], total: tuple[int, int], options: Objective) -> float:
    """The weight of a micro-batch's mean loss in the step's: its share of completions or tokens."""
    completions, tokens = total
    if options.reduction == "token":
        return weighed_tokens(micro, options) / max(tokens, 1)
    return len(micro) / completions


def weighed_tokens(rollouts: Sequence[Rollout], options: Objective) -> int:
    """Completion tokens that are not left out of the loss."""
    return sum(max(length - options.skip_tokens, 0) for length in lengths_of(rollouts))
