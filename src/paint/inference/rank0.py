"""Engine that generates for all ranks on rank 0, the only client of the servers."""

from collections.abc import Sequence

import torch
from accelerate import PartialState

from paint.core.distributed import all_gather_objects, run_on_rank0
from paint.inference.engine import Completion, Engine, OnCompletion, PendingCompletions, Sampling


class Rank0Engine(Engine):
    """Generates the rows of all ranks with the engine of rank 0.

    Methods are collective; an error of rank 0 is raised on all ranks.

    Args:
        engine: on rank 0; None on the others.
        frees_memory: release this process's cached GPU memory before servers generate.
    """

    is_remote = True

    def __init__(self, engine: Engine | None, *, frees_memory: bool) -> None:
        self.engine, self.frees_memory = engine, frees_memory

    def sync_weights(self) -> None:
        """Synchronise rank 0's adapter, which equals that of every rank."""

        def work() -> None:
            assert self.engine is not None
            self.engine.sync_weights()

        run_on_rank0(work)

    def stream(
        self,
        prompts: Sequence[Sequence[int]],
        sampling: Sampling,
        seeds: Sequence[int],
        finished: OnCompletion,
    ) -> None:
        """Pass on this rank's completions once all ranks' are complete; at once with one rank."""
        if PartialState().num_processes == 1:
            assert self.engine is not None
            self.engine.stream(prompts, sampling, seeds, finished)
            return

        for index, completion in enumerate(self.generate(prompts, sampling, seeds)):
            finished(index, completion)

    def generate(
        self, prompts: Sequence[Sequence[int]], sampling: Sampling, seeds: Sequence[int]
    ) -> list[Completion]:
        """This rank's completions, in the order of its prompts."""
        if self.frees_memory and torch.cuda.is_available():
            torch.cuda.empty_cache()  # servers on the same GPUs need the memory that torch caches

        all_prompts, all_seeds, mine = _of_all_ranks(prompts, seeds)

        def work() -> list[Completion]:
            assert self.engine is not None
            return self.engine.generate(all_prompts, sampling, all_seeds)

        return run_on_rank0(work)[mine]

    def submit(
        self, prompts: Sequence[Sequence[int]], sampling: Sampling, seeds: Sequence[int]
    ) -> PendingCompletions:
        """Start ``generate``; calling the returned function is collective as well."""
        all_prompts, all_seeds, mine = _of_all_ranks(prompts, seeds)
        waiting = self.engine.submit(all_prompts, sampling, all_seeds) if self.engine else list
        return lambda: run_on_rank0(waiting)[mine]

    def fork(self) -> "Rank0Engine":
        """Another engine on the same servers, with a separate adapter."""
        engine = self.engine.fork() if self.engine else None
        return Rank0Engine(engine, frees_memory=self.frees_memory)


class SharedEngine(Rank0Engine):
    """Returns the same completions on all ranks, for checks in which all ranks take part."""

    def generate(
        self, prompts: Sequence[Sequence[int]], sampling: Sampling, seeds: Sequence[int]
    ) -> list[Completion]:
        def work() -> list[Completion]:
            assert self.engine is not None
            return self.engine.generate(prompts, sampling, seeds)

        return run_on_rank0(work)


def _of_all_ranks(
    prompts: Sequence[Sequence[int]], seeds: Sequence[int]
) -> tuple[list[Sequence[int]], list[int], slice]:
    """Gather all ranks' prompts and seeds, and the slice of this rank's rows."""
    counts = all_gather_objects([len(prompts)])
    rows = all_gather_objects(list(zip(prompts, seeds, strict=True)))
    start = sum(counts[: PartialState().process_index])
    mine = slice(start, start + len(prompts))
    return [prompt for prompt, _ in rows], [seed for _, seed in rows], mine
