"""Environments and tools of the user's own: what they may be, and what their failures do."""

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from paint.config.schema import ConversationConfig
from paint.core.credentials import read_references
from paint.core.extensions import OptionTable, spec_of
from paint.inference.episodes import Episode, Episodes, Opening
from paint.resolve.environments import tools_of

USER = {"role": "user", "content": "Check it."}


@dataclass(frozen=True)
class DeskOptions:
    patience: int = 2
    """Turns that the customer waits."""


class Desk:
    """Has options, and a reward at its end."""

    options: DeskOptions

    def __init__(self) -> None:
        self.reward: float | None = None
        self.feedback = ""
        self.is_closed = False

    def reset(self, row: Mapping[str, Any], seed: int) -> list[dict[str, str]]:
        return [{"role": "user", "content": f"{row['id']} {seed}"}]

    def step(self, messages: list[dict[str, Any]], completion: str) -> list[dict[str, str]] | None:
        if len(messages) >= 2 * self.options.patience:
            self.reward, self.feedback = 0.5, f"after {completion}"
            return None
        return [USER]

    def close(self) -> None:
        self.is_closed = True


class AsyncDesk:
    """The same as coroutines."""

    async def step(self, messages: list[dict[str, Any]], completion: str) -> str | None:
        await asyncio.sleep(0.1)
        return None if "done" in completion else "Go on."


class Rooms:
    """As TRL's environment_factory takes it: no step, and public methods that are tools."""

    def __init__(self) -> None:
        self.reward = 0.0

    def reset(self, **row: Any) -> str:
        return f"\nYou are in {row['room']}."

    def walk(self, to: str) -> str:
        """Walk.

        Args:
            to: Where to.
        """
        self.reward = 1.0
        return f"You are in {to}."

    def _secret(self) -> None:
        raise AssertionError


async def double(x: int) -> dict[str, int]:
    """Doubles."""
    return {"double": 2 * x}


def grade_of(episode: Episode) -> tuple[float | None, str] | None:
    """Reward and feedback."""
    return (episode.grade.reward, episode.grade.feedback) if episode.grade else None


def settings(
    *tools: Callable[..., Any], environment: Any = None, **more: Any
) -> ConversationConfig:
    specs = tuple(spec_of(tool) for tool in tools)
    name = spec_of(environment) if environment is not None else ""
    return ConversationConfig(tools=specs, environment=name, **more)


def test_episodes_environment_with_options_begins_answers_and_grades() -> None:
    with Episodes(settings(environment=Desk, options=OptionTable({"patience": 1}))) as episodes:
        [(episode, opening)] = episodes.open([{"id": "a"}], [7])
        assert opening == Opening(({"role": "user", "content": "a 7"},))
        assert grade_of(episode) is None
        [answer] = episodes.step([(episode, [USER], "first")])
        assert answer == (USER,)
        [answer] = episodes.step([(episode, [USER] * 2, "last")])
        assert answer is None
        assert grade_of(episode) == (0.5, "after last")
        episodes.end([episode])
        assert episode.environment.is_closed


def test_episodes_coroutines_run_at_once() -> None:
    with Episodes(settings(environment=AsyncDesk)) as episodes:
        opened = episodes.open([{}] * 8, range(8))
        began = time.monotonic()
        answers = episodes.step(
            [(episode, [USER], "done" * (n % 2)) for n, (episode, _) in enumerate(opened)]
        )
        assert time.monotonic() - began < 0.5  # one after the other would take 0.8 s
    assert answers == [({"role": "user", "content": "Go on."},), None] * 4


def test_episodes_call_as_many_at_once_as_concurrency_allows() -> None:
    under_way, counts = list[str](), list[int]()

    class Busy:
        async def step(self, messages: Any, completion: str) -> None:
            under_way.append(completion)
            counts.append(len(under_way))
            await asyncio.sleep(0.01)
            under_way.pop()

    with Episodes(settings(environment=Busy, concurrency=2)) as episodes:
        opened = episodes.open([{}] * 5, range(5))
        episodes.step([(episode, [USER], "") for episode, _ in opened])
    assert max(counts) == 2


def test_episodes_class_of_trl_has_its_methods_as_tools() -> None:
    with Episodes(settings(environment=Rooms)) as episodes:
        assert [tool.__name__ for tool in tools_of(settings(environment=Rooms))] == ["walk"]
        [(episode, opening)] = episodes.open([{"room": "the hall"}], [0])
        assert opening == Opening(note="\nYou are in the hall.")
        [result] = episodes.call([(episode, "walk", {"to": "the cellar"})])
        assert (result.text, result.failed) == ("You are in the cellar.", False)
        assert episodes.step([(episode, [USER], "I stay.")]) == [None]
        assert episode.grade is not None
        assert episode.grade.reward == 1.0


def test_episodes_calls_of_one_conversation_are_made_in_order() -> None:
    class Counter:
        def __init__(self) -> None:
            self.total = 0

        def reset(self, **row: Any) -> None:
            self.total = row["start"]

        def add(self, x: int) -> int:
            """Adds.

            Args:
                x: A number.
            """
            before = self.total
            time.sleep(0.02)
            self.total = before + x
            return self.total

    with Episodes(settings(environment=Counter)) as episodes:
        opened = [episode for episode, _ in episodes.open([{"start": 0}, {"start": 10}], [0, 1])]
        found = episodes.call([(e, "add", {"x": x}) for e in opened for x in (1, 2, 3)])
    assert [result.text for result in found] == ["1", "3", "6", "11", "13", "16"]


def test_episodes_coroutine_of_a_tool_is_answered_by_its_json() -> None:
    with Episodes(settings(double)) as episodes:
        [(episode, _)] = episodes.open([{}], [0])
        [found] = episodes.call([(episode, "double", {"x": 2})])
    assert (found.text, found.failed) == ('{"double": 4}', False)
    assert episode.grade is None


def test_episodes_hide_secrets_in_all_that_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DESK_KEY", "s3cr3t-value")
    key = read_references("env:DESK_KEY")

    def look() -> str:
        """Looks."""
        return f"the key is {key}"

    class Leaky:
        reward = 0.0
        feedback = f"feedback {key}"

        def reset(self, row: Any, seed: int) -> str:
            return f"opening {key}"

        def step(self, messages: Any, completion: str) -> list[dict[str, str]]:
            return [{"role": "user", "content": f"answer {key}"}]

    with Episodes(settings(look, environment=Leaky)) as episodes:
        [(episode, opening)] = episodes.open([{}], [0])
        [answer] = episodes.step([(episode, [USER], "")])
        [result] = episodes.call([(episode, "look", {})])
        kept = [opening.messages, answer, result.text, grade_of(episode)]
    assert "s3cr3t" not in str(kept)
    assert str(kept).count("env:DESK_KEY") == 4


@pytest.mark.parametrize(
    ("reward", "read"),
    [(np.float32(0.25), 0.25), ("one", None), (float("nan"), None), ([1.0], None)],
)
def test_episodes_reward_is_a_number_or_counts_as_a_failure(
    reward: Any, read: float | None
) -> None:
    class Odd:
        def step(self, messages: Any, completion: str) -> None:
            self.reward = reward

    with Episodes(settings(environment=Odd)) as episodes:
        [(episode, _)] = episodes.open([{}], [0])
        episodes.step([(episode, [USER], "")])
        assert episode.grade is not None
        assert (episode.grade.reward, episode.grade.failed) == (read, read is None)
