"""Conversations: the student's turns, and what tools and an environment answer to them.

    prompt -> completion -> calls of tools, or the environment's step -> prompt -> ...

Each turn's prompt is the conversation so far, rendered by the chat template as a server renders it,
and each turn is scored after the ids that it was sampled after: nothing that was sampled is
tokenised again. The turns of all conversations are sampled together, one round after the other.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple

from chatforms.special_tokens import drop_special_text
from chatforms.tool_calls import Reply, answer_calls, read_reply
from chatforms.tool_schemas import Schema, check_call, fit_arguments, tool_schemas
from paint.config.schema import ConversationConfig
from paint.core.distributed import all_gather_objects
from paint.core.user_code import describe_error
from paint.data.chats import is_learned
from paint.data.problems import Problem, row_of
from paint.inference.engine import (
    Completion,
    Conversation,
    Engine,
    Prompts,
    Sampling,
    Turn,
    derive_seed,
)
from paint.inference.environment import ChatMessage
from paint.inference.environment_results import map_texts
from paint.inference.episodes import Episode, Episodes, Opening, ToolResult
from paint.models.model_errors import chat_errors
from paint.models.policy import Policy
from paint.models.prompts import student_chat, tools_of_row
from paint.resolve.environments import SETTING, tools_of
from paint.resolve.structure import position_limit

CountTokens = Callable[[Problem, Sequence[ChatMessage]], int]
"""Tokens of a prompt about a problem, behind messages of its conversation."""


class _Prompts(NamedTuple):
    """How the prompts of a call are written, and how long they may be."""

    thinking: bool | None
    limit: float  # tokens
    teacher: CountTokens | None = None  # of the teacher's, which has the same limit


@dataclass
class _Talk:
    problem: Problem
    prompt: list[int]
    seed: int
    episode: Episode
    opening: Sequence[ChatMessage]  # of the first prompt
    tools: Sequence[Schema]  # that the prompts tell of
    turns: list[Turn] = field(default_factory=list)
    completions: list[Completion] = field(default_factory=list)
    messages: list[ChatMessage] = field(default_factory=list)
    ended: str = ""
    calls: int = 0
    failed_calls: int = 0
    is_answered: bool = False  # by an environment, whose messages a template may not take

    @property
    def next_seed(self) -> int:
        """The first turn has the seed of a completion without later turns."""
        return derive_seed(self.seed, len(self.turns)) if self.turns else self.seed

    def completion(self) -> Completion:
        ids = tuple(i for part in self.completions for i in part.ids)
        log_probs = tuple(value for part in self.completions for value in part.log_probs)
        conversation = Conversation(
            tuple(self.turns),
            tuple(self.messages),
            self.ended,
            self.problem,
            self.episode.grade,
            self.calls,
            self.failed_calls,
        )
        return Completion(
            ids,
            log_probs if len(log_probs) == len(ids) else (),
            truncated=self.ended not in ("end", "error"),
            source=self.completions[0].source,
            conversation=conversation,
        )


def with_tools(policy: Policy, settings: ConversationConfig) -> Policy:
    """Return the policy with the tools, which its prompts then tell of.

    Raises ConfigError for tools that cannot be described, and PolicyError for a chat template
    without them.
    """
    with chat_errors():
        schemas = tool_schemas(tools_of(settings))
    if not schemas:
        return policy
    policy = replace(policy, tools=tuple(schemas))
    _ = policy.call_style  # refused now, and not after the first turn
    return policy


@contextmanager
def open_conversations(
    policy: Policy, settings: ConversationConfig, limit: float
) -> Iterator["Conversations | None"]:
    """Open what samples the conversations of a policy (``with_tools``); None if nothing answers.

    ``limit`` is that of ``Conversations``.
    """
    if not settings.is_on:
        yield None
        return
    with Episodes(settings, limit) as episodes:
        yield Conversations(policy, settings, episodes, limit)


@dataclass(frozen=True)
class Conversations:
    """Samples whole conversations from an engine.

    A conversation ends where its next prompt has more tokens than ``limit``, or leaves a turn no
    room in the model's positions.
    """

    policy: Policy
    settings: ConversationConfig
    episodes: Episodes
    limit: float

    def generate(
        self,
        engine: Engine,
        problems: Sequence[Problem],
        sampling: Sampling,
        seeds: Sequence[int],
        *,
        thinking: bool | None = None,
        teacher: CountTokens | None = None,
    ) -> list[Completion]:
        """Return a conversation about each problem, in their order. All ranks call it together.

        ``thinking`` is that of ``Policy.student_prompt``. The same problem, seed and weights give
        the same conversation where tools and environment answer the same. With ``teacher``, the
        teacher's prompts have the limit, too.
        """
        room = position_limit(self.policy.base.config) - sampling.max_new_tokens
        prompts = _Prompts(thinking, min(self.limit, room), teacher)
        opened = self.episodes.open([row_of(problem) for problem in problems], seeds)
        try:
            talks = []
            for problem, seed, (episode, opening) in zip(problems, seeds, opened, strict=True):
                begun, prompt = self._first_prompt(problem, episode, opening, prompts)
                chat = student_chat(self.policy.prompts, begun)
                tools = tools_of_row(begun, self.policy.tools)
                talks.append(_Talk(begun, prompt, seed, episode, chat, tools))
            active = [talk for talk in talks if not talk.ended]
            while any(all_gather_objects([bool(active)])):
                completions = engine.generate(
                    [talk.prompt for talk in active], sampling, [talk.next_seed for talk in active]
                )
                replies = list(map(self._add_turn, active, completions))
                self._call_tools(active, replies)
                self._step(active, replies)
                for talk in active:
                    self._go_on(talk, prompts)
                active = [talk for talk in active if not talk.ended]
        finally:
            self.episodes.end([episode for episode, _ in opened])
        return [talk.completion() for talk in talks]

    def _first_prompt(
        self, problem: Problem, episode: Episode, opening: Opening, prompts: _Prompts
    ) -> tuple[Problem, list[int]]:
        """Return the problem as the environment begins it, or its own, and its prompt."""
        begun = problem
        try:
            begun = self._opened(problem, opening)
            prompt, longest = self._prompt(begun, (), prompts)
        except Exception as error:
            if opening == Opening():
                raise
            episode.error = f"{SETTING}: reset begins with no prompt: {describe_error(error)}"
        else:
            if begun is problem or longest <= prompts.limit:
                return begun, prompt
            episode.error = (
                f"{SETTING}: reset makes a prompt of {longest:,} tokens, over the limit of "
                f"{prompts.limit:,} (data.max_prompt_tokens, or the model's positions)"
            )
        return problem, self._prompt(problem, (), prompts)[0]

    def _opened(self, problem: Problem, opening: Opening) -> Problem:
        if opening.messages is None and not opening.note:
            return problem
        chat: Sequence[ChatMessage] = opening.messages or student_chat(self.policy.prompts, problem)
        if any(message.get("tool_calls") for message in chat):
            raise ValueError("a message has tool_calls; one that begins has role and content alone")
        turns = [(message["role"], self._clean(message["content"])) for message in chat]
        role, text = turns[-1]
        turns[-1] = role, text + self._clean(opening.note)
        return replace(problem, problem=turns[-1][1], turns=tuple(turns))

    def _add_turn(self, talk: _Talk, completion: Completion) -> Reply:
        text = self.policy.transcript(talk.prompt, completion.ids)
        reply = Reply(text, None)
        if talk.tools:
            reply = read_reply(self.policy.call_style, text, talk.tools)
        talk.turns.append(Turn(talk.prompt, len(completion.ids), len(talk.messages)))
        talk.completions.append(completion)
        talk.messages.append(self._clean(reply.message()))
        if completion.truncated:
            talk.ended = "max_new_tokens"
        if talk.episode.error:  # it could not begin
            talk.ended = "error"
        return reply

    def _call_tools(self, talks: Sequence[_Talk], replies: Sequence[Reply]) -> None:
        asked: list[tuple[Episode, str, Mapping[str, Any]]] = []
        for talk, reply in zip(talks, replies, strict=True):
            if not talk.ended:
                asked += [
                    (talk.episode, call.name, fit_arguments(talk.tools, call))
                    for call in reply.calls
                    if check_call(talk.tools, call) is None
                ]
        results = iter(self.episodes.call(asked))
        for talk, reply in zip(talks, replies, strict=True):
            if talk.ended or not (reply.calls or reply.faults):
                continue
            answers = []
            for call in reply.calls:
                fault = check_call(talk.tools, call)
                answers.append(
                    ToolResult(f"Error: {fault}", failed=True) if fault else next(results)
                )
            talk.calls += len(reply.calls) + len(reply.faults)
            talk.failed_calls += len(reply.faults) + sum(answer.failed for answer in answers)
            texts = [answer.text for answer in answers]
            talk.messages += answer_calls(self.policy.call_style, reply, texts)

    def _step(self, talks: Sequence[_Talk], replies: Sequence[Reply]) -> None:
        """Ask the environments of conversations whose turn called nothing."""
        asked = []
        for talk, reply in zip(talks, replies, strict=True):
            if not (talk.ended or reply.calls or reply.faults):
                asked.append((talk, reply.content))
        turns = [(talk.episode, [*talk.opening, *talk.messages], text) for talk, text in asked]
        for (talk, _), messages in zip(asked, self.episodes.step(turns), strict=True):
            if messages is None:
                talk.ended = "error" if talk.episode.error else "end"
            else:
                talk.messages += map(self._clean, messages)
                talk.is_answered = True

    def _go_on(self, talk: _Talk, prompts: _Prompts) -> None:
        """Make the next turn's prompt, unless the conversation has reached a limit."""
        if talk.ended:
            return
        if len(talk.turns) == self.settings.max_turns:
            talk.ended = "max_turns"
            return
        try:
            prompt, longest = self._prompt(talk.problem, talk.messages, prompts)
        except Exception as error:
            if not talk.is_answered:
                raise
            # What the environment said is no fault of other conversations. Nothing of it is kept,
            # as nothing can be written after it.
            talk.episode.error = f"{SETTING}: its messages make no prompt: {describe_error(error)}"
            talk.ended = "error"
            del talk.messages[talk.turns[-1].after + 1 :]
            return
        if longest > prompts.limit:
            talk.ended = "prompt"
            return
        talk.prompt = prompt

    def _prompt(
        self, problem: Problem, messages: Sequence[ChatMessage], prompts: _Prompts
    ) -> tuple[list[int], int]:
        """Return the next turn's prompt, and the tokens of the longest view of it."""
        prompt = self.policy.student_prompt(problem, thinking=prompts.thinking, then=messages)
        if prompts.teacher is None:
            return prompt, len(prompt)
        return prompt, max(len(prompt), prompts.teacher(problem, messages))

    def _clean(self, value: Any) -> Any:
        """Return a message without text that a chat format takes for control."""
        return map_texts(value, partial(drop_special_text, self.policy.tokenizer))


