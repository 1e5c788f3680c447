"""Engines: token ids in, token ids and log-probs out.

An engine is anything with ``generate``, ``stream`` and ``adopt``. Prompts are never decoded and tokenised again: the
ids that an engine was given and the ids that it sampled are the ids that are trained on.

Sampling is a pure function of the logits and of one uniform number per (seed, token), so a completion depends on its
own prompt and seed alone, not on its batch, its rank or what was sampled before.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor
from transformers import (
    GenerationConfig,
    LogitsProcessor,
    LogitsProcessorList,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from paint import Diverged
from paint import config as cfg
from paint.model.policy import Policy


@dataclass(frozen=True)
class Sampling:
    """How completions are drawn.

    Attributes:
        temperature: logits are divided by it; 0 is greedy.
        top_p: smallest set of tokens whose mass reaches this share, in (0, 1]; 1 is off.
        top_k: number of likeliest tokens kept; -1 is off.
        max_new_tokens: tokens after which a completion is cut.
    """

    temperature: float
    top_p: float
    top_k: int
    max_new_tokens: int


def sampling_of(section: cfg.Rollout | cfg.Validation) -> Sampling:
    """The sampling that a section of the config describes."""
    return Sampling(section.temperature, section.top_p, section.top_k, section.max_new_tokens)


@dataclass(frozen=True)
class Completion:
    """What the policy wrote.

    Attributes:
        ids: sampled token ids, the end token included when there is one.
        log_probs: engine's log p(id | prefix) at temperature 1, before top-k and top-p, in nats.
        truncated: it was cut at ``max_new_tokens`` without an end token.
        source: who wrote it: a server's address, "local", or "reference" for a solution of the data.
    """

    ids: tuple[int, ...]
    log_probs: tuple[float, ...]
    truncated: bool
    source: str = "local"


Finished = Callable[[int, Completion], None]
"""Is told of every completion as soon as it is there: the number of its prompt, and what was written."""


@runtime_checkable
class Engine(Protocol):
    """The only thing that training and evaluation know about generation."""

    def stream(
        self, prompts: Sequence[Sequence[int]], sampling: Sampling, seeds: Sequence[int], finished: Finished
    ) -> None:
        """One completion per prompt, handed over in any order; same seed, prompt and weights, same completion."""
        ...

    def generate(self, prompts: Sequence[Sequence[int]], sampling: Sampling, seeds: Sequence[int]) -> list[Completion]:
        """The same as a list, in the order of the prompts."""
        ...

    def adopt(self) -> None:
        """Take over the policy's current adapter before the next ``generate``."""
        ...


def collect(
    engine: Engine, prompts: Sequence[Sequence[int]], sampling: Sampling, seeds: Sequence[int]
) -> list[Completion]:
    """What an engine streams, in the order of the prompts."""
    found: dict[int, Completion] = {}
    engine.stream(prompts, sampling, seeds, found.__setitem__)
    return [found[i] for i in range(len(prompts))]


def seed_of(*place: int | str) -> int:
    """A seed of its own for every place, such as (seed, step, row): the same on every rank and every resume."""
    return random.Random("/".join(map(str, place))).getrandbits(62)


