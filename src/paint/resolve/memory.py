"""Estimate of GPU memory: resident bytes, and the bytes of each phase of a training step.

The formulas are compared with counted bytes (tests/resolve/test_memory.py). On an H100 the peaks of
updates of a 1.7B were within 1 % of them (docs/dev/log.md). Fragmentation of the allocator and the
CUDA context (half a GB) are not included.
"""

from dataclasses import dataclass
from typing import Literal

from paint.config.schema import ALL_LINEAR, Config, ModelConfig
from paint.resolve.shapes import WIDTHS, Shape

CHUNK = 1024
"""Chunk size of the loss on a GPU, in tokens (paint.objective.fused)."""

WIDE = 4
"""Bytes of a float32."""

Kernels = Literal["cpu", "cuda", "liger"]
"""What computes the layers: transformers' own code, PyTorch's fused norms and bfloat16 adapters on
CUDA (paint.models.layers), or Liger's kernels (paint.models.liger)."""

KEPT = 1 / 16
"""Largest share of a GPU's memory that the local engine's keys and values keep between steps."""

MESSAGE = 2**26
"""Most numbers in one message between ranks (paint.core.distributed); a message is copied twice."""

NF4 = (4 + 8 / 64 + 32 / (64 * 256)) / 8
"""Bytes of a 4-bit weight: 64 weights share an 8-bit scale, 256 scales share a 32-bit one."""

WORKING = 2e9
"""Working memory of a server on each GPU, besides weights and cache, in bytes (assumed)."""

SLEEPING = 2e9
"""Bytes that a sleeping server keeps on each GPU (assumed)."""


@dataclass(frozen=True)
class Rows:
    """Number of rows in a micro-batch and tokens of each; rows are padded to the longest."""

    rows: int
    prompt: int
    teacher_prompt: int
    completion: int
    turns: int = 1  # completions in a row: turns of a conversation that goes on in it
    together: int = 1  # rows of one conversation, which no micro-batch divides

    @property
    def scored(self) -> int:
        return min(self.turns * self.completion, self.prompt + self.completion)


@dataclass(frozen=True)
class Memory:
    """Memory of one training GPU in bytes, by purpose."""

    # Resident.
    kept: float  # keys and values that the local engine may keep between steps
    layers: float  # matrices of the decoder's layers, or this GPU's shard of them
    ends: float  # embedding, head and norms
    gathered: float  # two gathered layers of a sharded model, or the matrix in use of one in nf4
    adapters: float  # in float32; 0 in full training, where layers and ends are trained
    gradients: float  # of the trained weights, in float32
    optimizer: float  # its state, such as AdamW's two moments
    copy: float  # separate weights of the teacher: a frozen copy, or a moving average
    # In a phase.
    teacher: float  # working memory of the teacher's forward pass, which saves nothing
    saved: float  # activations that the student's forward pass saves for its backward pass
    states: float  # hidden states of the completions in both views, and the student's gradient
    logits: float  # of a chunk in both views, and their gradient in the head's dtype
    backward: float  # working memory of the student's backward pass
    update: float  # sums over ranks, and working memory of the optimizer step
    cache: float  # keys and values beyond those kept, and working memory of sampling
    solutions: float = 0.0  # passes of the reference solutions with objective.sft_weight

    @property
    def resident(self) -> float:
        frozen = self.layers + self.ends + self.gathered + self.copy
        return self.kept + frozen + self.adapters + self.gradients + self.optimizer

    @property
    def phases(self) -> dict[str, float]:
        """Bytes that each phase needs in addition to the resident ones."""
        return {
            "rollout": self.cache,
            "teacher forward": self.teacher,
            "loss": self.saved + self.states + self.logits,
            "backward": self.saved + self.states + self.backward,
            "solutions": self.solutions,
            "update": self.update,
        }

    @property
    def peak(self) -> float:
        return self.resident + max(self.phases.values())


