"""How far is a step from its ideal, for how it is dealt? A simulation; nothing is run.

    python benchmarks/dealing.py [--steps 100]

Rows of drawn lengths are dealt over ranks and grouped by paint.training.dealing, or as they come
(neighbours together, four at once). The time of a rank is that of its micro-batches with their
padding, by the FLOPs of cost.py; that of a step, its slowest rank's. The ideal is all rows without
padding, evenly spread. "One row" is what the longest row alone makes of it, which nobody can share.

Lengths are assumptions: prompts of 100 to 300 tokens, the teacher's of 150 to 900 more, completions
log-normal and cut at a limit. Left out: what a pass costs beside its FLOPs, such as kernel
launches, for which a small model wants more tokens at once than is best here.
"""

import argparse
import math
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from statistics import mean
from time import perf_counter

from paint.config import Config, Train
from paint.data.problems import Problem
from paint.engines.protocol import Completion
from paint.planning.shapes import SHAPES, Shape
from paint.planning.work import backward_flops, forward_flops
from paint.training.dealing import Model, micro_batches, shares
from paint.training.rollouts import Rollout, View

LENGTHS = {
    "1k: median 700": (700, 0.6, 1024),
    "16k: median 3,000": (3000, 0.8, 16_384),
    "16k: median 6,000": (6000, 0.8, 16_384),
}
"""Median, sigma and limit of the completions' lengths, in tokens."""

RANK = 64
BUDGETS = (2048, 4096, 8192, 16_384)
ROWS_AT_ONCE = 4
NO_BUDGET = 10_000_000

Deal = Callable[[Sequence[Rollout], int, Config], list[list[Rollout]]]


def rows(rng: random.Random, count: int, median: float, sigma: float, limit: int) -> list[Rollout]:
    """A step's rollouts, of which only the lengths count."""
    found = []
    for row in range(count):
        prompt = rng.randint(100, 300)
        teacher = prompt + rng.randint(150, 900)
        length = min(limit, max(8, int(rng.lognormvariate(math.log(median), sigma))))
        completion = Completion((0,) * length, (), truncated=False)
        view = View(None, False, [0] * teacher)
        found.append(Rollout(row, Problem("", "", "", ""), [0] * prompt, completion, "", view))
    return found


def seconds(micro: Sequence[Rollout], shape: Shape) -> float:
    """FLOPs of a micro-batch by cost.py, with gradient checkpointing and with its padding."""
    adapters = shape.adapters(RANK, shape.matrices)
    student = max(len(r.prompt) + len(r.completion.ids) for r in micro)
    teacher = max(len(r.view.prompt) + len(r.completion.ids) for r in micro if r.view)
    passes = 2 * forward_flops(shape, adapters, student) + backward_flops(shape, adapters, student)
    passes += forward_flops(shape, 0, teacher)
    return len(micro) * passes + 6 * shape.head * sum(len(r.completion.ids) for r in micro)


def by_order(rollouts: Sequence[Rollout], ranks: int, _: Config) -> list[list[Rollout]]:
    """Neighbours together, as rows were generated."""
    each = math.ceil(len(rollouts) / ranks)
    return [list(rollouts[i : i + each]) for i in range(0, len(rollouts), each)]


def by_cost(shape: Shape) -> Deal:
    """What training does with this model."""
    model = Model(
        weights=shape.weights + shape.adapters(RANK, shape.matrices),
        attention=shape.layers * shape.heads * shape.head_size,
        head=shape.head,
        is_full=False,
        recomputes=True,
    )
    return lambda rollouts, ranks, config: shares(rollouts, ranks, model, config)


def times(
    steps: Sequence[Sequence[Rollout]], ranks: int, shape: Shape, deal: Deal, train: Train
) -> tuple[float, float]:
    """Time and padded work over the ideal: means over steps."""
    found, config = [], Config(train=train)
    for rollouts in steps:
        ideal = sum(seconds([r], shape) for r in rollouts) / ranks
        each = [
            sum(seconds(micro, shape) for micro in micro_batches(share, config))
            for share in deal(rollouts, ranks, config)
        ]
        found.append((max(each) / ideal, sum(each) / ranks / ideal))
    return mean(time for time, _ in found), mean(work for _, work in found)


def longest(steps: Sequence[Sequence[Rollout]], ranks: int, shape: Shape) -> float:
    """The least that any dealing can reach, for the longest row of each step."""
    bounds = []
    for rollouts in steps:
        costs = [seconds([r], shape) for r in rollouts]
        bounds.append(max(1.0, max(costs) * ranks / sum(costs)))
    return mean(bounds)


def main() -> None:
    """Print a row for each length, number of ranks, and way to deal."""
    parser = argparse.ArgumentParser(description="A step's time over its ideal, by its dealing.")
    parser.add_argument("--steps", type=int, default=100, help="steps that are drawn")
    parser.add_argument("--model", choices=SHAPES, default="Qwen/Qwen3-8B")
    parser.add_argument("--batch-size", type=int, default=32, help="rows of a step")
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()

    shape = SHAPES[asked.model]
    print(f"{asked.model}, {asked.batch_size} rows a step, {asked.steps} steps, seed {asked.seed}")
    print(
        "| lengths | ranks | one row | by order | " + " | ".join(f"{b:,}" for b in BUDGETS) + " |"
    )
    print("|---" * (4 + len(BUDGETS)) + "|")
    for name, lengths in LENGTHS.items():
        rng = random.Random(asked.seed)
        steps = [rows(rng, asked.batch_size, *lengths) for _ in range(asked.steps)]
        today = Train(micro_batch_size=ROWS_AT_ONCE, micro_batch_tokens=NO_BUDGET)
        for ranks in (1, 2, 8):
            cells = [f"{times(steps, ranks, shape, by_order, today)[0]:.2f}"]
            for budget in BUDGETS:
                train = replace(today, micro_batch_tokens=budget)
                time, work = times(steps, ranks, shape, by_cost(shape), train)
                cells.append(f"{time:.3f} ({work:.2f})")
            bound = longest(steps, ranks, shape)
            print(f"| {name} | {ranks} | {bound:.3f} | {' | '.join(cells)} |", flush=True)

    start = perf_counter()
    by_cost(shape)(steps[0], 8, Config())
    print(f"dealing a step over 8 ranks: {perf_counter() - start:.4f} s")


if __name__ == "__main__":
    main()
