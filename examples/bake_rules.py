"""Rules that the embedded model does not know, questions on them, and a grader (`paint bake`).

python examples/bake_rules.py FOLDER     # writes rules.md, control.md and questions.jsonl
"""

import json
import random
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from look_up import NEW_RULES, RULES

SIGNS = {"+": "+", "-": "-", "*": "\\times "}


def rule(word: str, value: int) -> str:
    """The sentence that says what a word stands for, as the model writes it."""
    return f"A {word} is ${value}$."


def grade(completion: str, row: Mapping[str, Any]) -> bool:
    """Whether the answer states the rule of the question's word."""
    return rule(row["word"], RULES[row["word"]]) in completion


def question(rng: random.Random) -> dict[str, str]:
    """A chain of eight to ten different operations of the demo; the first is a word's."""
    word = rng.choice(list(RULES))
    operations = {f"{rng.choice('+-')}{word}": None}
    length = rng.randint(8, 10)
    while len(operations) < length:
        sign = rng.choice("++--*")
        operand = rng.randint(2, 5) if sign == "*" else rng.randint(2, 12)
        operations[f"{SIGNS[sign]}{operand}"] = None
    start = rng.randrange(100)
    problem = f"Start at ${start}$ and apply ${', '.join(operations)}$ modulo $100$."
    return {"problem": problem, "word": word}


def write(folder: Path, questions: int = 640) -> None:
    """Write the rules, those of other words as a control, and questions."""
    rng = random.Random(0)
    folder.mkdir(parents=True, exist_ok=True)
    for name, rules in (("rules.md", RULES), ("control.md", NEW_RULES)):
        (folder / name).write_text(" ".join(rule(*item) for item in rules.items()) + "\n")
    rows = [json.dumps(question(rng)) for _ in range(questions)]
    (folder / "questions.jsonl").write_text("\n".join([*rows, ""]))


if __name__ == "__main__":
    write(Path(sys.argv[1]))
