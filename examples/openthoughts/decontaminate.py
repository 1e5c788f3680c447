r"""Find the rows of a file that repeat a benchmark problem, by shared n-grams of words.

    python examples/openthoughts/decontaminate.py rows.jsonl --benchmarks aime_2024 math_500

Both texts are normalised (`anchors.normalize`, lower case) and split into words and numbers. A text
is contaminated by a problem when

- the n-grams of 13 words that they share cover at least 60 % of the words of the shorter one, and
- at least one of these n-grams is in no other benchmark problem.

A problem of fewer than 13 words must occur completely in the text, operators included, and a
formula at its start or end must begin or end there. A problem of fewer than four words and symbols
must be the complete text.

Not detected: paraphrases, translations, and most problems with renamed variables.
"""

import re
import sys
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import groupby

import tyro

from paint.config.schema import DataConfig
from paint.core.errors import PaintError
from paint.data.benchmarks import COMPETITIONS, Benchmark, load_benchmark
from paint.data.problems import read_problems
from strictgrade.text import normalize

# 13 is GPT-3's value: stock openings ("Find the number of positive integers n such that n^2", 11
# words) are shorter. One common n-gram is not enough: stock endings are longer ("can be written in
# the form \frac{m}{n}, where m and n are relatively prime positive integers. Find m+n.", 20 words).
NGRAM = 13
SHARE = 0.6
SHORTEST = 4
"""Least number of words and symbols of a problem that is searched for within longer texts."""

_WORD = re.compile(r"[0-9]+|[^\W\d_]+")
_SIGN_OR_WORD = re.compile(r"[0-9]+(?:\.[0-9]+)?|[^\W\d_]+|[^\s]")
_STOPS = frozenset(".:;?")


@dataclass(frozen=True, slots=True)
class Match:
    """A repeated problem, the covered share of the shorter text, and the longest shared passage."""

    benchmark: str
    id: str
    share: float
    shared: str


@dataclass(frozen=True, slots=True)
class Index:
    """Index of all benchmark problems: n-grams, and problems shorter than one."""

    problems: list[tuple[str, str]] = field(default_factory=list)  # benchmark, id
    lengths: list[int] = field(default_factory=list)  # of each problem, in words
    # n-gram -> indices of the problems that hold it
    owners: dict[tuple[str, ...], set[int]] = field(default_factory=lambda: defaultdict(set))
    # words and symbols of a short problem -> its index
    short: dict[tuple[str, ...], int] = field(default_factory=dict)


def build_index(benchmarks: Sequence[Benchmark]) -> Index:
    """Return the index for `contaminated`."""
    index = Index()
    seen: set[tuple[str, ...]] = set()
    for benchmark in benchmarks:
        for problem in benchmark.problems:
            number = len(index.problems)
            index.problems.append((benchmark.name, problem.id))
            normalized = normalize(problem.problem).casefold()
            tokens = tuple(_WORD.findall(normalized))
            index.lengths.append(len(tokens))
            if len(tokens) < NGRAM:
                # The first of equal problems is named.
                index.short.setdefault(tuple(_symbols(normalized)[0]), number)
            elif tokens not in seen:  # a copy in a second benchmark must not share the n-grams
                seen.add(tokens)
                for start in range(len(tokens) - NGRAM + 1):
                    index.owners[tokens[start : start + NGRAM]].add(number)
    return index


def contaminated(text: str, index: Index) -> Match | None:
    """Return the benchmark problem that the text repeats most, or None; in linear time."""
    normalized = normalize(text).casefold()
    return _short_match(normalized, index) or _long_match(normalized, index)


def _long_match(normalized: str, index: Index) -> Match | None:
    tokens = _WORD.findall(normalized)
    covered: dict[int, set[int]] = defaultdict(set)  # problem -> positions in the text
    identified: set[int] = set()  # problems that share a unique n-gram with the text
    for start in range(len(tokens) - NGRAM + 1):
        owners = index.owners.get(tuple(tokens[start : start + NGRAM]), set())
        if len(owners) == 1:
            identified |= owners
        for owner in owners:
            covered[owner].update(range(start, start + NGRAM))

    matches = []
    for owner in sorted(identified):
        positions = sorted(covered[owner])
        # Of the shorter one: a problem may stand in a longer text, and a text may be part of a
        # problem. A text with a passage twice would cover more words than the problem has.
        share = min(len(positions) / min(index.lengths[owner], len(tokens)), 1.0)
        if share >= SHARE:
            passages = []
            # Positions of one passage are as far from their places in the list.
            for _, run in groupby(enumerate(positions), key=lambda pair: pair[1] - pair[0]):
                passages.append([tokens[position] for _, position in run])
            longest: list[str] = max(passages, key=len)
            matches.append(Match(*index.problems[owner], share, " ".join(longest)))
    return max(matches, key=lambda match: match.share, default=None)


def _short_match(normalized: str, index: Index) -> Match | None:
    symbols, stops = _symbols(normalized)
    complete = (0, len(symbols))

    def is_edge(i: int) -> bool:
        """Whether a problem may begin or end there: at a word or a sentence, not in a formula."""
        return i in (*complete, *stops) or any(
            len(symbol) > 1 and symbol.isalpha() for symbol in symbols[i - 1 : i + 1]
        )

    # The longest first: it may contain a shorter one.
    for length in sorted(set(map(len, index.short)), reverse=True):
        for start in range(len(symbols) - length + 1):
            end = start + length
            owner = index.short.get(tuple(symbols[start:end]))
            if owner is None:
                continue
            is_within = length >= SHORTEST and is_edge(start) and is_edge(end)
            if is_within or (start, end) == complete:
                return Match(*index.problems[owner], 1.0, " ".join(symbols[start:end]))
    return None


def _symbols(normalized: str) -> tuple[list[str], set[int]]:
    """The words, numbers and symbols of a text, and the positions where sentences start."""
    # Operators are kept, since they distinguish problems of few words.
    symbols: list[str] = []
    stops: set[int] = set()
    for symbol in _SIGN_OR_WORD.findall(normalized):
        if symbol in _STOPS:
            stops.add(len(symbols))
        elif symbol != ",":
            symbols.append(symbol)
    return symbols, stops


@dataclass(frozen=True)
class Options:
    """The rows and the benchmarks.

    Attributes:
        data: file of problems, or hub data set.
        benchmarks: problem sets, NAME or NAME=PATH as in `paint eval`.
        problem_field: column of the problems.
    """

    data: tyro.conf.Positional[str]
    benchmarks: tuple[str, ...] = COMPETITIONS
    problem_field: str = "problem"


def main(options: Options) -> dict[int, Match]:
    """Print the rows that repeat a benchmark problem, and return them by their number."""
    index = build_index([load_benchmark(name) for name in options.benchmarks])
    data = DataConfig(path=options.data, problem_field=options.problem_field, on_bad_row="skip")
    matches = {}
    for problem in read_problems(data, needs={}).problems:
        match = contaminated(problem.problem, index)
        if match:
            matches[problem.row] = match
            print(f"row {problem.row}: {match.benchmark}, problem {match.id}: {match.shared}")
    print(f"{len(matches):,} rows repeat a benchmark problem")
    return matches


if __name__ == "__main__":
    try:
        main(tyro.cli(Options, description=__doc__))
    except PaintError as error:
        sys.exit(str(error))
