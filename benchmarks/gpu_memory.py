"""How much of a GPU's memory does an update take? A formula, held against what is measured.

For LoRA adapters in float32 on a Qwen3 in bfloat16, with paint.fused's loss. The tensors that a
layer saves for its backward pass are counted exactly (tests/benchmarks/test_gpu.py counts them on a
real model); the memory in which passes work is an estimate, and what the allocator keeps between
its blocks is left out.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from cost import BYTES, CHUNK, Shape

WIDE = 4
"""Bytes of a float32."""


@dataclass(frozen=True)
class Memory:
    """Bytes of an update, by what they are for.

    Attributes:
        weights: the frozen model.
        adapters: value, gradient and the optimizer's two averages of each weight that is trained.
        saved: what the student's pass saves for its backward pass.
        states: both views' states of the completions, and the gradient of the student's.
        logits: both views' logits of a chunk, and their slope in the head's own format.
        teacher: what the teacher's pass works in; nothing of it is saved.
        backward: what the student's backward pass works in.
    """

    weights: float
    adapters: float
    saved: float
    states: float
    logits: float
    teacher: float
    backward: float

    @property
    def peak(self) -> float:
        """The most at any time: in the teacher's pass, in the loss, or in the backward pass."""
        resident = self.weights + self.adapters
        scoring = self.states + self.saved + max(self.logits, self.backward)
        return resident + max(self.teacher, scoring)


def update_memory(
    shape: Shape,
    *,
    rank: int,
    targets: Sequence[str],
    rows: int,
    prompt: int,
    teacher_prompt: int,
    completion: int,
    checkpointing: bool,
) -> Memory:
    """Bytes of an update whose micro-batches have so many rows of so many tokens.

    Args:
        rank, targets: of the adapters.
        rows: of a micro-batch.
        prompt, teacher_prompt, completion: tokens of a row.
        checkpointing: a layer's input is saved, and the rest of the layer is computed again.
    """
    student, teacher = rows * (prompt + completion), rows * (teacher_prompt + completion)
    last_norm = WIDE * (shape.hidden + 1)
    layer = saved_by_layer(shape, rank, targets)
    if checkpointing:
        saved = student * (shape.layers * BYTES * shape.hidden + last_norm + layer)
    else:
        # The first norm's input is the frozen embedding: it is not saved, and the last norm's is.
        saved = student * shape.layers * layer

    chunk = min(CHUNK, rows * completion)
    # Of the widest place in a block: gate, up and their product; and its input beside its output.
    working = 3 * BYTES * shape.intermediate + 4 * BYTES * shape.hidden
    return Memory(
        weights=BYTES * shape.parameters,
        adapters=4 * WIDE * shape.adapters(rank, targets),
        saved=saved,
        states=rows * completion * shape.hidden * (2 * BYTES + WIDE),
        logits=chunk * shape.vocabulary * (2 * WIDE + BYTES),
        teacher=teacher * working,
        # Their gradients, and the float32 ones of the adapters' inputs.
        backward=student * (working + WIDE * (shape.intermediate + 2 * shape.hidden)),
    )


def saved_by_layer(shape: Shape, rank: int, targets: Sequence[str]) -> float:
    """Bytes a token that one layer saves for its backward pass.

    Norms save their input in float32 and one number a vector; attention its inputs, its output and
    one number a head; the activation its input, its output and what that is multiplied with.
    Adapters save their inner vector in float32, and their input as it came: once where several read
    it, and not again where attention has saved it (paint.model.lora).
    """
    queries, keys = shape.heads * shape.head_size, shape.kv_heads * shape.head_size
    norms = 2 * (shape.hidden + 1) + queries + shape.heads + keys + shape.kv_heads
    attention = BYTES * (2 * queries + 2 * keys) + WIDE * shape.heads

    readers = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"), ("down_proj",))
    widths = (shape.hidden, shape.hidden, shape.intermediate)
    inputs = sum(
        width for names, width in zip(readers, widths, strict=True) if {*names} & {*targets}
    )
    adapters = BYTES * inputs + WIDE * rank * len(targets)
    return WIDE * norms + attention + BYTES * 3 * shape.intermediate + adapters
