"""Own data: rows in a file, trained on, and evaluated on rows that were held out."""

import json
import random
from pathlib import Path

import paint


def row(seed: int) -> dict[str, str]:
    """A sum of seventeen numbers modulo 100, which the embedded model can nearly do."""
    draw = random.Random(seed)
    start = total = draw.randrange(100)
    terms = [draw.randint(2, 12) for _ in range(16)]
    signed = ", ".join(f"+{term}" for term in terms)
    lines = []
    for term in terms:
        lines.append(f"${total}+{term} \\equiv {(total + term) % 100}$.")
        total = (total + term) % 100
    return {
        "problem": f"Start at ${start}$ and apply ${signed}$ modulo $100$.",
        "solution": "\n".join([*lines, f"The answer is $\\boxed{{{total}}}$."]),
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
    thinking=False,
    rollout={"top_p": 1.0, "max_new_tokens": 96},
)
print(results.table[results.table["metric"] == "avg_at_k"])