def training_memory(
    config: Config,
    shape: Shape,
    rows: Rows,
    *,
    has_teacher: bool,
    state_bytes: float,
    shards: int = 1,
    ranks: int = 1,
    generating: int = 0,
    kernels: Kernels = "cpu",
    capacity: float = 0.0,
) -> Memory:
    """Estimate the memory of one training GPU in bytes for a micro-batch of these rows.

    ``state_bytes`` are the optimizer's for each trained weight. The frozen layers are divided over
    ``shards`` GPUs, and ``ranks`` sum their gradients. This process samples ``generating``
    completions at once, and their keys and values may keep a part of its ``capacity``.
    """
    model = config.model
    width = WIDTHS[model.dtype]
    trained, adapters = shape.parameters, 0.0
    if model.train_mode == "lora":
        trained = shape.adapters(model.lora_rank, model.lora_targets)
        adapters = WIDE * trained
    read = rows.rows * (rows.prompt + rows.completion)
    views, taught = 1, 0
    copy, view = 0.0, 0.0
    if has_teacher:
        views, taught = 2, rows.rows * (rows.teacher_prompt + rows.completion)
        copy, view = teacher_copy(config, shape)
    # At the widest point of a block: gate, up and their product, and the block's input and output.
    working = 3 * width * shape.intermediate + 4 * width * shape.hidden

    sampled = rows.prompt + rows.completion
    kept = 0.0
    if kernels != "cpu":  # buffers for CUDA graphs, of which more than this share is released
        sampled = buffered(sampled)
        kept = min(generating * sampled * width * shape.cache, KEPT * capacity)
    message = min(trained, MESSAGE) if ranks > 1 else 0
    return Memory(
        kept=kept,
        layers=frozen_bytes(model, shape) / shards,
        ends=width * (shape.parameters - shape.weights),
        gathered=gathered_bytes(model, shape, shards),
        adapters=adapters,
        gradients=WIDE * trained,
        optimizer=state_bytes * trained,
        copy=copy,
        teacher=taught * working + view,
        saved=saved_by_forward(config, shape, read, kernels),
        states=rows.rows * rows.scored * shape.hidden * (views * width + WIDE),
        logits=logits_of_chunk(config, shape, rows, views),
        # Gradients of gate and up, and of an adapter's input in float32.
        backward=read * (WIDE + width) * shape.intermediate + read * WIDE * shape.hidden,
        update=2 * WIDE * message + 2 * WIDE * trained,
        # Keys and values; logits, probabilities and what top-k or top-p makes of them.
        cache=generating * (sampled * width * shape.cache + shape.vocabulary * 3 * WIDE) - kept,
    )


def gathered_bytes(model: ModelConfig, shape: Shape, shards: int) -> float:
    """Bytes of frozen layers that are whole for a moment: of shards, or rounded to 4 bits."""
    width = WIDTHS[model.dtype]
    if shards > 1:
        return 2 * width * shape.weights / shape.layers
    if model.quantization == "nf4":
        return width * max(layer.inputs * layer.outputs for layer in shape.linear)
    return 0.0


def saved_by_forward(config: Config, shape: Shape, tokens: int, kernels: Kernels) -> float:
    """Bytes that the student's forward pass of so many tokens saves for its backward pass."""
    model = config.model
    layer = saved_by_layer(config, shape, kernels)
    if model.gradient_checkpointing is not True:
        # The first norm's input is the frozen embedding: it is not saved, and the last norm's is.
        return tokens * shape.layers * layer
    inputs = shape.layers * WIDTHS[model.dtype] * shape.hidden
    last_norm = norm_width(model, kernels) * shape.hidden + WIDE
    return tokens * (inputs + last_norm + layer)  # one layer is computed again at a time


