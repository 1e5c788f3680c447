"""Checks of what an engine returns, before anything is trained on it, stored or graded."""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from paint.core.errors import format_short, wrap_errors
from paint.inference.engine import (
    Completion,
    Engine,
    EngineError,
    OncePerPrompt,
    OnCompletion,
    PendingCompletions,
    Prompts,
    Sampling,
    completion_error,
)

HINT = "correct the engine (its contract is in paint.inference.engine)"


class CheckedEngine(Engine):
    """An engine whose completions are checked: one for each prompt, of valid tokens and log-probs.

    Args:
        engine: what ``from_setup`` of an engine's class returned.
        name: as in ``rollout.engine``, for messages.
        vocabulary: number of token ids of the model.
    """

    def __init__(self, engine: Any, name: str, vocabulary: int) -> None:
        if not isinstance(engine, Engine):
            raise EngineError(
                f"rollout.engine {name}: from_setup returned {format_short(engine)}, which is no "
                f"engine; {HINT}"
            )
        self.engine, self.name, self.vocabulary = engine, name, vocabulary
        self.is_remote = engine.is_remote

    def stream(
        self, prompts: Prompts, sampling: Sampling, seeds: Sequence[int], finished: OnCompletion
    ) -> None:
        def finished_checked(index: int, completion: Any) -> None:
            self._require_valid(index, completion)
            finished(index, completion)

        once = OncePerPrompt(self.name, len(prompts), finished_checked)
        with self._named_errors():
            self.engine.stream(prompts, sampling, seeds, once)
        once.require_all()

    def generate(
        self, prompts: Prompts, sampling: Sampling, seeds: Sequence[int]
    ) -> list[Completion]:
        with self._named_errors():
            completions = self.engine.generate(prompts, sampling, seeds)
        return self._checked(completions, len(prompts))

    def sync_weights(self) -> None:
        with self._named_errors():
            self.engine.sync_weights()

    def submit(
        self, prompts: Prompts, sampling: Sampling, seeds: Sequence[int]
    ) -> PendingCompletions:
        with self._named_errors():
            pending = self.engine.submit(prompts, sampling, seeds)

        def wait() -> list[Completion]:
            with self._named_errors():
                completions = pending()
            return self._checked(completions, len(prompts))

        return wait

    def fork(self) -> "CheckedEngine":
        return CheckedEngine(self.engine.fork(), self.name, self.vocabulary)

    def _checked(self, completions: Any, count: int) -> list[Completion]:
        if not isinstance(completions, list | tuple) or len(completions) != count:
            raise EngineError(
                f"rollout.engine {self.name}: generate returned {format_short(completions)} for "
                f"{count} prompts; {HINT}"
            )
        for index, completion in enumerate(completions):
            self._require_valid(index, completion)
        return list(completions)

    def _require_valid(self, index: int, completion: Any) -> None:
        if isinstance(completion, Completion):
            parts = completion.ids, completion.log_probs, completion.truncated
            error = completion_error(*parts, self.vocabulary)
        else:
            error = f"is {format_short(completion)}, and no Completion"
        if error:
            raise EngineError(
                f"rollout.engine {self.name}: the completion of prompt {index} {error}; {HINT}"
            )

    def _named_errors(self) -> AbstractContextManager[None]:
        """Name the engine in errors of a class outside of the package."""
        if ":" not in self.name:
            return nullcontext()
        return wrap_errors(f"rollout.engine {self.name}", EngineError, HINT)
