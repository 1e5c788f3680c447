"""An environment outside of the package: asks for a check of a wrong answer, and grades."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from paint.inference.environment import ChatMessage


@dataclass(frozen=True)
class CheckOptions:
    tries: int = 2
    """Turns that the student has."""


class CheckAnswer:
    options: CheckOptions

    def reset(self, row: Mapping[str, Any], seed: int) -> None:
        self.gold = row["answer"]
        self.tries_left = self.options.tries

    def step(self, messages: Sequence[ChatMessage], completion: str) -> list[ChatMessage] | None:
        self.tries_left -= 1
        is_right = f"boxed{{{self.gold}}}" in completion
        if is_right or not self.tries_left:
            self.reward = float(is_right)
            self.feedback = "" if is_right else f"The answer is {self.gold}."
            return None
        return [{"role": "user", "content": "This is wrong. Check each step, and answer again."}]
