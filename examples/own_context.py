"""Own context: a teacher that reads a hint of the row in place of its solution."""

import random

import paint


def row(seed: int) -> dict[str, str]:
    """A sum of seventeen numbers modulo 100, and its total after eight of them as a hint."""
    draw = random.Random(seed)
    start = draw.randrange(100)
    terms = [draw.randint(2, 12) for _ in range(16)]
    signed = ", ".join(f"+{term}" for term in terms)
    return {
        "problem": f"Start at ${start}$ and apply ${signed}$ modulo $100$.",
        "hint": f"After eight terms the total is ${(start + sum(terms[:8])) % 100}$.",
        "answer": str((start + sum(terms)) % 100),  # for the accuracy alone
    }


run = paint.train(
    "demo-paint",
    data={"path": [row(seed) for seed in range(64)], "solution_field": "hint"},
    output_dir="runs/own-context",
    train={"steps": 2},
    # The row's whole hint; {{ context }} would be the part that PAINT leaves unmasked.
    prompts={"teacher": "{{ student }}\n\nA hint for you alone: {{ hint }}"},
)
print(run.metrics[["loss", "kl", "accuracy"]])
