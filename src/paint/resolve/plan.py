"""Memory plan of a run: bytes of each GPU, and the split of GPUs into trainers and servers.

config.json -> shape -> bytes of a training GPU and of a server -> what fits
"""

import math
import shlex
from bisect import bisect
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple, Protocol, runtime_checkable

from paint.config.schema import (
    CPU_ROWS,
    CPU_TOKENS,
    Config,
    ConfigError,
    Dtype,
    ModelConfig,
    RolloutConfig,
)
from paint.core.errors import format_value
from paint.resolve.algorithm import Algorithm
from paint.resolve.engines import EngineType
from paint.resolve.memory import (
    SLEEPING,
    Kernels,
    Memory,
    Rows,
    ServerMemory,
    server_memory,
    training_memory,
)
from paint.resolve.optimizer import OptimizerFactory
from paint.resolve.shapes import Shape, shape_of

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
    trainers: int  # one rank on each
    servers: int  # 0 if the ranks themselves generate, or if servers run elsewhere
    shared: bool  # every GPU serves and trains in turns
    reason: str  # in words


@dataclass(frozen=True)
class Machine:
    """What "auto", the plan and its refusals depend on; paint.inference.machine finds it."""

    gpus: int = 0  # of this computer that train
    memory: float = 0.0  # bytes of each GPU, or of a computer for each process; 0: as make_plan
    ranks: int = 1  # processes that train, on all computers
    has_liger: bool = False  # liger-kernel is installed
    # Of its CPU, where that computes: how many times as long as in float32 a product takes, by
    # format (paint.core.device.product_slowdown); empty where it was not measured.
    slowdown: Mapping[str, float] = field(default_factory=dict)


SLOW = 1.5
"""A format in which a product takes so many times as long as in float32 is slow on a CPU."""


def describe_slow(dtype: str, slowdown: float) -> str:
    return (
        f"a product in {dtype} takes about {slowdown:.0f} times as long as in float32 on this CPU"
    )


def dtype_on(model: ModelConfig, machine: Machine) -> Dtype:
    """Return the number format of a model's weights on a machine, where it is "auto"."""
    if model.dtype != "auto":
        return model.dtype
    if model.train_mode == "full":
        return "float32"
    # Sharded weights are read as they are in their file, which is mostly bfloat16.
    if machine.gpus or model.shard:
        return "bfloat16"
    # Where nothing was measured, the wider format: a plan is an upper bound.
    return "float32" if machine.slowdown.get("bfloat16", SLOW) >= SLOW else "bfloat16"


@dataclass(frozen=True)
class LongestRows:
    """Tokens of the longest rows of a file that were measured."""

    prompt: int  # the student's
    teacher_prompt: int | None  # None where it is not a function of the row alone
    reference: int  # the solution
    measured: int  # number of rows that were measured, of so many
    rows: int
    turns: int = 1  # most turns of a solution that is a conversation
    keeps_turns: bool = False  # whether the turns of a conversation are one row of a pass

    def __str__(self) -> str:
        of = f"{self.measured:,} of " if self.measured < self.rows else ""
        return f"the longest of {of}{self.rows:,} rows"


@runtime_checkable
class PlannedRun(Protocol):
    """What a plan reads of a run (paint.resolve.check.Resolved)."""

    @property
    def config(self) -> Config: ...
    @property
    def algorithm(self) -> Algorithm: ...
    @property
    def engine(self) -> EngineType: ...
    @property
    def optimizer(self) -> OptimizerFactory: ...
    @property
    def longest(self) -> LongestRows | None: ...


