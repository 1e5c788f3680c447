"""Rows that are sampled together: keys and values written in place, in groups of similar lengths.

transformers' cache copies all keys for every new token, and pads rows of all lengths to one
rectangle. Here buffers grow by blocks, and each group of rows has a rectangle of its own.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.functional import pad
from transformers import Cache, DynamicCache, PreTrainedConfig
from transformers.cache_utils import DynamicLayer

BLOCK = 256  # positions by which a buffer grows
FILL = 0.7  # groups are joined if their tokens fill at least this share of the joint rectangle


@dataclass(frozen=True)
class Row:
    """An unfinished completion, and the uniform numbers by which its tokens are drawn."""

    index: int
    prompt: tuple[int, ...]
    uniforms: list[float] = field(default_factory=list)
    ids: list[int] = field(default_factory=list)
    log_probs: list[float] = field(default_factory=list)

    @property
    def text(self) -> tuple[int, ...]:
        return (*self.prompt, *self.ids)

    def __len__(self) -> int:
        return len(self.prompt) + len(self.ids)


@dataclass
class Group:
    """Rows of similar lengths, left-padded to one rectangle."""

    rows: list[Row]
    mask: Int[Tensor, "b t"]  # 1 where a position of the cache holds a token of the row (b t)
    cache: Cache  # keys and values of these positions
    start: int = 0  # the first position that a row uses

    @property
    def width(self) -> int:
        return self.mask.shape[1] - self.start

    @property
    def is_growing(self) -> bool:
        """Whether every layer keeps all positions, so that groups can be joined.

        Layers with a sliding window or a recurrent state do not; their rows stay in one group.
        """
        return all(isinstance(layer, _Layer) for layer in self.cache.layers)

    def keep(self, places: Sequence[int]) -> None:
        """Keep the rows at these ascending places; the last ones take the places of others."""
        count = len(places)
        if count in (0, len(self.rows)):
            self.rows = self.rows[:count]
            return

        holes = sorted(set(range(count)).difference(places))
        moved = places[count - len(holes) :]
        rows = list(self.rows)
        for hole, place in zip(holes, moved, strict=True):
            rows[hole] = rows[place]
        device = self.mask.device
        to, origin = (torch.tensor(x, dtype=torch.long, device=device) for x in (holes, moved))
        order = torch.arange(count, device=device).index_copy(0, to, origin)
        if self.is_growing:
            for layer in self.cache.layers:
                layer.keep(count, to, origin)
        else:
            self.cache.reorder_cache(order)
        self.rows, self.mask = rows[:count], self.mask[order]
        self.start = int(self.mask.any(0).int().argmax())

    def add(self, other: "Group") -> None:
        """Add the rows of another group; positions on the left that no row uses are dropped."""
        width = max(self.width, other.width)

        def together(*parts: Tensor) -> Tensor:
            return torch.cat([pad(part, (0, 0, width - part.shape[-2], 0)) for part in parts])

        for mine, theirs in zip(self.cache.layers, other.cache.layers, strict=True):
            mine.replace(together(mine.keys, theirs.keys), together(mine.values, theirs.values))
        self.mask = together(self.mask[..., None], other.mask[..., None])[..., 0]
        self.rows, self.start = self.rows + other.rows, 0


@dataclass(frozen=True)
class Batch:
    """Groups of rows, and the logits of every row's next token (b v)."""

    groups: list[Group]
    logits: Float[Tensor, "b v"]

    @property
    def rows(self) -> list[Row]:
        return [row for group in self.groups for row in group.rows]


