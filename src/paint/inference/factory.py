"""Factory for the engine of a config: in this process, or on servers, which rank 0 talks to."""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from paint.config import schema as cfg
from paint.core.display import Display
from paint.core.distributed import run_on_rank0
from paint.core.errors import PaintError
from paint.core.extensions import extension_errors
from paint.data.problems import Problem
from paint.inference.adapter_sync_check import check_adapter_sync
from paint.inference.engine import (
    Completion,
    Engine,
    EngineError,
    OnCompletion,
    PendingCompletions,
    Prompts,
    Sampling,
    completion_fault,
    sampling_from,
)
from paint.inference.rank0 import Rank0Engine
from paint.models.policy import Policy
from paint.models.sharding import is_sharded
from paint.resolve.engines import EngineType, engine_of, engine_options
from paint.resolve.plan import ServerFlags

SYNC_CHECK_TOKENS = 64


@dataclass(frozen=True)
class EngineSetup:
    """The arguments from which every engine is made (``from_setup``)."""

    policy: Policy
    model: cfg.ModelConfig  # the model that the policy was loaded from, and that servers load
    rollout: cfg.RolloutConfig
    folder: Path  # the run's folder, for logs and adapters
    display: Display
    max_tokens: int  # maximum length of prompt and completion together
    problems: Sequence[Problem]  # those to sample; the adapter sync check takes the first
    server_flags: ServerFlags | None = None  # of an own server that shares the GPU

    @property
    def options(self) -> Any:
        """The options that the engine's class declares, made of ``rollout.options``."""
        return engine_options(self.rollout)


class CheckedEngine(Engine):
    """An engine whose completions are checked: one for each prompt, of valid tokens and log-probs.

    ``engine`` is what ``from_setup`` returned of the class that ``rollout.engine`` names.
    """

    def __init__(self, engine: Any, name: str, vocabulary: int) -> None:
        self.engine, self.name, self.vocabulary = engine, name, vocabulary
        with self._errors():
            self.is_remote = engine.is_remote

    def stream(
        self, prompts: Prompts, sampling: Sampling, seeds: Sequence[int], finished: OnCompletion
    ) -> None:
        missing = set(range(len(prompts)))
        own: list[BaseException] = []  # errors of ``finished``, which are not the engine's

        def check(index: int, completion: Completion) -> None:
            if index not in missing:
                self._refuse(f"passed on a completion of prompt {index!r} that nothing asked for")
            missing.remove(index)
            self._require_valid(index, completion)
            try:
                finished(index, completion)
            except BaseException as error:
                own.append(error)
                raise

        try:
            with self._errors():
                self.engine.stream(prompts, sampling, seeds, check)
        except PaintError:
            if own:
                raise own[0] from None
            raise
        if missing:
            self._refuse(f"has no completion of {len(missing)} of {len(prompts)} prompts")

    def sync_weights(self) -> None:
        with self._errors():
            self.engine.sync_weights()

    def connect(self) -> None:
        with self._errors():
            self.engine.connect()

    def close(self) -> None:
        with self._errors():
            self.engine.close()

    def submit(
        self, prompts: Prompts, sampling: Sampling, seeds: Sequence[int]
    ) -> PendingCompletions:
        with self._errors():
            pending = self.engine.submit(prompts, sampling, seeds)

        def wait() -> list[Completion]:
            with self._errors():
                completions = list(pending())
                if len(completions) != len(prompts):
                    self._refuse(f"gave {len(completions)} completions of {len(prompts)} prompts")
                for index, completion in enumerate(completions):
                    self._require_valid(index, completion)
            return completions

        return wait

    def fork(self) -> "CheckedEngine":
        with self._errors():
            engine = self.engine.fork()
        return CheckedEngine(engine, self.name, self.vocabulary)

    def _errors(self) -> AbstractContextManager[None]:
        return extension_errors("rollout.engine", self.name)

    def _require_valid(self, index: int, completion: Completion) -> None:
        fault = completion_fault(completion, self.vocabulary)
        if fault:
            self._refuse(f"gave a completion of prompt {index} that {fault}")

    def _refuse(self, fault: str) -> None:
        raise EngineError(
            f"rollout.engine {self.name} {fault}; correct the engine (its contract is in "
            f"paint.inference.engine)"
        )


@contextmanager
def open_engine(setup: EngineSetup) -> Iterator[Engine]:
    """Open the engine of ``rollout.engine``, for all ranks; one on servers is checked first."""
    rollout, policy, name = setup.rollout, setup.policy, setup.rollout.engine
    kind = engine_of(rollout)
    if not kind.is_remote:
        yield _built(setup, kind, name)
        return

    with ExitStack() as stack:
        engine: CheckedEngine | None = None  # on rank 0; the other ranks have none

        def start() -> None:
            nonlocal engine
            engine = _built(setup, kind, name)
            stack.callback(engine.close)
            engine.connect()

        run_on_rank0(start)
        of_ranks = partial(Rank0Engine, engine, frees_memory=rollout.colocate)
        if is_sharded(policy.base):  # no rank can score alone
            _check_sync(setup, of_ranks(same_rows=True))
        else:
            run_on_rank0(lambda: _check_sync(setup, engine))
        yield of_ranks()


def _built(setup: EngineSetup, kind: EngineType, name: str) -> CheckedEngine:
    with extension_errors("rollout.engine", name):
        engine = kind.load().from_setup(setup)
    return CheckedEngine(engine, name, setup.policy.lm_head.out_features)


def _check_sync(setup: EngineSetup, engine: Engine | None) -> None:
    assert engine is not None
    rollout, policy, problems = setup.rollout, setup.policy, setup.problems
    # Rows are spread over the servers: four for each reach all of them.
    prompts = [
        policy.student_prompt(problems[i % len(problems)])
        for i in range(4 * max(len(rollout.urls), len(rollout.server_gpus), 1))
    ]
    sampling = sampling_from(rollout)
    sampling = replace(sampling, max_new_tokens=min(SYNC_CHECK_TOKENS, sampling.max_new_tokens))
    gaps = check_adapter_sync(policy, engine, prompts, sampling, rollout.max_logprob_mismatch)
    setup.display.note(
        f"engine: a changed adapter moved its log-probs by {gaps['moved']:.3g} nats, within "
        f"{gaps['perturbed']:.2g} of the trainer's; restored, they agree within "
        f"{gaps['restored']:.2g}"
    )