def choose_split(run: PlannedRun, gpus: int, *, server: int = 1) -> Split:
    """Choose the default split of a machine's GPUs (docs/how-to/large-models.md)."""
    config, rollout = run.config, run.config.rollout
    most = min(gpus, config.train.batch_size)  # every rank needs a row
    if not run.algorithm.generates(config):
        return Split(most, 0, False, f"{config.train.method} generates nothing")
    if rollout.urls:
        return Split(most, 0, False, "the servers at rollout.urls generate")
    if not run.engine.is_remote:
        return Split(most, 0, False, f'rollout.engine is "{rollout.engine}"')
    if rollout.colocate:
        return Split(most, gpus, True, "rollout.colocate: each GPU serves and trains in turns")

    serving = max(gpus // 2 // server, 1) * server
    if serving >= gpus:
        reason = f"a server takes {server} of {gpus}: each GPU serves and trains in turns"
        return Split(most, gpus, True, reason)
    reason = f"about half of the GPUs serve, {server} to a server"
    return Split(min(gpus - serving, most), serving, False, reason)


@dataclass(frozen=True)
class Plan:
    """Memory plan of a run on the GPUs of a machine."""

    config: Config  # micro-batches and gradient checkpointing may be "auto" (``chosen``)
    algorithm: Algorithm
    optimizer: OptimizerFactory
    shape: Shape
    capacity: float  # bytes of each GPU
    gpus: int  # 0 for a laptop's CPU
    split: Split
    liger: bool = False  # liger-kernel computes the layers; where unknown, False is an upper bound
    longest: LongestRows | None = None  # None where the rows were not measured

    @cached_property
    def chosen(self) -> Config:
        """The config with micro-batches and checkpointing chosen by the bytes where they are auto.

        Where nothing fits, each row is a micro-batch, with checkpointing.
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
            # Peaks rise with the number, so the first that does not fit is searched for by halves.
            found = bisect(numbers, False, key=lambda n: worst_peak(sized(n)) > available)
            return sized(max(found, 1))

        # A longer row than the tokens is a micro-batch by itself.
        checkpointing = worst_peak(self._sized(every, STEP, False)) > available
        # All rows of a rank, and the most tokens that fit, whatever the rows' lengths.
        limit = math.ceil(least.config.train.row_limit * _length(least.rows()) / STEP)
        by_tokens = most(limit, lambda n: self._sized(every, n * STEP, checkpointing))
        if train.micro_batch_size != "auto" or train.micro_batch_tokens != "auto":
            return by_tokens.config

        # Or the most rows of typical length that fit, and their tokens, if that is more such rows.
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
        """Whether servers on shared GPUs sleep while the GPUs train."""
        has_share = server_flag(self.config.rollout, UTILIZATION) is not None
        # With a share that the user names, server and trainer both stay on the GPU.
        return self.split.shared and (self.config.rollout.colocate or not has_share)

    @property
    def server_share(self) -> float:
        """Share of a GPU's memory that a server uses (--gpu-memory-utilization)."""
        flag = server_flag(self.config.rollout, UTILIZATION)
        if flag:
            with suppress(ValueError):  # vLLM itself reports the error
                return float(flag)
        if not self.split.shared:
            return SERVER_SHARE
        # vLLM refuses to start where less than its share is free: what is left between steps.
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
    def has_open_prompts(self) -> bool:
        """Whether what is said in a conversation makes prompts longer, up to the limit."""
        conversation = self.config.conversation
        later = conversation.is_on and conversation.max_turns > 1
        # An environment may begin with messages of its own.
        return self.algorithm.needs_rollouts and (later or bool(conversation.environment))

    @property
    def _longest_row(self) -> Rows:
        """A micro-batch of one longest row; what was not measured is the limit, or assumed."""
        config, positions, longest = self.config, self.shape.positions, self.longest
        most = config.data.max_prompt_tokens
        if not self.algorithm.needs_rollouts:
            return self._longest_solution
        if self.has_open_prompts:
            completion = min(config.rollout.max_new_tokens, positions - 1)
            most = min(most, positions - completion)
            turns = config.conversation.max_turns
            if longest and longest.keeps_turns:
                return Rows(1, most, most, completion, turns=turns)
            # Each turn may be a row of its own, and all are as long as the last.
            return Rows(1, most, most, completion, together=turns)
        prompt = min(longest.prompt if longest else PROBLEM, most, positions - 1)
        completion = min(config.rollout.max_new_tokens, positions - prompt)
        if longest and longest.teacher_prompt is not None:
            most = min(most, longest.teacher_prompt)
        return Rows(1, prompt, min(most, positions - completion), completion)

    @property
    def _longest_solution(self) -> Rows:
        positions, longest = self.shape.positions, self.longest
        # Prompt and reference together have the limit of a prompt.
        most = min(self.config.data.max_prompt_tokens, positions)
        prompt = min(longest.prompt if longest else PROBLEM, most, positions - 1)
        completion = max(most - prompt, 1)
        if longest:
            completion = min(completion, longest.reference)
        turns = longest.turns if longest and not longest.keeps_turns else 1
        return Rows(1, prompt, prompt, completion, together=turns)

    def rows(self) -> Rows:
        """The longest micro-batch that the config allows, of the longest rows."""
        return self._micro_batch(self._longest_row)

    def _micro_batch(self, row: Rows) -> Rows:
        train = self.chosen.train
        fit = train.token_limit // _length(row)
        rows = min(train.row_limit, max(fit, 1), self._rows_of_rank * row.together)
        return replace(row, rows=max(rows, row.together))

    @property
    def fits(self) -> bool:
        return self.memory.peak <= self.headroom

    @cached_property
    def memory(self) -> Memory:
        return self.memory_of(self.rows())

    def memory_of(self, rows: Rows) -> Memory:
        memory = self._memory_of(rows, has_teacher=self.algorithm.needs_teacher)
        if not self.config.objective.has_sft:
            return memory
        # The solutions have micro-batches of their own, after the student's prompt alone.
        alone = self._memory_of(self._micro_batch(self._longest_solution), has_teacher=False)
        return replace(memory, solutions=max(alone.phases["loss"], alone.phases["backward"]))

    def _memory_of(self, rows: Rows, *, has_teacher: bool) -> Memory:
        split, config = self.split, self.chosen
        is_local = not split.servers and not config.rollout.urls and self.algorithm.needs_rollouts
        kernels: Kernels = "cpu"
        if self.gpus:
            kernels = "liger" if self.liger else "cuda"
        # Off-policy steps are sampled at once (fidelity D10).
        sampled_steps = 1 + config.rollout.off_policy_steps
        sampled = sampled_steps * min(config.rollout.batch_size, self._rows_of_rank)
        return training_memory(
            config,
            self.shape,
            rows,
            has_teacher=has_teacher,
            state_bytes=self.optimizer.state_bytes,
            shards=self.shards,
            ranks=split.trainers,
            generating=sampled if is_local else 0,
            kernels=kernels,
            capacity=self.capacity,
        )

    def peak(self, rows: Rows) -> float:
        return self.memory_of(rows).peak


def _length(rows: Rows) -> int:
    """Tokens of a row in a micro-batch, as train.micro_batch_tokens counts them."""
    return max(rows.prompt, rows.teacher_prompt) + rows.completion


def with_micro_batch(config: Config, rows: int, tokens: int, checkpointing: bool) -> Config:
    """Return the config with these values where a micro-batch's are "auto"."""
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
    of_rank = math.ceil(train.batch_size / plan.split.trainers)
    most = min(train.row_limit, of_rank * longest.together)
    fit = train.token_limit // (longest.prompt + longest.completion)
    rows = max(min(most, fit), longest.together)
    taught = min(train.token_limit // rows - longest.completion, longest.teacher_prompt)
    shorter = replace(longest, rows=rows, teacher_prompt=max(taught, longest.prompt))
    return max(plan.peak(longest), plan.peak(shorter))


def make_plan(run: PlannedRun, machine: Machine, split: Split | None = None) -> Plan:
    """Make the memory plan of a run, with the default split unless one is given.

    A memory of 0 is 80 GB, or 16 GB for a laptop. Raises ConfigError for a model or layers that it
    does not know.
    """
    config, shape = run.config, shape_of(run.config.model.path)
    config = config.changed("model", dtype=dtype_on(config.model, machine))
    if config.model.train_mode == "lora":
        for target in config.model.lora_targets:
            if not shape.targeted([target]):  # it would count as adapters of no bytes
                raise ConfigError(
                    f"model.lora_targets names {target}, which is no linear layer of the model; "
                    f"those are {', '.join(sorted({layer.name for layer in shape.linear}))}"
                )
    capacity = machine.memory or (80e9 if machine.gpus else LAPTOP)
    plan = Plan(
        config,
        run.algorithm,
        run.optimizer,
        shape,
        capacity,
        machine.gpus,
        split or Split(1, 0, False, ""),
        liger=machine.has_liger and config.model.liger,
        longest=run.longest,
    )
    if split:
        return plan
    size = server_of(plan).gpus
    return replace(plan, split=choose_split(run, max(machine.gpus, 1), server=size))


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


class ServerFlags(NamedTuple):
    utilization: float  # --gpu-memory-utilization
    sequences: int  # --max-num-seqs, the most completions that it samples at once


def server_flags(plan: Plan) -> ServerFlags:
    """Choose a server's share, and its completions at once. Raises ConfigError for too little."""
    server, rollout, rows = server_of(plan), plan.config.rollout, plan.rows()
    if not server.fits:
        together = ", which also train" if plan.split.shared else ""
        raise ConfigError(
            f"model.path {format_value(plan.config.model.path)}: a server may use "
            f"{plan.server_share:.0%} of {server.gpus} x {gb(plan.capacity)} GB{together}, and its "
            f"weights and adapters are {gb(server.weights)} GB: no room for one row of "
            f"{server.longest:,} tokens; set model.quantization nf4, lower data.max_prompt_tokens "
            f"or rollout.max_new_tokens, give servers separate GPUs (--gpus 2), or use "
            f"larger GPUs"
        )
    requested = rollout.batch_size * (1 + rollout.off_policy_steps)
    held = server.tokens // (rows.prompt + rows.completion)
    return ServerFlags(plan.server_share, max(min(requested, held), 1))


def require_fit(plan: Plan) -> None:
    """Raise ConfigError where the longest micro-batch does not fit in all of the memory."""
    # All of the memory: an estimate within the reserve may still fit.
    memory, available = plan.memory, plan.headroom + (1 - USABLE) * plan.capacity
    if memory.peak <= available:
        return

    phase = max(memory.phases, key=lambda name: memory.phases[name])
    raise ConfigError(
        f"model.path {format_value(plan.config.model.path)} needs about {gb(memory.peak)} GB on "
        f"each of {plan.split.trainers} training GPUs, and {gb(available)} are available (base "
        f"{gb(memory.layers + memory.ends)}, trained weights "
        f"{gb(memory.adapters + memory.gradients + memory.optimizer)}, largest phase: {phase} "
        f"{gb(memory.phases[phase])}); "
        f"{levers(plan)} (`paint plan` has the details)"
    )


def levers(plan: Plan) -> str:
    larger = "set model.shard on several GPUs, or use larger GPUs"
    if plan.memory.resident > plan.headroom:
        return f"without any row it needs {gb(plan.memory.resident)} GB: {larger}"
    turns = ", conversation.max_turns" if plan.rows().together > 1 else ""
    return (
        f"lower data.max_prompt_tokens, rollout.max_new_tokens{turns} or rollout.batch_size, "
        f"{larger}"
    )


def gb(value: float) -> str:
    """Format bytes in GB with two or three digits."""
    giga = value / 1e9
    # From 99.95 on, one decimal would show 100.0.
    for least, digits in ((99.95, 0), (9.95, 1), (0.0995, 2), (0.00995, 3)):
        if abs(giga) >= least:
            return f"{giga:,.{digits}f}"
    return f"{giga:.4f}"