class _Layer(DynamicLayer):  # type: ignore[misc]
    """Keys and values of one group in one layer, at the beginning of buffers with room for more."""

    keys: Float[Tensor, "b heads t d"]
    values: Float[Tensor, "b heads t d_value"]
    buffers: tuple[Tensor, ...] = ()

    def update(
        self,
        key_states: Float[Tensor, "b heads n d"],
        value_states: Float[Tensor, "b heads n d_value"],
        *_: Any,
        **__: Any,
    ) -> tuple[Tensor, Tensor]:
        """Write n more tokens of every row; return the keys and values of all tokens."""
        new, start = (key_states, value_states), self.get_seq_length()
        rows, end = len(key_states), start + key_states.shape[2]
        if not self.buffers or end > self.buffers[0].shape[2]:
            grown = tuple(x.new_empty(rows, x.shape[1], end + BLOCK, x.shape[3]) for x in new)
            if start:
                for buffer, old in zip(grown, (self.keys, self.values), strict=True):
                    buffer[:, :, :start] = old
            self.buffers, self.is_initialized = grown, True
        for buffer, states in zip(self.buffers, new, strict=True):
            buffer[:rows, :, start:end] = states
        self.keys, self.values = (buffer[:rows, :, :end] for buffer in self.buffers)
        return self.keys, self.values

    def reorder_cache(self, beam_idx: Int[Tensor, " n"]) -> None:
        """Take these rows, in this order, some of them several times."""
        self.replace(self.keys[beam_idx], self.values[beam_idx])

    def replace(self, keys: Tensor, values: Tensor) -> None:
        """Take other keys and values, without room; the next update makes some."""
        self.keys, self.values, self.buffers = keys, values, ()

    def keep(self, count: int, to: Int[Tensor, " n"], origin: Int[Tensor, " n"]) -> None:
        """Move some rows, then keep the first ones."""
        for part in (self.keys, self.values):
            part[to] = part[origin]
        self.keys, self.values = self.keys[:count], self.values[:count]


class _SideBySide(DynamicLayer):  # type: ignore[misc]
    """One layer of several groups; attention gets a list of keys, one of each group."""

    def __init__(self, layers: Sequence[_Layer], widths: Sequence[int]) -> None:
        super().__init__()
        self.groups, self.widths = layers, widths

    def update(
        self, key_states: Tensor, value_states: Tensor, *_: Any, **__: Any
    ) -> tuple[list[Tensor], list[Tensor]]:
        sizes = [len(layer.keys) for layer in self.groups]
        both: tuple[list[Tensor], list[Tensor]] = ([], [])
        for layer, width, *new in zip(
            self.groups,
            self.widths,
            key_states.split(sizes),
            value_states.split(sizes),
            strict=True,
        ):
            for parts, part in zip(both, layer.update(*new), strict=True):
                parts.append(part[:, :, -width:])
        return both


def new_cache(config: PreTrainedConfig) -> DynamicCache:
    """An empty cache, in which layers that keep all positions grow by blocks."""
    cache = DynamicCache(config=config)
    if all(type(layer) is DynamicLayer for layer in cache.layers):
        cache.layers = [_Layer() for _ in cache.layers]
    return cache


def pack(groups: Sequence[Group], *, into_one: bool) -> list[Group]:
    """Join groups whose tokens fill enough of a joint rectangle, or all groups."""
    fill = 0.0 if into_one else FILL
    packed: list[Group] = []
    for group in sorted(groups, key=lambda group: -max(map(len, group.rows))):
        rows = [*packed[-1].rows, *group.rows] if packed else []
        if packed and sum(map(len, rows)) >= fill * len(rows) * max(map(len, rows)):
            packed[-1].add(group)
        else:
            packed.append(group)
    return packed


def side_by_side(groups: Sequence[Group]) -> tuple[Bool[Tensor, "b 1 1 t"], Cache]:
    """The mask and the cache for a next token, which the masks include, of all groups' rows."""
    widths = [group.width for group in groups]
    masks = [
        pad(group.mask[:, group.start :], (0, max(widths) - group.width), value=0)
        for group in groups
    ]
    layers = zip(*(group.cache.layers for group in groups), strict=True)
    cache = Cache(layers=[_SideBySide(parts, widths) for parts in layers])
    return torch.cat(masks).bool()[:, None, None], cache
