"""The engine that a config asks for: this process, or vLLM servers that have proved what they serve."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from paint import config as cfg
from paint.data.problems import Problem
from paint.display import Display
from paint.engines.protocol import Engine, LocalEngine, MergedEngine, sampling_of
from paint.engines.vllm import open_vllm
from paint.model.policy import Policy

CANARY_TOKENS = 64


@contextmanager
def open_engine(
    policy: Policy,
    model: cfg.Model,
    rollout: cfg.Rollout,
    folder: Path,
    display: Display,
    *,
    problems: Sequence[Problem],
    max_tokens: int,
) -> Iterator[Engine]:
    """The engine that ``rollout`` asks for; a server has served the adapter that it was given.

    Args:
        model: what the policy was loaded from, which a server loads, too.
        folder: where an owned server's log goes, and adapters on their way to the servers.
        problems: some that will be asked; servers prove themselves on them.
        max_tokens: the longest prompt and completion together.

    Raises:
        EngineError, EngineGap: the engine cannot be used, or is not the policy.
    """
    if rollout.engine != "vllm":
        local_engine = MergedEngine if rollout.engine == "merged" else LocalEngine
        yield local_engine(policy, batch_size=rollout.batch_size)
        return

    # All rows are asked for at once and go to the least busy server: four for each reach every one.
    count = 4 * max(len(rollout.urls), 1)
    prompts = [policy.student_prompt(problems[i % len(problems)].problem) for i in range(count)]
    sampling = sampling_of(rollout)
    sampling = replace(sampling, max_new_tokens=min(CANARY_TOKENS, sampling.max_new_tokens))
    with open_vllm(
        policy, model, rollout, folder, display, prompts, sampling, max_tokens=max_tokens
    ) as engine:
        yield engine
