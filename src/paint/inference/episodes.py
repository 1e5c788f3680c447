"""Conversations with an environment and tools: many at once, each call limited in time.

A call of a tool that fails is answered by its error. An environment that fails ends its
conversation, which then has no reward. Neither ends the run.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

from paint.config.schema import ConversationConfig
from paint.core.background import Background
from paint.core.extensions import build_options
from paint.core.user_code import call_in_thread, call_user_code, describe_error, user_code
from paint.grading.contract import Grade
from paint.grading.functions import to_grade
from paint.grading.processes import to_plain
from paint.inference.environment import ChatMessage
from paint.inference.environment_results import TOKENS, limited_text, read_messages, result_text
from paint.resolve.environments import SETTING, load_environment, load_tool, methods_of, tool_name
from strictgrade.processes import Returned


@dataclass(frozen=True)
class Opening:
    """What an environment begins a conversation with."""

    messages: tuple[ChatMessage, ...] | None = None  # in place of the row's own
    note: str = ""  # text for the end of the last message, of a class of TRL's


@dataclass(frozen=True)
class ToolResult:
    """What a call of a tool returned, or the error that the model reads in its place."""

    text: str
    failed: bool = False


@dataclass
class Episode:
    """The environment of one conversation, and its tools by name.

    ``environment`` is None where tools alone answer. Its reward is read within ``seconds``, and its
    feedback is limited to so many ``tokens``.
    """

    environment: Any
    tools: Mapping[str, Callable[..., Any]]
    seconds: float
    tokens: float
    error: str = ""  # by which the conversation ends without a reward

    @property
    def grade(self) -> Grade | None:
        """What the environment says of the conversation; None where it gives no reward."""
        if self.error:
            return Grade(None, self.error, failed=True)
        if self.environment is None:
            return None
        try:
            grade: Grade | None = call_in_thread(self._read_grade, self.seconds)
        except Exception as error:
            self.error = f"{SETTING}: its reward cannot be read: {describe_error(error)}"
            return Grade(None, self.error, failed=True)
        if grade is None or grade.reward is None:
            return grade
        return replace(grade, reason=f"reward {grade.reward:g}")

    def _read_grade(self) -> Grade | None:
        reward = getattr(self.environment, "reward", None)
        if reward is None or callable(reward):
            return None
        feedback = getattr(self.environment, "feedback", "")
        if isinstance(feedback, str):
            feedback = limited_text(feedback, self.tokens, "the feedback")
        given = {"reward": reward, "feedback": feedback}
        # Through JSON, as what a grader's function returns: the same types are a reward.
        return to_grade(Returned(json.loads(json.dumps(given, default=to_plain))), SETTING)


class Episodes:
    """Opens, answers and closes the conversations of a run.

    ``tokens`` are the most of a prompt, by which results and answers are limited.
    """

    def __init__(self, settings: ConversationConfig, tokens: float = TOKENS) -> None:
        self._settings, self._tokens = settings, min(tokens, TOKENS)
        self._functions = {tool_name(tool): tool for tool in map(load_tool, settings.tools)}
        self._class = load_environment(settings)
        self._background = Background("environments")

    def __enter__(self) -> "Episodes":
        return self

    def __exit__(self, *_: object) -> None:
        self._background.cancel()
        self._background.close()

    def open(
        self, rows: Sequence[Mapping[str, Any]], seeds: Sequence[int]
    ) -> list[tuple[Episode, Opening]]:
        episodes = [self._new() for _ in rows]
        begun = self._at_once(list(map(self._reset, episodes, rows, seeds)))
        return list(zip(episodes, begun, strict=True))

    def call(self, calls: Sequence[tuple[Episode, str, Mapping[str, Any]]]) -> list[ToolResult]:
        """Return the results of calls of tools: episode, name and arguments of each.

        Those of one conversation, which follow each other, are made one after the other.
        """
        by_episode = [list(group) for _, group in groupby(calls, key=lambda call: id(call[0]))]
        found = self._at_once([self._tools(group) for group in by_episode])
        return [result for results in found for result in results]

    def step(
        self, turns: Sequence[tuple[Episode, Sequence[ChatMessage], str]]
    ) -> list[tuple[ChatMessage, ...] | None]:
        """Return the answers to turns: episode, conversation so far, and text, of each.

        None ends a conversation; where the environment failed, ``error`` of its episode says why.
        """
        return self._at_once([self._step(*turn) for turn in turns])

    def end(self, episodes: Sequence[Episode]) -> None:
        """Close conversations; an error of ``close`` is that of the conversation."""
        self._at_once([self._close(episode) for episode in episodes])

    def _new(self) -> Episode:
        limits = self._settings.timeout, self._tokens
        if self._class is None:
            return Episode(None, self._functions, *limits)
        whose = f"{SETTING} {self._settings.environment}"
        options = build_options(self._class, self._settings.options, "conversation.options", whose)
        tools = dict(self._functions)
        try:
            with user_code():
                environment = self._class()
                if options is not None:
                    environment.options = options
                if not hasattr(self._class, "step"):
                    for name in methods_of(self._class):
                        tools[name] = getattr(environment, name)
        except Exception as error:
            episode = Episode(None, self._functions, *limits)
            episode.error = f"{SETTING}: it cannot be made: {describe_error(error)}"
            return episode
        return Episode(environment, tools, *limits)

    def _at_once(self, work: Sequence[Awaitable[Any]]) -> list[Any]:
        slots = asyncio.Semaphore(self._settings.concurrency)

        async def one(task: Awaitable[Any]) -> Any:
            async with slots:
                return await task

        async def all_of_them() -> list[Any]:
            return await asyncio.gather(*map(one, work))

        return self._background.run(all_of_them())

    async def _reset(self, episode: Episode, row: Mapping[str, Any], seed: int) -> Opening:
        try:
            with user_code():
                reset = getattr(episode.environment, "reset", None)
                has_step = hasattr(episode.environment, "step")
            if reset is None:
                return Opening()
            if not has_step:
                note = await self._limited(lambda: reset(**row))
                return Opening(note=await self._limited(self._note, note))
            found = await self._limited(reset, dict(row), seed)
            return Opening(await self._messages(found))
        except Exception as error:
            episode.error = f"{SETTING}: reset failed: {describe_error(error)}"
            return Opening()

    async def _step(
        self, episode: Episode, messages: Sequence[ChatMessage], text: str
    ) -> tuple[ChatMessage, ...] | None:
        try:
            with user_code():
                step = getattr(episode.environment, "step", None)
            if step is None:
                return None
            found = await self._limited(step, [dict(message) for message in messages], text)
            answer = await self._messages(found)
            if answer == ():
                raise ValueError("it returned no message; return None to end the conversation")
            return answer
        except Exception as error:
            episode.error = f"{SETTING}: step failed: {describe_error(error)}"
            return None

    async def _tools(
        self, calls: Sequence[tuple[Episode, str, Mapping[str, Any]]]
    ) -> list[ToolResult]:
        return [await self._tool(*call) for call in calls]

    async def _tool(self, episode: Episode, name: str, arguments: Mapping[str, Any]) -> ToolResult:
        try:
            found = await self._limited(lambda: episode.tools[name](**arguments))
            return ToolResult(await self._limited(result_text, found, self._tokens))
        except Exception as error:
            return ToolResult(f"Error: {describe_error(error)}", failed=True)

    async def _close(self, episode: Episode) -> None:
        try:
            with user_code():
                close = getattr(episode.environment, "close", None)
            if close is not None:
                await self._limited(close)
        except Exception as error:
            episode.error = episode.error or f"{SETTING}: close failed: {describe_error(error)}"

    async def _messages(self, found: Any) -> tuple[ChatMessage, ...] | None:
        if found is None:
            return None
        messages: tuple[ChatMessage, ...] = await self._limited(read_messages, found, self._tokens)
        return messages

    def _note(self, note: Any) -> str:
        return "" if note is None else limited_text(str(note), self._tokens, "the text")

    async def _limited(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """What a function of the user's returns, sync or async, within ``conversation.timeout``."""
        return await call_user_code(function, *arguments, seconds=self._settings.timeout)
