"""Support desk: a scripted customer answers the model's replies, and rewards the conversation.

It shows the wiring, not a gain: the embedded model knows arithmetic alone, and hits by luck.
"""

import random
import re
from collections.abc import Mapping, Sequence
from typing import Any

import paint

REQUESTS = {
    "delay": "Where is my {item}? It should be here by now.",
    "refund": "Please take back the {item} that I bought on {day}.",
    "change": "Send what I bought on {day} to another address.",
}
ITEMS = ("kettle", "lamp", "chair", "clock")
DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday")


def row(seed: int) -> dict[str, str]:
    """A request about one of four orders. Its number is what the customer wants to read."""
    draw = random.Random(seed)
    orders = list(zip(draw.sample(range(10, 100), 4), ITEMS, draw.sample(DAYS, 4), strict=True))
    listed = "; ".join(f"{number}: {item}, {day}" for number, item, day in orders)
    (number, item, day), kind = draw.choice(orders), draw.choice(list(REQUESTS))
    request = f"Orders: {listed}. {REQUESTS[kind].format(item=item, day=day)} Name my order."
    return {"problem": request, "answer": str(number), "kind": kind, "item": item, "day": day}


class Customer:
    """Rewards 1 for the number at once, 0.5 for it in the second reply, and 0 after two replies."""

    def reset(self, row: Mapping[str, Any], seed: int) -> None:
        self.row, self.replies = row, 0

    def step(self, messages: Sequence[Mapping[str, Any]], completion: str) -> str | None:
        self.replies += 1
        if self.row["answer"] in re.findall(r"\d+", completion):
            self.reward = 1.0 if self.replies == 1 else 0.5
            return None
        if self.replies == 2:
            self.reward, self.feedback = 0.0, f"The order is {self.row['answer']}."
            return None
        if "?" in completion:
            return f"I bought the {self.row['item']} on {self.row['day']}."
        return "That is not my order. Ask me about it."


run = paint.train(
    "demo-grpo",
    data=[row(seed) for seed in range(64)],
    output_dir="runs/support-desk",
    train={"steps": 2, "batch_size": 8},
    rollout={"max_new_tokens": 96},
    conversation={"environment": Customer},
)
print(run.metrics[["reward", "turns"]])
