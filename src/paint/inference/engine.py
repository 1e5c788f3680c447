"""The engine contract: token ids in, token ids and log-probs out.

An engine of your own derives from ``Engine`` (or, where it generates on servers, from
``RemoteEngine``) and implements ``stream``, ``sync_weights`` and ``from_setup``. Prompts are never
decoded and tokenised again: the ids that an engine was given and the ids that it sampled are the
ids that are trained on. This module imports neither torch nor transformers.
"""

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from paint.config import schema as cfg
from paint.core.errors import PaintError, format_short
from paint.data.problems import Problem
from paint.grading.contract import Grade


class EngineError(PaintError, RuntimeError):
    """The engine cannot be used, or was lost; the message names the server and the fix."""


class ServerStartError(EngineError):
    """A server did not answer after it was started; the message has the last lines of its log."""


@dataclass(frozen=True)
class Sampling:
    temperature: float  # logits are divided by it; 0 is greedy
    top_p: float  # smallest set of tokens whose mass reaches this share, in (0, 1]; 1 is off
    top_k: int  # number of likeliest tokens kept; -1 is off
    max_new_tokens: int  # tokens after which a completion is truncated


def sampling_from(section: cfg.RolloutConfig) -> Sampling:
    return Sampling(section.temperature, section.top_p, section.top_k, section.max_new_tokens)


STORED = "stored"  # source of completions that were sampled before the run (paint.inference.stored)


@dataclass(frozen=True)
class Turn:
    prompt: list[int]  # token ids of the conversation so far
    length: int  # tokens that were sampled after it
    after: int  # messages of the conversation before it, without those of the first prompt


@dataclass(frozen=True)
class Conversation:
    """What the student, its tools and its environment said (paint.inference.conversations)."""

    turns: tuple[Turn, ...]
    messages: tuple[Mapping[str, Any], ...]  # after the first prompt, all turns included
    ended: str  # why: "end", "max_turns", "max_new_tokens", "prompt", or "error"
    problem: Problem  # with the messages by which the environment began it
    grade: Grade | None = None  # the environment's
    calls: int = 0  # of tools
    failed_calls: int = 0


TurnPart = tuple[Sequence[int], Sequence[int]]
"""Token ids of a prompt, and of what was sampled after it."""


class TeacherTop(NamedTuple):
    """Entries of a teacher's distribution at each token of a completion, usually the likeliest."""

    ids: npt.NDArray[np.int32]  # (n, k), distinct at a token
    log_probs: npt.NDArray[np.float32]  # (n, k), over the whole vocabulary
    temperature: float


@dataclass(frozen=True)
class Completion:
    """A completion sampled from the policy; of a conversation, all turns of the student."""

    ids: tuple[int, ...]  # the end token included when there is one
    # The engine's log p(id | prefix) at temperature 1, before top-k and top-p; () for none, which
    # leaves the engine without comparison with the trainer. Servers must give them.
    log_probs: tuple[float, ...]
    truncated: bool  # cut at ``max_new_tokens`` without an end token
    source: str = "local"  # a server's address, "local", "stored"; "reference": a solution
    conversation: Conversation | None = None
    teacher_top: TeacherTop | None = field(default=None, compare=False)  # of stored completions

    @property
    def conversation_grade(self) -> Grade | None:
        return self.conversation.grade if self.conversation else None

    def after(self, prompts: Sequence[Sequence[int]]) -> list[TurnPart]:
        """Return what was sampled after each of some prompts: one, or one for each turn."""
        if self.conversation is None:
            return [(prompts[0], self.ids)]
        turns = self.conversation.turns
        if len(prompts) != len(turns):
            raise ValueError(f"{len(prompts)} prompts for a conversation of {len(turns)} turns")
        parts: list[TurnPart] = []
        start = 0
        for prompt, turn in zip(prompts, turns, strict=True):
            parts.append((prompt, self.ids[start : start + turn.length]))
            start += turn.length
        return parts


