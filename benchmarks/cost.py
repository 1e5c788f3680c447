"""What would the paper's runs cost? Arithmetic on the shipped recipes; nothing was run or measured.

    python benchmarks/cost.py [--markdown]

For each Qwen3 model: the training of its recipes, the evaluation of their checkpoints and, for
1.7B, the paper's ablations. Tokens and FLOPs follow from the recipe, the model's shape and the
lengths below, which are assumptions. Hours follow from a roofline: passes over whole sequences are
bound by FLOPs, decoding by FLOPs or by the bytes that each token moves.

Lengths are means, and their spread is left out. Decoding reads a cache in proportion to the square
of a completion's length, so evaluation costs more the more lengths differ. Completions that are cut
at a limit are taken to be as long as the smaller of mean and limit, which their own mean never
exceeds.

Left out, so that every other time is a floor: scheduling, kernel launches and sampling, the longest
completion, for which all others wait (the figures at the limit bound it), padding, sums over ranks,
optimizer, grading, start-up, the trainer's share of the engine's memory. Also variants of the
teacher and full tuning, which no recipe here uses.
"""

import argparse
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from rich.console import Console
from rich.table import Table

from paint.config import Config, ConfigError, Evaluation
from paint.experiments.ablations import GRIDS
from paint.recipe import find_recipe, read_recipe

METHODS = ("paint", "opsd", "grpo", "sft")
BYTES = 2  # of a bfloat16
PROBLEMS = 30  # AIME 2024, AIME 2025, HMMT February 2025: each
CHUNK = 1024  # tokens; a longer completion's selected positions are visited twice (paint.fused)
FLOP_SHARE, BANDWIDTH_SHARE, MEMORY_SHARE = (
    0.40,
    0.70,
    0.90,
)  # of what the machine's data sheet promises


@dataclass(frozen=True)
class Shape:
    """The matrices of a dense Qwen3 model (source: its config.json on the hub)."""

    layers: int
    hidden: int
    heads: int
    intermediate: int
    tied: bool
    kv_heads: int = 8
    head_size: int = 128
    vocabulary: int = 151_936

    @property
    def matrices(self) -> dict[str, tuple[int, int]]:
        """Inputs and outputs of each linear layer of a block."""
        queries, keys = self.heads * self.head_size, self.kv_heads * self.head_size
        return {
            "q_proj": (self.hidden, queries),
            "k_proj": (self.hidden, keys),
            "v_proj": (self.hidden, keys),
            "o_proj": (queries, self.hidden),
            "gate_proj": (self.hidden, self.intermediate),
            "up_proj": (self.hidden, self.intermediate),
            "down_proj": (self.intermediate, self.hidden),
        }

    @property
    def weights(self) -> int:
        """N: weights of all blocks' matrices, each multiplied once a token."""
        return self.layers * sum(rows * columns for rows, columns in self.matrices.values())

    @property
    def head(self) -> int:
        """Weights of the projection onto the vocabulary."""
        return self.hidden * self.vocabulary

    @property
    def parameters(self) -> int:
        """Matrices, norms (two a block, of queries, of keys, the last), embedding and head."""
        norms = self.layers * 2 * (self.hidden + self.head_size) + self.hidden
        return self.weights + norms + self.head * (1 if self.tied else 2)

    @property
    def cache(self) -> int:
        """Bytes of one token's keys and values."""
        return 2 * self.layers * self.kv_heads * self.head_size * BYTES

    def adapters(self, rank: int, targets: Iterable[str]) -> int:
        """A: weights of the LoRA adapters, rank · (inputs + outputs) for each target."""
        return self.layers * rank * sum(sum(self.matrices[name]) for name in targets)


SHAPES = {
    "Qwen/Qwen3-1.7B": Shape(28, 2048, 16, 6144, tied=True),
    "Qwen/Qwen3-4B": Shape(36, 2560, 32, 9728, tied=True),
    "Qwen/Qwen3-8B": Shape(36, 4096, 32, 12_288, tied=False),
}


