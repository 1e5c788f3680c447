"""What grading and anchors cost: texts in, verdicts and anchors out, on one core.

    python benchmarks/text.py [FILE]

Grading: 10,000 integers; pairs that take algebra, a second; what a hanging pair adds to fifty easy
ones. Anchors: with a FILE of problems with solutions, milliseconds per 2,000 characters, the best
of seven passes in processor time.
"""

import sys
import time
from collections.abc import Callable

from paint.config import Data
from paint.context import anchors
from paint.data.problems import read_problems
from paint.grading.grader import Grader, Item
from paint.latex import normalize


def seconds(work: Callable[[], object]) -> float:
    """Wall time of one call."""
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def per_2000(work: Callable[[str], object], texts: list[str]) -> float:
    """Milliseconds of processor time for 2,000 characters; each text is met once in a pass."""
    passes = []
    for _ in range(7):
        began = time.process_time()
        for text in texts:
            work(text)
        passes.append(time.process_time() - began)
    return 1e3 * min(passes) / sum(map(len, texts)) * 2000


def main() -> None:
    """Print the figures, one a line."""
    integers = [Item(rf"So it is $\boxed{{{i}}}$.", str(i % 7)) for i in range(10_000)]
    easy = [
        Item(rf"$\boxed{{\frac{{{i}}}{{7}}+\sqrt{{2}}}}$", rf"\sqrt{{2}}+\frac{{{2 * i}}}{{14}}")
        for i in range(50)
    ]
    tower = Item(r"$\boxed{\sum_{i=1}^{10^{30}} \sin(i^2)}$", "1+x")
    with Grader(workers=1, deadline=2.0) as grader:
        print(f"10,000 integers: {seconds(lambda: grader.grade(integers)):.2f} s")
        grader.grade(easy[:1])  # starts the worker
        alone = seconds(lambda: grader.grade(easy))
        print(f"50 pairs that take algebra, one worker: {alone:.2f} s, {50 / alone:.0f} a second")
        print(
            f"with one that hangs, deadline 2 s: "
            f"{seconds(lambda: grader.grade([*easy[:25], tower, *easy[25:]])):.2f} s"
        )
    if len(sys.argv) > 1:
        texts = [
            problem.solution
            for problem in read_problems(Data(path=sys.argv[1], on_bad_row="skip")).problems
        ]
        for name, work in (("anchors", anchors), ("normalize", normalize)):
            print(
                f"{name}: {per_2000(work, texts):.2f} ms per 2,000 characters "
                f"({len(texts)} solutions)"
            )


if __name__ == "__main__":
    main()
