"""The demo's training rows with references that go wrong.

    python benchmarks/wrong_references.py OUT.jsonl --kind end --share 0.4
    paint compare demo-opsd demo-paint --data.path OUT.jsonl

The problems are the demo's. The answer of a row is that of its reference, as in data that a model
wrote and nobody verified; with `--keep-answers` it is the right one. The errors of a row depend on
the seed and the row alone, so the rows that `--rows` changes are among those of a larger share.

kind         the reference of a changed row
end          each step in the last share is wrong, and so is each rule stated there, since it stands
             for a model's solution that nobody verified; the answer follows from the last step
rule         each rule stated in the last share is wrong, and the rest follows from it; a reference
             that states none there is unchanged
slip         one step in the last share is wrong, and the rest follows from it
beginning    each step in the first share is wrong, and the rest follows from the last of them
recovered    as beginning, but the last wrong step returns to the right number
other-end    its last share and its answer are those of another problem's reference
cut          stops before the last share, without an answer; the row keeps the right one
answer       the steps are right, and only the answer is wrong

A wrong rule gives its word another of the values that words can have. It belongs to the step before
which it is stated. Rules are wrong in the kinds end and rule alone.
"""

import random
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tools"))

from demo_problems import MODULUS, RULES, VALUES, Chain, Operation, Worked, apply, boxed, written
from paint.core.demo_files import TRAINING_PROBLEMS
from paint.core.storage import read_jsonl, write_jsonl

Kind = Literal["end", "rule", "slip", "beginning", "recovered", "other-end", "cut", "answer"]
Row = dict[str, Any]

ERRORS = [error for error in range(-9, 10) if error != 0]
PROBLEM = re.compile(r"Start at \$(\d+)\$ and apply \$(.*)\$ modulo")
OPERATION = re.compile(r"(\+|-|\\times )(?:(\d+)|([a-z]+))")
STEP_TEXT = re.compile(r".*?\\equiv \d+(?:\$\.\n)?", re.DOTALL)  # with the rule stated before it


@dataclass(frozen=True)
class Corruption:
    """How references go wrong.

    Attributes:
        kind: see the module.
        share: of the steps of a reference, in [0, 1]; the kind "answer" has none.
        rows: share of the rows that are changed, in [0, 1].
        seed: of the choice of rows and of their errors.
        keep_answers: changed rows keep the right answer in place of their reference's.
    """

    kind: Kind = "end"
    share: float = 0.4
    rows: float = 1.0
    seed: int = 11
    keep_answers: bool = False


def parse_chain(problem: str) -> Chain:
    """Parse the text of a demo problem."""
    found = PROBLEM.match(problem)
    if found is None:
        raise ValueError(f"not a problem of the demo: {problem!r}")
    operations: list[Operation] = []
    for text in found[2].split(", "):
        operation = OPERATION.fullmatch(text)
        if operation is None:
            raise ValueError(f"not an operation of the demo: {text!r}")
        sign, number, word = operation.groups()
        operations.append(("*" if "times" in sign else sign, int(number) if number else word))
    return Chain(int(found[1]), tuple(operations))


def right_solution(problem: str) -> str:
    """The right solution of a problem in the model's own style."""
    return written(parse_chain(problem).work(RULES))


def wrong_work(chain: Chain, rules: Mapping[str, int], errors: Mapping[int, int]) -> Worked:
    """The chain worked with these errors of results, by the place of the step."""
    right = chain.work(rules)
    value, steps = chain.start, []
    for place, (_, sign, number, _) in enumerate(right.steps):
        result = (apply(value, sign, number) + errors.get(place, 0)) % MODULUS
        steps.append((value, sign, number, result))
        value = result
    return Worked(tuple(steps), right.stated)


def random_errors(places: Iterable[int], rng: random.Random) -> dict[int, int]:
    """An error of the result at each of these places."""
    return {place: rng.choice(ERRORS) for place in places}


def wrong_rules(chain: Chain, first: int, rng: random.Random) -> dict[str, int]:
    """RULES, but with another value of each word that is first used at this place or later."""
    rules = dict(RULES)
    for stated in chain.work(RULES).stated[first:]:
        if stated is not None:
            word, right = stated
            rules[word] = rng.choice([value for value in VALUES if value != right])
    return rules


