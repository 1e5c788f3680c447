"""Who computes which rows of a step, and which of them at once.

Rows differ in length many times over, and a step takes as long as its slowest rank. So rows are
dealt by what they cost, after they were generated. Loss, gradient, figures and files are the same
whatever the dealing: every row weighs by its share of the whole step (paint.training.train_step).

Left out on purpose: dealing by seconds that were measured. Ranks of one kind are taken for granted.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from accelerate import Accelerator

from paint.config.schema import Config
from paint.core.distributed import all_gather_objects
from paint.models.policy import Policy
from paint.training.rollouts import Rollout


@dataclass(frozen=True)
class CostModel:
    """What decides how much one row costs beside another.

    Attributes:
        weights: of the decoder's matrices, each multiplied once a token in a forward pass.
        attention: layers x heads x size of a head.
        head: weights of the projection onto the vocabulary.
        is_full: every weight is trained, and gets a gradient of its own.
        recomputes: a backward pass begins with another forward pass.
        packed: rows are not padded.
    """

    weights: int
    attention: int
    head: int
    is_full: bool
    recomputes: bool
    packed: bool = False

    def forward(self, tokens: int) -> int:
        """FLOPs of a causal forward pass over one row."""
        return 2 * self.weights * tokens + 2 * self.attention * tokens**2

    def backward(self, tokens: int) -> int:
        """Of its backward pass: attention twice, and weights twice where they are trained."""
        matrices = 2 * self.weights * tokens * (2 if self.is_full else 1)
        again = self.forward(tokens) if self.recomputes else 0
        return matrices + 4 * self.attention * tokens**2 + again


def cost_model(policy: Policy, config: Config) -> CostModel:
    """What the policy's weights and its config say."""
    base, shape = policy.base, policy.base.config.get_text_config()
    embedding = base.get_input_embeddings().weight
    heads = shape.num_attention_heads
    head_size = getattr(shape, "head_dim", None) or shape.hidden_size // heads
    return CostModel(
        weights=sum(p.numel() for p in base.get_decoder().parameters() if p is not embedding),
        attention=shape.num_hidden_layers * heads * head_size,
        head=policy.lm_head.weight.numel(),
        is_full=config.model.train_mode == "full",
        recomputes=config.model.gradient_checkpointing,
        packed=config.model.packed,
    )


def balance_rows(
    accelerator: Accelerator, rollouts: Sequence[Rollout], policy: Policy, config: Config
) -> list[Rollout]:
    """This rank's share of the rollouts of all ranks, so that all compute for about as long."""
    if accelerator.num_processes == 1:
        return list(rollouts)

    all_rollouts, ranks = all_gather_objects(list(rollouts)), accelerator.num_processes
    dealt = assign_rows(all_rollouts, ranks, cost_model(policy, config), config)
    return dealt[accelerator.process_index]


def assign_rows(
    rollouts: Sequence[Rollout], ranks: int, model: CostModel, config: Config
) -> list[list[Rollout]]:
    """Rollouts dealt to ranks: the costliest first, each to where all is soonest done.

    Every rank gets one where there are enough. The same rollouts are dealt alike, in any order.
    """

    def cost(share: Sequence[Rollout]) -> int:
        return sum(flops(micro, model) for micro in micro_batches(share, config))

    dealt: list[list[Rollout]] = [[] for _ in range(ranks)]
    for rollout in sorted(rollouts, key=lambda r: (-cost([r]), r.row)):
        min(dealt, key=lambda share: cost([*share, rollout])).append(rollout)
    return dealt


def flops(micro: Sequence[Rollout], model: CostModel) -> int:
    """What a micro-batch costs with its padding: both views' passes, and the loss's products.

    Those are three for each token of a completion (paint.objective.fused), which is never padded
    there.
    """
    if model.packed and len(micro) > 1:
        return sum(flops([rollout], model) for rollout in micro)

    student = max(len(r.prompt) + len(r.completion.ids) for r in micro)
    teacher = max(
        (len(r.teacher_prompt.prompt) + len(r.completion.ids) for r in micro if r.teacher_prompt),
        default=0,
    )
    passes = model.forward(student) + model.backward(student) + model.forward(teacher)
    return len(micro) * passes + 6 * model.head * sum(len(r.completion.ids) for r in micro)


def micro_batches(rollouts: Sequence[Rollout], config: Config) -> Iterator[list[Rollout]]:
    """Groups of similar length, the longest first: little padding.

    A group has at most ``train.micro_batch_size`` rows and ``train.micro_batch_tokens`` tokens with
    its padding; a longer row is alone.
    """
    group: list[Rollout] = []
    for rollout in sorted(rollouts, key=rollout_tokens, reverse=True):
        grown = [*group, rollout]
        widths = [rollout_tokens(r) for r in grown]
        tokens = sum(widths) if config.model.packed else len(widths) * widths[0]
        is_over = tokens > config.train.micro_batch_tokens
        if group and (is_over or len(grown) > config.train.micro_batch_size):
            yield group
            grown = [rollout]
        group = grown
    if group:
        yield group


def rollout_tokens(rollout: Rollout) -> int:
    """Tokens of the longer view: the student's, or the teacher's where there is one."""
    prompts = [rollout.prompt, *([rollout.teacher_prompt.prompt] if rollout.teacher_prompt else [])]
    return max(map(len, prompts)) + len(rollout.completion.ids)
