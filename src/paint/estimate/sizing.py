"""A server's flags, taken from the memory plan.

The bytes are the plan's, whose formulas are compared with counted bytes and, for updates of a 1.7B,
with an H100 (paint.estimate.memory).
"""

from dataclasses import dataclass

from paint.config.schema import ConfigError
from paint.core.errors import format_value
from paint.estimate.plan import Plan, gb, server_of


@dataclass(frozen=True)
class ServerFlags:
    """Flags of a vLLM server.

    Attributes:
        utilization: --gpu-memory-utilization, a share of each GPU's memory.
        sequences: --max-num-seqs, the most completions that it samples at once.
    """

    utilization: float
    sequences: int


def server_flags(plan: Plan) -> ServerFlags:
    """Choose the flags of a server by the plan's bytes.

    The share is that of ``Plan.server_share``. The completions are those that a run requests at
    once, or as many as the cache holds with a prompt of assumed length and a longest completion.

    Raises:
        ConfigError: the share does not hold the model and a longest row, without which vLLM does
            not start.
    """
    server, rollout, rows = server_of(plan), plan.config.rollout, plan.rows()
    if not server.fits:
        together = ", which also train" if plan.split.shared else ""
        raise ConfigError(
            f"model.path {format_value(plan.config.model.path)}: a server may use "
            f"{plan.server_share:.0%} of {server.gpus} x {gb(plan.capacity)} GB{together}, and its "
            f"weights and adapters are {gb(server.weights)} GB: no room for one row of "
            f"{server.longest:,} tokens; set model.quantization nf4, lower data.max_prompt_tokens "
            f"or rollout.max_new_tokens, give servers separate GPUs (--gpus 2 --split 1+1), or use "
            f"larger GPUs"
        )
    requested = rollout.batch_size * (1 + rollout.off_policy_steps)
    held = server.tokens // (rows.prompt + rows.completion)
    return ServerFlags(plan.server_share, max(min(requested, held), 1))