def step_texts(reference: str) -> tuple[list[str], str]:
    """Split a reference into the text of each step and the sentence with the answer."""
    steps = STEP_TEXT.findall(reference)
    return steps, reference[sum(map(len, steps)) :]


def boxed_answer(reference: str) -> str:
    """The number in the box of a complete reference."""
    found = re.search(r"\\boxed\{(\d+)\}", reference)
    if found is None:
        raise ValueError(f"no box in {reference!r}")
    return found[1]


def corrupt_reference(
    row: Row, corruption: Corruption, rng: random.Random, others: Sequence[Row]
) -> str:
    """The row's reference as the corruption makes it.

    Args:
        others: rows whose references are in the same style, from which "other-end" draws.
    """
    chain = parse_chain(row["problem"])
    count = len(chain.operations)
    beginning = round(count * corruption.share)
    end = round(count * (1 - corruption.share))

    steps, answer = step_texts(row["solution"])
    rules: Mapping[str, int] = RULES
    errors: dict[int, int] = {}
    match corruption.kind:
        case "end":
            rules = wrong_rules(chain, end, rng)
            errors = random_errors(range(end, count), rng)
        case "rule":
            rules = wrong_rules(chain, end, rng)
        case "slip":
            errors = random_errors([rng.randrange(end, count)], rng)
        case "beginning":
            errors = random_errors(range(beginning), rng)
        case "recovered":
            errors = recovering_errors(chain, beginning, rng)
        case "other-end":
            other = rng.choice([other for other in others if other["id"] != row["id"]])
            other_steps, other_answer = step_texts(other["solution"])
            return "".join(steps[:end] + other_steps[end - count :]) + other_answer
        case "cut":
            return "".join(steps[:end]).strip()
        case "answer":
            wrong = (int(row["answer"]) + rng.choice(ERRORS)) % MODULUS
            return "".join(steps) + answer.replace(boxed(row["answer"]), boxed(wrong))
    worked = wrong_work(chain, rules, errors)
    return written(worked, in_own_style=chain.is_in_own_style)


def recovering_errors(chain: Chain, beginning: int, rng: random.Random) -> dict[int, int]:
    """Errors of the first results, of which the last returns to the right number."""
    errors = random_errors(range(beginning), rng)
    last = beginning - 1
    *_, result = wrong_work(chain, RULES, errors).steps[last]
    errors[last] += chain.values(RULES)[beginning] - result
    return errors


def corrupt_rows(rows: Sequence[Row], corruption: Corruption) -> list[Row]:
    """The rows, a share of them with a corrupted reference and its answer."""
    by_style: Mapping[bool, list[Row]] = {True: [], False: []}
    for row in rows:
        by_style[parse_chain(row["problem"]).is_in_own_style].append(row)

    corrupted = []
    for row in rows:
        chain = parse_chain(row["problem"])
        if chain.reference(RULES) != row["solution"]:
            raise ValueError(f"row {row['id']} has another reference than its problem")
        rng = random.Random(f"{corruption.seed}:{row['id']}")
        if rng.random() >= corruption.rows:
            corrupted.append(row)
            continue
        reference = corrupt_reference(row, corruption, rng, by_style[chain.is_in_own_style])
        answer = row["answer"]
        if corruption.kind != "cut" and not corruption.keep_answers:
            answer = boxed_answer(reference)
        corrupted.append({**row, "solution": reference, "answer": answer})
    return corrupted


def main(
    out: Annotated[Path, tyro.conf.Positional],
    corruption: Annotated[Corruption, tyro.conf.arg(name="")] = Corruption(),
) -> None:
    """Write the demo's training rows with references that go wrong."""
    rows = list(read_jsonl(TRAINING_PROBLEMS, "reinstall the package"))
    corrupted = corrupt_rows(rows, corruption)
    write_jsonl(out, corrupted)
    pairs = list(zip(rows, corrupted, strict=True))
    changed = sum(before["solution"] != after["solution"] for before, after in pairs)
    wrong = sum(before["answer"] != after["answer"] for before, after in pairs)
    print(f"{out}: {len(rows):,} rows, {changed:,} references changed, {wrong:,} answers wrong")


if __name__ == "__main__":
    tyro.cli(main, description=__doc__)
