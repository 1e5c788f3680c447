"""What lies where, what fits, and how long a step takes: estimated before anything is loaded.

    config.json -> shape -> bytes of a training GPU and of a server -> what fits, and what would
                         -> FLOPs and bytes of a step -> seconds by phase

It needs a config and a model's config.json, no weights and no GPU: a model of 70 billion weights is
planned on a laptop. Lengths are bounds where memory is asked for, and assumptions where time is.
"""

import math
import shlex
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from paint.config import Config, ConfigError
from paint.errors import show
from paint.planning.memory import (
    SLEEPING,
    Memory,
    Rows,
    Server,
    server_memory,
    training_memory,
)
from paint.planning.shapes import WIDTHS, Shape, shape_of
from paint.planning.units import duration, gb
from paint.planning.work import (
    BANDWIDTH_SHARE,
    FLOP_SHARE,
    HIGH,
    LAPTOP,
    LIMIT,
    MACHINES,
    MEMORY_SHARE,
    Machine,
    completion_tokens,
    generation_seconds,
    machine_of,
    phases_of_a_row,
    trained_weights,
    training,
)

HOST_LINK = 25e9
"""Bytes/s between a GPU and the CPU's memory, where a sleeping server's weights go (assumed)."""

SERVER_SHARE = 0.9
"""Of a GPU's memory that vLLM takes, unless --gpu-memory-utilization says otherwise."""


@dataclass(frozen=True)
class Split:
    """Which GPUs train, and which serve completions.

    Attributes:
        trainers: GPUs that train, one rank on each, over all machines.
        servers: GPUs that serve, over all machines; 0 where the ranks generate by themselves, or
            where servers run elsewhere.
        shared: every GPU does both, in turns (``rollout.sleep``).
        reason: why, in words.
    """

    trainers: int
    servers: int
    shared: bool
    reason: str


@dataclass(frozen=True)
class Plan:
    """A config on so many GPUs in each of so many machines; 0 GPUs are a laptop's CPU."""

    config: Config
    shape: Shape
    machine: Machine
    gpus: int
    nodes: int
    split: Split
    sharded: bool

    @property
    def shards(self) -> int:
        """GPUs of one machine over which the frozen layers are divided."""
        return min(self.split.trainers, max(self.gpus, 1)) if self.sharded else 1

    @property
    def room(self) -> float:
        """Bytes of a GPU that training may take: a server on it takes the rest."""
        memory = self.machine.memory
        if not self.split.shared:
            return MEMORY_SHARE * memory
        if self.config.rollout.sleep:
            return MEMORY_SHARE * memory - SLEEPING
        return MEMORY_SHARE * memory - server_share(self.config) * memory

    @property
    def longest(self) -> Rows:
        """The longest micro-batch that the config allows."""
        return longest_rows(self.config, self.shape, self.split.trainers)

    @property
    def fits(self) -> bool:
        """Whether the longest micro-batch fits."""
        return self.peak(self.longest) <= self.room

    @cached_property
    def memory(self) -> Memory:
        """Bytes of a training GPU at the longest micro-batch."""
        return self.memory_of(self.longest)

    def memory_of(self, rows: Rows) -> Memory:
        """Bytes of a training GPU."""
        split, config = self.split, self.config
        is_local = not split.servers and not config.rollout.urls and config.train.method != "sft"
        mine = math.ceil(config.train.batch_size / split.trainers)
        return training_memory(
            config,
            self.shape,
            rows,
            shards=self.shards,
            ranks=split.trainers,
            generating=min(config.rollout.batch_size, mine) if is_local else 0,
        )

    def peak(self, rows: Rows) -> float:
        """The most bytes of a training GPU at any time."""
        return self.memory_of(rows).peak

    @property
    def server(self) -> Server | None:
        """One server of this plan, on as few GPUs as hold it."""
        return (
            server_of(self.config, self.shape, self.gpus, self.machine)
            if self.split.servers
            else None
        )

    @property
    def longest_completion(self) -> int:
        """Tokens of the longest completion that fits with the longest prompts; 0 for none."""
        rows = self.longest
        most = self.shape.positions - rows.teacher_prompt
        return _most(lambda n: self.peak(replace(rows, completion=n)) <= self.room, most)

    @property
    def longest_prompt(self) -> int:
        """Tokens of the longest teacher's prompt that fits with the longest completions."""
        rows = self.longest
        most = self.shape.positions - rows.completion
        return _most(lambda n: self.peak(replace(rows, teacher_prompt=n)) <= self.room, most)

    @cached_property
    def seconds(self) -> dict[str, float]:
        """Seconds of a step by phase, with every completion at its limit."""
        return step_seconds(self)

    @property
    def step(self) -> float:
        """Seconds of a step; rollouts one step ahead run beside the rest of it."""
        rollout = self.seconds["rollout"]
        rest = sum(self.seconds.values()) - rollout
        return max(rollout, rest) if is_ahead(self.config) else rollout + rest


