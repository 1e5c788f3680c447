"""How much of a GPU's memory does a step take? A formula, held against counted bytes.

What lies there all the time, and what each phase of a step needs beside it. The tensors that a
layer saves for its backward pass are counted exactly, and the memory in which passes work to a few
percent, on real widths with fake tensors (tests/planning/test_memory.py). What the allocator keeps
between its blocks is left out, and so is CUDA's own (half a GB).
"""

from collections.abc import Sequence
from dataclasses import dataclass

from paint.config.schema import Config, ModelConfig
from paint.estimate.shapes import WIDTHS, Shape

CHUNK = 1024
"""Tokens of a chunk of the loss on a GPU (paint.objective.fused)."""

WIDE = 4
"""Bytes of a float32."""

MESSAGE = 2**26
"""Numbers in one message between ranks, at most (paint.core.distributed), which is copied twice."""


NF4 = (4 + 8 / 64 + 32 / (64 * 256)) / 8
"""Bytes of a weight of 4 bits: 64 share a scale of 8 bits, and 256 scales one of 32."""


@dataclass(frozen=True)
class Rows:
    """A micro-batch: its rows, and the tokens of each. Several rows are padded to the longest."""

    rows: int
    prompt: int
    teacher_prompt: int
    completion: int


@dataclass(frozen=True)
class Memory:
    """Bytes of one training GPU, by what they are for.

    All the time:
        layers: the frozen matrices of the decoder's layers, or this GPU's share of them.
        ends: embedding, head and norms.
        gathered: two whole layers, where layers are sharded: the one in use and the next. Where
            they are rounded to 4 bits, the one matrix in use.
        adapters: what is trained (the adapters, or every weight: then beside layers and ends).
        gradients: of what is trained, in float32.
        optimizer: AdamW's two averages, in float32.
        copy: the teacher's own weights: a frozen copy, or a moving average.

    In a phase:
        teacher: what the teacher's pass works in; nothing of it is saved.
        saved: what the student's pass saves for its backward pass.
        states: both views' states of the completions, and the gradient of the student's.
        logits: both views' logits of a chunk, and their slope in the head's own format.
        backward: what the student's backward pass works in.
        update: sums over ranks, and the optimizer's step.
        cache: keys and values while the training process generates by itself.
    """

    layers: float
    ends: float
    gathered: float
    adapters: float
    gradients: float
    optimizer: float
    copy: float
    teacher: float
    saved: float
    states: float
    logits: float
    backward: float
    update: float
    cache: float

    @property
    def resident(self) -> float:
        """What lies there all the time."""
        frozen = self.layers + self.ends + self.gathered + self.copy
        return frozen + self.adapters + self.gradients + self.optimizer

    @property
    def phases(self) -> dict[str, float]:
        """What each phase needs beside it."""
        return {
            "rollout": self.cache,
            "teacher forward": self.teacher,
            "loss": self.saved + self.states + self.logits,
            "backward": self.saved + self.states + self.backward,
            "update": self.update,
        }

    @property
    def peak(self) -> float:
        """The most at any time."""
        return self.resident + max(self.phases.values())


def training_memory(
    config: Config,
    shape: Shape,
    rows: Rows,
    *,
    shards: int = 1,
    ranks: int = 1,
    generating: int = 0,
) -> Memory:
    """Bytes of one training GPU.

    Args:
        rows: of a micro-batch.
        shards: GPUs that each hold a part of the frozen layers.
        ranks: training GPUs, which sum their gradients.
        generating: completions that this process samples at once; 0 where a server does.
    """
    model, width = config.model, WIDTHS[config.model.dtype]
    is_full = model.train_mode == "full"
    targets = model.lora_targets
    trained = shape.parameters if is_full else shape.adapters(model.lora_rank, targets)

    read = rows.rows * (rows.prompt + rows.completion)
    taught = rows.rows * (rows.teacher_prompt + rows.completion)
    has_teacher = config.algorithm.needs_teacher(config)

    layer = saved_by_layer(config, shape)
    if model.gradient_checkpointing:
        last_norm = WIDE * (shape.hidden + 1)
        saved = read * (shape.layers * width * shape.hidden + last_norm + layer)
    else:
        # The first norm's input is the frozen embedding: it is not saved, and the last norm's is.
        saved = read * shape.layers * layer

    chunk = min(CHUNK, rows.rows * rows.completion)
    views = 2 if has_teacher else 1
    slope = width if width < WIDE else 0  # else it is written over the logits
    logits = chunk * shape.vocabulary * (views * WIDE + slope)
    states = rows.rows * rows.completion * shape.hidden * (views * width + WIDE)
    if is_full:
        logits += WIDE * shape.head  # the head's gradient, before it is added

    # Of the widest place in a block: gate, up and their product; and its input beside its output.
    working = 3 * width * shape.intermediate + 4 * width * shape.hidden
    teacher = taught * working
    averaged = shape.layers * sum(inputs * outputs for inputs, outputs in _targeted(shape, targets))
    view = width * averaged if config.teacher.weights == "ema" and not is_full and slope else 0

    a_layer = width * shape.weights / shape.layers
    widest = max(inputs * outputs for inputs, outputs in shape.matrices.values())
    unrounded = width * widest if model.quantization == "nf4" else 0.0
    cache_of_a_token = shape.cache * width / WIDTHS["bfloat16"]
    return Memory(
        layers=frozen_bytes(model, shape) / shards,
        ends=width * (shape.parameters - shape.weights),
        gathered=2 * a_layer if shards > 1 else unrounded,
        adapters=0.0 if is_full else WIDE * trained,
        gradients=WIDE * trained,
        optimizer=2 * WIDE * trained,
        copy=_copy(config, shape, averaged) if has_teacher else 0.0,
        teacher=teacher + view if has_teacher else 0.0,
        saved=saved,
        states=states,
        logits=logits,
        # The gradients of gate and up, and that of an adapter's input in float32.
        backward=read * (WIDE + width) * shape.intermediate + read * WIDE * shape.hidden,
        update=2 * WIDE * (min(trained, MESSAGE) if ranks > 1 else 0) + 2 * WIDE * trained,
        cache=generating * (rows.prompt + rows.completion) * cache_of_a_token
        + generating * shape.vocabulary * 3 * WIDE,
    )