@dataclass(frozen=True)
class Machine:
    """A GPU's data sheet: dense bfloat16 FLOP/s, bytes/s, bytes."""

    flops: float
    bandwidth: float
    memory: float


MACHINES = {"H100": Machine(989e12, 3.35e12, 80e9), "H200": Machine(989e12, 4.8e12, 141e9)}


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
    return 4 * shape.layers * shape.heads * shape.head_size * length**2 / 2


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
    attention = 4 * shape.layers * shape.heads * shape.head_size * context
    return 2 * (shape.weights + work.adapters + shape.head) + attention


def training(config: Config, lengths: Lengths) -> Work:
    """A recipe's run. Raises ConfigError for a setting that this arithmetic does not know."""
    model, train = config.model, config.train
    plain = not config.teacher.reason_first and config.teacher.weights == "frozen"
    if model.path not in SHAPES or model.tuning != "lora" or model.dtype != "bfloat16" or not plain:
        raise ConfigError(
            f"model.path {model.path}: this arithmetic knows only LoRA on {', '.join(SHAPES)} in "
            f"bfloat16, with a frozen teacher that does not reason first; leave the rest at that"
        )

    shape = SHAPES[model.path]
    adapters = shape.adapters(model.lora_rank, model.lora_targets)
    if train.method == "sft":
        completion = lengths.trace if config.data.solution_field == "trace" else lengths.solution
    else:
        wanted = lengths.thought if model.student_thinking else lengths.brief
        completion = min(wanted, config.rollout.max_new_tokens)

    read = lengths.problem + completion
    tokens, flops = (
        read,
        forward_flops(shape, adapters, read) + backward_flops(shape, adapters, read),
    )
    if model.gradient_checkpointing:
        flops += forward_flops(shape, adapters, read)
    products = 2.0  # onto the vocabulary, and back
    if train.method == "distillation":
        hidden = (config.context.wrong + config.context.correct) / 2
        teacher = read + lengths.solution * (1 - hidden)
        products = 3 * (1 + (config.objective.top_fraction if completion > CHUNK else 0))
    else:
        teacher = read if train.method == "grpo" and config.grpo.kl else 0
        products += 1 if teacher else 0
    tokens, flops = tokens + teacher, flops + forward_flops(shape, 0, teacher)
    flops += products * 2 * shape.head * completion

    if train.method == "sft":
        return Work(
            shape, adapters, scorings=(Scoring(train.steps, train.batch_size, tokens, flops),)
        )
    rounds = train.steps * (config.grpo.iterations if train.method == "grpo" else 1)
    at_once = config.rollout.batch_size
    generation = Generation(train.steps, train.batch_size, at_once, lengths.problem, completion)
    return Work(shape, adapters, (generation,), (Scoring(rounds, train.batch_size, tokens, flops),))


def evaluation(config: Config, lengths: Lengths, *, policies: int, sets: int, at_once: int) -> Work:
    """Checkpoints of a recipe on benchmarks, one after the other as `paint eval` asks them."""
    options, model = Evaluation(), config.model
    shape = SHAPES[model.path]
    length = min(lengths.contest, options.rollout.max_new_tokens)
    asked = Generation(
        policies * sets, PROBLEMS * options.samples, at_once, lengths.problem, length
    )
    return Work(shape, shape.adapters(model.lora_rank, model.lora_targets), (asked,))


def ablations(paint: Config) -> list[Config]:
    """The cells of the paper's tables (section 'Ablation Studies'), each once: 16 of 18."""
    papers = [grid for grid in GRIDS.values() if grid.is_papers]
    points = [point for grid in papers for point in grid.points.values()]
    return list(dict.fromkeys(point.of(paint) for point in points))