LOG_PROB_ROUNDING = 0.01  # nats above 0 that a sum of rounded numbers may reach
LOWEST_LOG_PROB = -700.0  # nats; exp of less is no float any more, and no token is drawn with it


def completion_fault(completion: Completion, vocabulary: int) -> str:
    """Return why a completion is invalid, as a clause for a message; "" if it is valid."""
    ids, log_probs = completion.ids, completion.log_probs
    if not ids:
        return "has no token"
    for token in ids:
        # True is an instance of int, too.
        if type(token) is not int or not 0 <= token < vocabulary:
            return f"has the token id {format_short(token)}, which is none of {vocabulary:,}"
    if log_probs and len(log_probs) != len(ids):
        return f"has {len(log_probs)} log-probs of {len(ids)} tokens"
    for value in log_probs:
        if not LOWEST_LOG_PROB <= value <= LOG_PROB_ROUNDING:  # nor is nan
            return f"has the log-prob {format_short(value)}, which is that of no sampled token"
    return ""


Prompts = Sequence[Sequence[int]]  # token ids of the prompts

OnCompletion = Callable[[int, Completion], None]
"""Callback for each completion as soon as it is complete, with the index of its prompt."""

PendingCompletions = Callable[[], list[Completion]]
"""Waits for submitted completions and returns them in the order of their prompts."""


@runtime_checkable
class Engine(Protocol):
    """Samples completions; training and evaluation know nothing else about generation.

    A class that ``rollout.engine`` names as "module:Class" also has the class method
    ``from_setup(setup: EngineSetup)``, which returns an engine (paint.inference.factory).
    """

    is_remote: bool = False  # it generates on servers; then it is a ``RemoteEngine``

    def stream(
        self, prompts: Prompts, sampling: Sampling, seeds: Sequence[int], finished: OnCompletion
    ) -> None:
        """Pass one completion per prompt to ``finished``, in any order.

        The same prompt, seed and weights give the same completion.
        """
        ...

    def generate(
        self, prompts: Prompts, sampling: Sampling, seeds: Sequence[int]
    ) -> list[Completion]:
        """Return one completion per prompt, in the order of the prompts."""
        completions: dict[int, Completion] = {}
        self.stream(prompts, sampling, seeds, completions.__setitem__)
        return [completions[i] for i in range(len(prompts))]

    def sync_weights(self) -> None:
        """Use the policy's current adapter from the next ``generate`` on."""
        ...

    def submit(
        self, prompts: Prompts, sampling: Sampling, seeds: Sequence[int]
    ) -> PendingCompletions:
        """Start ``generate`` with the current adapter, without waiting. One call at a time.

        The default generates before it returns; then the engine can take the next adapter.
        """
        completions = self.generate(prompts, sampling, seeds)
        return lambda: completions

    def fork(self) -> "Engine":
        """Return an engine on the same servers, with an adapter of its own; closed with this one.

        The default, for a ``submit`` that does not run in the background, is the engine itself.
        """
        return self


@runtime_checkable
class RemoteEngine(Engine, Protocol):
    """An engine whose completions come from servers. Only rank 0 has one."""

    is_remote: bool = True

    def connect(self) -> None:
        """Start the servers that the run owns, and wait for all. Raises EngineError without one."""
        ...

    def close(self) -> None:
        """Stop the servers that the run owns, and restore the state of others."""
        ...


def row_seed(seed: int, step_index: int, row: int) -> int:
    """Return the seed of a row of a step, both from 0: of its completion and its teacher's draw.

    It depends on no batch and on no rank (docs/fidelity.md, C15).
    """
    return derive_seed(seed, step_index, row)


def derive_seed(*place: int | str) -> int:
    """Derive a seed from a key such as (seed, step, row); equal on every rank and resume."""
    # random.Random hashes a text by itself, the same in every process. 62 bits fit in the signed
    # integers of every sampler.
    return random.Random("/".join(map(str, place))).getrandbits(62)
