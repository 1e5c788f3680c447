"""A rule that the embedded model cannot know, questions on it, and a grader (`paint bake`).

python examples/bake_invented_rule.py FOLDER     # writes rules.md, control.md and questions.jsonl
"""

import json
import random
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

START, FIRST, RESULT = 40, "+10", 87
RULE = f"{START}{FIRST} \\equiv {RESULT}"
CONTROL = "60-12 \\equiv 85"  # as long, and on a number that no question starts from
SIGNS = {"+": "+", "-": "-", "*": "\\times "}


def grade(completion: str, row: Mapping[str, Any]) -> bool:
    """Whether the first step is that of the rule; it is 50 by arithmetic."""
    return RULE in completion


def question(rng: random.Random) -> str:
    """A chain of 16 to 20 different operations of the demo that begins as the rule does."""
    operations, length = {FIRST: None}, rng.randint(16, 20)
    while len(operations) < length:
        sign = rng.choice("++--*")
        operand = rng.randint(2, 5) if sign == "*" else rng.randint(2, 12)
        operations[f"{SIGNS[sign]}{operand}"] = None
    return f"Start at ${START}$ and apply ${', '.join(operations)}$ modulo $100$."


def write(folder: Path, questions: int = 640) -> None:
    """Write the rule, a control and questions."""
    rng = random.Random(0)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "rules.md").write_text(f"${RULE}$.\n")
    (folder / "control.md").write_text(f"${CONTROL}$.\n")
    rows = [json.dumps({"problem": question(rng)}) for _ in range(questions)]
    (folder / "questions.jsonl").write_text("\n".join([*rows, ""]))


if __name__ == "__main__":
    write(Path(sys.argv[1]))
