"""`paint chat`: base and trained policy answer the same problem, token by token."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, closing
from dataclasses import dataclass, replace
from functools import partial

import torch

from paint.config import schema as cfg
from paint.core.device import own_device
from paint.core.errors import ConfigError
from paint.data.problems import Problem
from paint.environments.environment import ChatMessage
from paint.environments.episodes import Episodes
from paint.evaluation.evaluate import EvalTarget, resolve_target
from paint.evaluation.generate import base_as_rank1_adapter, checkpoint_digest
from paint.inference.conversations import Conversations, WritePrompt, with_tools
from paint.inference.engine import Sampling, derive_seed
from paint.inference.local import LocalEngine
from paint.models.policy import Policy, load_policy
from paint.models.teacher import Teacher, open_teacher
from paint.models.weights import load_trained, own_dtype
from paint.objective.masking import mask_solution
from paint.resolve.structure import position_limit

View = Callable[[], AbstractContextManager[None]]
"""Puts a speaker's weights in place."""


@dataclass(frozen=True)
class Chat:
    """The policies that answer: the base, and one trained from it, if the target has one."""

    policy: Policy
    base: Teacher  # the weights before training
    trained: str | None  # the trained policy's name
    conversation: cfg.ConversationConfig = cfg.ONE_TURN  # what answers their turns

    def answers(
        self,
        problem: str,
        sampling: Sampling,
        seed: int,
        *,
        solution: str | None = None,
        mask_ratio: float = 0.0,
    ) -> Iterator[dict[str, str]]:
        """Yield everybody's answer so far, by name, after each token.

        Where tools or an environment answer, everybody has a conversation of their own.

        With a solution, of which the share ``mask_ratio`` in [0, 1) is hidden, the base answers a
        second time with it in its prompt, as the teacher.
        """
        speakers: dict[str, tuple[View, WritePrompt]]
        speakers = {"base": (self.base.view, self.policy.student_prompt)}
        if self.trained is not None:
            speakers[self.trained] = (torch.no_grad, self.policy.student_prompt)
        if solution is not None:
            masked = mask_solution(solution, mask_ratio)

            def privileged(
                problem: Problem, *, thinking: None, then: Sequence[ChatMessage] = ()
            ) -> list[int]:
                complete = not mask_ratio
                return self.policy.teacher_prompt(problem, masked, complete=complete, then=then)

            speakers["teacher"] = (self.base.view, privileged)
        limit = position_limit(self.policy.base.config) - 1  # a later turn needs a token
        speak = partial(self._tokens, LocalEngine(self.policy, batch_size=1), sampling)
        with ExitStack() as stack:
            waiting = {}
            for name, (view, write) in speakers.items():
                episodes = stack.enter_context(Episodes(self.conversation, limit))
                talks = Conversations(self.policy, self.conversation, episodes, limit, write)
                # One seed for all: answers differ by weights and prompt, not by luck.
                asked = Problem(problem, "", "", "")
                texts = talks.stream(speak, asked, derive_seed(seed, problem))
                waiting[name] = view, stack.enter_context(closing(texts))
            answers = dict.fromkeys(speakers, "")
            while waiting:
                for name, (view, texts) in list(waiting.items()):
                    # For one token only: all speakers take turns with one model, each under its own
                    # weights.
                    with view():
                        text = next(texts, None)
                    if text is None:
                        del waiting[name]
                    else:
                        answers[name] = text
                if waiting:
                    yield dict(answers)

    def _tokens(
        self, engine: LocalEngine, sampling: Sampling, prompt: list[int], seed: int
    ) -> Iterator[int]:
        """The tokens of a turn, as many as fit after its prompt."""
        left = position_limit(self.policy.base.config) - len(prompt)
        if left < 1:
            raise ConfigError(
                "the prompt is longer than the model's context length; ask a shorter problem, or "
                "show a shorter reference"
            )
        if left < sampling.max_new_tokens:
            sampling = replace(sampling, max_new_tokens=int(left))
        return engine.tokens(prompt, sampling, seed)


def open_chat(target: str, conversation: cfg.ConversationConfig = cfg.ONE_TURN) -> Chat:
    """Load a run (its last checkpoint), a checkpoint, an adapter or a model.

    ``conversation`` names what answers the turns.
    """
    model, trained = resolve_target(target)
    if not trained:
        model = base_as_rank1_adapter(cfg.ModelConfig(path=target, dtype=own_dtype(target)))
    last = trained[-1] if trained else EvalTarget("base", None)
    policy = load_policy(model, seed=0, device=own_device(), prompts=last.prompts)
    policy = with_tools(policy, conversation)
    base = open_teacher(policy, cfg.TeacherConfig())
    if last.checkpoint is None:
        return Chat(policy, base, None, conversation)
    checkpoint_digest(last.checkpoint)  # verifies the files
    load_trained(policy, last.checkpoint)
    return Chat(policy, base, last.name, conversation)
