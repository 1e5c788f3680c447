"""Memory plan of a run: bytes of each GPU, and the split of GPUs into trainers and servers.

    config.json -> shape -> bytes of a training GPU and of a server -> what fits

It needs a config and a model's config.json, but no weights and no GPU: a laptop can plan a model of
70 billion weights.
"""

import math
import shlex
from bisect import bisect
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Protocol, runtime_checkable

from paint.algorithms.base import Algorithm
from paint.config.schema import CPU_ROWS, CPU_TOKENS, Config, ConfigError, RolloutConfig
from paint.core.errors import format_value
from paint.estimate.memory import (
    SLEEPING,
    Kernels,
    Memory,
    Rows,
    ServerMemory,
    server_memory,
    training_memory,
)
from paint.estimate.shapes import Shape, shape_of
from paint.inference.engines import EngineType
from paint.training.optim import OptimizerFactory

USABLE = 0.9
"""Share of a GPU's memory that a plan uses; the rest is for CUDA and the allocator."""

LAPTOP = 16e9
"""Memory of a laptop in bytes (assumed)."""

PROBLEM, SOLUTION, TRACE = 250, 1_000, 10_000
"""Tokens of a problem, its solution and a reasoning trace, which no setting limits (assumed)."""

UTILIZATION = "--gpu-memory-utilization"
SERVER_SHARE = 0.92
"""Share of a GPU's memory that vLLM uses without the flag UTILIZATION (vllm/config/cache.py)."""

STEP = 1024
"""A chosen train.micro_batch_tokens is a multiple of this many tokens."""

BESIDE = 4e9
"""Bytes of a shared GPU that neither a waking server nor the trainer's tensors use: two CUDA
contexts, the allocator's fragments and the server's working memory outside of its share
(assumed)."""


@dataclass(frozen=True)
class Split:
    """Split of GPUs into trainers and servers.

    Attributes:
        trainers: number of training GPUs over all machines, one rank on each.
        servers: number of serving GPUs over all machines; 0 if the ranks themselves generate, or
            if servers run elsewhere.
        shared: whether every GPU serves and trains in turns, which needs ``rollout.colocate``.
        reason: explanation of the split for the user.
    """

    trainers: int
    servers: int
    shared: bool
    reason: str


@dataclass(frozen=True)
class Machine:
    """What "auto", the plan and its refusals depend on; paint.inference.machine finds it.

    Attributes:
        gpus: GPUs of each computer that train; 0 without any.
        memory: bytes of each GPU, or of a computer for each process; 0: those of ``make_plan``.
        ranks, nodes: processes that train, and computers.
        has_liger: whether liger-kernel is installed.
    """

    gpus: int = 0
    memory: float = 0.0
    ranks: int = 1
    nodes: int = 1
    has_liger: bool = False


@runtime_checkable
class PlannedRun(Protocol):
    """What a plan reads of a run (paint.training.check.Resolved)."""

    @property
    def config(self) -> Config: ...
    @property
    def algorithm(self) -> Algorithm: ...
    @property
    def engine(self) -> EngineType: ...
    @property
    def optimizer(self) -> OptimizerFactory: ...


