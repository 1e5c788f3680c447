"""The engine in the training process: it generates with the very model that is trained.

Sampling is a pure function of the logits and of one uniform number per (seed, token). A completion
therefore depends on its own prompt and seed alone, not on its batch, its rank or what was sampled
before.

What many rows have in common is read once: a prompt that is asked several times, and what all
prompts begin with. A row leaves as soon as it ends, and the next one takes its place.
"""

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from inspect import signature
from itertools import takewhile

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import pad
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer

from paint.core.device import float64_device
from paint.core.display import Display
from paint.core.errors import NonFiniteError
from paint.inference.engine import Completion, Engine, OnCompletion, Sampling
from paint.inference.factory import EngineSetup
from paint.models.attention import grouped_query_decode
from paint.models.policy import Policy
from paint.models.sharding import gather_parameters

WORTH_SHARING = 16
"""Tokens that all prompts must begin with, to be read in a pass of their own."""

REFILL = 4
"""New rows are read once this part of the places is free: a quarter. One by one would be slow."""

LIKELIEST = 256
"""Tokens that are looked at first for those of top-p."""


@dataclass(frozen=True)
class _Row:
    """A completion that is being written, and the uniform numbers that its tokens are drawn by."""

    index: int
    prompt: tuple[int, ...]
    uniforms: list[float]
    ids: list[int] = field(default_factory=list)
    log_probs: list[float] = field(default_factory=list)


@dataclass(frozen=True)
class _Batch:
    """Rows side by side, each at the right edge of what was read.

    Attributes:
        logits: of every row's next token (b v).
        mask: 1 where a place of the cache holds a token of the row (b t).
        cache: keys and values of these places.
    """

    rows: list[_Row]
    logits: Float[Tensor, "b v"]
    mask: Int[Tensor, "b t"]
    cache: DynamicCache


