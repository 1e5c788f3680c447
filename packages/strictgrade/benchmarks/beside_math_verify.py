"""Verdicts of strictgrade beside those of math-verify, on answers of models and on rewritings.

    PYTHONPATH=tests python benchmarks/beside_math_verify.py FILE --seed 0 --count 3000

FILE is JSONL with an answer, completions and whether each is right (correct), as its source has it.
The rewritings (../tests/rewritings.py) are right or wrong by construction; their rules are ours,
and strictgrade was mended by them. math-verify is called as its page shows, with the gold answer
as a formula, and with its defaults.
"""

import argparse
import json
import logging
from collections.abc import Sequence
from pathlib import Path

from math_verify import parse, verify

from rewritings import pairs
from strictgrade import Comparer, answer_text

Case = tuple[str, str, bool]  # completion, gold answer, whether it is right


def verdicts_of_strictgrade(cases: Sequence[Case]) -> list[bool]:
    """Whether each completion is right; pairs are compared in as many processes as cores."""
    answers = [answer_text(completion) for completion, _, _ in cases]
    boxed = [
        (answer, gold)
        for answer, (_, gold, _) in zip(answers, cases, strict=True)
        if answer is not None
    ]
    with Comparer(deadline=20) as comparer:
        reasons = iter(comparer.compare(boxed))
    return [answer is not None and next(reasons) == "right" for answer in answers]


def verdicts_of_math_verify(cases: Sequence[Case]) -> list[bool]:
    """Whether each completion is right; time limits are math-verify's own."""
    return [bool(verify(parse(f"${gold}$"), parse(text))) for text, gold, _ in cases]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("file", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--count", type=int, default=3000)
    options = parser.parse_args(arguments)
    logging.disable(logging.CRITICAL)  # math-verify logs what it cannot read

    rows = [json.loads(line) for line in options.file.read_text("utf-8").splitlines()]
    completions = [
        (text, row["answer"], is_right)
        for row in rows
        for text, is_right in zip(row["completions"], row["correct"], strict=True)
    ]
    drawn = pairs(options.seed, options.count)
    rewritten = [(p.text, p.gold, p.is_right) for p in drawn if p.grader == "math"]
    print(f"{'cases':>12} {'library':>12}  right  refused  wrong  accepted")
    for name, cases in (("completions", completions), ("rewritings", rewritten)):
        count = sum(is_right for _, _, is_right in cases)
        for library in (verdicts_of_strictgrade, verdicts_of_math_verify):
            taken = library(cases)
            refused = sum(case[2] and not took for case, took in zip(cases, taken, strict=True))
            accepted = sum(took and not case[2] for case, took in zip(cases, taken, strict=True))
            label = library.__name__.removeprefix("verdicts_of_")
            wrong = len(cases) - count
            print(f"{name:>12} {label:>12} {count:6} {refused:8} {wrong:6} {accepted:9}")


if __name__ == "__main__":
    main()
