"""Decoders: hidden states of the next tokens of all slots, with what the model keeps of a text.

StaticDecoder serves models whose layers keep keys and values of all tokens, also those that attend
to a window of them. Each slot has its own position in static buffers, so rows need no padding, and
a step works on the same memory every time, as a CUDA graph must.

PaddedDecoder serves all other models, such as those with recurrent states. Its rows are padded on
the left to one length, start together, and leave transformers' own cache as they end.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from inspect import signature
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from transformers import Cache, DynamicCache, PreTrainedModel
from transformers.cache_utils import DynamicLayer

from paint.core.device import gpu_memory, to_device
from paint.models.attention import masked_decode
from paint.models.caches import attention_windows, cache_name
from paint.resolve.memory import KEPT

Text = tuple[int, ...]

NARROWEST = 32  # positions by which a step on a CPU gets wider
NARROWEST_GRAPH = 256  # the same on a GPU, where each width has its own graph
WIDTHS = 4  # widths of graphs between a power of two and the next


class _Decoder:
    def __init__(self, base: PreTrainedModel) -> None:
        self.decoder = base.get_decoder()
        self.device = base.device
        self._cache_name = cache_name(self.decoder)
        self._takes_positions = "position_ids" in signature(self.decoder.forward).parameters

    def reserve(self, positions: int) -> None:
        """Make room for texts of this length; a cache that grows by itself needs none."""
        return

    @property
    def shape(self) -> tuple[int, int]:
        """Positions that a step attends to, and for which the buffers have room; 0 without."""
        return 0, 0

    @property
    def nbytes(self) -> int:
        return 0

    def forget(self) -> None:
        """Forget what was computed with earlier weights and is not read again for every row."""
        return  # nothing by default

    def _forward(
        self, ids: Int[Tensor, "b n"], positions: Int[Tensor, "_ n"], mask: Any, cache: Cache
    ) -> Float[Tensor, "b n h"]:
        options: dict[str, Any] = {self._cache_name: cache}
        if self._takes_positions:
            options["position_ids"] = positions
        with masked_decode(self.decoder.config):
            states: Tensor = self.decoder(
                input_ids=ids, attention_mask=mask, use_cache=True, **options
            ).last_hidden_state
        return states


def may_be_kept(nbytes: int) -> bool:
    """Return whether buffers of this size may stay on the GPU until the next call of an engine."""
    return nbytes <= KEPT * gpu_memory()


def open_decoder(base: PreTrainedModel, slots: int, longest: int) -> "Decoder":
    """Return the decoder of a model, with so many slots for texts of at most this length."""
    windows = attention_windows(base.get_decoder())
    if windows is None:
        return PaddedDecoder(base)
    return StaticDecoder(base, windows, slots, longest)


@dataclass(frozen=True)
class _Prefill:
    """Where a prefill writes: from a position on, each slot's text by its number."""

    start: int
    texts: Int[Tensor, " n"]
    slots: Int[Tensor, " n"]


@dataclass
class _Layout:
    """Where the layers of a StaticDecoder read and write."""

    slots: int
    capacity: int  # positions for which the buffers have room
    width: int  # positions that a step attends to
    places: Int[Tensor, " b"]  # that a step writes, in buffers of slots x capacity
    prefill: _Prefill | None = None


