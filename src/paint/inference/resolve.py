"""Resolution of ``rollout.engine = "auto"``, and of a GPU that a server shares with the trainer.

A run's record has what ``auto`` became, so a resumed run generates as it began.
"""

import os
import shlex
import shutil
from collections.abc import Collection
from dataclasses import replace

import torch

from paint.algorithms.base import find_algorithm
from paint.config.schema import Config, ConfigError, RolloutConfig
from paint.core.display import Display
from paint.estimate.plan import UTILIZATION, Split, make_plan, require_fit, server_flag
from paint.estimate.sizing import server_flags
from paint.inference.registry import AUTO, owns_servers, resolved_engine
from paint.training.check import check_engine

LOCAL, VLLM = resolved_engine(AUTO, False), resolved_engine(AUTO, True)
INSTALL = "`pip install 'paint-distill[vllm]'` installs it (docs/how-to/vllm.md)"
SLOWER = "vLLM samples long completions faster (docs/how-to/vllm.md)"

SHORT = 4096
"""Most tokens of a completion for which ``auto`` generates locally: a server takes minutes to
start."""


def resolve_training(config: Config, display: Display, ranks: int = 1) -> Config:
    """Resolve the engine of a training, and let a server on the trainer's GPU sleep.

    Several ranks without servers of their own generate themselves. Raises ConfigError where the
    server would share the GPU, and cannot sleep.
    """
    if not find_algorithm(config.train.method).generates(config):
        return config.changed("rollout", engine=resolved_engine(config.rollout.engine, False))

    is_auto = config.rollout.engine == AUTO
    engine, why = _choose(config.rollout, config.model.train_mode == "full", ranks)
    chosen = config.changed("rollout", engine=engine)
    if _shares_gpu(chosen.rollout):
        problem = _sharing_problem(chosen)
        if problem and not is_auto:
            raise ConfigError(problem)
        if problem:
            chosen, why = config.changed("rollout", engine=LOCAL), f"since {problem}; {SLOWER}"
        else:
            chosen = chosen.changed("rollout", colocate=True)
    if is_auto:
        display.note(f"engine: {chosen.rollout.engine}, {why}")
    return chosen


def may_fall_back(rollout: RolloutConfig) -> bool:
    """Whether local takes the place of servers that do not start: where nobody named them."""
    return rollout.engine == AUTO and not (rollout.urls or rollout.server_gpus)


def without_servers(config: Config) -> Config:
    """The config of a run that generates itself since its server did not start."""
    return config.changed("rollout", engine=LOCAL, colocate=False)


def resolve_evaluation(
    rollout: RolloutConfig, display: Display, *, is_full: bool, earlier: Collection[str] = ()
) -> RolloutConfig:
    """Resolve the engine of an evaluation or advice; servers do not take fully trained weights.

    ``auto`` is the engine of earlier calls that stored samples in the same place, if there are any.
    """
    if check_engine(rollout).is_stored:
        raise ConfigError(
            f'rollout.engine must not be "{rollout.engine}" here, where completions are sampled; '
            f"`paint grade` grades stored samples"
        )
    engine, why = _choose(rollout, is_full, 1)
    if rollout.engine == AUTO and earlier:
        engine, why = min(earlier), "as in an earlier call"
    if rollout.engine == AUTO:
        display.note(f"engine: {engine}, {why}")
    return replace(rollout, engine=engine)


def _choose(rollout: RolloutConfig, is_full: bool, ranks: int) -> tuple[str, str]:
    """The engine, and why ``auto`` became it.

    ``auto`` is local where completions have at most SHORT tokens, and vLLM where they are longer,
    torch sees a GPU and vLLM is installed.
    """
    if rollout.engine != AUTO:
        return rollout.engine, ""
    if rollout.urls or rollout.server_gpus:
        return VLLM, "since servers are named"
    if is_full:
        return LOCAL, "since all weights are trained, and servers take adapters"
    if not _sees_gpu():
        return LOCAL, "since torch sees no GPU"
    if ranks > 1:
        return LOCAL, f"since each rank generates; --gpus {ranks} starts servers, and {SLOWER}"
    if rollout.max_new_tokens <= SHORT:
        return LOCAL, f"since completions have at most {rollout.max_new_tokens:,} tokens"
    start = shlex.split(rollout.server)
    if not shutil.which(start[0]):
        return LOCAL, f"since `{start[0]}` is not on the PATH; {INSTALL}; {SLOWER}"
    return VLLM, f"since completions are long, and `{shlex.join(start)}` can be started"


def _sees_gpu() -> bool:
    return torch.cuda.is_available() and os.environ.get("ACCELERATE_USE_CPU", "") != "true"


def _shares_gpu(rollout: RolloutConfig) -> bool:
    """Whether a server of the run's own would use this process's GPU, and nothing says how.

    It sleeps with rollout.colocate, it may have a share of the memory, and its GPUs may be named.
    """
    is_told = rollout.colocate or server_flag(rollout, UTILIZATION) is not None
    is_apart = bool(rollout.server_gpus) or "CUDA_VISIBLE_DEVICES=" in rollout.server
    return owns_servers(rollout) and _sees_gpu() and not is_told and not is_apart


def _sharing_problem(config: Config) -> str:
    """Why trainer and server cannot use one GPU in turns, with what would help; "" if they can."""
    if config.rollout.off_policy_steps:
        return (
            "rollout.off_policy_steps lets the server generate while this process trains, on one "
            "GPU; add --gpus 2, or give the server a part of the memory, as in "
            f'--rollout.server-args="{UTILIZATION} 0.4"'
        )
    memory = torch.cuda.get_device_properties(0).total_memory
    colocated = config.changed("rollout", colocate=True)
    try:
        plan = make_plan(colocated, 1, memory=memory, split=Split(1, 1, True, "in turns"))
    except ConfigError:  # a model that the plan does not know may be trained all the same
        return ""
    try:
        require_fit(plan)
        server_flags(plan)
    except ConfigError as error:
        return str(error)
    return ""