def make_plan(
    config: Config,
    gpus: int = 1,
    nodes: int = 1,
    memory: float | None = None,
    *,
    name: str = "",
    split: Split | None = None,
) -> Plan:
    """The plan of a config.

    Args:
        gpus: of each machine; 0 for a laptop's CPU.
        nodes: machines.
        memory: bytes of each GPU; 80 GB, or a laptop's 16 GB, where None.
        name: of the GPU, which says how fast it is; else its memory does.
        split: who trains and who serves, where that is settled.

    Raises:
        ConfigError: no config.json is at hand, or the adapters are on layers that are not planned.
    """
    shape = shape_of(config.model.path)
    unknown = set(config.model.lora_targets) - shape.matrices.keys()
    if unknown and config.model.tuning == "lora":
        raise ConfigError(
            f"model.lora_targets names {', '.join(sorted(unknown))}, which is not planned; the "
            f"plan knows {', '.join(shape.matrices)}"
        )
    if gpus:
        machine = machine_of(memory or 80e9, name)
    else:
        machine = replace(LAPTOP, memory=memory or LAPTOP.memory)
    split = split or divided(config, shape, machine, gpus, nodes)
    return Plan(config, shape, machine, gpus, nodes, split, is_sharded(config))


def divide(config: Config, gpus: int, nodes: int = 1, memory: float = 80e9) -> Split:
    """Which of the GPUs train and which serve.

    Of the ways that fit, the one whose step is estimated to be the shortest. Servers get whole
    machines where there are several.

    Args:
        gpus: of each machine.
        nodes: machines.
        memory: bytes of each GPU.

    Raises:
        ConfigError: the model's config.json is not at hand.
    """
    return make_plan(config, gpus, nodes, memory).split


def divided(config: Config, shape: Shape, machine: Machine, gpus: int, nodes: int) -> Split:
    """``divide``, for a model of this shape on this GPU."""
    total, rollout = max(gpus, 1) * nodes, config.rollout
    # More ranks than rows would have nothing to do, and are refused.
    most = min(total, config.train.batch_size)
    if config.train.method == "sft" and not config.validation.path:
        return Split(most, 0, False, "sft asks no engine")
    if rollout.urls:
        return Split(most, 0, False, "the servers at rollout.urls generate")
    if rollout.engine != "vllm":
        return Split(most, 0, False, f'rollout.engine is "{rollout.engine}": ranks generate')
    if rollout.sleep:
        return Split(most, total, True, "rollout.sleep: each GPU serves and trains in turns")
    if total == 1:
        return Split(1, 1, True, "there is one GPU, which server and trainer share")

    server = server_of(config, shape, gpus, machine)
    step = gpus if nodes > 1 else server.gpus
    plans = [
        Plan(
            config,
            shape,
            machine,
            gpus,
            nodes,
            Split(min(total - servers, most), servers, False, ""),
            is_sharded(config),
        )
        for servers in range(step, total, step)
    ]
    if not plans:
        return Split(
            most,
            total,
            True,
            f"a server needs all {server.gpus} GPUs; --rollout.sleep lets them train in turns",
        )
    fitting = [plan for plan in plans if plan.fits]
    best = min(fitting or plans, key=lambda plan: plan.step)
    of_whole_machines = " in whole machines" if nodes > 1 else ""
    reason = (
        f"the shortest step of {len(fitting or plans)} ways{of_whole_machines}: "
        f"{duration(best.seconds['rollout'])} of {duration(best.step)} generate"
    )
    if not fitting:
        reason += "; none of them fits"
    return replace(best.split, reason=reason)


def is_sharded(config: Config) -> bool:
    """Whether the frozen layers are divided over the GPUs of a machine (model.shard)."""
    return bool(getattr(config.model, "shard", False))


def is_ahead(config: Config) -> bool:
    """Whether rollouts are asked for before they are needed (rollout.ahead)."""
    return bool(getattr(config.rollout, "ahead", 0))


