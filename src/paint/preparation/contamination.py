r"""Does a text repeat a benchmark's problem?

Both texts are normalised (`latex.normalize`, lower case, punctuation and operators to blanks) and cut into words and
numbers. A text is contaminated by a problem when the n-grams of 13 words that they share cover at least 60 % of the
words of the shorter of the two, and one of them stands in no other benchmark problem. A problem of fewer than 13
words must be the whole text.

Why 13: it is GPT-3's, and stock openings ("Find the number of positive integers n such that n^2", 11 words) are
shorter. Why more than one shared n-gram: stock endings are longer ("can be written in the form \frac{m}{n}, where m
and n are relatively prime positive integers. Find m+n.", 20 words), and half of all contest problems would fall to
one of them.

Left out on purpose: paraphrases, translations, and problems with other numbers, which share no long n-gram.
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
    """Which problem is repeated, how much of the shorter text is covered, and the longest piece that is shared."""

    benchmark: str
    id: str
    share: float
    shared: str


@dataclass(frozen=True, slots=True)
class Index:
    """The n-grams of all benchmark problems, and the whole text of those that are too short to have one."""

    ngram: int
    share: float
    problems: list[tuple[str, str, int]]  # benchmark, id, number of words
    owners: dict[tuple[str, ...], set[int]]
    short: dict[str, int]


def words(text: str) -> list[str]:
    """The words and numbers of a text, in one spelling of its mathematics."""
    return _WORD.findall(normalize(text).casefold())


def build_index(benchmarks: Sequence[Benchmark], *, ngram: int = NGRAM, share: float = SHARE) -> Index:
    """What `contaminated` looks texts up in. `ngram` is at least 1, `share` in [0, 1]; else ValueError."""
    if ngram < 1 or not 0 <= share <= 1:
        raise ValueError(f"ngram must be at least 1 and share in [0, 1], got {ngram} and {share}")
    index = Index(ngram, share, [], defaultdict(set), {})
    seen: set[tuple[str, ...]] = set()
    for benchmark in benchmarks:
        for problem in benchmark.problems:
            found = words(problem.problem)
            if len(found) >= ngram and tuple(found) in seen:
                continue  # in two sets: its n-grams are still its own
            seen.add(tuple(found))
            for start in range(len(found) - ngram + 1):
                index.owners[tuple(found[start : start + ngram])].add(len(index.problems))
            if len(found) < ngram:
                index.short.setdefault(_whole(problem.problem), len(index.problems))
            index.problems.append((benchmark.name, problem.id, len(found)))
    return index


def contaminated(text: str, index: Index) -> Match | None:
    """The benchmark problem that the text repeats most of, or None. Takes time linear in the text."""
    if (owner := index.short.get(_whole(text))) is not None:
        return Match(*index.problems[owner][:2], share=1.0, shared=text)
    found = words(text)
    covered: dict[int, set[int]] = defaultdict(set)
    named: set[int] = set()  # those that the text shares an n-gram of their own with
    for start in range(len(found) - index.ngram + 1):
        owners = index.owners.get(tuple(found[start : start + index.ngram]), set())
        named |= owners if len(owners) == 1 else set()
        for owner in owners:
            covered[owner].update(range(start, start + index.ngram))
    matches = []
    for owner in sorted(named):
        places = covered[owner]
        benchmark, name, length = index.problems[owner]
        share = min(len(places) / min(length, len(found)), 1.0)
        if share >= index.share:
            matches.append(Match(benchmark, name, share, " ".join(found[i] for i in _longest_run(places))))
    return max(matches, key=lambda match: match.share, default=None)


def _whole(text: str) -> str:
    """The text for comparison as a whole. Operators stay: with few words, they are what tells problems apart."""
    return _PUNCTUATION.sub(" ", normalize(text).casefold()).strip()


def _longest_run(places: set[int]) -> list[int]:
    runs: list[list[int]] = []
    for place in sorted(places):
        if runs and runs[-1][-1] == place - 1:
            runs[-1].append(place)
        else:
            runs.append([place])
    return max(runs, key=len)
