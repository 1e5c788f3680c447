"""A tool that tells what the demo's words stand for, and conversations that call it.

export PYTHONPATH=examples
paint compare demo-grpo demo-opsd demo-paint --conversation.tools look_up:look_up
python examples/look_up.py chats.jsonl     # written conversations, for SFT
paint compare demo-sft --data.path chats.jsonl --data.turns all --conversation.tools look_up:look_up
"""

import json
import re
import sys
from pathlib import Path
from typing import Any

from paint.objective.messages import student_messages

RULES = {"zor": 3, "mib": 5, "tav": 8, "kel": 11, "pum": 5, "rud": 11, "fip": 8, "gan": 3}
NEW_RULES = {"dax": 8, "wug": 11, "lem": 11, "sho": 5, "bip": 3, "nok": 3, "jal": 8, "vez": 5}
VALUES = RULES | NEW_RULES


def look_up(word: str) -> str:
    """Tells what number a word stands for.

    Args:
        word: The word.
    """
    if word not in VALUES:
        raise ValueError(f"{word} is not in the list of words")
    return f"A {word} is ${VALUES[word]}$."


def conversation(row: dict[str, str]) -> dict[str, Any]:
    """A conversation that looks up each word of a problem, and then answers by its solution."""
    messages: list[dict[str, Any]] = [*student_messages(row["problem"])]
    for word in dict.fromkeys(re.findall("[+-]([a-z]{3})", row["problem"])):
        call = {"name": "look_up", "arguments": {"word": word}}
        said = {"role": "assistant", "content": "", "tool_calls": [{"function": call}]}
        messages += [said, {"role": "tool", "name": "look_up", "content": look_up(word)}]
    messages.append({"role": "assistant", "content": row["solution"]})
    return {"id": row["id"], "messages": messages, "answer": row["answer"]}


def write(path: Path) -> None:
    """Write a conversation for each of the demo's training problems."""
    from paint.core.demo_files import TRAINING_PROBLEMS

    rows = [json.loads(line) for line in TRAINING_PROBLEMS.read_text().splitlines()]
    path.write_text("".join(json.dumps(conversation(row)) + "\n" for row in rows))


if __name__ == "__main__":
    write(Path(sys.argv[1]))
