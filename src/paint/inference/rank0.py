"""Engine that generates for all ranks on rank 0, the only client of the servers."""

from collections.abc import Callable, Sequence
from typing import TypeVar

import torch
from accelerate import PartialState

from paint.core.distributed import all_gather_slice, run_on_rank0
from paint.inference.engine import Engine, OnCompletion, PendingCompletions, Prompts, Sampling

T = TypeVar("T")


class Rank0Engine(Engine):
    """Generates the rows of all ranks with the engine of rank 0; all ranks call a method together.

    ``engine`` is None on other ranks. With ``frees_memory``, this process releases its cached GPU
    memory before servers generate. With ``same_rows``, all ranks get the completions of the same
    prompts.
    """

    is_remote = True

    def __init__(
        self, engine: Engine | None, *, frees_memory: bool, same_rows: bool = False
    ) -> None:
        self.engine, self.frees_memory, self.same_rows = engine, frees_memory, same_rows

    def sync_weights(self) -> None:
        """Synchronise rank 0's adapter, which equals that of every rank."""
        self._on_rank0(lambda engine: engine.sync_weights())

    def stream(
        self, prompts: Prompts, sampling: Sampling, seeds: Sequence[int], finished: OnCompletion
    ) -> None:
        """Pass on this rank's completions once all ranks' are complete; at once with one rank."""
        if self.frees_memory and torch.cuda.is_available():
            torch.cuda.empty_cache()  # servers on the same GPUs need the memory that torch caches
        if PartialState().num_processes == 1:
            self._on_rank0(lambda engine: engine.stream(prompts, sampling, seeds, finished))
            return

        rows, all_seeds, mine = self._of_all_ranks(prompts, seeds)
        completions = self._on_rank0(lambda engine: engine.generate(rows, sampling, all_seeds))
        for index, completion in enumerate(completions[mine]):
            finished(index, completion)

    def submit(
        self, prompts: Prompts, sampling: Sampling, seeds: Sequence[int]
    ) -> PendingCompletions:
        """Start ``generate``; calling the returned function is collective as well."""
        rows, all_seeds, mine = self._of_all_ranks(prompts, seeds)
        # Other ranks have nothing to wait for: they get rank 0's completions.
        waiting = self.engine.submit(rows, sampling, all_seeds) if self.engine else list
        return lambda: run_on_rank0(waiting)[mine]

    def fork(self) -> "Rank0Engine":
        engine = self.engine.fork() if self.engine else None
        return Rank0Engine(engine, frees_memory=self.frees_memory)

    def _on_rank0(self, ask: Callable[[Engine], T]) -> T:
        def work() -> T:
            assert self.engine is not None
            return ask(self.engine)

        return run_on_rank0(work)

    def _of_all_ranks(
        self, prompts: Prompts, seeds: Sequence[int]
    ) -> tuple[Prompts, Sequence[int], slice]:
        if self.same_rows:
            return prompts, seeds, slice(None)
        rows, mine = all_gather_slice(list(zip(prompts, seeds, strict=True)))
        return [p for p, _ in rows], [s for _, s in rows], mine
