"""Slots: the rows that are decoded together, and static tensors of what a step reads and writes.

A row keeps its slot until it ends, and each slot is at its own position. So rows of all lengths
share a step, and a waiting row takes a slot as soon as it is free.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor


@dataclass(frozen=True)
class SlotRow:
    """A completion, as far as the host has read it."""

    index: int  # of its prompt
    prompt: tuple[int, ...]
    seed: int  # of the uniform numbers by which its tokens are drawn
    ids: list[int] = field(default_factory=list)
    log_probs: list[float] = field(default_factory=list)

    @property
    def text(self) -> tuple[int, ...]:
        return (*self.prompt, *self.ids)


class Slots:
    """Rows of at most ``limit`` new tokens, of which the first ``size`` slots are decoded.

    A slot without a row has ``ended``: it is decoded with the others, and its tokens are dropped.
    """

    def __init__(self, count: int, limit: int, device: torch.device) -> None:
        self.device = device
        self.limit = limit
        self.rows: list[SlotRow | None] = [None] * count
        self.lengths = [0] * count  # new tokens of every row, as far as the host has read
        self.size = count
        self.tokens = torch.zeros(count, dtype=torch.long, device=device)  # the next inputs
        self.counts = torch.zeros_like(self.tokens)  # new tokens of every row
        self.prompt_ends = torch.zeros_like(self.tokens)  # positions of the prompts' last tokens
        self.ended = torch.ones(count, dtype=torch.bool, device=device)
        # Slots that have ended write into the last column.
        self.ids = torch.zeros(count, limit + 1, dtype=torch.long, device=device)
        self.log_probs = torch.zeros(count, limit + 1, device=device)
        self.uniforms = torch.zeros(count, limit + 1, device=device)

    @property
    def state(self) -> tuple[Tensor, ...]:
        """What a step changes; restored, the step can be repeated."""
        return self.tokens, self.counts, self.ended, self.ids, self.log_probs

    @property
    def free(self) -> list[int]:
        return [slot for slot, row in enumerate(self.rows) if row is None]

    @property
    def longest(self) -> int:
        """Length of the longest text; 0 without rows."""
        taken = [(row, n) for row, n in zip(self.rows, self.lengths, strict=True) if row]
        return max((len(row.prompt) + n for row, n in taken), default=0)

    def put(self, rows: Sequence[SlotRow], size: int) -> list[int]:
        """Put rows into free slots, and decode the first ``size`` slots; return the rows' slots."""
        self.size = size
        slots = self.free[: len(rows)]
        index = torch.tensor(slots, device=self.device)
        for target, values in (
            (self.tokens, [row.text[-1] for row in rows]),
            (self.counts, [len(row.ids) for row in rows]),
            (self.prompt_ends, [len(row.prompt) - 1 for row in rows]),
        ):
            target[index] = torch.tensor(values, device=self.device)
        # On the CPU: the numbers of a seed do not depend on the device.
        generators = [torch.Generator().manual_seed(row.seed) for row in rows]
        uniforms = torch.stack([torch.rand(self.limit, generator=one) for one in generators])
        self.uniforms[index, : self.limit] = uniforms.to(self.device)
        self.ended[index] = False
        for row, slot in zip(rows, slots, strict=True):
            self.rows[slot] = row
            self.lengths[slot] = len(row.ids)
            if row.ids:  # the row ran out of memory before, and continues
                self.ids[slot, : len(row.ids)] = torch.tensor(row.ids, device=self.device)
                self.log_probs[slot, : len(row.ids)] = torch.tensor(
                    row.log_probs, device=self.device
                )
        return slots

    def positions(self) -> Int[Tensor, " b"]:
        return (self.prompt_ends + self.counts)[: self.size]

    def next_uniforms(self) -> Float[Tensor, " b"]:
        counts = self.counts[: self.size]
        return self.uniforms[: self.size].gather(1, counts[:, None])[:, 0]

    def append(
        self,
        tokens: Int[Tensor, " b"],
        log_probs: Float[Tensor, " b"],
        end_ids: Int[Tensor, " ends"],
    ) -> None:
        """Append a token to every row that has not ended."""
        live = slice(self.size)
        counts, ended = self.counts[live], self.ended[live]
        # A step has no branches: slots that have ended write into the spare column.
        place = counts.where(~ended, self.limit)[:, None]
        self.ids[live].scatter_(1, place, tokens[:, None])
        self.log_probs[live].scatter_(1, place, log_probs[:, None])
        self.tokens[live] = tokens
        counts += ~ended
        # Not torch.isin, which may sort, and so wait for the device.
        is_end: Bool[Tensor, " b"] = (tokens[:, None] == end_ids).any(-1)
        ended |= is_end | (counts == self.limit)

    def take(self, slots: Sequence[int]) -> list[SlotRow]:
        """Take rows out of their slots, with the tokens of ``lengths``."""
        if not slots:  # in most steps
            return []
        index = torch.tensor(slots, device=self.device, dtype=torch.long)
        ids, log_probs = self.ids[index].tolist(), self.log_probs[index].tolist()
        taken = []
        for number, slot in enumerate(slots):
            row = self.rows[slot]
            assert row is not None
            length = self.lengths[slot]
            row.ids[:] = ids[number][:length]
            row.log_probs[:] = log_probs[number][:length]
            self.rows[slot] = None
            self.lengths[slot] = 0
            taken.append(row)
        self.ended[index] = True
        return taken

    def take_all(self) -> list[SlotRow]:
        return self.take([slot for slot, row in enumerate(self.rows) if row is not None])

    def shrink(self, smallest: int) -> tuple[list[int], list[int]]:
        """Decode half the slots as long as the other half is free, down to ``smallest`` slots.

        Rows behind the last decoded slot move. Returns the slots that they move to and from.
        """
        count = len(self.rows) - len(self.free)
        size = self.size
        # By halves, since each size has its own graph.
        while size // 2 >= max(count, smallest):
            size //= 2
        origins = [slot for slot in range(size, self.size) if self.rows[slot] is not None]
        targets = [slot for slot in range(size) if self.rows[slot] is None][: len(origins)]
        self.size = size
        if not origins:
            return [], []

        to = torch.tensor(targets, device=self.device)
        origin = torch.tensor(origins, device=self.device)
        for part in (*self.state, self.prompt_ends, self.uniforms):
            part[to] = part[origin]
        self.ended[origin] = True
        for target, source in zip(targets, origins, strict=True):
            self.rows[target], self.rows[source] = self.rows[source], None
            self.lengths[target], self.lengths[source] = self.lengths[source], 0
        return targets, origins
