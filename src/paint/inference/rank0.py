"""One engine for all ranks: the first rank's, so that its servers have one client."""

from collections.abc import Sequence

import torch
from accelerate import PartialState

from paint.core.distributed import all_gather_objects, run_on_rank0
from paint.inference.engine import Completion, Engine, OnCompletion, PendingCompletions, Sampling


class Rank0Engine(Engine):
    """Generates the rows of all ranks with the first rank's engine.

    All ranks call each method together; what the first one raises is raised on all.

    Args:
        engine: the first rank's; None on the others.
        frees_memory: give this process's unused GPU memory to the servers before they generate.
    """

    is_remote = True

    def __init__(self, engine: Engine | None, *, frees_memory: bool) -> None:
        self.engine, self.frees_memory = engine, frees_memory

    def sync_weights(self) -> None:
        """The first rank's policy is every rank's."""

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
        """This rank's completions, once those of all ranks are there; alone, each at once."""
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
        """As ``generate``; what is returned is called by all ranks together, too."""
        all_prompts, all_seeds, mine = _of_all_ranks(prompts, seeds)
        waiting = self.engine.submit(all_prompts, sampling, all_seeds) if self.engine else list
        return lambda: run_on_rank0(waiting)[mine]

    def fork(self) -> "Rank0Engine":
        """Another engine on the same servers, with an adapter of its own."""
        engine = self.engine.fork() if self.engine else None
        return Rank0Engine(engine, frees_memory=self.frees_memory)


class SharedEngine(Rank0Engine):
    """All ranks ask for the same, and get it: for checks that no rank can make alone."""

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
    """All ranks' prompts and seeds, and where this rank's are among them."""
    counts = all_gather_objects([len(prompts)])
    rows = all_gather_objects(list(zip(prompts, seeds, strict=True)))
    start = sum(counts[: PartialState().process_index])
    mine = slice(start, start + len(prompts))
    return [prompt for prompt, _ in rows], [seed for _, seed in rows], mine
