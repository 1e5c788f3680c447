r"""Detection of texts that repeat a benchmark problem, by shared n-grams of words.

Both texts are normalised (`anchors.normalize`, lower case) and split into words and numbers. A text
is contaminated by a problem when

- the n-grams of 13 words that they share cover at least 60 % of the words of the shorter one, and
- at least one of these n-grams is in no other benchmark problem.

A problem of fewer than 13 words must occur completely in the text, operators included, and a
formula at its start or end must begin or end there. A problem of fewer than four words and symbols
must be the complete text.

Why 13: GPT-3 uses this value, and stock openings ("Find the number of positive integers n such that
n^2", 11 words) are shorter. Why a share, and not one common n-gram: stock endings are longer ("can
be written in the form \frac{m}{n}, where m and n are relatively prime positive integers. Find
m+n.", 20 words), and one of their n-grams would mark half of all contest problems.

A second, masked pass first replaces every number by the same number and every single letter by the
same letter. It finds renamed variables and changed numbers, but also different problems of the same
wording (docs/how-to/own-data.md has the cost). In this pass, a problem of fewer than 13 words must
be the complete text.

Not detected: paraphrases and translations. They share no long n-gram.
"""

import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Literal

from paint.data.benchmarks import Benchmark
from paint.objective.anchors import normalize

NGRAM = 13
SHARE = 0.6
SHORTEST = 4
"""Least number of words and symbols of a problem that is searched for within longer texts."""

Pass = Literal["words", "masked"]

_WORD = re.compile(r"[0-9]+|[^\W\d_]+")
_NUMBER_OR_LETTER = re.compile(r"[0-9]+(?:\.[0-9]+)?|(?<![^\W\d_])[^\W\d_](?![^\W\d_])")
_SIGN_OR_WORD = re.compile(r"[0-9]+(?:\.[0-9]+)?|[^\W\d_]+|[^\s]")
_STOPS = frozenset(".:;?")


@dataclass(frozen=True, slots=True)
class Match:
    """A repeated problem, the covered share of the shorter text, and the longest shared passage.

    Attributes:
        found_by: the pass that found it: "words", or "masked" if numbers or letters differ.
    """

    benchmark: str
    id: str
    share: float
    shared: str
    found_by: Pass = "words"


@dataclass(frozen=True, slots=True)
class Pieces:
    """Index of the benchmark problems for one pass."""

    name: Pass
    lengths: list[int]  # of each problem, in words
    owners: dict[tuple[str, ...], set[int]]  # n-gram -> indices of the problems that hold it
    short: dict[tuple[str, ...], int]  # words and symbols of a short problem -> its index


@dataclass(frozen=True, slots=True)
class Index:
    """Index of all benchmark problems: n-grams, and problems shorter than one, for every pass."""

    ngram: int
    share: float
    problems: list[tuple[str, str]]  # benchmark, id
    passes: list[Pieces]


def build_index(
    benchmarks: Sequence[Benchmark],
    *,
    ngram: int = NGRAM,
    share: float = SHARE,
    masked: bool = False,
) -> Index:
    """Build the index for `contaminated`, with a second pass if ``masked``.

    Raises:
        ValueError: unless ngram >= 1 and share is in [0, 1].
    """
    if ngram < 1 or not 0 <= share <= 1:
        raise ValueError(f"ngram must be at least 1 and share in [0, 1], got {ngram} and {share}")

    names: list[Pass] = ["words", "masked"] if masked else ["words"]
    problems = []
    for benchmark in benchmarks:
        for problem in benchmark.problems:
            problems.append((benchmark.name, problem.id))
    texts = [problem.problem for benchmark in benchmarks for problem in benchmark.problems]
    return Index(ngram, share, problems, [_pieces(name, texts, ngram) for name in names])


def contaminated(text: str, index: Index) -> Match | None:
    """Return the benchmark problem that the text repeats most, or None; in linear time."""
    for pieces in index.passes:
        normalized = _normalize_for(text, pieces.name)
        match = _short_match(normalized, pieces, index) or _long_match(normalized, pieces, index)
        if match:
            return match
    return None


def _pieces(name: Pass, texts: Sequence[str], ngram: int) -> Pieces:
    pieces = Pieces(name, [], defaultdict(set), {})
    seen: set[tuple[str, ...]] = set()
    for number, text in enumerate(texts):
        normalized = _normalize_for(text, name)
        tokens = tuple(_WORD.findall(normalized))
        pieces.lengths.append(len(tokens))
        if len(tokens) < ngram:
            pieces.short.setdefault(tuple(_symbols(normalized)[0]), number)
        elif tokens not in seen:  # a copy in a second benchmark must not share the n-grams
            seen.add(tokens)
            for start in range(len(tokens) - ngram + 1):
                pieces.owners[tokens[start : start + ngram]].add(number)
    return pieces


def _normalize_for(text: str, name: Pass) -> str:
    normalized = normalize(text).casefold()
    if name == "words":
        return normalized
    return _NUMBER_OR_LETTER.sub(lambda match: "0" if match[0][0].isdigit() else "x", normalized)


def _long_match(normalized: str, pieces: Pieces, index: Index) -> Match | None:
    tokens = _WORD.findall(normalized)
    covered: dict[int, set[int]] = defaultdict(set)  # problem -> positions in the text
    identified: set[int] = set()  # problems that share a unique n-gram with the text
    for start in range(len(tokens) - index.ngram + 1):
        owners = pieces.owners.get(tuple(tokens[start : start + index.ngram]), set())
        identified |= owners if len(owners) == 1 else set()
        for owner in owners:
            covered[owner].update(range(start, start + index.ngram))

    matches = []
    for owner in sorted(identified):
        positions = covered[owner]
        share = min(len(positions) / min(pieces.lengths[owner], len(tokens)), 1.0)
        if share >= index.share:
            runs = groupby(enumerate(sorted(positions)), key=lambda pair: pair[1] - pair[0])
            longest = max(([tokens[i] for _, i in run] for _, run in runs), key=len)
            matches.append(Match(*index.problems[owner], share, " ".join(longest), pieces.name))

    return max(matches, key=lambda match: match.share, default=None)


def _short_match(normalized: str, pieces: Pieces, index: Index) -> Match | None:
    """Match the longest short problem that is the text or, unmasked, occurs in it."""
    symbols, stops = _symbols(normalized)
    complete = (0, len(symbols))

    def is_edge(i: int) -> bool:
        return i in (*complete, *stops) or any(
            len(symbol) > 1 and symbol.isalpha() for symbol in symbols[i - 1 : i + 1]
        )

    for length in sorted(set(map(len, pieces.short)), reverse=True):
        for start in range(len(symbols) - length + 1):
            owner = pieces.short.get(tuple(symbols[start : start + length]))
            if owner is None:
                continue
            end = start + length
            is_within = (
                pieces.name == "words" and length >= SHORTEST and is_edge(start) and is_edge(end)
            )
            if is_within or (start, end) == complete:
                return Match(*index.problems[owner], 1.0, " ".join(symbols[start:end]), pieces.name)
    return None


def _symbols(normalized: str) -> tuple[list[str], set[int]]:
    """Return the words, numbers and symbols of a text, and the positions where sentences start."""
    # Operators are kept, since they distinguish problems of few words.
    symbols: list[str] = []
    stops: set[int] = set()
    for symbol in _SIGN_OR_WORD.findall(normalized):
        if symbol in _STOPS:
            stops.add(len(symbols))
        elif symbol != ",":
            symbols.append(symbol)
    return symbols, stops
