"""Estimate of memory: what lies on which GPU, what fits, and which GPUs train and which serve.

    config.json -> shape -> bytes of a training GPU and of a server -> what fits, and what would

It needs a config and a model's config.json, no weights and no GPU: a model of 70 billion weights is
planned on a laptop.
"""

import math
import shlex
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from paint.config.schema import Config, ConfigError
from paint.core.errors import format_value
from paint.estimate.memory import (
    SLEEPING,
    Memory,
    Rows,
    ServerMemory,
    server_memory,
    training_memory,
)
from paint.estimate.shapes import Shape, shape_of
from paint.inference.registry import engine_type

USABLE = 0.9
"""Share of a GPU's memory that is planned with; the rest is for CUDA and the allocator."""

LAPTOP = 16e9
"""Bytes of memory that a laptop is taken to have."""

CARDS = (24e9, 48e9, 80e9, 141e9)
"""Bytes of GPUs that are suggested: RTX 4090, L40S, H100 or A100, H200."""

PROBLEM, SOLUTION, TRACE = 250, 1_000, 10_000
"""Tokens of a problem, its solution and a reasoning trace, which no setting limits: assumed."""

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
        shared: every GPU does both, in turns, which needs ``rollout.colocate``.
        reason: why, in words.
    """

    trainers: int
    servers: int
    shared: bool
    reason: str


def choose_split(config: Config, gpus: int, nodes: int = 1, *, server: int = 1) -> Split:
    """The default division of GPUs into trainers and servers.

    - Where no server is to be started, all GPUs train.
    - With ``rollout.colocate``, every GPU serves and trains in turns.
    - Else half of the GPUs serve, rounded down to whole servers, and at least one server. The
      others train. Of several machines, whole machines serve.
    - Where that leaves no GPU to train, every GPU serves and trains in turns.

    No more GPUs train than a step has rows.

    Args:
        gpus: of each machine.
        nodes: machines.
        server: GPUs of one server (``server_of``).
    """
    rollout, total = config.rollout, gpus * nodes
    # A rank without a row is refused.
    most = min(total, config.train.batch_size)
    if not config.generates:
        return Split(most, 0, False, f"{config.train.method} generates nothing")
    if rollout.urls:
        return Split(most, 0, False, "the servers at rollout.urls generate")
    if not engine_type(rollout.engine).is_remote:
        return Split(most, 0, False, f'rollout.engine is "{rollout.engine}"')
    if rollout.colocate:
        return Split(most, total, True, "rollout.colocate: each GPU serves and trains in turns")

    unit = gpus if nodes > 1 else server
    serving = max(total // 2 // unit, 1) * unit
    if serving >= total:
        reason = f"a server takes {unit} of {total}: each GPU serves and trains in turns"
        return Split(most, total, True, reason)
    kind = "machines" if nodes > 1 else "GPUs"
    reason = f"about half of the {kind} serve, {server} to a server"
    return Split(min(total - serving, most), serving, False, reason)


@dataclass(frozen=True)
class Plan:
    """The estimate of a config on so many GPUs in each of so many machines.

    Attributes:
        capacity: bytes of memory of each GPU.
        gpus: of each machine; 0 for a laptop's CPU.
        sharded: the frozen layers are divided over the GPUs of a machine that train.
    """

    config: Config
    shape: Shape
    capacity: float
    gpus: int
    nodes: int
    split: Split
    sharded: bool

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
        return self.split.shared and (self.config.rollout.colocate or not is_told)

    @property
    def headroom(self) -> float:
        """Bytes of a GPU that training may take: a server on it takes the rest."""
        if self.split.shared and not self.sleeps:
            return (USABLE - server_share(self.config)) * self.capacity
        return USABLE * self.capacity - (SLEEPING if self.split.shared else 0.0)

    @property
    def longest(self) -> Rows:
        """The longest micro-batch that the config allows."""
        return longest_rows(self)

    @property
    def fits(self) -> bool:
        """Whether the longest micro-batch fits."""
        return self.peak(self.longest) <= self.headroom

    @cached_property
    def memory(self) -> Memory:
        """Bytes of a training GPU at the longest micro-batch."""
        return self.memory_of(self.longest)

    def memory_of(self, rows: Rows) -> Memory:
        """Bytes of a training GPU."""
        split, config = self.split, self.config
        is_local = not split.servers and not config.rollout.urls and config.algorithm.needs_rollouts
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
    def server(self) -> ServerMemory | None:
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
        return _most(lambda n: self.peak(replace(rows, teacher_prompt=n)) <= self.headroom, most)


def make_plan(
    config: Config,
    gpus: int = 1,
    nodes: int = 1,
    memory: float | None = None,
    *,
    split: Split | None = None,
) -> Plan:
    """The estimate of a config.

    Args:
        gpus: of each machine; 0 for a laptop's CPU.
        nodes: machines.
        memory: bytes of each GPU; 80 GB, or a laptop's 16 GB, where None.
        split: who trains and who serves; ``divide`` says where None.

    Raises:
        ConfigError: no config.json is at hand, or the adapters are on layers that are not planned.
    """
    shape = shape_of(config.model.path)
    unknown = set(config.model.lora_targets) - shape.matrices.keys()
    if unknown and config.model.train_mode == "lora":
        raise ConfigError(
            f"model.lora_targets names {', '.join(sorted(unknown))}, which is not planned; the "
            f"plan knows {', '.join(shape.matrices)}"
        )
    capacity = memory or (80e9 if gpus else LAPTOP)
    undivided = split or Split(1, 0, False, "")
    plan = Plan(config, shape, capacity, gpus, nodes, undivided, config.model.shard)
    if split:
        return plan
    return replace(
        plan, split=choose_split(config, max(gpus, 1), nodes, server=server_of(plan).gpus)
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


def tensor_parallel_size(config: Config) -> int | None:
    """Over how many GPUs a server is told to spread; None where it is not."""
    told = server_flag(config, "--tensor-parallel-size") or server_flag(config, "-tp") or ""
    return max(int(told), 1) if told.isdecimal() else None


def server_of(plan: Plan) -> ServerMemory:
    """A server on as few GPUs of one machine as hold it, or on so many as its arguments say."""
    config = plan.config
    longest = config.data.max_prompt_tokens + config.rollout.max_new_tokens
    sizes = [1]
    while sizes[-1] * 2 <= plan.gpus:
        sizes.append(sizes[-1] * 2)
    if told := tensor_parallel_size(config):
        sizes = [told]
    servers = [
        server_memory(
            config,
            plan.shape,
            memory=plan.capacity,
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
    prompt = min(PROBLEM, config.data.max_prompt_tokens, positions - 1)
    if (
        not config.algorithm.needs_rollouts
    ):  # prompt and reference together have the limit of a prompt
        completion = min(config.data.max_prompt_tokens, positions) - prompt
        return _micro_batch(plan, prompt, prompt, max(completion, 1))

    completion = min(config.rollout.max_new_tokens, positions - prompt)
    teacher_prompt = min(config.data.max_prompt_tokens, positions - completion)
    return _micro_batch(plan, prompt, teacher_prompt, completion)


def usual_rows(plan: Plan) -> Rows:
    """A micro-batch of rows as they usually are: the same completions, shorter references."""
    longest, config = longest_rows(plan), plan.config
    if not config.algorithm.needs_rollouts:
        reference = TRACE if config.data.solution_field == "trace" else SOLUTION
        usual = min(longest.completion, reference)
        return _micro_batch(plan, longest.prompt, longest.teacher_prompt, usual)
    usual = min(longest.teacher_prompt, PROBLEM + SOLUTION)
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


def suggestions(plan: Plan, rows: Callable[[Plan], Rows]) -> list[str]:
    """At most three changes of a plan that does not fit, each of which fits.

    Settings that leave the result as it is are the only suggestion where they are enough. Else they
    go with shorter completions, with divided layers, or with larger GPUs.

    Args:
        rows: the micro-batch that is to fit: ``longest_rows`` or ``usual_rows``.
    """

    def fits(plan: Plan) -> bool:
        return plan.peak(rows(plan)) <= plan.headroom

    def with_setting(plan: Plan, section: str, **values: Any) -> Plan:
        config = plan.config
        changed = replace(getattr(config, section), **values)
        return replace(plan, config=replace(config, **{section: changed}))

    rollout, split, flags = plan.config.rollout, plan.split, []
    settings: list[tuple[str, str, dict[str, Any]]] = [
        ("--model.gradient-checkpointing", "model", {"gradient_checkpointing": True}),
        ("--train.micro-batch-size 1", "train", {"micro_batch_size": 1}),
        ("--rollout.batch-size 4", "rollout", {"batch_size": min(rollout.batch_size, 4)}),
    ]
    if split.shared:
        settings.append(("--rollout.colocate", "rollout", {"colocate": True}))
    for flag, section, values in settings:
        old, plan = plan, with_setting(plan, section, **values)
        if (plan.memory_of(rows(plan)), plan.headroom) != (old.memory_of(rows(old)), old.headroom):
            flags.append(flag)
        if fits(plan):
            return [" ".join(flags)]

    found = []
    if plan.config.algorithm.needs_rollouts and (
        most := _most(
            lambda n: fits(with_setting(plan, "rollout", max_new_tokens=n)), rollout.max_new_tokens
        )
    ):
        found.append(f"--rollout.max-new-tokens {most}")
    if not plan.sharded and plan.config.model.train_mode == "lora":
        for gpus in sorted({split.trainers, 2, 4, 8}):
            more = replace(split, trainers=gpus)
            shared_out = replace(plan, sharded=True, split=more, gpus=max(gpus, plan.gpus))
            if gpus >= max(split.trainers, 2) and fits(shared_out):
                found.append("--model.shard" + f" on {gpus} GPUs" * (gpus > split.trainers))
                break
    for capacity in CARDS:
        if capacity > plan.capacity and fits(replace(plan, capacity=capacity)):
            found.append(f"GPUs of {capacity / 1e9:.0f} GB")
            break
    return [f"{way} with {' '.join(flags)}" if flags else way for way in found]


def require_fit(plan: Plan) -> None:
    """Refuse a start that cannot fit: not even with references of usual length.

    Raises:
        ConfigError: with what would fit.
    """
    rows = usual_rows(plan)
    needed, there = plan.peak(rows), plan.headroom + (1 - USABLE) * plan.capacity
    if needed <= there:
        return

    memory = plan.memory_of(rows)
    ways = "; or ".join(suggestions(plan, usual_rows))
    raise ConfigError(
        f"model.path {format_value(plan.config.model.path)} needs about {gb(needed)} GB on each of "
        f"{plan.split.trainers} training GPUs, and there are {gb(there)} (base "
        f"{gb(memory.layers + memory.ends)}, what is trained "
        f"{gb(memory.adapters + memory.gradients + memory.optimizer)}, {peak_phase(memory)}); "
        f"{'take ' + ways if ways else 'take a smaller model, or larger GPUs'} "
        f"(`paint plan` says more)"
    )


def peak_phase(memory: Memory) -> str:
    """The phase that needs most, in words."""
    phase, value = max(memory.phases.items(), key=lambda item: item[1])
    return f"most beside it in the phase {phase}: {gb(value)}"


def gb(value: float) -> str:
    """Bytes in GB, with two or three digits."""
    giga = value / 1e9
    for least, digits in ((99.95, 0), (9.95, 1), (0.0995, 2), (0.00995, 3)):
        if abs(giga) >= least:
            return f"{giga:,.{digits}f}"
    return f"{giga:.4f}"