class LocalEngine:
    """Generates with the very model that is trained, in this process: there is nothing to synchronise."""

    def __init__(self, policy: Policy, *, batch_size: int) -> None:
        self.policy = policy
        self.batch_size = batch_size

    def adopt(self) -> None:
        """Nothing to do: the weights are shared."""

    def stream(
        self, prompts: Sequence[Sequence[int]], sampling: Sampling, seeds: Sequence[int], finished: Finished
    ) -> None:
        for i in range(0, len(prompts), self.batch_size):
            chunk = slice(i, i + self.batch_size)
            for row, completion in enumerate(self._generate(prompts[chunk], sampling, seeds[chunk])):
                finished(i + row, completion)

    def generate(self, prompts: Sequence[Sequence[int]], sampling: Sampling, seeds: Sequence[int]) -> list[Completion]:
        return collect(self, prompts, sampling, seeds)

    def _generate(self, prompts: Sequence[Sequence[int]], sampling: Sampling, seeds: Sequence[int]) -> list[Completion]:
        policy = self.policy
        width = max(map(len, prompts))
        pad = policy.tokenizer.pad_token_id or 0
        # Left padding is right here and only here: generation continues every row at its right edge.
        ids = torch.tensor([[pad] * (width - len(p)) + list(p) for p in prompts], device=policy.device)
        real = torch.tensor([[0] * (width - len(p)) + [1] * len(p) for p in prompts], device=policy.device)
        sampler = _Sampler(sampling, seeds, policy.device)
        was_training = policy.model.training
        policy.model.eval()
        try:
            with torch.no_grad():
                output = policy.model.generate(
                    input_ids=ids,
                    attention_mask=real,
                    generation_config=GenerationConfig(
                        do_sample=False,
                        max_new_tokens=sampling.max_new_tokens,
                        eos_token_id=policy.end_ids,
                        pad_token_id=pad,
                    ),
                    logits_processor=LogitsProcessorList([sampler]),
                )
        finally:
            policy.model.train(was_training)
        log_probs = torch.stack(sampler.log_probs, dim=1)
        if not log_probs.isfinite().all():
            raise Diverged("the policy's logits are not finite; start a new run with a lower train.learning_rate")
        return [
            _cut(row, row_log_probs, set(policy.end_ids))
            for row, row_log_probs in zip(output[:, width:].tolist(), log_probs.tolist(), strict=True)
        ]


class MergedEngine(LocalEngine):
    """Generates with the adapter rounded into the weights, as most trainers do: for comparison only.

    What it samples from is not the policy that is trained (docs/log.md has figures).
    """

    def stream(
        self, prompts: Sequence[Sequence[int]], sampling: Sampling, seeds: Sequence[int], finished: Finished
    ) -> None:
        with self.policy.merged():
            super().stream(prompts, sampling, seeds, finished)


class _Sampler(LogitsProcessor):  # type: ignore[misc]
    """Draws each row's token by inverting its distribution at that row's next uniform number.

    Built on the library's warpers and its greedy search: the drawn token is made the only possible one.
    """

    def __init__(self, sampling: Sampling, seeds: Sequence[int], device: torch.device) -> None:
        self.greedy = sampling.temperature == 0
        self.warpers = LogitsProcessorList()
        if not self.greedy:
            self.warpers.append(TemperatureLogitsWarper(float(sampling.temperature)))
            if sampling.top_k > 0:
                self.warpers.append(TopKLogitsWarper(sampling.top_k))
            if sampling.top_p < 1:
                self.warpers.append(TopPLogitsWarper(sampling.top_p))
        self.uniforms = torch.stack(
            [torch.rand(sampling.max_new_tokens, generator=torch.Generator().manual_seed(seed)) for seed in seeds]
        ).to(device)
        self.log_probs: list[Float[Tensor, " b"]] = []

    def __call__(self, input_ids: Int[Tensor, "b t"], scores: Float[Tensor, "b v"]) -> Float[Tensor, "b v"]:
        if self.greedy:
            tokens = scores.argmax(-1, keepdim=True)
        else:
            probs = self.warpers(input_ids, scores.float()).softmax(-1)
            tokens = invert(probs, self.uniforms[:, len(self.log_probs)])[:, None]
        self.log_probs.append(scores.float().log_softmax(-1).gather(1, tokens)[:, 0])
        return torch.full_like(scores, -torch.inf).scatter_(1, tokens, 0.0)


def invert(probs: Float[Tensor, "b v"], uniforms: Float[Tensor, " b"]) -> Int[Tensor, " b"]:
    """The token at which each row's cumulative probability passes its uniform number in [0, 1).

    A token of probability 0 is never drawn, also where rounding leaves the last sum below 1.
    """
    cumulative = probs.double().cumsum(-1)
    targets = uniforms.double()[:, None] * cumulative[:, -1:]
    # Only rows that are not numbers reach past the end; they are reported when the completion is whole.
    return torch.searchsorted(cumulative, targets, right=True)[:, 0].clamp(max=probs.shape[-1] - 1)


def _cut(ids: list[int], log_probs: list[float], end_ids: set[int]) -> Completion:
    """Drop what the library pads behind the first end token."""
    for n, token in enumerate(ids, start=1):
        if token in end_ids:
            return Completion(tuple(ids[:n]), tuple(log_probs[:n]), truncated=False)
    return Completion(tuple(ids), tuple(log_probs), truncated=True)
