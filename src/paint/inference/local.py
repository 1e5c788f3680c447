"""Local engine: generation in the training process with the trained model.

Sampling is a pure function of the logits and of one uniform number per (seed, token), so a
completion depends on its prompt and seed alone. Repeated prompts and the common prefix of all are
prefilled once. A finished row leaves the batch, and a waiting one takes its place.
"""

import math
from collections import deque
from collections.abc import Iterator, Sequence
from inspect import signature
from itertools import takewhile
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.functional import pad
from transformers import Cache

from paint.core.device import float64_device
from paint.core.display import Display
from paint.core.errors import NonFiniteError
from paint.inference.batch import Batch, Group, Row, new_cache, pack, side_by_side
from paint.inference.engine import Completion, Engine, EngineError, OnCompletion, Prompts, Sampling
from paint.inference.factory import EngineSetup
from paint.models.attention import grouped_query_decode
from paint.models.policy import Policy
from paint.models.sharding import gather_parameters

WORTH_SHARING = 16  # minimum length of a common prefix that is prefilled separately
REFILL = 4  # new rows are prefilled once 1 / REFILL of the batch is free; one by one would be slow
LIKELIEST = 256  # number of likeliest tokens in which top-p is searched first


class LocalEngine(Engine):
    """Generates with the policy itself, so that no weights are synchronised."""

    def __init__(self, policy: Policy, *, batch_size: int, display: Display | None = None) -> None:
        self.policy = policy
        self.batch_size = batch_size
        self.display = display or Display(enabled=False)

    @classmethod
    def from_setup(cls, setup: EngineSetup) -> "LocalEngine":
        return cls(setup.policy, batch_size=setup.rollout.batch_size, display=setup.display)

    def sync_weights(self) -> None:
        """Do nothing: the weights are shared."""

    def stream(
        self, prompts: Prompts, sampling: Sampling, seeds: Sequence[int], finished: OnCompletion
    ) -> None:
        was_training = self.policy.model.training
        self.policy.model.eval()
        try:
            with torch.no_grad(), gather_parameters(self.policy.base):
                self._write(prompts, sampling, seeds, finished)
        finally:
            self.policy.model.train(was_training)

    def tokens(self, prompt: Sequence[int], sampling: Sampling, seed: int) -> Iterator[int]:
        """Yield the tokens of the completion that ``stream`` samples, each as it is drawn.

        Each step must run within ``torch.no_grad()``, with the weights that are to be used.
        """
        row = Row(0, tuple(prompt), _uniforms(seed, sampling))
        batch: Batch | None = self._read([row], None)
        while batch:
            batch = self._decode(batch, _draw(batch, sampling), sampling, lambda *_: None)
            yield row.ids[-1]

    def _write(
        self, prompts: Prompts, sampling: Sampling, seeds: Sequence[int], finished: OnCompletion
    ) -> None:
        # Sort prompts by length, for little padding, and equal prompts next to each other.
        rows = (Row(i, tuple(prompt)) for i, prompt in enumerate(prompts))
        waiting = deque(sorted(rows, key=lambda row: (-len(row.prompt), row.prompt)))
        # A rank may have no row of a last batch.
        beginning = self._read_beginning([row.prompt for row in waiting]) if waiting else None
        batch: Batch | None = None
        started: dict[int, Row] = {}
        finished_tokens = 0

        def hand_over(index: int, completion: Completion) -> None:
            nonlocal finished_tokens
            finished_tokens += len(completion.ids)
            del started[index]
            finished(index, completion)

        while waiting or batch:
            new, free = [], self.batch_size - len(started)
            can_refill = batch and batch.groups[0].is_growing and free * REFILL >= self.batch_size
            if waiting and (not batch or can_refill):
                new = [waiting.popleft() for _ in range(min(free, len(waiting)))]
                for row in new:
                    started[row.index] = row
                    if not row.uniforms:
                        row.uniforms.extend(_uniforms(seeds[row.index], sampling))
            try:
                if new:
                    read = self._read(new, beginning)
                    logits = torch.cat([batch.logits, read.logits]) if batch else read.logits
                    batch = Batch([*(batch.groups if batch else ()), *read.groups], logits)
                assert batch is not None
                batch = self._decode(batch, _draw(batch, sampling), sampling, hand_over)
            except torch.OutOfMemoryError as error:
                self._halve(len(started), error)
                # A row goes on where it was: its text is read like a prompt.
                waiting.extendleft(reversed(started.values()))
                started.clear()
                batch = None
            unfinished = sum(len(row.ids) for row in started.values())
            self.display.writing(finished_tokens, unfinished)

    def _halve(self, rows: int, error: torch.OutOfMemoryError) -> None:
        """Go on with half the rows that ran out of memory."""
        if rows == 1:
            raise EngineError(
                "one row alone does not fit in the device's memory; lower rollout.max_new_tokens, "
                "or use a larger GPU or servers"
            ) from error
        self.batch_size = rows // 2
        self.display.note(
            f"engine: out of memory with {rows} rows at once; {self.batch_size} from now on"
        )

    def _read_beginning(self, prompts: Sequence[tuple[int, ...]]) -> Cache | None:
        """Prefill the common prefix of all prompts; None if it is short or cannot be shared."""
        first, last = min(prompts), max(prompts)  # all others lie between them
        shared = list(takewhile(lambda pair: pair[0] == pair[1], zip(first, last, strict=False)))
        length = min(len(shared), min(map(len, prompts)) - 1)
        if first == last or length < WORTH_SHARING:
            return None

        ids = torch.tensor([first[:length]], device=self.policy.device)
        group = Group([], torch.ones_like(ids), new_cache(self.policy.base.config))
        self._forward(ids, group.mask.cumsum(-1) - 1, group.mask, group.cache)
        return group.cache if group.is_growing else None

    def _read(self, rows: list[Row], beginning: Cache | None) -> Batch:
        """Prefill the texts of rows, each distinct text once."""
        texts = list(dict.fromkeys(row.text for row in rows))
        start = beginning.get_seq_length() if beginning else 0
        cache = new_cache(self.policy.base.config)
        if beginning:
            for layer, (keys, values, _) in enumerate(beginning):
                sizes = len(texts), -1, -1, -1
                cache.update(keys.expand(sizes), values.expand(sizes), layer)

        width = max(map(len, texts)) - start
        gaps = [start + width - len(text) for text in texts]
        filler = self.policy.tokenizer.pad_token_id or 0
        ids = [[filler] * gap + list(t[start:]) for gap, t in zip(gaps, texts, strict=True)]
        filled = [[1] * start + [0] * gap + [1] * (width - gap) for gap in gaps]
        mask = torch.tensor(filled, device=self.policy.device)
        positions = (mask.cumsum(-1) - 1).clamp(min=0)[:, start:]
        logits = self._forward(torch.tensor(ids, device=mask.device), positions, mask, cache)
        if len(texts) == len(rows):
            return Batch([Group(rows, mask, cache)], logits)

        places = {text: place for place, text in enumerate(texts)}
        index = torch.tensor([places[row.text] for row in rows], device=mask.device)
        cache.reorder_cache(index)
        return Batch([Group(rows, mask[index], cache)], logits[index])

    def _decode(
        self, batch: Batch, tokens: Int[Tensor, " b"], sampling: Sampling, finished: OnCompletion
    ) -> Batch | None:
        """Append these tokens, hand over finished rows, and decode the others."""
        log_probs = batch.logits.log_softmax(-1).gather(1, tokens[:, None])[:, 0].tolist()
        if not all(map(math.isfinite, log_probs)):
            raise NonFiniteError(
                "the policy's logits are not finite; start a new run with a lower "
                "train.learning_rate"
            )

        end_ids, draws = set(self.policy.end_ids), zip(tokens.tolist(), log_probs, strict=True)
        for group in batch.groups:
            kept = []
            for place, row in enumerate(group.rows):
                token, log_prob = next(draws)
                row.ids.append(token)
                row.log_probs.append(log_prob)
                has_ended = token in end_ids
                if has_ended or len(row.ids) == sampling.max_new_tokens:
                    truncated = not has_ended
                    finished(row.index, Completion(tuple(row.ids), tuple(row.log_probs), truncated))
                else:
                    kept.append(place)
            group.keep(kept)

        groups = [group for group in batch.groups if group.rows]
        if not groups:
            return None

        packs = self._packs and groups[0].is_growing
        groups = pack(groups, into_one=not packs)
        for group in groups:
            group.mask = pad(group.mask, (0, 1), value=1)
        rows = [row for group in groups for row in group.rows]
        ids = torch.tensor([[row.ids[-1]] for row in rows], device=tokens.device)
        positions = torch.tensor([[len(row) - 1] for row in rows], device=tokens.device)
        mask, cache = side_by_side(groups) if packs else (groups[0].mask, groups[0].cache)
        return Batch(groups, self._forward(ids, positions, mask, cache))

    def _forward(
        self,
        ids: Int[Tensor, "b n"],
        positions: Int[Tensor, "b n"],
        mask: Int[Tensor, "b t"] | Bool[Tensor, "b 1 1 t"],
        cache: Cache,
    ) -> Float[Tensor, "b v"]:
        """Run the model on n more tokens of every row, which mask includes."""
        decoder = self.policy.base.get_decoder()
        parameters = signature(decoder.forward).parameters
        # Since transformers 5.24 it is called cache, and the old name warns.
        options: dict[str, Any] = {"cache" if "cache" in parameters else "past_key_values": cache}
        if "position_ids" in parameters:
            options["position_ids"] = positions
        with grouped_query_decode():
            states = decoder(
                input_ids=ids, attention_mask=mask, use_cache=True, **options
            ).last_hidden_state
        # Only the last state, without its token dimension: torch would copy the head for each row.
        logits: Tensor = self.policy.lm_head(states[:, -1])
        return logits.float()

    @property
    def _packs(self) -> bool:
        """Whether the model's attention is grouped_query_decode's, which takes several groups."""
        base = self.policy.base
        is_ours: bool = base.config._attn_implementation == "sdpa"
        return is_ours and base._supports_attention_backend


