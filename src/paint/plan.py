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
    LAPTOP,
    LIMIT,
    MACHINES,
    MEMORY_SHARE,
    Lengths,
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

UTILIZATION = "--gpu-memory-utilization"
SERVER_SHARE = 0.9
"""Of a GPU's memory that vLLM takes, unless UTILIZATION says otherwise."""


@dataclass(frozen=True)
class Split:
    """Which GPUs train, and which serve completions.

    Attributes:
        trainers: GPUs that train, one rank on each, over all machines.
        servers: GPUs that serve, over all machines; 0 where the ranks generate by themselves, or
            where servers run elsewhere.
        shared: every GPU does both, in turns, which needs ``rollout.sleep``.
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
    lengths: Lengths = LIMIT

    @property
    def shards(self) -> int:
        """GPUs of one machine over which the frozen layers are divided."""
        return min(self.split.trainers, max(self.gpus, 1)) if self.sharded else 1

    @property
    def sleeps(self) -> bool:
        """Whether servers give their GPUs up in turns: asked for, or the only way to share them.

        A server that is told how much of a shared GPU it may take stays awake.
        """
        is_told = server_flag(self.config, UTILIZATION) is not None
        return self.split.shared and (self.config.rollout.sleep or not is_told)

    @property
    def room(self) -> float:
        """Bytes of a GPU that training may take: a server on it takes the rest."""
        memory, split = self.machine.memory, self.split
        if split.shared and not self.sleeps:
            return (MEMORY_SHARE - server_share(self.config)) * memory
        return MEMORY_SHARE * memory - (SLEEPING if split.shared else 0.0)

    @property
    def longest(self) -> Rows:
        """The longest micro-batch that the config allows."""
        return longest_rows(self)

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
        return server_of(self) if self.split.servers else None

    @property
    def longest_completion(self) -> int:
        """Tokens of the longest completion that fits with the longest prompts; 0 for none."""

        def fits(tokens: int) -> bool:
            rollout = replace(self.config.rollout, max_new_tokens=tokens)
            return replace(self, config=replace(self.config, rollout=rollout)).fits

        return _most(fits, self.shape.positions - self.longest.prompt)

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
        return max(rollout, rest) if self.config.rollout.ahead else rollout + rest


def make_plan(
    config: Config,
    gpus: int = 1,
    nodes: int = 1,
    memory: float | None = None,
    *,
    name: str = "",
    split: Split | None = None,
    lengths: Lengths = LIMIT,
) -> Plan:
    """The plan of a config.

    Args:
        gpus: of each machine; 0 for a laptop's CPU.
        nodes: machines.
        memory: bytes of each GPU; 80 GB, or a laptop's 16 GB, where None.
        name: of the GPU, which says how fast it is; else its memory does.
        split: who trains and who serves, where that is settled.
        lengths: of problems and solutions, assumed.

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
    undivided = split or Split(1, 0, False, "")
    plan = Plan(config, shape, machine, gpus, nodes, undivided, config.model.shard, lengths)
    return plan if split else replace(plan, split=divided(plan))


def divide(config: Config, gpus: int, nodes: int = 1, memory: float = 80e9) -> Split:
    """Which of the GPUs train and which serve.

    Of the ways that fit, the one whose step is estimated to be the shortest. Servers get whole
    machines where there are several. Where no way fits, all do both in turns.

    Args:
        gpus: of each machine.
        nodes: machines.
        memory: bytes of each GPU.

    Raises:
        ConfigError: the model's config.json is not at hand.
    """
    return make_plan(config, gpus, nodes, memory).split


