"""What the steps of all methods share: completions to learn from, micro-batches, one update over all ranks.

A method's step (``train.step``, ``baselines.grpo_step``, ``baselines.sft_step``) says what is learnt from a completion;
here stands how that becomes a step of the optimizer: the same loss whatever the micro-batches and ranks.

Left out: gradient hooks and wrappers for data parallelism; gradients are summed over ranks once a step.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from accelerate import Accelerator
from accelerate.utils import gather_object
from torch import Tensor

from paint import Diverged
from paint.config import Config
from paint.data.problems import Problem
from paint.display import Clock
from paint.engines.protocol import Engine, sampling_of, seed_of
from paint.grading.grader import Grader
from paint.model.policy import Policy
from paint.model.teacher import Teacher
from paint.ranks import sum_gradients
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


Batch = Sequence[tuple[int, Problem]]
"""A rank's rows of a minibatch: place in the minibatch, and problem."""

Step = Callable[[Setup, Batch, int, Clock], tuple[list[Scored], float]]
"""One update of the student. Returns the rollouts of all ranks with their values, in the order of their rows, and the
norm of the gradient before it was scaled down."""

Score = Callable[[Sequence[Rollout]], tuple[Tensor, dict[str, Tensor]]]
"""The mean loss of a micro-batch by ``objective.reduction``, and its per-token values, completions laid end to end."""


def generate_rollouts(setup: Setup, batch: Batch, step_index: int, clock: Clock) -> list[Rollout]:
    """One completion of the current student for every row (paper: Algorithm 1, 'Sample one student rollout')."""
    config, policy = setup.config, setup.policy
    with clock("adopt"):  # first, so that an engine which fails finds no step half done
        setup.engine.adopt()
    with clock("rollout"):
        prompts = [policy.student_prompt(problem.problem) for _, problem in batch]
        seeds = [seed_of(config.train.seed, step_index, row) for row, _ in batch]
        completions = setup.engine.generate(prompts, sampling_of(config.rollout), seeds)
    return [
        Rollout(row, problem, prompt, completion, policy.decode(completion.ids))
        for (row, problem), prompt, completion in zip(batch, prompts, completions, strict=True)
    ]


def accumulate(setup: Setup, rollouts: Sequence[Rollout], score: Score) -> list[Scored]:
    """The gradient of the whole step's loss, micro-batch by micro-batch; the scored rollouts of all ranks, in order."""
    config = setup.config
    total = totals(setup.accelerator, rollouts)
    scored: list[Scored] = []
    for micro in micro_batches(rollouts, config.train.micro_batch_size):
        loss, values = score(micro)
        setup.accelerator.backward(loss * share(micro, total, config.objective.reduction))
        columns = {name: column.split(lengths_of(micro)) for name, column in values.items()}
        scored += [
            Scored(rollout, {name: parts[i].tolist() for name, parts in columns.items()})
            for i, rollout in enumerate(micro)
        ]
    return sorted(gather_object(scored), key=lambda item: item.rollout.row)


def update(setup: Setup, step_index: int) -> float:
    """One step of the optimizer with the accumulated gradient, whose norm is returned; the teacher follows.

    Raises:
        Diverged: the gradient is not finite; nothing was updated.
    """
    trainable, config = setup.policy.trainable, setup.config
    sum_gradients(setup.accelerator, trainable)
    norm = torch.nn.utils.clip_grad_norm_(trainable, config.train.max_grad_norm)
    if not torch.isfinite(norm):
        raise Diverged(
            f"step {step_index + 1}: the gradient is not finite (norm {norm}), and nothing was updated by it; "
            f"start a new run with a lower train.learning_rate or with model.dtype float32"
        )
    for group in setup.optimizer.param_groups:
        group["lr"] = learning_rate(config, step_index)
    setup.optimizer.step()
    setup.optimizer.zero_grad()
    setup.teacher.follow()
    return float(norm)


def is_whole_step(setup: Setup, steps: int) -> bool:
    """Whether the optimizer has taken what so many whole steps take: GRPO may take several on the same completions."""
    config, states = setup.config, setup.optimizer.state.values()
    each = config.grpo.iterations if config.train.method == "grpo" else 1
    return max((int(state["step"]) for state in states), default=0) == steps * each


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


def micro_batches(rollouts: Sequence[Rollout], size: int) -> Iterator[list[Rollout]]:
    """Groups of similar length: little padding, and the same sum whatever the grouping."""

    def length(rollout: Rollout) -> int:
        return len(rollout.view.prompt if rollout.view else rollout.prompt) + len(rollout.completion.ids)

    ordered = sorted(rollouts, key=length, reverse=True)
    for i in range(0, len(ordered), size):
        yield ordered[i : i + size]


def totals(accelerator: Accelerator, rollouts: Sequence[Rollout]) -> tuple[int, int]:
    """Completions and completion tokens of the whole optimizer step, over all ranks."""
    counts = torch.tensor([len(rollouts), sum(lengths_of(rollouts))], device=accelerator.device)
    completions, tokens = accelerator.reduce(counts, "sum").tolist()
    return completions, tokens


def share(micro: Sequence[Rollout], total: tuple[int, int], reduction: str) -> float:
    """What a micro-batch's mean loss counts for in the step's: its share of the completions, or of the tokens."""
    if reduction == "token":
        return sum(lengths_of(micro)) / total[1]
    return len(micro) / total[0]
