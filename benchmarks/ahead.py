"""What would running ahead bring? A simulation, event by event; nothing was run or measured.

    python benchmarks/ahead.py [--steps 30]

GPUs of servers decode whatever they were asked for, with continuous batching; the other GPUs train,
step after step (paint.training.ahead says what is asked for when). On policy, each side waits for
the other. Every figure is the best split of the GPUs into servers and trainers.

Seconds of a pass and of a decoded token are those of benchmarks/cost.py, with what it leaves out:
lengths that differ (log-normal, by median, sigma and limit), and the assumptions below.
"""

import argparse
import math
import random
from collections import deque
from dataclasses import dataclass, field

from paint.planning.shapes import BYTES, SHAPES, Shape
from paint.planning.work import (
    BANDWIDTH_SHARE,
    FLOP_SHARE,
    MACHINES,
    MEMORY_SHARE,
    backward_flops,
    forward_flops,
)

MODELS = ("Qwen/Qwen3-1.7B", "Qwen/Qwen3-4B", "Qwen/Qwen3-8B")
AHEAD = (0, 1, 2, 4)
SPLITS = {2: (1,), 8: (2, 4, 6, 7)}  # of so many GPUs, those that serve
ROWS = 32  # completions a step
RANK = 64  # of the adapters
LENGTHS = {"1k": (700, 0.6, 1024), "16k": (3_000, 0.8, 16_384), "16k, long": (6_000, 0.8, 16_384)}

SLOTS = 64  # rows that a server decodes at once
TOKEN_SECONDS = 0.0015  # a decoded token besides its bytes and products: launches, sampling
STEP_SECONDS = 0.5  # a step besides its passes: sums over ranks, optimizer, logs
ADOPT_SECONDS = 0.3  # an adapter besides its bytes, which are written and read at DISK
DISK = 1e9  # bytes a second
SCORED = 4  # rows that a rank scores by the adapter that wrote them (train.micro_batch_size)
MACHINE = MACHINES["H100"]


@dataclass(frozen=True)
class Row:
    """A completion: its step, and lengths in tokens."""

    step: int
    prompt: int
    teacher_prompt: int
    length: int


@dataclass
class Server:
    """A GPU that decodes; ``now`` is how far it has been followed, in seconds."""

    shape: Shape
    adapters: int
    now: float = 0.0
    waiting: deque[Row] = field(default_factory=deque)
    running: dict[Row, int] = field(default_factory=dict)
    """Tokens that are decoded of each row."""

    @property
    def rows(self) -> int:
        return len(self.waiting) + len(self.running)

    def has(self, step: int) -> bool:
        return any(row.step == step for row in (*self.waiting, *self.running))

    def follow(self, until: float, step: int | None = None) -> None:
        """Until a time, or until the rows of a step are done."""
        while self.now < until and (step is None or self.has(step)):
            self._admit()
            if not self.running:
                self.now = until
                return
            token = self._token_seconds()
            left = min(row.length - done for row, done in self.running.items())
            if until < math.inf:
                left = min(left, math.ceil((until - self.now) / token))
            self.now += left * token
            self.running = {
                row: done + left for row, done in self.running.items() if done + left < row.length
            }

    def _admit(self) -> None:
        shape, free = self.shape, MEMORY_SHARE * MACHINE.memory
        free -= BYTES * (shape.parameters + self.adapters)
        held = sum(row.prompt + row.length for row in self.running) * shape.cache
        while self.waiting and len(self.running) < SLOTS:
            row = self.waiting[0]
            held += (row.prompt + row.length) * shape.cache
            if self.running and held > free:
                return
            read = forward_flops(shape, self.adapters, row.prompt)
            self.now += read / (FLOP_SHARE * MACHINE.flops)
            self.running[self.waiting.popleft()] = 0

    def _token_seconds(self) -> float:
        """One token of every row that runs."""
        shape, batch = self.shape, len(self.running)
        weights = shape.weights + self.adapters + shape.head
        context = sum(row.prompt + done for row, done in self.running.items())
        moved = BYTES * weights + shape.cache * context
        flops = batch * 2 * weights + 4 * shape.layers * shape.heads * shape.head_size * context
        bound = max(
            moved / (BANDWIDTH_SHARE * MACHINE.bandwidth), flops / (FLOP_SHARE * MACHINE.flops)
        )
        return bound + TOKEN_SECONDS


def train_seconds(
    shape: Shape, adapters: int, rows: list[Row], gpus: int, *, scores: bool, checkpoints: bool
) -> float:
    """A step's passes, its rows dealt by length: each to the GPU with the least to do."""
    busy = [0.0] * gpus
    for row in sorted(rows, key=lambda row: row.length, reverse=True):
        read = row.prompt + row.length
        forward = forward_flops(shape, adapters, read)
        flops = forward * (2 if checkpoints else 1) + backward_flops(shape, adapters, read)
        flops += forward_flops(shape, 0, row.teacher_prompt + row.length)
        flops += 3 * 2 * shape.head * row.length
        if scores:
            flops += min(SCORED * gpus / len(rows), 1) * (forward + 2 * shape.head * row.length)
        busy[busy.index(min(busy))] += flops / (FLOP_SHARE * MACHINE.flops)
    return max(busy) + STEP_SECONDS


def step_seconds(
    model: str,
    lengths: tuple[float, float, int],
    servers: int,
    trainers: int,
    ahead: int,
    *,
    steps: int,
) -> float:
    """Seconds a step, over a run of so many."""
    shape, rng = SHAPES[model], random.Random(0)
    adapters = shape.adapters(RANK, shape.matrices)
    adopt = ADOPT_SECONDS + 2 * 4 * adapters / DISK
    batches = [[_row(rng, step, lengths) for _ in range(ROWS)] for step in range(steps)]
    fleet = [Server(shape, adapters) for _ in range(servers)]

    def ask(step: int, now: float) -> None:
        for server in fleet:
            server.follow(now)
        for row in batches[step] if step < steps else ():
            min(fleet, key=lambda server: server.rows).waiting.append(row)

    now = 0.0
    for step in range(ahead):
        ask(step, now)
    for step in range(steps):
        if not ahead:
            now += adopt
            ask(step, now)
        for server in fleet:
            server.follow(math.inf, step)
            now = max(now, server.now)
        if ahead:
            now += adopt
            ask(step + ahead, now)
        now += train_seconds(
            shape, adapters, batches[step], trainers, scores=bool(ahead), checkpoints="8B" in model
        )
    return now / steps


def _row(rng: random.Random, step: int, lengths: tuple[float, float, int]) -> Row:
    median, sigma, limit = lengths
    prompt = rng.randint(100, 300)
    length = min(limit, max(8, int(rng.lognormvariate(math.log(median), sigma))))
    return Row(step, prompt, prompt + rng.randint(150, 900), length)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=30)
    steps = parser.parse_args().steps
    print("Seconds a step (GPUs that serve + train), and how many times faster than on policy.")
    print("| model | completions | GPUs | " + " | ".join(f"{k} ahead" for k in AHEAD) + " |")
    print("|" + "---|" * (3 + len(AHEAD)))
    for model in MODELS:
        for name, lengths in LENGTHS.items():
            for gpus, splits in SPLITS.items():
                best = [
                    min(
                        (step_seconds(model, lengths, e, gpus - e, ahead, steps=steps), e)
                        for e in splits
                    )
                    for ahead in AHEAD
                ]
                cells = [
                    f"{seconds:.1f} ({servers}+{gpus - servers}), {best[0][0] / seconds:.2f}"
                    for seconds, servers in best
                ]
                print(f"| {model[5:]} | {name} | {gpus} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
