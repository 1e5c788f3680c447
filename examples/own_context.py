"""Own context: a teacher that reads a hint of the row in place of its solution."""

import random

import paint

RULES = {"zor": 3, "mib": 5, "tav": 8}


def row(seed: int) -> dict[str, str]:
    """Eight additions modulo 100, one of a word whose value the hint tells."""
    draw = random.Random(seed)
    operands: list[int | str] = [draw.randint(2, 12) for _ in range(7)]
    word = draw.choice(list(RULES))
    operands.insert(draw.randrange(8), word)
    start = draw.randrange(100)
    total = start + sum(RULES[o] if isinstance(o, str) else o for o in operands)
    signed = ", ".join(f"+{operand}" for operand in operands)
    return {
        "problem": f"Start at ${start}$ and apply ${signed}$ modulo $100$.",
        "hint": f"A {word} is ${RULES[word]}$.",
        "answer": str(total % 100),  # for the accuracy alone
    }


run = paint.train(
    "demo-paint",
    data={"path": [row(seed) for seed in range(64)], "solution_field": "hint"},
    output_dir="runs/own-context",
    train={"steps": 4},
    # The row's whole hint; {{ context }} would be the part that PAINT leaves unmasked.
    prompts={"teacher": "{{ student }}\n\nA hint for you alone: {{ hint }}"},
)
print(run.metrics[["loss", "kl", "accuracy"]])
