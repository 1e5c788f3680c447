"""How much does the search for contamination find, and how often is it wrong?

    python benchmarks/contamination.py SEED FILE.jsonl FILE.jsonl [...]

Every file has a column `problem`. Its problems are made benchmark problems, and these variants of
them are searched for: the problem itself after and before other text; with every variable renamed;
with one number changed; with both. What a variant cannot change is left out. Then come problems
that are no copies: those of the other files, and one half of the file beside the other.
"""

import json
import random
import re
import sys
from collections.abc import Callable
from pathlib import Path

from rich.console import Console
from rich.table import Table

from paint.data.problem_sets import Benchmark
from paint.data.problems import Problem
from paint.preparation.contamination import NGRAM, build_index, contaminated, words

_FORMULA = re.compile(r"\$[^$]+\$")
_VARIABLE = re.compile(r"(?<![A-Za-z\\])[A-Za-z](?![A-Za-z])")
_NUMBER = re.compile(r"[0-9]+")


def embedded(text: str, rng: random.Random) -> str:
    """The problem within a longer prompt."""
    return (
        f"You are a careful mathematician, and you have {rng.randrange(2, 60)} minutes. Solve the "
        f"following problem step by step. {text} Explain every step of what you do, and write the "
        f"final answer in a box."
    )


def renamed(text: str, rng: random.Random) -> str:
    """Every single letter in a formula under another name."""
    names = sorted({name for part in _FORMULA.findall(text) for name in _VARIABLE.findall(part)})
    free = [name for name in "abcdefghjklmnpqrstuvwxyz" if name not in names]
    new = dict(zip(names, rng.sample(free, min(len(free), len(names))), strict=False))

    def rename(formula: re.Match[str]) -> str:
        return _VARIABLE.sub(lambda name: new.get(name[0], name[0]), formula[0])

    return _FORMULA.sub(rename, text)


def renumbered(text: str, rng: random.Random) -> str:
    """One number changed."""
    numbers = list(_NUMBER.finditer(text))
    if not numbers:
        return text
    one = rng.choice(numbers)
    return f"{text[: one.start()]}{int(one[0]) + rng.randrange(1, 9)}{text[one.end() :]}"


VARIANTS: dict[str, Callable[[str, random.Random], str]] = {
    "itself": lambda text, rng: text,
    "within a longer prompt": embedded,
    "variables renamed": renamed,
    "one number changed": renumbered,
    "both": lambda text, rng: renumbered(renamed(text, rng), rng),
}


def main() -> None:
    """Print the table."""
    rng, paths = random.Random(int(sys.argv[1])), list(map(Path, sys.argv[2:]))
    sets = [
        Benchmark(path.stem, [Problem(text, "", "", str(n)) for n, text in enumerate(texts)])
        for path in paths
        for texts in [[json.loads(line)["problem"] for line in path.read_text().splitlines()]]
    ]
    table = Table("", "texts", "words alone", "with the masked pass", f"under {NGRAM} words, found")
    for benchmark in sets:
        texts = [problem.problem for problem in benchmark.problems]
        for name, vary in VARIANTS.items():
            varied = [(text, vary(text, rng)) for text in texts]
            # What a variant cannot change is not counted.
            searched = [(t, v) for t, v in varied if v != t or name == "itself"]
            table.add_row(f"{benchmark.name}: {name}", *found(benchmark, searched))
        for other in sets:
            if other is not benchmark:
                foreign = [(p.problem, p.problem) for p in other.problems]
                table.add_row(f"{benchmark.name}: {other.name}", *found(benchmark, foreign))
        shuffled = rng.sample(benchmark.problems, len(benchmark.problems))
        half = Benchmark(benchmark.name, shuffled[: len(shuffled) // 2])
        rest = [(p.problem, p.problem) for p in shuffled[len(shuffled) // 2 :]]
        table.add_row(f"{benchmark.name}: half beside half", *found(half, rest))
    Console(width=160).print(table)


def found(benchmark: Benchmark, texts: list[tuple[str, str]]) -> list[str]:
    """How many texts repeat a problem, by pass; of the short ones, too."""
    counts = []
    short = [i for i, (text, _) in enumerate(texts) if len(words(text)) < NGRAM]
    for masked in (False, True):
        index = build_index([benchmark], masked=masked)
        counts.append([contaminated(text, index) is not None for _, text in texts])
    in_short = [str(sum(hits[i] for i in short)) for hits in counts]
    return [
        f"{len(texts)}",
        *(f"{sum(hits)} ({100 * sum(hits) / max(len(texts), 1):.0f} %)" for hits in counts),
        f"{' / '.join(in_short)} of {len(short)}" if short else "",
    ]


if __name__ == "__main__":
    main()
