"""The environment contract: what answers the student's turns, and ends the conversation.

An environment of your own is a class, named in the setting `conversation.environment` as
"module:Class". It has a `step`; all else may be left out. Each method may be `async`. One object
answers one conversation, and many conversations run at once, in threads or as coroutines.

    class CheckYourAnswer:
        def step(self, messages, completion):
            if len(messages) > 2:
                return None
            return [{"role": "user", "content": "Check your answer, and give it again."}]

A class without `step` is one of TRL's (`environment_factory`): its `reset` takes the fields of the
row by name and returns a text for the end of the prompt, or None; its other public methods are
tools. docs/how-to/turns-and-tools.md has examples of each.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

ChatMessage = Mapping[str, Any]
"""A chat message: role and content, as chat templates take it."""


class Environment(Protocol):
    """Answers the turns of one conversation.

    Attributes:
        reward: of the conversation, once it has ended; None leaves it to the grader.
        feedback: what it has to say of the conversation, which contexts of feedback show.
    """

    reward: float | None = None
    feedback: str = ""

    def reset(self, row: Mapping[str, Any], seed: int) -> Sequence[ChatMessage] | None:
        """Begin a conversation about a row; messages take the place of the row's own.

        ``seed`` is the conversation's. A run that is resumed resets with the same one.
        """
        ...

    def step(
        self, messages: Sequence[ChatMessage], completion: str
    ) -> Sequence[ChatMessage] | None:
        """Answer a turn; None ends the conversation.

        Args:
            messages: the conversation so far, the student's last turn included.
            completion: the text of that turn.
        """
        ...

    def close(self) -> None:
        """Called once at the end, whatever happened."""
        ...