def divided(plan: Plan) -> Split:
    """``divide``, for a plan whose GPUs are not divided yet."""
    config, rollout = plan.config, plan.config.rollout
    total = max(plan.gpus, 1) * plan.nodes
    # More ranks than rows would have nothing to do, and are refused.
    most = min(total, config.train.batch_size)
    if config.train.method == "sft" and not config.validation.path:
        return Split(most, 0, False, "sft asks no engine")
    if rollout.urls:
        return Split(most, 0, False, "the servers at rollout.urls generate")
    if rollout.engine != "vllm":
        return Split(most, 0, False, f'rollout.engine is "{rollout.engine}"')
    if rollout.sleep:
        return Split(most, total, True, "rollout.sleep: each GPU serves and trains in turns")
    if total == 1:
        return Split(1, 1, True, "there is one GPU, which server and trainer share")

    size = server_of(plan).gpus
    by = plan.gpus if plan.nodes > 1 else size
    ways = [
        replace(plan, split=Split(min(total - servers, most), servers, False, ""))
        for servers in range(by, total, by)
    ]
    fitting = [way for way in ways if way.fits]
    if not fitting:
        return Split(
            most,
            total,
            True,
            f"no division into trainers and servers of {size} fits: each GPU serves and trains "
            f"in turns (rollout.sleep)",
        )
    best = min(fitting, key=lambda way: way.step)
    whole = " in whole machines" if plan.nodes > 1 else ""
    return replace(
        best.split,
        reason=f"the shortest step of {len(fitting)} divisions that fit{whole}: "
        f"{duration(best.seconds['rollout'])} of {duration(best.step)} generate",
    )


def server_flag(config: Config, name: str) -> str | None:
    """The value of a flag of our servers, as vLLM reads it: the last one counts."""
    parts = shlex.split(f"{config.rollout.server} {config.rollout.server_args}")
    value = None
    for i, part in enumerate(parts):
        flag, _, given = part.partition("=")
        if flag == name:
            value = given or (parts[i + 1] if i + 1 < len(parts) else None)
    return value


def server_share(config: Config) -> float:
    """The share of a GPU's memory that a server takes."""
    try:
        return float(server_flag(config, UTILIZATION) or SERVER_SHARE)
    except ValueError:
        return SERVER_SHARE  # vLLM will say what is wrong with it


def told_gpus(config: Config) -> int | None:
    """Over how many GPUs a server is told to spread; None where it is not."""
    told = server_flag(config, "--tensor-parallel-size") or server_flag(config, "-tp") or ""
    return max(int(told), 1) if told.isdecimal() else None


def server_of(plan: Plan) -> Server:
    """A server on as few GPUs of one machine as hold it, or on so many as its arguments say."""
    config = plan.config
    longest = config.data.max_prompt_tokens + config.rollout.max_new_tokens
    sizes = [1]
    while sizes[-1] * 2 <= plan.gpus:
        sizes.append(sizes[-1] * 2)
    if told := told_gpus(config):
        sizes = [told]
    servers = [
        server_memory(
            config,
            plan.shape,
            memory=plan.machine.memory,
            share=server_share(config),
            longest=min(longest, plan.shape.positions),
            gpus=size,
        )
        for size in sizes
    ]
    return next((server for server in servers if server.fits), servers[-1])


def longest_rows(plan: Plan) -> Rows:
    """The longest micro-batch that a config allows: the teacher's prompts and completions.

    The student's prompt is a problem alone, whose length is assumed.
    """
    config, positions = plan.config, plan.shape.positions
    prompt = min(int(plan.lengths.problem), config.data.max_prompt_tokens, positions - 1)
    if config.train.method == "sft":  # prompt and reference together have the limit of a prompt
        completion = min(config.data.max_prompt_tokens, positions) - prompt
        return _micro_batch(plan, prompt, prompt, max(completion, 1))

    completion = min(config.rollout.max_new_tokens, positions - prompt)
    teacher_prompt = min(config.data.max_prompt_tokens, positions - completion)
    return _micro_batch(plan, prompt, teacher_prompt, completion)


def usual_rows(plan: Plan) -> Rows:
    """A micro-batch of rows as they usually are: the same completions, shorter references."""
    longest, lengths = longest_rows(plan), plan.lengths
    usual = min(longest.teacher_prompt, int(lengths.problem + lengths.solution))
    if plan.config.train.method == "sft":
        reference = min(longest.completion, int(completion_tokens(plan.config, lengths)))
        return _micro_batch(plan, longest.prompt, longest.teacher_prompt, reference)
    return _micro_batch(plan, longest.prompt, usual, longest.completion)