def choose_split(run: PlannedRun, gpus: int, nodes: int = 1, *, server: int = 1) -> Split:
    """Choose the default split of GPUs into trainers and servers.

    - If no server is to be started, all GPUs train.
    - With ``rollout.colocate``, every GPU serves and trains in turns.
    - Otherwise half of the GPUs serve, rounded down to a multiple of a server's GPUs, with at least
      one server. The others train. With several machines, a machine either serves or trains.
    - If that leaves no GPU to train, every GPU serves and trains in turns.

    At most as many GPUs train as a step has rows.

    Args:
        gpus, nodes: number of GPUs in each machine, and number of machines.
        server: number of GPUs of one server (``server_of``).
    """
    config, rollout, total = run.config, run.config.rollout, gpus * nodes
    most = min(total, config.train.batch_size)  # every rank needs a row
    if not run.algorithm.generates(config):
        return Split(most, 0, False, f"{config.train.method} generates nothing")
    if rollout.urls:
        return Split(most, 0, False, "the servers at rollout.urls generate")
    if not run.engine.is_remote:
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
    """Memory plan of a run on the GPUs of one or several machines.

    Attributes:
        config: its micro-batches and gradient checkpointing may be "auto" (``chosen``).
        capacity: memory of each GPU in bytes.
        gpus: number of GPUs in each machine; 0 for a laptop's CPU.
        liger: whether liger-kernel computes the layers (paint.models.liger); where that is not
            known, False is an upper bound.
    """

    config: Config
    algorithm: Algorithm
    optimizer: OptimizerFactory
    shape: Shape
    capacity: float
    gpus: int
    nodes: int
    split: Split
    liger: bool = False

    @cached_property
    def chosen(self) -> Config:
        """The config with micro-batches and checkpointing chosen by the bytes where they are auto.

        Gradient checkpointing is off where a micro-batch of one longest row fits without it. The
        tokens are then the most that fit, whatever the lengths of the rows, at most as many as
        train.micro_batch_size of the longest rows have. Where that is auto, too, the rows are all
        of a rank; or the most that fit with completions of the longest length, and the tokens are
        theirs with typical references (``_typical_length``), if more such rows then go together. On
        a CPU nothing is recomputed, and rows and tokens are CPU_ROWS and CPU_TOKENS. Where nothing
        fits, each row is a micro-batch, with checkpointing.
        """
        train, model = self.config.train, self.config.model
        sizes = train.micro_batch_size, train.micro_batch_tokens, model.gradient_checkpointing
        if "auto" not in sizes:
            return self.config
        if not self.gpus:
            return with_micro_batch(self.config, CPU_ROWS, CPU_TOKENS, False)

        every = self._rows_of_rank
        least = self._sized(every, STEP, True)
        # The local engine's cache may be larger, whatever the micro-batches are.
        available = max(least.headroom, least.memory.resident + least.memory.phases["rollout"])

        def most(upper: int, sized: Callable[[int], Plan]) -> Plan:
            """The plan of the largest number that fits; of 1 where none does."""
            numbers = range(1, upper + 1)
            found = bisect(numbers, False, key=lambda n: worst_peak(sized(n)) > available)
            return sized(max(found, 1))

        checkpointing = worst_peak(self._sized(every, STEP, False)) > available
        limit = math.ceil(least.config.train.row_limit * _length(least.rows()) / STEP)
        by_tokens = most(limit, lambda n: self._sized(every, n * STEP, checkpointing))
        if train.micro_batch_size != "auto" or train.micro_batch_tokens != "auto":
            return by_tokens.config

        typical = self._typical_length
        by_rows = most(
            every, lambda n: self._sized(n, math.ceil(n * typical / STEP) * STEP, checkpointing)
        )

        def typical_rows(plan: Plan) -> int:
            return min(plan.config.train.row_limit, plan.config.train.token_limit // typical)

        if typical_rows(by_rows) > max(typical_rows(by_tokens), 1):
            return by_rows.config
        return by_tokens.config

    def _sized(self, rows: int, tokens: int, checkpointing: bool) -> "Plan":
        return replace(self, config=with_micro_batch(self.config, rows, tokens, checkpointing))

    @property
    def _rows_of_rank(self) -> int:
        return math.ceil(self.config.train.batch_size / self.split.trainers)

    @property
    def shards(self) -> int:
        """Number of GPUs of one machine over which the frozen layers are sharded."""
        if not self.config.model.shard:
            return 1
        return min(self.split.trainers, max(self.gpus, 1))

    @property
    def sleeps(self) -> bool:
        """Whether servers on shared GPUs sleep while the GPUs train.

        They do with ``rollout.colocate``, and without a given share of the memory
        (--gpu-memory-utilization).
        """
        has_share = server_flag(self.config.rollout, UTILIZATION) is not None
        return self.split.shared and (self.config.rollout.colocate or not has_share)

    @property
    def server_share(self) -> float:
        """Share of a GPU's memory that a server uses (--gpu-memory-utilization).

        Without the flag, a server on a shared GPU gets what the trainer leaves between steps: vLLM
        refuses to start where less than its share is free.
        """
        flag = server_flag(self.config.rollout, UTILIZATION)
        if flag:
            with suppress(ValueError):  # vLLM itself reports the error
                return float(flag)
        if not self.split.shared:
            return SERVER_SHARE
        free = self.capacity - self.memory_of(self.rows()).resident - BESIDE
        return min(max(math.floor(100 * free / self.capacity), 0) / 100, SERVER_SHARE)

    @property
    def headroom(self) -> float:
        """Bytes of a GPU that training may use, less those of a server on the same GPU."""
        if self.split.shared and not self.sleeps:
            return (USABLE - self.server_share) * self.capacity
        if self.split.shared:
            return USABLE * self.capacity - SLEEPING
        return USABLE * self.capacity

    @property
    def _typical_length(self) -> int:
        """Tokens of a row with a reference of typical length and the longest completion."""
        longest = self._longest_row
        if not self.algorithm.needs_rollouts:
            reference = TRACE if self.config.data.solution_field == "trace" else SOLUTION
            return longest.prompt + min(longest.completion, reference)
        return min(longest.teacher_prompt, PROBLEM + SOLUTION) + longest.completion

    @property
    def _longest_row(self) -> Rows:
        """A micro-batch of one longest row.

        The student's prompt is a problem alone, whose length is assumed.
        """
        config, positions = self.config, self.shape.positions
        prompt = min(PROBLEM, config.data.max_prompt_tokens, positions - 1)
        if self.algorithm.needs_rollouts:
            completion = min(config.rollout.max_new_tokens, positions - prompt)
            teacher_prompt = min(config.data.max_prompt_tokens, positions - completion)
        else:  # prompt and reference together have the limit of a prompt
            teacher_prompt = prompt
            completion = max(min(config.data.max_prompt_tokens, positions) - prompt, 1)
        return Rows(1, prompt, teacher_prompt, completion)

    def rows(self) -> Rows:
        """The longest micro-batch that the config allows.

        It has as many of the longest rows as fit in it, at most those of a rank.
        """
        row, train = self._longest_row, self.chosen.train
        fit = train.token_limit // _length(row)
        return replace(row, rows=min(train.row_limit, max(fit, 1), self._rows_of_rank))

    @property
    def fits(self) -> bool:
        """Whether the longest micro-batch fits."""
        return self.peak(self.rows()) <= self.headroom

    @cached_property
    def memory(self) -> Memory:
        """Memory of a training GPU at the longest micro-batch."""
        return self.memory_of(self.rows())

    def memory_of(self, rows: Rows) -> Memory:
        """Estimate the memory of a training GPU for a micro-batch."""
        split, config = self.split, self.chosen
        is_local = not split.servers and not config.rollout.urls and self.algorithm.needs_rollouts
        sampled_steps = 1 + config.rollout.off_policy_steps
        sampled = sampled_steps * min(config.rollout.batch_size, self._rows_of_rank)
        return training_memory(
            config,
            self.shape,
            rows,
            has_teacher=self.algorithm.needs_teacher,
            state_bytes=self.optimizer.state_bytes,
            shards=self.shards,
            ranks=split.trainers,
            generating=sampled if is_local else 0,
            kernels=self._kernels,
            capacity=self.capacity,
        )

    @property
    def _kernels(self) -> Kernels:
        if not self.gpus:
            return "cpu"
        if self.liger:
            return "liger"
        return "cuda"

    def peak(self, rows: Rows) -> float:
        """Peak bytes of a training GPU for a micro-batch."""
        return self.memory_of(rows).peak


def _length(rows: Rows) -> int:
    """Tokens of a row in a micro-batch, as train.micro_batch_tokens counts them."""
    return max(rows.prompt, rows.teacher_prompt) + rows.completion


def with_micro_batch(config: Config, rows: int, tokens: int, checkpointing: bool) -> Config:
    """The config with these values where a micro-batch's rows, tokens, checkpointing are auto."""
    if config.train.micro_batch_size == "auto":
        config = config.changed("train", micro_batch_size=rows)
    if config.model.gradient_checkpointing == "auto":
        config = config.changed("model", gradient_checkpointing=checkpointing)
    if config.train.micro_batch_tokens == "auto":
        config = config.changed("train", micro_batch_tokens=tokens)
    return config


def worst_peak(plan: Plan) -> float:
    """Peak bytes of a training GPU over micro-batches of all lengths that the config allows."""
    train, longest = plan.chosen.train, plan.rows()
    # Shorter teacher prompts let more rows, and so more tokens of the student's, go together.
    most = min(train.row_limit, math.ceil(train.batch_size / plan.split.trainers))
    fit = train.token_limit // (longest.prompt + longest.completion)
    rows = max(min(most, fit), 1)
    taught = min(train.token_limit // rows - longest.completion, longest.teacher_prompt)
    shorter = Rows(rows, longest.prompt, max(taught, longest.prompt), longest.completion)
    return max(plan.peak(longest), plan.peak(shorter))


def make_plan(run: PlannedRun, machine: Machine, split: Split | None = None) -> Plan:
    """Make the memory plan of a run.

    Args:
        machine: memory of 0 is 80 GB, or 16 GB for a laptop.
        split: the split into trainers and servers; None chooses one by ``choose_split``.

    Raises:
        ConfigError: there is no config.json, or adapters are on layers that the model lacks.
    """
    config, shape = run.config, shape_of(run.config.model.path)
    targets = config.model.lora_targets
    unknown = []
    for target in targets:
        if not shape.targeted([target]):
            unknown.append(target)
    if unknown and config.model.train_mode == "lora":
        raise ConfigError(
            f"model.lora_targets names {', '.join(sorted(unknown))}, which is no linear layer of "
            f"the model; those are {', '.join(sorted({layer.name for layer in shape.linear}))}"
        )
    capacity = machine.memory or (80e9 if machine.gpus else LAPTOP)
    plan = Plan(
        config,
        run.algorithm,
        run.optimizer,
        shape,
        capacity,
        machine.gpus,
        machine.nodes,
        split or Split(1, 0, False, ""),
        liger=machine.has_liger and config.model.liger,
    )
    if split:
        return plan
    size = server_of(plan).gpus
    split = choose_split(run, max(machine.gpus, 1), machine.nodes, server=size)
    return replace(plan, split=split)


def server_flag(rollout: RolloutConfig, name: str) -> str | None:
    """Value of a flag in the server's arguments, as vLLM reads it (the last one wins), or None."""
    parts = shlex.split(f"{rollout.server} {rollout.server_args}")
    value = None
    for i, part in enumerate(parts):
        flag, _, after_equals = part.partition("=")
        if flag == name:
            following = parts[i + 1 : i + 2]
            value = after_equals or next(iter(following), None)
    return value


def tensor_parallel_size(rollout: RolloutConfig) -> int | None:
    """Tensor-parallel size in the server's arguments, or None."""
    size = server_flag(rollout, "--tensor-parallel-size") or server_flag(rollout, "-tp") or ""
    if not size.isdecimal():  # vLLM itself reports the error
        return None
    return max(int(size), 1)


def server_of(plan: Plan) -> ServerMemory:
    """Estimate a server on its configured number of GPUs, or on the fewest that hold it."""
    config = plan.config
    longest = config.data.max_prompt_tokens + config.rollout.max_new_tokens
    sizes = [1]
    while sizes[-1] * 2 <= plan.gpus:
        sizes.append(sizes[-1] * 2)
    configured = tensor_parallel_size(config.rollout)
    if configured:
        sizes = [configured]
    for size in sizes:
        server = server_memory(
            config,
            plan.shape,
            memory=plan.capacity,
            share=plan.server_share,
            longest=min(longest, plan.shape.positions),
            gpus=size,
        )
        if server.fits:
            break
    return server


def require_fit(plan: Plan) -> None:
    """Check that the longest micro-batch fits in all of the memory.

    Raises:
        ConfigError: it does not fit.
    """
    memory, available = plan.memory, plan.headroom + (1 - USABLE) * plan.capacity
    if memory.peak <= available:
        return

    raise ConfigError(
        f"model.path {format_value(plan.config.model.path)} needs about {gb(memory.peak)} GB on "
        f"each of {plan.split.trainers} training GPUs, and {gb(available)} are available (base "
        f"{gb(memory.layers + memory.ends)}, trained weights "
        f"{gb(memory.adapters + memory.gradients + memory.optimizer)}, {peak_phase(memory)}); "
        f"lower rollout.max_new_tokens, data.max_prompt_tokens or rollout.batch_size, set "
        f"model.shard on several GPUs, or use larger GPUs (`paint plan` has the details)"
    )


def peak_phase(memory: Memory) -> str:
    """Text that names the phase that needs most memory, and its GB."""
    phase, value = max(memory.phases.items(), key=lambda item: item[1])
    return f"largest phase: {phase} {gb(value)}"


def gb(value: float) -> str:
    """Format bytes in GB with two or three digits."""
    giga = value / 1e9
    for least, digits in ((99.95, 0), (9.95, 1), (0.0995, 2), (0.00995, 3)):
        if abs(giga) >= least:
            return f"{giga:,.{digits}f}"
    return f"{giga:.4f}"
