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
from paint.data import Problem
from paint.display import Clock
from paint.grading import Grader
from paint.policy import Policy
from paint.rollout import Engine, Rollout, Sampling, Scored, seed_of
from paint.teacher import Teacher
from paint.validation import Validation


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
    validation: Validation | None


MESSAGE = 2**26  # numbers

Batch = Sequence[tuple[int, Problem]]
"""A rank's rows of a minibatch: place in the minibatch, and problem."""

Step = Callable[[Setup, Batch, int, Clock], tuple[list[Scored], float]]
"""One update of the student. Returns the rollouts of all ranks with their values, in the order of their rows, and the
norm of the gradient before it was scaled down."""

Score = Callable[[Sequence[Rollout]], tuple[Tensor, dict[str, Tensor]]]
"""The mean loss of a micro-batch by ``objective.reduction``, and its per-token values, completions laid end to end."""


def sample(setup: Setup, batch: Batch, number: int, clock: Clock) -> list[Rollout]:
    """One completion of the current student for every row (paper: Algorithm 1, 'Sample one student rollout')."""
    config, policy = setup.config, setup.policy
    with clock("adopt"):  # first, so that an engine which fails finds no step half done
        setup.engine.adopt()
    with clock("rollout"):
        prompts = [policy.student_prompt(problem.problem) for _, problem in batch]
        seeds = [seed_of(config.train.seed, number, row) for row, _ in batch]
        completions = setup.engine.generate(prompts, sampling_of(config), seeds)
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


def update(setup: Setup, number: int) -> float:
    """One step of the optimizer with the accumulated gradient, whose norm is returned; the teacher follows.

    Raises:
        Diverged: the gradient is not finite; nothing was updated.
    """
    trainable, config = setup.policy.trainable, setup.config
    sum_over_ranks(setup.accelerator, trainable)
    norm = torch.nn.utils.clip_grad_norm_(trainable, config.train.max_grad_norm)
    if not torch.isfinite(norm):
        raise Diverged(
            f"step {number + 1}: the gradient is not finite (norm {norm}), and nothing was updated by it; "
            f"start a new run with a lower train.learning_rate or with model.dtype float32"
        )
    for group in setup.optimizer.param_groups:
        group["lr"] = learning_rate(config, number)
    setup.optimizer.step()
    setup.optimizer.zero_grad()
    setup.teacher.follow()
    return float(norm)


def stands_after(setup: Setup, steps: int) -> bool:
    """Whether the optimizer has taken what so many whole steps take: GRPO may take several on the same completions."""
    config, states = setup.config, setup.optimizer.state.values()
    each = config.grpo.iterations if config.train.method == "grpo" else 1
    return max((int(state["step"]) for state in states), default=0) == steps * each


def sampling_of(config: Config) -> Sampling:
    """How training rollouts are drawn (paper: section 'Experimental Details')."""
    rollout = config.rollout
    return Sampling(rollout.temperature, rollout.top_p, rollout.top_k, rollout.max_new_tokens)


def learning_rate(config: Config, number: int) -> float:
    """Linear warm-up, then constant: lr · min(1, (step + 1) / warmup_steps)."""
    warmup = config.train.warmup_steps
    return config.train.learning_rate * (min(1.0, (number + 1) / warmup) if warmup else 1.0)


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


def sum_over_ranks(accelerator: Accelerator, parameters: Sequence[torch.nn.Parameter]) -> None:
    """Add the ranks' gradients, many in one message."""
    if accelerator.num_processes == 1:
        return
    for group in _groups(parameters):
        grads = [p.grad if p.grad is not None else torch.zeros_like(p) for p in group]
        flat = accelerator.reduce(torch.cat([grad.flatten() for grad in grads]), "sum")
        for parameter, part in zip(group, flat.split([p.numel() for p in group]), strict=True):
            parameter.grad = part.view_as(parameter)


def _groups(parameters: Sequence[torch.nn.Parameter]) -> Iterator[list[torch.nn.Parameter]]:
    """Neighbours of MESSAGE numbers together, or a larger one by itself: a message is copied twice."""
    group: list[torch.nn.Parameter] = []
    for parameter in parameters:
        if group and sum(p.numel() for p in group) + parameter.numel() > MESSAGE:
            yield group
            group = []
        group.append(parameter)
    yield group