def _micro_batch(plan: Plan, prompt: int, teacher_prompt: int, completion: int) -> Rows:
    """As many rows of this length as go together, and not more than a rank has."""
    train = plan.config.train
    fit = train.micro_batch_tokens // (max(prompt, teacher_prompt) + completion)
    mine = math.ceil(train.batch_size / plan.split.trainers)
    return Rows(min(train.micro_batch_size, max(fit, 1), mine), prompt, teacher_prompt, completion)


def _most(fits: Callable[[int], bool], most: int) -> int:
    """The largest number in [1, most] that fits, where fewer fit wherever more do; 0 for none."""
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
    work = training(once, shape, plan.lengths)
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
        if server and plan.sleeps:
            weights = WIDTHS[config.model.dtype] * shape.parameters / server.gpus
            seconds["sleep and wake"] = 2 * weights / HOST_LINK

    updates = sum(part.rounds for part in work.scorings)
    mine = math.ceil(config.train.batch_size / split.trainers)
    for phase, flops in phases_of_a_row(config, shape, plan.lengths).items():
        seconds[phase] = updates * mine * flops / peak

    if plan.shards > 1:
        # Each layer comes whole for every pass of every micro-batch, while another is computed.
        others = (plan.shards - 1) / plan.shards
        passes = 3 * math.ceil(mine / longest_rows(plan).rows)
        moved = passes * others * WIDTHS[config.model.dtype] * shape.weights / link
        computed = seconds["teacher forward"] + seconds["student forward"] + seconds["backward"]
        seconds["waiting for layers"] = max(updates * moved - computed, 0.0)

    summed = 2 * (1 - 1 / split.trainers) * 4 * trained / link
    seconds["update"] = updates * (summed + 28 * trained / (BANDWIDTH_SHARE * machine.bandwidth))
    return {phase: value for phase, value in seconds.items() if value or phase == "rollout"}


# What would fit


def ways_out(plan: Plan, rows: Callable[[Plan], Rows]) -> Iterator[str]:
    """Changes of a plan that does not fit, each of which fits: the cheapest first."""
    config, split = plan.config, plan.split
    model, train, rollout = config.model, config.train, config.rollout

    def fits(config: Config, **changes: Any) -> bool:
        changed = replace(plan, config=config, **changes)
        return changed.peak(rows(changed)) <= changed.room

    # One after the other, until it fits.
    flags = []
    if not model.gradient_checkpointing:
        config = replace(config, model=replace(model, gradient_checkpointing=True))
        flags.append("--model.gradient-checkpointing")
    if not fits(config) and rows(replace(plan, config=config)).rows > 1:
        config = replace(config, train=replace(train, micro_batch_size=1))
        flags.append("--train.micro-batch-size 1")
    if not fits(config) and not split.servers and rollout.batch_size > 4:
        config = replace(config, rollout=replace(rollout, batch_size=4))
        flags.append("--rollout.batch-size 4")
    if not fits(config) and split.shared and not plan.sleeps:
        config = replace(config, rollout=replace(config.rollout, sleep=True))
        flags.append("--rollout.sleep")
    beside = f" with {' '.join(flags)}" if flags else ""
    if fits(config):
        yield " ".join(flags)
        return

    if train.method != "sft":
        sampled = config.rollout
        if most := _most(
            lambda n: fits(replace(config, rollout=replace(sampled, max_new_tokens=n))),
            sampled.max_new_tokens,
        ):
            yield f"--rollout.max-new-tokens {most}{beside}"
    if not plan.sharded and model.tuning == "lora":
        for gpus in sorted({split.trainers, 2, 4, 8}):
            if gpus < max(split.trainers, 2):
                continue
            more = {"split": replace(split, trainers=gpus), "gpus": max(gpus, plan.gpus)}
            on_more = f" on {gpus} GPUs" if gpus > split.trainers else ""
            if fits(plan.config, sharded=True, **more):
                yield f"--model.shard{on_more}"
                break
            if fits(config, sharded=True, **more):
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
    rows = usual_rows(plan)
    needed, there = plan.peak(rows), plan.room + (1 - MEMORY_SHARE) * plan.machine.memory
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