def frozen_bytes(model: ModelConfig, shape: Shape) -> float:
    """Bytes of the decoder's layers, as they are kept."""
    return (NF4 if model.quantization == "nf4" else WIDTHS[model.dtype]) * shape.weights


def saved_by_layer(config: Config, shape: Shape) -> float:
    """Bytes a token that one layer saves for its backward pass.

    Norms save their input in float32 and one number a vector; attention its inputs, its output and
    one number a head; the activation its input, its output and what that is multiplied with.
    Adapters save their inner vector in float32, and their input as it came: once where several read
    it, and not again where attention has saved it (paint.models.lora). Matrices that are trained
    save their input as adapters do, and norms what they multiply.
    """
    model, width = config.model, WIDTHS[config.model.dtype]
    is_full = model.train_mode == "full"
    targets = set(shape.matrices if is_full else model.lora_targets)

    widths = [shape.hidden, shape.hidden]
    vectors = 2
    if shape.norms_heads:
        widths += [shape.queries, shape.keys]
        vectors += shape.heads + shape.kv_heads
    norms = WIDE * (sum(widths) * (2 if is_full else 1) + vectors)

    attention = width * (2 * shape.queries + 2 * shape.keys) + WIDE * shape.heads

    readers = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"), ("down_proj",))
    read = (shape.hidden, shape.hidden, shape.intermediate)
    inputs = sum(
        columns for names, columns in zip(readers, read, strict=True) if {*names} & targets
    )
    inner = 0 if is_full else WIDE * model.lora_rank * len(targets)
    return norms + attention + width * 3 * shape.intermediate + width * inputs + inner


def _targeted(shape: Shape, targets: Sequence[str]) -> list[tuple[int, int]]:
    return [shape.matrices[name] for name in targets if name in shape.matrices]


def _copy(config: Config, shape: Shape, averaged: float) -> float:
    """Bytes of the teacher's own weights (paint.models.teacher)."""
    weights = config.teacher.weights
    if config.model.train_mode == "full":
        return WIDE * shape.parameters if weights != "live" else 0.0
    return WIDE * averaged if weights == "ema" else 0.0


@dataclass(frozen=True)
class ServerMemory:
    """Bytes of a vLLM server, over the GPUs that hold it together.

    Attributes:
        gpus: that hold the model together (--tensor-parallel-size).
        weights: the model in its number format, and its slots for adapters.
        cache: what is left for keys and values.
        tokens: that fit in the cache.
        longest: tokens of the longest prompt and completion.
    """

    gpus: int
    weights: float
    cache: float
    tokens: int
    longest: int

    @property
    def fits(self) -> bool:
        """Whether one longest sequence has room: else vLLM refuses to start."""
        return self.tokens >= self.longest


WORKING = 2e9
"""Bytes that a server works in beside weights and cache, on each GPU (assumed)."""

SLEEPING = 2e9
"""Bytes that a sleeping server keeps on each GPU (assumed)."""


def server_memory(
    config: Config, shape: Shape, *, memory: float, share: float, longest: int, gpus: int
) -> ServerMemory:
    """A server on so many GPUs, of each of which it takes a share (--gpu-memory-utilization)."""
    model, width = config.model, WIDTHS[config.model.dtype]
    slots = width * shape.adapters(model.lora_rank, model.lora_targets)
    ends = width * (shape.parameters - shape.weights)
    weights = frozen_bytes(model, shape) + ends + slots
    cache = gpus * (share * memory - WORKING) - weights
    tokens = int(max(cache, 0) / (shape.cache * width / WIDTHS["bfloat16"]))
    return ServerMemory(gpus, weights, max(cache, 0.0), tokens, longest)
