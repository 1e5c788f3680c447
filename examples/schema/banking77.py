"""BANKING77 as this example reads it: 77 labels in the guide, and three splits.

    python examples/schema/banking77.py SOURCE FOLDER

SOURCE is banking_data/ of PolyAI-LDN/task-specific-datasets on GitHub (commit 57ec275, CC BY 4.0).
It writes FOLDER/rows.jsonl and guide.txt. The split dev has 200 training questions, test the
first 300 test questions of a shuffle. A question that is there twice is taken once.
"""

import csv
import json
import random
import sys
from pathlib import Path

DEV, TEST = 200, 300


def main(source: Path, folder: Path) -> None:
    """Write guide and rows."""
    folder.mkdir(parents=True, exist_ok=True)
    labels = json.loads((source / "categories.json").read_text("utf-8"))
    (folder / "guide.txt").write_text(guide(labels), "utf-8")
    draw = random.Random(0)
    training = read_rows(source / "train.csv", "train", draw)
    held_out = read_rows(source / "test.csv", "test", draw)[:TEST]
    for row in training[:DEV]:
        row["split"] = "dev"
    text = "".join(f"{json.dumps(row)}\n" for row in training + held_out)
    (folder / "rows.jsonl").write_text(text, "utf-8")


def guide(labels: list[str]) -> str:
    """The list of labels as a prompt has it."""
    return "The labels:\n" + "\n".join(labels) + "\n"


def read_rows(path: Path, split: str, draw: random.Random) -> list[dict[str, str]]:
    """The questions of a file with their labels, shuffled."""
    rows: dict[str, dict[str, str]] = {}
    with path.open(newline="", encoding="utf-8") as file:
        for number, row in enumerate(csv.DictReader(file)):
            text = row["text"].strip()
            named = {"id": f"bank-{split}-{number}", "split": split}
            rows.setdefault(text, {**named, "problem": text, "answer": row["category"]})
    shuffled = list(rows.values())
    draw.shuffle(shuffled)
    return shuffled


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