def saved_by_layer(config: Config, shape: Shape, kernels: Kernels = "cpu") -> float:
    """Bytes per token that one layer saves for its backward pass."""
    model, width = config.model, WIDTHS[config.model.dtype]
    is_full = model.train_mode == "full"

    # Norms save their input and one number a vector, and in full training their normalised input,
    # too, unless they are fused.
    widths, vectors = [shape.hidden, shape.hidden], 2
    if shape.norms_heads:
        widths += [shape.queries, shape.keys]
        vectors += shape.heads + shape.kv_heads
    copies = 2 if is_full and kernels == "cpu" else 1
    norms = norm_width(model, kernels) * copies * sum(widths) + WIDE * vectors

    # Attention saves its inputs, its output and one number a head.
    attention = width * (2 * shape.queries + 2 * shape.keys) + WIDE * shape.heads

    # The activation saves its input, its output and its factor; Liger's its input and its factor.
    activation = width * (2 if kernels == "liger" else 3) * shape.intermediate

    # Matrices that are trained, or have an adapter, save their input in its own dtype: once if
    # several read it, and not again if attention has saved it.
    targets = (ALL_LINEAR,) if is_full else model.lora_targets
    inputs = width * shape.adapter_inputs(targets)
    if is_full:
        return norms + attention + activation + inputs

    # Adapters save their inner vector, in float32 unless they multiply in bfloat16.
    adapters = sum(layer.number for layer in shape.targeted(targets)) / shape.layers
    has_short_products = kernels != "cpu" and model.dtype in ("bfloat16", "auto")
    inner_width = width if has_short_products else WIDE
    inner = inner_width * model.lora_rank * adapters
    return norms + attention + activation + inputs + inner


def logits_of_chunk(config: Config, shape: Shape, rows: Rows, views: int) -> float:
    """Bytes of a chunk's logits of all views, and of their gradient in the head's dtype."""
    chunk = min(CHUNK, rows.rows * rows.scored)
    logits = chunk * shape.vocabulary * (views * WIDE + _narrow_width(config.model))
    if config.model.train_mode == "full":
        logits += WIDE * shape.head  # the head's gradient, before it is added
    return logits


def teacher_copy(config: Config, shape: Shape) -> tuple[float, float]:
    """Bytes of the teacher's separate weights, and of their rounded copy in its forward pass."""
    if config.model.train_mode == "full":
        if config.teacher.weights == "live":
            return 0.0, 0.0
        return WIDE * shape.parameters, 0.0
    if config.teacher.weights != "ema":
        return 0.0, 0.0
    averaged = 0
    for layer in shape.targeted(config.model.lora_targets):
        averaged += layer.number * layer.inputs * layer.outputs
    return WIDE * averaged, _narrow_width(config.model) * averaged


def _narrow_width(model: ModelConfig) -> int:
    """Bytes of a number in the model's dtype; 0 for float32, whose values need no other copy."""
    width = WIDTHS[model.dtype]
    if width < WIDE:
        return width
    return 0


def norm_width(model: ModelConfig, kernels: Kernels) -> int:
    """Bytes of a number that a norm saves: its input is converted to float32 unless it is fused."""
    if kernels == "cpu":
        return WIDE
    return WIDTHS[model.dtype]


def frozen_bytes(model: ModelConfig, shape: Shape) -> float:
    if model.quantization == "nf4":
        return NF4 * shape.weights
    return WIDTHS[model.dtype] * shape.weights


def buffered(tokens: int) -> int:
    """Positions of the local engine's buffers on a GPU for texts of so many tokens, at most."""
    # They grow by doubling, to the last of the widths in paint.inference.decoders at most.
    return tokens + max(tokens // 4, 256)


@dataclass(frozen=True)
class ServerMemory:
    """Memory of a vLLM server in bytes, summed over its GPUs."""

    gpus: int  # --tensor-parallel-size
    weights: float  # the model in its dtype, and its slots for adapters
    cache: float  # what is left for keys and values
    tokens: int  # that fit in the cache
    longest: int  # tokens of the longest prompt and completion

    @property
    def fits(self) -> bool:
        """Whether the cache holds one longest sequence; otherwise vLLM does not start."""
        return self.tokens >= self.longest


def server_memory(
    config: Config, shape: Shape, *, memory: float, share: float, longest: int, gpus: int
) -> ServerMemory:
    """Estimate a server on `gpus` GPUs that uses `share` of each (--gpu-memory-utilization)."""
    model, width = config.model, WIDTHS[config.model.dtype]
    slots = width * shape.adapters(model.lora_rank, model.lora_targets)
    ends = width * (shape.parameters - shape.weights)
    weights = frozen_bytes(model, shape) + ends + slots
    cache = max(gpus * (share * memory - WORKING) - weights, 0.0)
    return ServerMemory(gpus, weights, cache, int(cache / (width * shape.cache)), longest)