class LocalEngine(Engine):
    """Generates with the policy itself, so there is nothing to synchronise."""

    def __init__(self, policy: Policy, *, batch_size: int, display: Display | None = None) -> None:
        self.policy = policy
        self.batch_size = batch_size
        self.display = display or Display(enabled=False)

    @classmethod
    def from_setup(cls, setup: EngineSetup) -> "LocalEngine":
        return cls(setup.policy, batch_size=setup.rollout.batch_size, display=setup.display)

    def sync_weights(self) -> None:
        """Nothing to do: the weights are shared."""

    def stream(
        self,
        prompts: Sequence[Sequence[int]],
        sampling: Sampling,
        seeds: Sequence[int],
        finished: OnCompletion,
    ) -> None:
        was_training = self.policy.model.training
        self.policy.model.eval()
        try:
            with torch.no_grad(), gather_parameters(self.policy.base), grouped_query_decode():
                self._write(prompts, sampling, seeds, finished)
        finally:
            self.policy.model.train(was_training)

    def _write(
        self,
        prompts: Sequence[Sequence[int]],
        sampling: Sampling,
        seeds: Sequence[int],
        finished: OnCompletion,
    ) -> None:
        # Neighbours are alike: little padding, and the same prompts side by side.
        texts = [tuple(prompt) for prompt in prompts]
        order = sorted(range(len(texts)), key=lambda i: (-len(texts[i]), texts[i]))
        waiting = deque(order)
        # A rank may have no row of a last batch.
        beginning = self._read_beginning(texts) if texts else None
        batch: _Batch | None = None
        whole = 0

        def hand_over(index: int, completion: Completion) -> None:
            nonlocal whole
            whole += len(completion.ids)
            finished(index, completion)

        while waiting or batch:
            free = self.batch_size - (len(batch.rows) if batch else 0)
            if waiting and (not batch or (free * REFILL >= self.batch_size and _is_plain(batch))):
                taken = [waiting.popleft() for _ in range(min(free, len(waiting)))]
                rows = [_Row(i, texts[i], _uniforms(seeds[i], sampling)) for i in taken]
                new = self._read(rows, beginning)
                batch = _joined(batch, new) if batch else new

            assert batch is not None
            tokens = _draw(batch, sampling)
            batch = self._go_on(batch, tokens, sampling, hand_over)
            self.display.writing(whole, sum(len(row.ids) for row in batch.rows) if batch else 0)

    def _read_beginning(self, prompts: Sequence[tuple[int, ...]]) -> DynamicCache | None:
        """What all prompts begin with, read; None where that is too short, or cannot be shared."""
        first, last = min(prompts), max(prompts)  # all others lie between them
        shared = list(takewhile(lambda pair: pair[0] == pair[1], zip(first, last, strict=False)))
        length = min(len(shared), min(map(len, prompts)) - 1)
        if first == last or length < WORTH_SHARING:
            return None

        ids = torch.tensor([first[:length]], device=self.policy.device)
        batch = self._forward([], ids, torch.ones_like(ids), self._new_cache())
        return batch.cache if _is_plain(batch) else None

    def _read(self, rows: list[_Row], beginning: DynamicCache | None) -> _Batch:
        """Rows whose prompts are read, each different one once."""
        prompts = list(dict.fromkeys(row.prompt for row in rows))
        start = beginning.get_seq_length() if beginning else 0
        cache = self._new_cache()
        if beginning:
            for layer, (keys, values, _) in enumerate(beginning):
                sizes = len(prompts), -1, -1, -1
                cache.update(keys.expand(sizes), values.expand(sizes), layer)

        width = max(map(len, prompts)) - start
        gaps = [start + width - len(prompt) for prompt in prompts]
        filler = self.policy.tokenizer.pad_token_id or 0
        ids = [[filler] * gap + list(p[start:]) for gap, p in zip(gaps, prompts, strict=True)]
        mask = [[1] * start + [0] * gap + [1] * (width - gap) for gap in gaps]
        device = self.policy.device
        batch = self._forward(
            [], torch.tensor(ids, device=device), torch.tensor(mask, device=device), cache
        )
        places = {prompt: place for place, prompt in enumerate(prompts)}
        return _selected(batch, rows, [places[row.prompt] for row in rows])

    def _go_on(
        self, batch: _Batch, tokens: Int[Tensor, " b"], sampling: Sampling, finished: OnCompletion
    ) -> _Batch | None:
        """The rows that go on after these tokens; the others are handed over."""
        log_probs = batch.logits.log_softmax(-1).gather(1, tokens[:, None])[:, 0].tolist()
        if not all(map(math.isfinite, log_probs)):
            raise NonFiniteError(
                "the policy's logits are not finite; start a new run with a lower "
                "train.learning_rate"
            )

        end_ids, going = set(self.policy.end_ids), []
        for place, (row, token) in enumerate(zip(batch.rows, tokens.tolist(), strict=True)):
            row.ids.append(token)
            row.log_probs.append(log_probs[place])
            has_ended = token in end_ids
            if has_ended or len(row.ids) == sampling.max_new_tokens:
                truncated = not has_ended
                finished(row.index, Completion(tuple(row.ids), tuple(row.log_probs), truncated))
            else:
                going.append(place)

        if not going:
            return None
        if len(going) < len(batch.rows):
            batch = _selected(batch, [batch.rows[place] for place in going], going)
            tokens = tokens[going]
        mask = pad(batch.mask, (0, 1), value=1)
        return self._forward(batch.rows, tokens[:, None], mask, batch.cache)

    def _forward(
        self,
        rows: list[_Row],
        ids: Int[Tensor, "b n"],
        mask: Int[Tensor, "b t"],
        cache: DynamicCache,
    ) -> _Batch:
        """The batch after n more tokens of every row, whose mask includes them."""
        decoder = self.policy.base.get_decoder()
        options = {}
        if "position_ids" in signature(decoder.forward).parameters:
            options["position_ids"] = (mask.cumsum(-1) - 1).clamp(min=0)[:, -ids.shape[1] :]
        states = decoder(
            input_ids=ids, attention_mask=mask, past_key_values=cache, use_cache=True, **options
        ).last_hidden_state
        # The last state alone, and without its own dimension: torch would copy the head for each.
        return _Batch(rows, self.policy.lm_head(states[:, -1]).float(), mask, cache)

    def _new_cache(self) -> DynamicCache:
        return DynamicCache(config=self.policy.base.config)


class MergedEngine(LocalEngine):
    """Generates with the adapter rounded into the weights, as most trainers do.

    For comparison only: it does not sample from the policy that is trained (docs/dev/log.md).
    """

    takes_adapters = False

    def stream(
        self,
        prompts: Sequence[Sequence[int]],
        sampling: Sampling,
        seeds: Sequence[int],
        finished: OnCompletion,
    ) -> None:
        with self.policy.merged():
            super().stream(prompts, sampling, seeds, finished)


def _is_plain(batch: _Batch) -> bool:
    """Whether every layer keeps keys and values of every place, so that rows can be put together.

    Layers with a sliding window or a recurrent state do not: their rows stay in their batch.
    """
    return all(type(layer) is DynamicLayer for layer in batch.cache.layers)


def _selected(batch: _Batch, rows: list[_Row], places: list[int]) -> _Batch:
    """These places of a batch, for these rows, without the columns that none of them uses."""
    index = torch.tensor(places, device=batch.mask.device)
    mask = batch.mask[index]
    batch.cache.reorder_cache(index)
    if _is_plain(batch) and (empty := int(mask.any(0).int().argmax())):
        mask = mask[:, empty:]
        for layer in batch.cache.layers:
            layer.keys, layer.values = layer.keys[:, :, empty:], layer.values[:, :, empty:]
    return _Batch(rows, batch.logits[index], mask, batch.cache)