def server_flag(config: Config, name: str) -> str | None:
    """The value of a flag in rollout.server_args, as vLLM reads it: the last one counts."""
    parts = shlex.split(config.rollout.server_args)
    value = None
    for i, part in enumerate(parts):
        flag, _, given = part.partition("=")
        if flag == name:
            value = given or (parts[i + 1] if i + 1 < len(parts) else None)
    return value


def server_share(config: Config) -> float:
    """The share of a GPU's memory that a server takes."""
    try:
        return float(server_flag(config, "--gpu-memory-utilization") or SERVER_SHARE)
    except ValueError:
        return SERVER_SHARE  # vLLM will say what is wrong with it


def server_of(config: Config, shape: Shape, gpus: int, machine: Machine) -> Server:
    """A server on as few GPUs of one machine as hold it, or on so many as its arguments say."""
    rows = longest_rows(config, shape, 1)
    longest = min(config.data.max_prompt_tokens + rows.completion, shape.positions)
    given = server_flag(config, "--tensor-parallel-size") or server_flag(config, "-tp")
    sizes = [1]
    while sizes[-1] * 2 <= gpus:
        sizes.append(sizes[-1] * 2)
    if given and given.isdigit():
        sizes = [max(int(given), 1)]
    servers = [
        server_memory(
            config,
            shape,
            memory=machine.memory,
            share=server_share(config),
            longest=longest,
            gpus=size,
        )
        for size in sizes
    ]
    return next((server for server in servers if server.fits), servers[-1])


def longest_rows(config: Config, shape: Shape, trainers: int) -> Rows:
    """The longest micro-batch that a config allows: the teacher's prompts and completions.

    The student's prompt is a problem alone, whose length is assumed.
    """
    prompt = min(int(HIGH.problem), config.data.max_prompt_tokens, shape.positions)
    if config.train.method == "sft":  # prompt and reference together have the limit of a prompt
        completion = min(config.data.max_prompt_tokens, shape.positions) - prompt
        return Rows(_micro(config, trainers), prompt, prompt, max(completion, 1))

    completion = min(config.rollout.max_new_tokens, shape.positions)
    longest = min(config.data.max_prompt_tokens, shape.positions - completion)
    return Rows(_micro(config, trainers), prompt, max(longest, 0), completion)


def usual_rows(config: Config, shape: Shape, trainers: int) -> Rows:
    """A micro-batch of rows as they usually are: the same completions, shorter references."""
    longest = longest_rows(config, shape, trainers)
    teacher_prompt = min(longest.teacher_prompt, int(HIGH.problem + HIGH.solution))
    usual = replace(longest, teacher_prompt=teacher_prompt)
    if config.train.method == "sft":
        reference = int(completion_tokens(config, HIGH))
        return replace(usual, completion=min(longest.completion, reference))
    return usual


def _micro(config: Config, trainers: int) -> int:
    rows = math.ceil(config.train.batch_size / trainers)
    return min(config.train.micro_batch_size, rows)


def _most(fits: Callable[[int], bool], most: int) -> int:
    """The largest number in [0, most] that fits, where fewer fit wherever more do."""
    low, high = 0, max(most, 0)
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(middle) else (low, middle - 1)
    return low


