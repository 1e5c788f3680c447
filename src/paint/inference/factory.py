"""Factory for the engine of a config: in this process, or on servers, which rank 0 talks to."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from paint.config import schema as cfg
from paint.core.device import own_device
from paint.core.display import Display
from paint.core.distributed import run_on_rank0
from paint.data.problems import Problem
from paint.estimate.sizing import ServerFlags
from paint.inference.adapter_sync_check import check_adapter_sync
from paint.inference.checked import CheckedEngine
from paint.inference.engine import Engine, RemoteEngine, ServerStartError, sampling_from
from paint.inference.engines import LOCAL, engine_of, engine_options, engine_type
from paint.inference.rank0 import Rank0Engine
from paint.models.policy import Policy, move_policy
from paint.models.sharding import is_sharded

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
    falls_back: bool = False  # in one process: generate here if the own server does not start

    @property
    def options(self) -> Any:
        """The options that the engine's class declares, made of ``rollout.options``."""
        return engine_options(self.rollout)

    def has_fallen_back(self, engine: Engine) -> bool:
        """Whether this engine took the place of servers that did not start."""
        return engine_of(self.rollout).is_remote and not engine.is_remote


@contextmanager
def open_engine(setup: EngineSetup) -> Iterator[Engine]:
    """Open the engine of ``rollout.engine``, for all ranks; one on servers is checked first."""
    rollout, policy, problems = setup.rollout, setup.policy, setup.problems
    kind = engine_of(rollout)
    vocabulary = policy.lm_head.out_features
    build = kind.load().from_setup
    if not kind.is_remote:
        yield CheckedEngine(build(setup), rollout.engine, vocabulary)
        return

    # All rows are requested at once and go to the least busy server: four a server reach each one.
    count = 4 * max(len(rollout.urls), len(rollout.server_gpus), 1)
    prompts = []
    for i in range(count):
        prompts.append(policy.student_prompt(problems[i % len(problems)]))
    sampling = sampling_from(rollout)
    sampling = replace(sampling, max_new_tokens=min(SYNC_CHECK_TOKENS, sampling.max_new_tokens))
    with ExitStack() as stack:
        engine: RemoteEngine | None = None

        def start() -> None:
            nonlocal engine
            engine = build(setup)
            stack.callback(engine.close)
            engine.connect()

        def check(checked: Engine | None) -> None:
            assert checked is not None
            gaps = check_adapter_sync(
                policy, checked, prompts, sampling, rollout.max_logprob_mismatch
            )
            setup.display.note(
                f"engine: a changed adapter moved its log-probs by {gaps['moved']:.3g} nats, "
                f"within {gaps['perturbed']:.2g} of the trainer's; restored, they agree within "
                f"{gaps['restored']:.2g}"
            )

        has_started = True
        try:
            run_on_rank0(start)
        except ServerStartError as error:
            if not setup.falls_back:
                raise
            stack.close()
            setup.display.note(f"engine: {LOCAL} continues, since {error}")
            has_started = False
        if not has_started:
            # An evaluation's policy is on the CPU, since its GPU was for the server.
            if policy.device.type != own_device().type:
                move_policy(policy, own_device())
            own = engine_type(LOCAL).load().from_setup(setup)
            yield CheckedEngine(own, LOCAL, vocabulary)
            return
        if is_sharded(policy.base):  # no rank can score alone
            check(Rank0Engine(engine, frees_memory=rollout.colocate, same_rows=True))
        else:
            run_on_rank0(lambda: check(engine))
        run_on_rank0(lambda: engine.require_slots() if engine else None)
        on_rank0 = Rank0Engine(engine, frees_memory=rollout.colocate)
        yield CheckedEngine(on_rank0, rollout.engine, vocabulary)
