"""Load balancing: assignment of a step's rows to ranks and micro-batches by estimated FLOPs.

Row lengths differ by large factors, and a step takes as long as its slowest rank. The result does
not depend on the assignment, since every row has its weight in the whole step.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from accelerate import Accelerator

from paint.config.schema import Config, TrainConfig
from paint.core.distributed import all_gather_objects
from paint.models.policy import Policy
from paint.training.rollouts import Rollout


@dataclass(frozen=True)
class CostModel:
    """FLOPs of forward and backward passes over one row.

    Attributes:
        weights: weights of the decoder's matrices, each multiplied once a token in a forward pass.
        attention: layers x heads x head size.
        head: number of weights in the projection onto the vocabulary.
        is_full: whether all weights are trained and have gradients.
        recomputes: whether a backward pass repeats the forward pass (gradient checkpointing).
        packed: whether rows are packed instead of padded.
    """

    weights: int
    attention: int
    head: int
    is_full: bool
    recomputes: bool
    packed: bool

    def forward(self, tokens: int) -> int:
        """FLOPs of a causal forward pass over one row."""
        return 2 * self.weights * tokens + 2 * self.attention * tokens**2

    def backward(self, tokens: int) -> int:
        """FLOPs of the backward pass over one row."""
        # Attention counts twice, and so do matrices that are trained.
        matrices = 2 * self.weights * tokens * (2 if self.is_full else 1)
        again = self.forward(tokens) if self.recomputes else 0
        return matrices + 4 * self.attention * tokens**2 + again


def cost_model(policy: Policy, *, recomputes: bool) -> CostModel:
    """Build the cost model of a policy from its weights."""
    base, shape = policy.base, policy.base.config.get_text_config()
    embedding = base.get_input_embeddings().weight
    heads = shape.num_attention_heads
    head_size = getattr(shape, "head_dim", None) or shape.hidden_size // heads
    return CostModel(
        weights=sum(p.numel() for p in base.get_decoder().parameters() if p is not embedding),
        attention=shape.num_hidden_layers * heads * head_size,
        head=policy.lm_head.weight.numel(),
        is_full=policy.tuning == "full",
        recomputes=recomputes,
        packed=policy.packed,
    )


def balance_rows(
    accelerator: Accelerator, rollouts: Sequence[Rollout], policy: Policy, config: Config
) -> list[Rollout]:
    """Return this rank's part of the rollouts of all ranks, balanced by cost."""
    if accelerator.num_processes == 1:
        return list(rollouts)
    all_rollouts, ranks = all_gather_objects(list(rollouts)), accelerator.num_processes
    model = cost_model(policy, recomputes=config.model.gradient_checkpointing is True)
    return assign_rows(all_rollouts, ranks, model, config.train)[accelerator.process_index]


def assign_rows(
    rollouts: Sequence[Rollout], ranks: int, model: CostModel, limits: TrainConfig
) -> list[list[Rollout]]:
    """Assign rollouts to ranks greedily: the most expensive first, each to the rank it loads least.

    Every rank gets a rollout if there are enough. The result does not depend on the input order.
    """

    def cost(part: Sequence[Rollout]) -> int:
        return sum(flops(micro, model) for micro in micro_batches(part, limits, model.packed))

    assigned: list[list[Rollout]] = [[] for _ in range(ranks)]
    for rollout in sorted(rollouts, key=lambda r: (-cost([r]), r.row)):
        min(assigned, key=lambda part: cost([*part, rollout])).append(rollout)
    return assigned


def flops(micro: Sequence[Rollout], model: CostModel) -> int:
    """FLOPs of a micro-batch: passes of student and teacher with padding, and the loss."""
    # The loss costs three matmuls per completion token; it has no padding (paint.objective.fused).
    if model.packed and len(micro) > 1:
        return sum(flops([rollout], model) for rollout in micro)
    student, teacher = (max(widths) for widths in zip(*map(_widths, micro), strict=True))
    passes = model.forward(student) + model.backward(student) + model.forward(teacher)
    return len(micro) * passes + 6 * model.head * sum(len(r.completion.ids) for r in micro)


def micro_batches(
    rollouts: Sequence[Rollout], limits: TrainConfig, packed: bool
) -> Iterator[list[Rollout]]:
    """Group rollouts of similar length, the longest first, so that there is little padding.

    A group has at most ``train.micro_batch_size`` rows and ``train.micro_batch_tokens`` tokens,
    padding included unless it is packed. A row over that limit is a group by itself.
    """
    group: list[Rollout] = []
    for rollout in sorted(rollouts, key=lambda r: max(_widths(r)), reverse=True):
        extended = [*group, rollout]
        widths = [max(_widths(r)) for r in extended]
        tokens = sum(widths) if packed else len(widths) * widths[0]
        is_over = tokens > limits.token_limit or len(extended) > limits.micro_batch_size
        if group and is_over:
            yield group
            extended = [rollout]
        group = extended
    if group:
        yield group


def _widths(rollout: Rollout) -> tuple[int, int]:
    """Tokens of the student's sequence, and of the teacher's; 0 without a teacher."""
    completion, teacher = len(rollout.completion.ids), rollout.teacher_prompt
    return len(rollout.prompt) + completion, len(teacher.prompt) + completion if teacher else 0