def _joined(old: _Batch, new: _Batch) -> _Batch:
    """Two batches as one: the narrower one is padded on its left."""
    width = max(old.mask.shape[1], new.mask.shape[1])
    left = [width - batch.mask.shape[1] for batch in (old, new)]

    def widened(parts: Sequence[Tensor]) -> Tensor:
        return torch.cat([pad(p, (0, 0, n, 0)) for n, p in zip(left, parts, strict=True)])

    for mine, others in zip(old.cache.layers, new.cache.layers, strict=True):
        mine.keys = widened([mine.keys, others.keys])
        mine.values = widened([mine.values, others.values])
    mask = widened([batch.mask[..., None] for batch in (old, new)])[..., 0]
    logits = torch.cat([old.logits, new.logits])
    return _Batch([*old.rows, *new.rows], logits, mask, old.cache)


def _uniforms(seed: int, sampling: Sampling) -> list[float]:
    generator = torch.Generator().manual_seed(seed)
    uniforms: list[float] = torch.rand(sampling.max_new_tokens, generator=generator).tolist()
    return uniforms


def _draw(batch: _Batch, sampling: Sampling) -> Int[Tensor, " b"]:
    """Each row's next token: its distribution inverted at the row's next uniform number."""
    if sampling.temperature == 0:
        return batch.logits.argmax(-1)
    uniforms = torch.tensor([row.uniforms[len(row.ids)] for row in batch.rows])
    probs, tokens = distribution(batch.logits, sampling)
    return tokens.gather(-1, invert(probs, uniforms.to(probs.device))[:, None])[:, 0]


def distribution(
    logits: Float[Tensor, "b v"], sampling: Sampling
) -> tuple[Float[Tensor, "b n"], Int[Tensor, "b n"]]:
    """What tokens are drawn by, up to a factor, and the tokens: temperature, top-k, then top-p.

    Tokens as likely as the k-th are all kept. Of tokens that are equally likely where top-p ends,
    only as many are kept as are needed to reach it, those of the lowest ids. Tokens that are left
    out have probability 0 or are not there; the others stand in the order of their ids.
    """
    scores = logits / sampling.temperature
    size = scores.shape[-1]
    if 0 < sampling.top_k < size:
        least = scores.topk(sampling.top_k).values[:, -1:]
        scores = scores.masked_fill(scores < least, -torch.inf)
    probs = scores.softmax(-1)
    if sampling.top_p == 1:
        return probs, torch.arange(size, device=probs.device).expand_as(probs)
    return _nucleus(probs, sampling.top_p, min(LIKELIEST, size))


def _nucleus(
    probs: Float[Tensor, "b v"], top_p: float, looked_at: int
) -> tuple[Float[Tensor, "b n"], Int[Tensor, "b n"]]:
    """Top-p of the likeliest tokens; of eight times as many, in the rows where they are too few."""
    likeliest, tokens = probs.topk(looked_at)
    mass = likeliest.to(float64_device(probs.device)).double().cumsum(-1)
    before_last = (mass < top_p).sum(-1, keepdim=True).clamp(max=looked_at - 1).to(probs.device)
    last = likeliest.gather(-1, before_last)
    # Others like the least that was looked at may not have been looked at.
    too_few = last[:, 0] == likeliest[:, -1]

    tokens, order = tokens.sort(-1)
    likeliest = likeliest.gather(-1, order)
    above, equal = likeliest > last, likeliest == last
    needed = before_last + 1 - above.sum(-1, keepdim=True)
    kept = likeliest.where(above | (equal & (equal.cumsum(-1) <= needed)), 0)
    if looked_at == probs.shape[-1] or not too_few.any():
        return kept, tokens

    more = _nucleus(probs[too_few], top_p, min(8 * looked_at, probs.shape[-1]))
    wider = 0, more[0].shape[-1] - looked_at
    kept, tokens = pad(kept, wider), pad(tokens, wider)
    kept[too_few], tokens[too_few] = more
    return kept, tokens


def invert(probs: Float[Tensor, "b n"], uniforms: Float[Tensor, " b"]) -> Int[Tensor, " b"]:
    """The place at which each row's cumulative probability passes its uniform number in [0, 1).

    A place of probability 0 is never drawn, also where rounding leaves the last sum below 1. The
    sums are float64, so they are made where the device has it.
    """
    where = float64_device(probs.device)
    cumulative = probs.to(where).double().cumsum(-1)
    targets = uniforms.to(where).double()[:, None] * cumulative[:, -1:]
    places = torch.searchsorted(cumulative, targets, right=True)[:, 0]
    # Only rows with NaN reach past the end; they are reported as soon as the token is drawn.
    return places.clamp(max=probs.shape[-1] - 1).to(probs.device)
