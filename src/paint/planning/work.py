"""How much is to be computed, and how long does it take? Arithmetic; nothing is run or measured.

Tokens and FLOPs follow from the config, the model's shape and mean lengths, which are assumptions.
Seconds follow from a roofline: passes over whole sequences are bound by FLOPs, decoding by FLOPs or
by the bytes that each token moves.

Left out, so that every time is a floor: scheduling, kernel launches and sampling, the longest
completion, for which all others wait, padding, grading, start-up. Also variants of the teacher.
"""

import math
from dataclasses import dataclass, replace

from paint.config import Config
from paint.planning.shapes import BYTES, Shape

CHUNK = 1024
"""Tokens, on a GPU; a longer completion's selected positions are visited twice (paint.fused)."""

FLOP_SHARE, BANDWIDTH_SHARE, MEMORY_SHARE = 0.40, 0.70, 0.90
"""Of what the machine's data sheet promises."""


@dataclass(frozen=True)
class Machine:
    """A GPU's data sheet: dense bfloat16 FLOP/s, bytes/s, bytes; bytes/s from GPU to GPU."""

    flops: float
    bandwidth: float
    memory: float
    link: float = 450e9


MACHINES = {
    "H200": Machine(989e12, 4.8e12, 141e9),
    "H100": Machine(989e12, 3.35e12, 80e9),
    "A100": Machine(312e12, 2.04e12, 80e9, link=300e9),
    "L40S": Machine(362e12, 0.864e12, 48e9, link=32e9),
    "RTX 4090": Machine(165e12, 1.01e12, 24e9, link=32e9),
}
"""Sources: NVIDIA's data sheets; sparse figures halved, links in one direction."""

LAPTOP = Machine(flops=344e9, bandwidth=50e9, memory=16e9, link=50e9)
"""Four cores of 86 GFLOP/s each (measured on one thread, docs/log.md), and two channels of DDR5."""


def machine_of(memory: float, name: str = "") -> Machine:
    """The GPU of that name, else the one whose memory is nearest, with so many bytes of memory.

    Of two that have as much, it is the first of MACHINES.
    """
    known = [machine for part, machine in MACHINES.items() if part in name]
    nearest = min(MACHINES.values(), key=lambda machine: abs(machine.memory - memory))
    return replace(known[0] if known else nearest, memory=memory)


@dataclass(frozen=True)
class Lengths:
    """Mean lengths in tokens: assumptions.

    A run measures its own (metrics.jsonl, `paint data check`).
    """

    problem: float
    """The student's prompt."""
    solution: float
    """The verified solution, of which the teacher sees a part."""
    trace: float
    """The reasoning trace that led to it, which SFT can imitate instead."""
    brief: float
    """A completion of a training problem without thinking; cut at its limit, as all completions."""
    thought: float
    """The same with thinking."""
    contest: float
    """A completion of a benchmark problem."""


LOW = Lengths(problem=150, solution=400, trace=4_000, brief=600, thought=5_000, contest=12_000)
HIGH = Lengths(
    problem=250, solution=1_000, trace=10_000, brief=2_000, thought=12_000, contest=22_000
)
LIMIT = replace(HIGH, brief=math.inf, thought=math.inf, contest=math.inf)


@dataclass(frozen=True)
class Generation:
    """Completions that are asked for together, in so many rounds."""

    rounds: int
    completions: int
    at_once: int
    """Completions that a GPU is given at a time."""
    prompt: float
    length: float


@dataclass(frozen=True)
class Scoring:
    """Passes over the whole sequences of a step's rows: tokens and FLOPs of a row."""

    rounds: int
    rows: int
    tokens: float
    flops: float


@dataclass(frozen=True)
class Work:
    """What is to be done with one model and its adapters."""

    shape: Shape
    adapters: int
    generations: tuple[Generation, ...] = ()
    scorings: tuple[Scoring, ...] = ()

    @property
    def generated(self) -> float:
        """Tokens that are sampled."""
        return sum(part.rounds * part.completions * part.length for part in self.generations)

    @property
    def scored(self) -> float:
        """Tokens of prompts and completions that teacher and student read outside generation."""
        return sum(part.rounds * part.rows * part.tokens for part in self.scorings)

    @property
    def flops(self) -> float:
        """FLOPs of generation (prompts read, tokens decoded) and of scoring."""
        total = sum(part.rounds * part.rows * part.flops for part in self.scorings)
        for part in self.generations:
            per_completion = prefill_flops(self, part) + decode_flops(self, part) * part.length
            total += part.rounds * part.completions * per_completion
        return total


def attention_flops(shape: Shape, length: float) -> float:
    """Attention in a causal pass over a sequence, q·k and p·v.

    A token that sees s others costs 4 L heads head_size s.
    """
    return 4 * shape.layers * shape.queries * length**2 / 2


def forward_flops(shape: Shape, adapters: int, length: float) -> float:
    """A forward pass through all blocks, without the head: 2 (N + A) a token, and attention."""
    return 2 * (shape.weights + adapters) * length + attention_flops(shape, length)


def backward_flops(shape: Shape, adapters: int, length: float) -> float:
    """A backward pass: 2 N + 4 A a token, and attention twice.

    Frozen matrices get no gradient; they only pass it on.
    """
    return (2 * shape.weights + 4 * adapters) * length + 2 * attention_flops(shape, length)


def prefill_flops(work: Work, part: Generation) -> float:
    """Reading one prompt."""
    return forward_flops(work.shape, work.adapters, part.prompt)


def decode_flops(work: Work, part: Generation) -> float:
    """Decoding one token at the mean context: 2 (N + A + head), and attention."""
    shape, context = work.shape, part.prompt + part.length / 2
    attention = 4 * shape.layers * shape.queries * context
    return 2 * (shape.weights + work.adapters + shape.head) + attention