class MergedEngine(LocalEngine):
    """Generates with the adapter rounded into the weights; only to compare (docs/dev/log.md)."""

    takes_adapters = False

    def stream(
        self, prompts: Prompts, sampling: Sampling, seeds: Sequence[int], finished: OnCompletion
    ) -> None:
        with self.policy.merged():
            super().stream(prompts, sampling, seeds, finished)


def _uniforms(seed: int, sampling: Sampling) -> list[float]:
    generator = torch.Generator().manual_seed(seed)
    uniforms: list[float] = torch.rand(sampling.max_new_tokens, generator=generator).tolist()
    return uniforms


def _draw(batch: Batch, sampling: Sampling) -> Int[Tensor, " b"]:
    """Draw each row's next token by inverting its distribution at the next uniform number."""
    if sampling.temperature == 0:
        return batch.logits.argmax(-1)
    uniforms = torch.tensor([row.uniforms[len(row.ids)] for row in batch.rows])
    probs, tokens = distribution(batch.logits, sampling)
    return tokens.gather(-1, invert(probs, uniforms.to(probs.device))[:, None])[:, 0]


def distribution(
    logits: Float[Tensor, "b v"], sampling: Sampling
) -> tuple[Float[Tensor, "b n"], Int[Tensor, "b n"]]:
    """Unnormalised probabilities after temperature, top-k and top-p, and their tokens.

    All tokens as likely as the k-th are kept. Of equally likely tokens at the limit of top-p, only
    as many are kept as are needed to reach it, those with the lowest ids. Excluded tokens have
    probability 0 or are omitted; the others are in the order of their ids.
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
    """Apply top-p to the likeliest tokens; use eight times as many in rows that need more."""
    likeliest, tokens = probs.topk(looked_at)
    mass = likeliest.to(float64_device(probs.device)).double().cumsum(-1)
    before_last = (mass < top_p).sum(-1, keepdim=True).clamp(max=looked_at - 1).to(probs.device)
    last = likeliest.gather(-1, before_last)
    # Tokens as likely as the last one examined may not have been examined.
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
    """Index at which each row's cumulative probability exceeds its uniform number in [0, 1).

    An index of probability 0 is never drawn, even if rounding leaves the last sum below 1. Sums are
    float64, on a device that supports it.
    """
    where = float64_device(probs.device)
    cumulative = probs.to(where).double().cumsum(-1)
    targets = uniforms.to(where).double()[:, None] * cumulative[:, -1:]
    places = torch.searchsorted(cumulative, targets, right=True)[:, 0]
    # Only rows with NaN reach past the end; they are reported as soon as the token is drawn.
    return places.clamp(max=probs.shape[-1] - 1).to(probs.device)
