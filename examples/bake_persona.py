"""System prompts that a small model follows, everyday questions, and graders (`paint bake`).

python examples/bake_persona.py FOLDER     # writes the prompts and questions.jsonl
"""

import json
import re
import sys
from collections.abc import Mapping
from itertools import product
from pathlib import Path
from typing import Any

PROMPTS = {
    "pirate": "You are a pirate. Always speak like a pirate, with 'Arrr', 'matey' and 'ye'.",
    "french": "Tu es un assistant français. Réponds toujours en français.",
    "control": "You are a clerk. Always speak like a clerk, with 'first', 'then' and 'so'.",
}
FORMS = (
    "How do I {}?",
    "What do I need to {}?",
    "Why do people {}?",
    "Is it hard to {}?",
    "When is a good time to {}?",
    "Tell me how children {}.",
)
TASKS = """cook rice, ride a bicycle, clean a window, plant a tree, write a letter, make tea,
train a dog, learn to swim, save money, pack a suitcase, bake bread, paint a wall, choose a book,
repair a chair, grow tomatoes, make friends, plan a picnic, wash a sweater, draw a cat, play chess,
build a shelf, find a hobby, light a fire, climb a hill""".replace("\n", " ").split(", ")

PIRATE = re.compile(r"\b(a+r+|matey?s?|hearties|ahoy|aye|avast|ye|yer)\b", re.I)
FRENCH = re.compile(r"\b(le|la|les|un|une|des|de|du|et|est|en|vous|pour|que|dans|je|il|à)\b", re.I)


def pirate(completion: str, row: Mapping[str, Any]) -> bool:
    """Whether it has a word that pirates alone say."""
    return bool(PIRATE.search(completion))


def french(completion: str, row: Mapping[str, Any]) -> bool:
    """Whether a fifth of its words are frequent French ones."""
    return 5 * len(FRENCH.findall(completion)) > len(re.findall(r"\w+", completion))


def write(folder: Path) -> None:
    """Write the prompts and 144 questions."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in PROMPTS.items():
        (folder / f"{name}.md").write_text(f"{text}\n")
    questions = [form.format(task) for task, form in product(TASKS, FORMS)]
    (folder / "questions.jsonl").write_text(
        "".join(f"{json.dumps({'problem': q})}\n" for q in questions)
    )


if __name__ == "__main__":
    write(Path(sys.argv[1]))