def row_flops(
    shape: Shape,
    adapters: int,
    *,
    student: float,
    teacher: float,
    completion: float,
    products: float,
    checkpointing: bool,
) -> dict[str, float]:
    """FLOPs of one row of an update by phase.

    Args:
        student, teacher: tokens that each view reads, completion included; 0 for no teacher.
        products: of the loss, onto the vocabulary and back, a token of the completion.
        checkpointing: the backward pass computes the forward pass again.
    """
    forward = forward_flops(shape, adapters, student)
    again = forward if checkpointing else 0.0
    return {
        "teacher forward": forward_flops(shape, 0, teacher),
        "student forward": forward,
        "loss": products * 2 * shape.head * completion,
        "backward": backward_flops(shape, adapters, student) + again,
    }


def loss_products(config: Config, completion: float) -> float:
    """Products of the loss a token: onto the vocabulary for each view, and back."""
    match config.train.method:
        case "distillation":
            return 3 * (1 + (config.objective.top_fraction if completion > CHUNK else 0))
        case "grpo" if config.grpo.kl:
            return 3.0
    return 2.0


def completion_tokens(config: Config, lengths: Lengths) -> float:
    """The mean completion that a config trains on; a sampled one is cut at its limit."""
    if config.train.method == "sft":
        return lengths.trace if config.data.solution_field == "trace" else lengths.solution
    wanted = lengths.thought if config.model.student_thinking else lengths.brief
    return min(wanted, config.rollout.max_new_tokens)


def teacher_tokens(config: Config, lengths: Lengths) -> float:
    """The mean tokens that the teacher reads of a row; 0 where a method asks none."""
    read = lengths.problem + completion_tokens(config, lengths)
    match config.train.method:
        case "distillation":
            hidden = (config.context.wrong + config.context.correct) / 2
            return read + lengths.solution * (1 - hidden)
        case "grpo" if config.grpo.kl:
            return read
    return 0.0


def trained_weights(config: Config, shape: Shape) -> int:
    """A: the adapters' weights; none where every weight is trained, which costs N more a token."""
    model = config.model
    return shape.adapters(model.lora_rank, model.lora_targets) if model.tuning == "lora" else 0


def phases_of_a_row(config: Config, shape: Shape, lengths: Lengths) -> dict[str, float]:
    """FLOPs of one row of a config's update by phase."""
    completion = completion_tokens(config, lengths)
    student = lengths.problem + completion
    phases = row_flops(
        shape,
        trained_weights(config, shape),
        student=student,
        teacher=teacher_tokens(config, lengths),
        completion=completion,
        products=loss_products(config, completion),
        checkpointing=config.model.gradient_checkpointing,
    )
    if config.model.tuning == "full":  # each matrix also gets its gradient, and so does the head
        phases["backward"] += 2 * shape.weights * student + 2 * shape.head * completion
    return phases


def training(config: Config, shape: Shape, lengths: Lengths) -> Work:
    """A config's whole run on a model of this shape."""
    train, adapters = config.train, trained_weights(config, shape)
    completion = completion_tokens(config, lengths)
    tokens = lengths.problem + completion + teacher_tokens(config, lengths)
    flops = sum(phases_of_a_row(config, shape, lengths).values())
    if train.method == "sft":
        return Work(
            shape, adapters, scorings=(Scoring(train.steps, train.batch_size, tokens, flops),)
        )

    rounds = train.steps * (config.grpo.iterations if train.method == "grpo" else 1)
    at_once = config.rollout.batch_size
    generation = Generation(train.steps, train.batch_size, at_once, lengths.problem, completion)
    return Work(shape, adapters, (generation,), (Scoring(rounds, train.batch_size, tokens, flops),))


def seconds(work: Work, machine: Machine, gpus: int) -> float:
    """Generation, then scoring, with the rows dealt out to GPUs that each hold the model."""
    total = sum(part.rounds * scoring_seconds(part, machine, gpus) for part in work.scorings)
    for part in work.generations:
        total += part.rounds * generation_seconds(work, part, machine, gpus)
    return total


def scoring_seconds(part: Scoring, machine: Machine, gpus: int) -> float:
    """One round of passes."""
    return math.ceil(part.rows / gpus) * part.flops / (FLOP_SHARE * machine.flops)


def generation_seconds(work: Work, part: Generation, machine: Machine, gpus: int) -> float:
    """One round of completions: prompts, then tokens."""
    mine = math.ceil(part.completions / gpus)
    prompts = mine * prefill_flops(work, part) / (FLOP_SHARE * machine.flops)
    return prompts + decode_seconds(work, part, machine, mine)


def decode_seconds(work: Work, part: Generation, machine: Machine, completions: int) -> float:
    """Decoding all completions of one GPU; a finished one makes room for the next.

    As many are decoded at once as are asked for and as the memory holds. One token of each takes
    max(bytes / bandwidth, FLOPs / peak), where bytes are all weights once and every completion's
    cache.
    """
    shape, context = work.shape, part.prompt + part.length / 2
    free = MEMORY_SHARE * machine.memory - BYTES * (shape.parameters + work.adapters)
    batch = min(completions, part.at_once, max(1, math.floor(free / (shape.cache * context))))
    moved = BYTES * (shape.weights + work.adapters + shape.head) + batch * shape.cache * context
    bound = max(
        moved / (BANDWIDTH_SHARE * machine.bandwidth),
        batch * decode_flops(work, part) / (FLOP_SHARE * machine.flops),
    )
    return bound * part.length * completions / batch