def seconds(work: Work, machine: Machine, gpus: int) -> float:
    """Generation, then scoring, with the rows dealt out to GPUs that each hold the model."""
    peak = FLOP_SHARE * machine.flops
    total = sum(
        part.rounds * math.ceil(part.rows / gpus) * part.flops / peak for part in work.scorings
    )
    for part in work.generations:
        mine = math.ceil(part.completions / gpus)
        prompts = mine * prefill_flops(work, part) / peak
        total += part.rounds * (prompts + decode_seconds(work, part, machine, mine))
    return total


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


def plan(model: str, lengths: Lengths) -> dict[str, list[Work]]:
    """What is done with a model, by title.

    `paint train` and `paint eval` for each recipe, and `paint ablate` for 1.7B.
    """
    recipes = {method: read_recipe(find_recipe(f"{method}-{model}")) for method in METHODS}
    works = {
        f"{method}: {config.train.steps:,} steps": [training(config, lengths)]
        for method, config in recipes.items()
    }
    paint, at_once = recipes["paint"], Evaluation().rollout.batch_size
    left = sum(
        math.ceil(config.train.steps / config.train.checkpoint_every) for config in recipes.values()
    )
    for title, policies in (
        (f"their {left} checkpoints: three benchmarks", left),
        ("base: three benchmarks", 1),
    ):
        works[title] = [evaluation(paint, lengths, policies=policies, sets=3, at_once=at_once)]
    if model == "qwen3-1.7b":
        cells, at_once = ablations(paint), paint.rollout.batch_size
        works[f"ablations: {len(cells)} cells, one seed"] = [
            training(cell, lengths) for cell in cells
        ]
        works["their last checkpoints, base: AIME 2024"] = [
            evaluation(paint, lengths, policies=len(cells) + 1, sets=1, at_once=at_once)
        ]
    return works | {"all": [work for row in works.values() for work in row]}


def figures(cases: Sequence[Sequence[Work]]) -> list[str]:
    """A row's cells, from its work at low and high lengths and at the limit."""
    cells = [
        span([sum(work.generated for work in case) / 1e6 for case in cases]),
        span([sum(work.scored for work in case) / 1e6 for case in cases]),
        span([sum(work.flops for work in case) / 1e15 for case in cases]),
    ]
    for machine in MACHINES.values():
        for gpus in (1, 8):
            cells.append(
                span([sum(seconds(work, machine, gpus) for work in case) / 3600 for case in cases])
            )
    return cells


def span(values: Sequence[float]) -> str:
    """Low, high and limit as "1.0 to 2.0 (3.0)", in two digits or whole numbers; a dash for 0."""
    low, high, limit = (
        "<0.01" if x < 0.01 else f"{x:#.2g}".rstrip(".") if x < 99.5 else f"{x:,.0f}"
        for x in values
    )
    return f"{low} to {high} ({limit})" if values[-1] else "-"


def main() -> None:
    """Print a table for each model."""
    parser = argparse.ArgumentParser(
        description="Tokens, FLOPs and hours of the paper's runs: arithmetic, not run."
    )
    parser.add_argument("--markdown", action="store_true", help="print tables for docs/results.md")
    markdown = parser.parse_args().markdown
    console = Console(width=200)
    hours = [f"hours, {gpus} {name}" for name in MACHINES for gpus in (1, 8)]
    headings = ["", "generated, M tokens", "scored, M tokens", "PFLOP", *hours]
    for path in SHAPES:
        plans = [plan(path.split("/")[1].lower(), lengths) for lengths in (LOW, HIGH, LIMIT)]
        rows = [[title, *figures([plan[title] for plan in plans])] for title in plans[0]]
        table = Table(
            *headings, title=f"{path}: low to high (at the limit). Not run: a floor, by arithmetic"
        )
        for row in rows:
            table.add_row(*row, end_section=row is rows[-2])
        if markdown:
            print(f"**{path}**\n\n| {' | '.join(headings)} |\n|{'---|' * len(headings)}")
            print("\n".join(f"| {' | '.join(row)} |" for row in rows) + "\n")
        else:
            console.print(table)


if __name__ == "__main__":
    main()
