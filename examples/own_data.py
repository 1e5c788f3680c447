"""Own data: rows in a file, trained on, and evaluated on rows that were held out."""

import json
import random
from pathlib import Path

import paint

RULES = {"zor": 3, "mib": 5, "tav": 8}


def row(seed: int) -> dict[str, str]:
    """Eight additions modulo 100, one of a word whose value the solution tells."""
    draw = random.Random(seed)
    operands: list[int | str] = [draw.randint(2, 12) for _ in range(7)]
    word = draw.choice(list(RULES))
    operands.insert(draw.randrange(8), word)
    start = total = draw.randrange(100)
    lines = []
    for operand in operands:
        if operand == word:
            lines.append(f"A {word} is ${RULES[word]}$.")
        number = RULES[operand] if isinstance(operand, str) else operand
        lines.append(f"${total}+{number} \\equiv {(total + number) % 100}$.")
        total = (total + number) % 100
    signed = ", ".join(f"+{operand}" for operand in operands)
    return {
        "problem": f"Start at ${start}$ and apply ${signed}$ modulo $100$.",
        "solution": "\n".join([*lines, f"The result is $\\boxed{{{total}}}$."]),
        "answer": str(total),
    }


# Any JSONL, CSV or Parquet file, a data set of the hub, or a list of rows, as below.
file = Path("runs/problems.jsonl")
file.parent.mkdir(exist_ok=True)
file.write_text("".join(json.dumps(row(seed)) + "\n" for seed in range(200)))

run = paint.train(
    "demo-paint",  # with "paint", the paper's settings, add model="owner/name"
    data=file,
    output_dir="runs/own-data",
    train={"steps": 4},
)
print(run.metrics[["loss", "overlap", "accuracy"]])

results = paint.evaluate(
    run,
    benchmarks=[row(seed) for seed in range(200, 220)],
    samples=4,
)
print(results.table[results.table["metric"] == "avg_at_k"])
