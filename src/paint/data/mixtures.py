"""The order of the problems of a run: that of one source, or a mixture of several by weights.

Of several sources, the next problem is of the source that is furthest behind its share, which is
its weight over the sum of all weights; of equal ones, of the source that is named first. So after
any number of problems no source is a whole problem ahead of its share. The problems of a source
come in the order in which a run on it alone draws them: its epochs are seeded permutations of its
own, and where one is over the next begins.
"""

from array import array
from collections import Counter
from collections.abc import Sequence
from functools import lru_cache

from paint.config.schema import DataConfig
from paint.data.problems import Problem, batch_indices


def draw_problems(
    problems: Sequence[Problem], data: DataConfig, count: int, step: int, seed: int
) -> list[int]:
    """Return the indices of the ``count`` problems of step ``step``, which counts from 0."""
    if len(data.sources) < 2:
        return batch_indices(len(problems), count, step, seed)
    places: dict[str, list[int]] = {source.name: [] for source in data.sources}
    for place, problem in enumerate(problems):
        places[problem.source].append(place)
    turns = _turns(tuple(source.weight for source in data.sources))
    drawn = []
    for source, number in turns.between(step * count, (step + 1) * count):
        own = places[data.sources[source].name]
        # The number-th problem of the source alone.
        [index] = batch_indices(len(own), 1, number, seed)
        drawn.append(own[index])
    return drawn


def first_problems(
    problems: Sequence[Problem], data: DataConfig, count: int, seed: int
) -> list[Problem]:
    """Return the first ``count`` problems that a run draws, or all, each once.

    They are fewer where a small source of a mixture comes again before others are through.
    """
    drawn = draw_problems(problems, data, min(count, len(problems)), 0, seed)
    return [problems[i] for i in dict.fromkeys(drawn)]


def describe_mixture(problems: Sequence[Problem], data: DataConfig, drawn: int) -> list[str]:
    """Return a line for each source of a mixture: its share of the ``drawn`` problems of a run."""
    if len(data.sources) < 2:
        return []
    counts, total = counts_by_source(problems), sum(source.weight for source in data.sources)
    lines = []
    for source in data.sources:
        share, count = source.weight / total, counts[source.name]
        lines.append(
            f"source {source.name}: {share:.1%} of the problems that are drawn, "
            f"{drawn * share / count:.2g} epochs of its {count:,} in this run"
        )
    return lines


def counts_by_source(problems: Sequence[Problem]) -> dict[str, int]:
    return dict(Counter(problem.source for problem in problems))


class _Turns:
    """Which source each problem of a run is of, and how many of that source came before it."""

    def __init__(self, weights: Sequence[float]) -> None:
        total = sum(weights)
        self.shares = [weight / total for weight in weights]
        self.drawn = [0] * len(weights)
        self.sources, self.numbers = array("L"), array("L")

    def between(self, first: int, end: int) -> list[tuple[int, int]]:
        for place in range(len(self.sources), end):
            behind = [
                (place + 1) * share - drawn
                for share, drawn in zip(self.shares, self.drawn, strict=True)
            ]
            source = behind.index(max(behind))
            self.sources.append(source)
            self.numbers.append(self.drawn[source])
            self.drawn[source] += 1
        return list(zip(self.sources[first:end], self.numbers[first:end], strict=True))


_turns = lru_cache(maxsize=8)(_Turns)