def written_conversation(
    policy: Policy, problem: Problem, messages: Sequence[ChatMessage], source: str
) -> Completion:
    """Return a conversation that was written before, with its learned turns as the student's.

    ``messages`` follow the first prompt, and end with an assistant's. Raises PromptError for what
    the chat template does not write.
    """
    turns, ids = [], []
    for number, message in enumerate(messages):
        if is_learned(message):
            prompt, written = policy.turn_ids(problem, messages[:number], message)
            turns.append(Turn(prompt, len(written), number))
            ids += written
    calls = sum(len(message.get("tool_calls", ())) for message in messages)
    conversation = Conversation(tuple(turns), tuple(messages), "end", problem, calls=calls)
    return Completion(tuple(ids), (), truncated=False, source=source, conversation=conversation)


def complete(
    engine: Engine,
    conversations: Conversations | None,
    problems: Sequence[Problem],
    prompts: Prompts,
    sampling: Sampling,
    seeds: Sequence[int],
    *,
    thinking: bool | None = None,
    teacher: CountTokens | None = None,
) -> list[Completion]:
    """Return a completion of each prompt, or a conversation about each problem, in their order.

    All ranks call it together, also one without problems: engines on servers are called by all. The
    further arguments are those of ``Conversations.generate``.
    """
    if conversations is None:
        return engine.generate(prompts, sampling, seeds)
    return conversations.generate(
        engine, problems, sampling, seeds, thinking=thinking, teacher=teacher
    )
