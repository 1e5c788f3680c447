"""`paint chat`: base and trained policy answer the same problem, token by token."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace

import torch

from paint.config import schema as cfg
from paint.core.device import own_device
from paint.core.errors import ConfigError
from paint.evaluation.evaluate import EvalTarget, resolve_target
from paint.evaluation.generate import base_as_rank1_adapter, checkpoint_digest, tokens_left
from paint.inference.engine import Sampling, derive_seed
from paint.inference.local import LocalEngine
from paint.models.policy import Policy, load_policy
from paint.models.teacher import Teacher, open_teacher
from paint.models.weights import load_trained, own_dtype
from paint.objective.masking import mask_solution


@dataclass(frozen=True)
class Chat:
    """The policies that answer: the base, and one trained from it, if the target has one."""

    policy: Policy
    base: Teacher  # the weights before training
    trained: str | None  # the trained policy's name

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

        With a solution, of which the share ``mask_ratio`` in [0, 1) is hidden, the base answers a
        second time with it in its prompt, as the teacher.
        """
        prompt = self.policy.student_prompt(problem)
        speakers: dict[str, tuple[Callable[[], AbstractContextManager[None]], list[int]]]
        speakers = {"base": (self.base.view, prompt)}
        if self.trained is not None:
            speakers[self.trained] = (torch.no_grad, prompt)
        if solution is not None:
            masked = mask_solution(solution, mask_ratio)
            privileged = self.policy.teacher_prompt(problem, masked, complete=not mask_ratio)
            speakers["teacher"] = (self.base.view, privileged)
        left = tokens_left(self.policy, {name: ids for name, (_, ids) in speakers.items()})
        if left < 1:
            raise ConfigError(
                "the prompt is longer than the model's context length; ask a shorter problem, or "
                "show a shorter reference"
            )
        if left < sampling.max_new_tokens:
            sampling = replace(sampling, max_new_tokens=int(left))
        engine = LocalEngine(self.policy, batch_size=1)
        written: dict[str, list[int]] = {name: [] for name in speakers}
        waiting = {}
        for name, (view, ids) in speakers.items():
            # One seed for all: answers differ by weights and prompt, not by luck.
            waiting[name] = view, engine.tokens(ids, sampling, derive_seed(seed, problem))
        while waiting:
            for name, (view, tokens) in list(waiting.items()):
                # For one token only: all speakers take turns with one model, each under its own
                # weights.
                with view():
                    token = next(tokens, None)
                if token is None:
                    del waiting[name]
                else:
                    written[name].append(token)
            if not waiting:
                return
            answers = {}
            for name, ids in written.items():
                answers[name] = self.policy.transcript(speakers[name][1], ids)
            yield answers


def open_chat(target: str) -> Chat:
    """Load a run (its last checkpoint), a checkpoint, an adapter or a model."""
    model, trained = resolve_target(target)
    if not trained:
        model = base_as_rank1_adapter(cfg.ModelConfig(path=target, dtype=own_dtype(target)))
    last = trained[-1] if trained else EvalTarget("base", None)
    policy = load_policy(model, seed=0, device=own_device(), prompts=last.prompts)
    base = open_teacher(policy, cfg.TeacherConfig())
    if last.checkpoint is None:
        return Chat(policy, base, None)
    checkpoint_digest(last.checkpoint)  # verifies the files
    load_trained(policy, last.checkpoint)
    return Chat(policy, base, last.name)
