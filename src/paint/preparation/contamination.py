r"""Does a text repeat a benchmark's problem?

Both texts are normalised (`latex.normalize`, lower case, punctuation and operators to blanks) and
cut into words and numbers. A text is contaminated by a problem when

- the n-grams of 13 words that they share cover at least 60 % of the words of the shorter one, and
- at least one of these n-grams is in no other benchmark problem.

A problem of fewer than 13 words must be the whole text.

Why 13: it is GPT-3's figure, and stock openings ("Find the number of positive integers n such that
n^2", 11 words) are shorter. Why a share, and not one common n-gram: stock endings are longer ("can
be written in the form \frac{m}{n}, where m and n are relatively prime positive integers. Find
m+n.", 20 words), and one n-gram of these would condemn half of all contest problems.

Left out on purpose: paraphrases, translations, and problems with other numbers. They share no long
n-gram.
"""

import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from paint.data.problem_sets import Benchmark
from paint.latex import normalize

NGRAM = 13
SHARE = 0.6

_WORD = re.compile(r"[0-9]+|[^\W\d_]+")
_PUNCTUATION = re.compile(r"[.,:;?!\s]+")


@dataclass(frozen=True, slots=True)
class Match:
    """The repeated problem, the covered share of the shorter text, the longest shared piece."""

    benchmark: str
    id: str
    share: float
    shared: str


@dataclass(frozen=True, slots=True)
class Index:
    """The n-grams of all benchmark problems, and the whole text of the problems without one."""

    ngram: int
    share: float
    problems: list[tuple[str, str, int]]  # benchmark, id, number of words
    owners: dict[tuple[str, ...], set[int]]  # n-gram -> indices of the problems that hold it
    short: dict[str, int]  # whole text -> index of the problem


def words(text: str) -> list[str]:
    """The words and numbers of a text, in one spelling of its mathematics."""
    return _WORD.findall(normalize(text).casefold())


def build_index(
    benchmarks: Sequence[Benchmark], *, ngram: int = NGRAM, share: float = SHARE
) -> Index:
    """The index for `contaminated`. ValueError unless ngram >= 1 and share is in [0, 1]."""
    if ngram < 1 or not 0 <= share <= 1:
        raise ValueError(f"ngram must be at least 1 and share in [0, 1], got {ngram} and {share}")

    index = Index(ngram, share, [], defaultdict(set), {})
    seen: set[tuple[str, ...]] = set()

    for benchmark in benchmarks:
        for problem in benchmark.problems:
            tokens = words(problem.problem)
            if len(tokens) >= ngram and tuple(tokens) in seen:
                continue  # in two benchmarks: its n-grams are still its own
            seen.add(tuple(tokens))

            number = len(index.problems)
            for start in range(len(tokens) - ngram + 1):
                index.owners[tuple(tokens[start : start + ngram])].add(number)
            if len(tokens) < ngram:
                index.short.setdefault(_whole(problem.problem), number)
            index.problems.append((benchmark.name, problem.id, len(tokens)))

    return index


def contaminated(text: str, index: Index) -> Match | None:
    """The benchmark problem that the text repeats most of, or None; in linear time."""
    if (owner := index.short.get(_whole(text))) is not None:
        return Match(*index.problems[owner][:2], share=1.0, shared=text)

    tokens = words(text)
    covered: dict[int, set[int]] = defaultdict(set)  # problem -> positions in the text
    identified: set[int] = set()  # problems that share an n-gram of their own with the text
    for start in range(len(tokens) - index.ngram + 1):
        owners = index.owners.get(tuple(tokens[start : start + index.ngram]), set())
        identified |= owners if len(owners) == 1 else set()
        for owner in owners:
            covered[owner].update(range(start, start + index.ngram))

    matches = []
    for owner in sorted(identified):
        positions = covered[owner]
        benchmark, name, length = index.problems[owner]
        share = min(len(positions) / min(length, len(tokens)), 1.0)
        if share >= index.share:
            longest = " ".join(tokens[i] for i in _longest_run(positions))
            matches.append(Match(benchmark, name, share, longest))

    return max(matches, key=lambda match: match.share, default=None)


def _whole(text: str) -> str:
    """The text for comparison as a whole.

    Operators stay: in a problem of few words they tell it from others.
    """
    return _PUNCTUATION.sub(" ", normalize(text).casefold()).strip()


def _longest_run(positions: set[int]) -> list[int]:
    runs: list[list[int]] = []
    for position in sorted(positions):
        if runs and runs[-1][-1] == position - 1:
            runs[-1].append(position)
        else:
            runs.append([position])
    return max(runs, key=len)
