"""One engine for all ranks: the first rank's, so that its servers have one client."""

from collections.abc import Sequence

import torch
from accelerate import PartialState
from accelerate.utils import gather_object

from paint.engines.protocol import Completion, Engine, Finished, Sampling
from paint.ranks import on_first_rank


class FirstRankEngine:
    """Generates the rows of all ranks with the first rank's engine.

    All ranks call each method together; what the first one raises is raised on all.

    Args:
        engine: the first rank's; None on the others.
        frees_memory: give this process's unused GPU memory to the servers before they generate.
    """

    def __init__(self, engine: Engine | None, *, frees_memory: bool) -> None:
        self.engine, self.frees_memory = engine, frees_memory

    def adopt(self) -> None:
        """The first rank's policy is every rank's."""

        def work() -> None:
            assert self.engine is not None
            self.engine.adopt()

        on_first_rank(work)

    def stream(
        self,
        prompts: Sequence[Sequence[int]],
        sampling: Sampling,
        seeds: Sequence[int],
        finished: Finished,
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

        counts = gather_object([len(prompts)])
        rows = gather_object(list(zip(prompts, seeds, strict=True)))

        def work() -> list[Completion]:
            assert self.engine is not None
            all_prompts, all_seeds = [prompt for prompt, _ in rows], [seed for _, seed in rows]
            return self.engine.generate(all_prompts, sampling, all_seeds)

        start = sum(counts[: PartialState().process_index])
        return on_first_rank(work)[start : start + len(prompts)]


class SharedEngine(FirstRankEngine):
    """All ranks ask for the same, and get it: for checks that no rank can make alone."""

    def generate(
        self, prompts: Sequence[Sequence[int]], sampling: Sampling, seeds: Sequence[int]
    ) -> list[Completion]:
        def work() -> list[Completion]:
            assert self.engine is not None
            return self.engine.generate(prompts, sampling, seeds)

        return on_first_rank(work)