def step_seconds(plan: Plan) -> dict[str, float]:
    """Seconds of a step by phase, with every completion at its limit: floors (planning.work)."""
    config, shape, machine, split = plan.config, plan.shape, plan.machine, plan.split
    peak = FLOP_SHARE * machine.flops
    link = BANDWIDTH_SHARE * machine.link
    trained = trained_weights(config, shape) or shape.parameters

    once = replace(config, train=replace(config.train, steps=1, warmup_steps=0))
    work = training(once, shape, LIMIT)
    seconds = {"rollout": 0.0}
    for part in work.generations:
        server = plan.server
        if server:
            together = replace(
                machine,
                flops=machine.flops * server.gpus,
                bandwidth=machine.bandwidth * server.gpus,
                memory=machine.memory * server.gpus,
            )
            count = max(split.servers // server.gpus, 1)
            seconds["rollout"] = generation_seconds(work, part, together, count)
        else:
            seconds["rollout"] = generation_seconds(work, part, machine, split.trainers)
        if server and split.shared and config.rollout.sleep:
            weights = WIDTHS[config.model.dtype] * shape.parameters / server.gpus
            seconds["sleep and wake"] = 2 * weights / HOST_LINK

    updates = sum(part.rounds for part in work.scorings)
    mine = math.ceil(config.train.batch_size / split.trainers)
    for phase, flops in phases_of_a_row(config, shape, LIMIT).items():
        seconds[phase] = updates * mine * flops / peak

    if plan.shards > 1:
        # Each layer comes whole for every pass of every micro-batch, while another is computed.
        others = (plan.shards - 1) / plan.shards
        passes = 3 * math.ceil(mine / config.train.micro_batch_size)
        moved = passes * others * WIDTHS[config.model.dtype] * shape.weights / link
        computed = seconds["teacher forward"] + seconds["student forward"] + seconds["backward"]
        seconds["waiting for layers"] = max(updates * moved - computed, 0.0)

    summed = 2 * (1 - 1 / split.trainers) * 4 * trained / link
    seconds["update"] = updates * (summed + 28 * trained / (BANDWIDTH_SHARE * machine.bandwidth))
    return {phase: value for phase, value in seconds.items() if value or phase == "rollout"}


# What would fit


def ways_out(plan: Plan, rows: Callable[[Config, Shape, int], Rows]) -> Iterator[str]:
    """Changes of a plan that does not fit, each of which fits: the cheapest first."""
    config, split = plan.config, plan.split
    model, train, rollout = config.model, config.train, config.rollout

    def fits(config: Config, **changes: Any) -> bool:
        changed = replace(plan, config=config, **changes)
        return changed.peak(rows(config, plan.shape, changed.split.trainers)) <= changed.room

    # One after the other, until it fits.
    flags = []
    if not model.gradient_checkpointing:
        config = replace(config, model=replace(model, gradient_checkpointing=True))
        flags.append("--model.gradient-checkpointing")
    if not fits(config) and train.micro_batch_size > 1:
        config = replace(config, train=replace(train, micro_batch_size=1))
        flags.append("--train.micro-batch-size 1")
    if not fits(config) and not split.servers and rollout.batch_size > 4:
        config = replace(config, rollout=replace(rollout, batch_size=4))
        flags.append("--rollout.batch-size 4")
    if not fits(config) and split.shared and not rollout.sleep:
        config = replace(config, rollout=replace(config.rollout, sleep=True))
        flags.append("--rollout.sleep")
    beside = f" with {' '.join(flags)}" if flags else ""
    if fits(config):
        yield " ".join(flags)
        return

    if train.method != "sft":
        smallest = replace(plan, config=config)
        asked = rows(config, plan.shape, split.trainers)
        most = _most(
            lambda n: smallest.peak(replace(asked, completion=n)) <= smallest.room,
            rollout.max_new_tokens,
        )
        if most:
            yield f"--rollout.max-new-tokens {most}{beside}"
    if not plan.sharded and model.tuning == "lora":
        for gpus in sorted({split.trainers, 2, 4, 8}):
            if gpus < max(split.trainers, 2):
                continue
            more = replace(split, trainers=gpus)
            if fits(config, sharded=True, split=more, gpus=max(gpus, plan.gpus)):
                on_more = f" on {gpus} GPUs" if gpus > split.trainers else ""
                yield f"--model.shard{on_more}{beside}"
                break
    for memory in sorted({machine.memory for machine in MACHINES.values()}):
        if memory > plan.machine.memory and fits(
            config, machine=replace(plan.machine, memory=memory)
        ):
            yield f"GPUs of {memory / 1e9:.0f} GB{beside}"
            break


def require_fit(plan: Plan) -> None:
    """Refuse a start that cannot fit: not even with references of usual length.

    Raises:
        ConfigError: with what would fit.
    """
    rows = usual_rows(plan.config, plan.shape, plan.split.trainers)
    needed, there = plan.peak(rows), plan.machine.memory
    if plan.split.shared and not plan.config.rollout.sleep:
        there -= server_share(plan.config) * plan.machine.memory
    if needed <= there:
        return

    memory = plan.memory_of(rows)
    ways = "; or ".join(ways_out(plan, usual_rows))
    raise ConfigError(
        f"model.path {show(plan.config.model.path)} needs about {gb(needed)} GB on each of "
        f"{plan.split.trainers} training GPUs, and there are {gb(there)} (base "
        f"{gb(memory.layers + memory.ends)}, what is trained "
        f"{gb(memory.adapters + memory.gradients + memory.optimizer)}, {worst(memory)}); "
        f"{'take ' + ways if ways else 'take a smaller model, or larger GPUs'} "
        f"(`paint plan` says more)"
    )


def worst(memory: Memory) -> str:
    """The phase that needs most, in words."""
    phase, value = max(memory.phases.items(), key=lambda item: item[1])
    return f"most beside it in the phase {phase}: {gb(value)}"