class StaticDecoder(_Decoder):
    """Keys and values of all slots in static buffers, which grow by buckets."""

    is_static = True  # rows can start at any time, and a step can be repeated on the same memory

    def __init__(
        self, base: PreTrainedModel, windows: dict[str, int | None], slots: int, longest: int
    ) -> None:
        super().__init__(base)
        self.windows = windows
        self.longest = longest
        self.dtype = base.get_input_embeddings().weight.dtype
        places = torch.zeros(slots, dtype=torch.long, device=self.device)
        self.layout = _Layout(slots, capacity=0, width=0, places=places)
        layers = len(DynamicCache(config=self.decoder.config).layers)
        self.cache = Cache(layers=[_StaticLayer(self.layout) for _ in range(layers)])
        self._beginning: Text = ()  # common beginning whose keys all slots have

    @property
    def shape(self) -> tuple[int, int]:
        return self.layout.width, self.layout.capacity

    @property
    def nbytes(self) -> int:
        return sum(buffer.nbytes for layer in self.cache.layers for buffer in layer.buffers)

    def read(self, texts: Sequence[Text], slots: Sequence[int], beginning: Text) -> None:
        """Read each distinct text once, and the common beginning once for all slots."""
        if beginning != self._beginning:
            # Into free slots, too: rows that take them later have the same beginning.
            self._read([beginning] * self.layout.slots, range(self.layout.slots), 0)
            self._beginning = beginning
        self._read(texts, slots, len(beginning))

    def forget(self) -> None:
        self._beginning = ()

    def _read(self, texts: Sequence[Text], slots: Sequence[int], start: int) -> None:
        distinct = {text: number for number, text in enumerate(dict.fromkeys(texts))}
        end = max(map(len, distinct))
        if end <= start:
            return
        self.reserve(end)
        # Padding comes last: no token attends to it, and it is overwritten before it is seen.
        ids = [[*text[start:], *[0] * (end - len(text))] for text in distinct]
        numbers = to_device([distinct[text] for text in texts], self.device)
        self.layout.prefill = _Prefill(start, numbers, to_device(list(slots), self.device))
        try:
            positions = torch.arange(start, end, device=self.device)[None]
            self._forward(to_device(ids, self.device), positions, None, self.cache)
        finally:
            self.layout.prefill = None

    def states(
        self, tokens: Int[Tensor, " b"], positions: Int[Tensor, " b"]
    ) -> Float[Tensor, "b h"]:
        """Decode a token of every slot, and return its hidden state."""
        slots = torch.arange(len(tokens), device=self.device)
        self.layout.places = slots * self.layout.capacity + positions
        states = self._forward(
            tokens[:, None], positions[:, None], self._masks(positions), self.cache
        )
        # Without the token dimension: torch would copy the head for each row.
        return states[:, -1]

    def _masks(self, positions: Int[Tensor, " b"]) -> Any:
        # For all positions, and then cut: no part of the computation depends on the width.
        age = positions[:, None] - torch.arange(self.layout.capacity, device=self.device)
        masks = {}
        for kind, window in self.windows.items():
            is_seen = age >= 0
            if window is not None:
                is_seen &= age < window
            # Numbers, which are added: torch would convert a boolean mask again in every layer.
            mask = torch.where(is_seen, 0.0, -torch.inf).to(self.dtype)
            masks[kind] = mask[:, None, None, : self.layout.width]
        # Models with one kind of layer take one mask, others a mask for each kind.
        return masks.popitem()[1] if len(masks) == 1 else masks

    def reserve(self, positions: int) -> None:
        """Make room for texts of this length: a wider step, and larger buffers where they end."""
        layout, most = self.layout, self._bucket(self.longest)
        layout.width = min(self._bucket(positions), most)
        if layout.width > layout.capacity:
            # At least doubled, since growing copies everything.
            grown = max(layout.width, 2 * layout.capacity)
            if self.device.type == "cuda" and self.nbytes:
                # Steps are captured and compiled anew: once, where the largest are kept anyway.
                grown = most if may_be_kept(self.nbytes // layout.capacity * most) else grown
            layout.capacity = min(grown, most)
            for layer in self.cache.layers:
                layer.grow(layout.capacity)

    def _bucket(self, positions: int) -> int:
        block = NARROWEST
        if self.device.type == "cuda":
            # Each width has its own graph: wide steps grow in larger blocks.
            power = 1 << (max(positions - 1, 1).bit_length() - 1)
            block = max(power // WIDTHS, NARROWEST_GRAPH)
        return -(-positions // block) * block

    def move(self, targets: Sequence[int], origins: Sequence[int], size: int) -> None:
        """Move slots; from now on the first ``size`` are decoded."""
        if not targets:
            return
        to, origin = to_device(list(targets), self.device), to_device(list(origins), self.device)
        for layer in self.cache.layers:
            for buffer in layer.buffers:
                buffer[to, : self.layout.width] = buffer[origin, : self.layout.width]


class _StaticLayer(DynamicLayer):  # type: ignore[misc]
    def __init__(self, layout: _Layout) -> None:
        super().__init__()
        self.layout = layout
        self.buffers: tuple[Float[Tensor, "slots t heads d"], ...] = ()

    def grow(self, capacity: int) -> None:
        grown = []
        for old in self.buffers:
            # Zeros, since a masked value is multiplied by 0, and 0 times NaN is NaN.
            new = old.new_zeros(len(old), capacity, *old.shape[2:])
            new[:, : old.shape[1]] = old
            grown.append(new)
        self.buffers = tuple(grown)

    def get_seq_length(self) -> int:
        prefill = self.layout.prefill
        return prefill.start if prefill else 0

    def update(
        self,
        key_states: Float[Tensor, "b heads n d"],
        value_states: Float[Tensor, "b heads n d_value"],
        *_: Any,
        **__: Any,
    ) -> tuple[Tensor, ...]:
        """Write a token of every slot, or texts; return the keys and values of all until then."""
        layout = self.layout
        states = [part.transpose(1, 2) for part in (key_states, value_states)]
        if not self.buffers:
            shape = (layout.slots, layout.capacity)
            self.buffers = tuple(part.new_zeros(*shape, *part.shape[2:]) for part in states)
        if layout.prefill:
            return self._write_texts(states, layout.prefill)

        for buffer, part in zip(self.buffers, states, strict=True):
            # Not a slice: each slot is at its own position.
            buffer.flatten(0, 1).index_copy_(0, layout.places, part.flatten(0, 1))
        size, width = len(key_states), layout.width
        return tuple(buffer[:size, :width].transpose(1, 2) for buffer in self.buffers)

    def _write_texts(self, states: list[Tensor], prefill: _Prefill) -> tuple[Tensor, ...]:
        start, end = prefill.start, prefill.start + states[0].shape[1]
        for buffer, part in zip(self.buffers, states, strict=True):
            buffer[prefill.slots, start:end] = part[prefill.texts]
        if start == 0:
            return tuple(part.transpose(1, 2) for part in states)
        # A slot that each text was written to has the common beginning, too.
        slots = prefill.slots.new_zeros(len(states[0])).scatter_(0, prefill.texts, prefill.slots)
        return tuple(buffer[slots, :end].transpose(1, 2) for buffer in self.buffers)


class PaddedDecoder(_Decoder):
    """Rows that start together, padded on the left, in transformers' own cache."""

    is_static = False

    def __init__(self, base: PreTrainedModel) -> None:
        super().__init__(base)
        self.cache = DynamicCache(config=self.decoder.config)
        self.mask = torch.ones(0, 0, dtype=torch.long, device=self.device)  # of the cached tokens

    def read(self, texts: Sequence[Text], slots: Sequence[int], beginning: Text) -> None:
        """Read texts in the place of all texts before."""
        width = max(map(len, texts))
        gaps = [width - len(text) for text in texts]
        # On the left, so that all rows end side by side where a step appends.
        ids = [[0] * gap + list(text) for gap, text in zip(gaps, texts, strict=True)]
        mask = [[0] * gap + [1] * (width - gap) for gap in gaps]
        self.cache = DynamicCache(config=self.decoder.config)
        self.mask = torch.tensor(mask, dtype=torch.long, device=self.device)
        if width:
            # They count from a row's first token, not from its padding.
            positions = (self.mask.cumsum(-1) - 1).clamp(min=0)
            self._forward(to_device(ids, self.device), positions, self.mask, self.cache)

    def states(
        self, tokens: Int[Tensor, " b"], positions: Int[Tensor, " b"]
    ) -> Float[Tensor, "b h"]:
        self.mask = torch.cat([self.mask, torch.ones_like(tokens)[:, None]], dim=1)
        return self._forward(tokens[:, None], positions[:, None], self.mask, self.cache)[:, -1]

    def move(self, targets: Sequence[int], origins: Sequence[int], size: int) -> None:
        if size == len(self.mask):
            return
        order = torch.arange(size)
        if targets:
            order[torch.tensor(targets)] = torch.tensor(origins)
        order = order.to(self.device)
        self.cache.reorder_cache(order)
        self.mask = self.mask[order]


Decoder = StaticDecoder | PaddedDecoder
"""Reads texts into slots, and decodes a next token of every slot."""
