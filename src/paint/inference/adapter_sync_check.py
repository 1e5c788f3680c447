"""Adapter sync check: the engine must generate with the trained policy, before the first step.

If the log-probs of the engine that drew tokens differ from those of the trainer that scores them,
training is off-policy: a stale adapter, merged weights, another model, ... Every step compares them
again (paint.training.log_probs).
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from jaxtyping import Float
from torch import Tensor

from paint.core.errors import PaintError
from paint.inference.engine import Completion, Engine, Sampling
from paint.models.policy import Policy
from paint.objective.fused import fused_log_probs

CAUSES = (
    "the model and number format that the engine loaded (model.path, model.dtype; vLLM: --model, "
    "--dtype), its --logprobs-mode (raw_logprobs), its version, and who else loads adapters there"
)


class LogprobMismatchError(PaintError, RuntimeError):
    """The engine does not generate with the policy that is trained; the message has the reason."""


def check_adapter_sync(
    policy: Policy,
    engine: Engine,
    prompts: Sequence[Sequence[int]],
    sampling: Sampling,
    bound: float,
) -> dict[str, float]:
    """Perturb the adapter, compare the engine's log-probs with the trainer's, and restore it.

    The adapter's B is perturbed until the trainer's log-probs of the engine's tokens change by
    twice the bound (and 0.1 nats), so that an engine with the old adapter fails the check.

    Returns mean gaps in nats, of the source with the largest: ``before``, ``perturbed`` and
    ``restored``; and ``moved``, how far the engine with the perturbed adapter is from the policy
    without it. Raises LogprobMismatchError for the one that does not fit.
    """

    def generate() -> list[Completion]:
        engine.sync_weights()
        return engine.generate(prompts, sampling, range(len(prompts)))

    completions = generate()
    before = float(_mismatches(policy, prompts, completions).max())
    # Written so that NaN fails, too.
    if not before <= bound:
        raise LogprobMismatchError(
            f"before the first step, engine and trainer differ by {before:.3g} nats. "
            f"Look at {CAUSES}"
        )

    with restoring(policy):
        # Twice the bound, not more: at five times, bfloat16 alone is 0.026 nats away, half of the
        # default bound (docs/dev/log.md).
        _perturb_by(max(2 * min(bound, 1.0), 0.1), policy, prompts, completions)
        changed = generate()
        perturbed = _mismatches(policy, prompts, changed)

    unchanged = _mismatches(policy, prompts, changed)
    restored = float(_mismatches(policy, prompts, generate()).max())
    for follows, moved in zip(perturbed.tolist(), unchanged.tolist(), strict=True):
        # An engine with the old adapter would be nearer to the unchanged policy.
        if not follows <= min(bound, moved / 2):
            raise LogprobMismatchError(
                f"with a changed adapter the engine's log-probs are {follows:.3g} nats away from "
                f"the changed policy's and {moved:.3g} from those without the change: the engine "
                f"does not serve the adapter that it was sent. Look at its log, at --enable-lora, "
                f"and at {CAUSES}"
            )
    if not restored <= bound:
        raise LogprobMismatchError(
            f"after the adapter was changed and restored, the engine is {restored:.3g} nats away "
            f"({before:.3g} before): it answers from an older version. Look at {CAUSES}"
        )

    moved, worst = float(unchanged.min()), float(perturbed.max())
    return {"before": before, "moved": moved, "perturbed": worst, "restored": restored}


def _perturb_by(
    target: float,
    policy: Policy,
    prompts: Sequence[Sequence[int]],
    completions: Sequence[Completion],
) -> None:
    """Perturb the adapter until the completions' log-probs change by so many nats on average."""
    # One row is enough to search with, and then all are scored: the policy may be on a CPU.
    parts = completions[:1], completions
    unperturbed = [trainer_log_probs(policy, prompts[: len(part)], part) for part in parts]
    scale = 1e-4
    for part, old in zip(parts, unperturbed, strict=True):
        reads = prompts[: len(part)]
        while (trainer_log_probs(policy, reads, part) - old).abs().mean() < target and scale < 1e3:
            perturb(policy, scale)
            scale *= 2


def _mismatches(
    policy: Policy, prompts: Sequence[Sequence[int]], completions: Sequence[Completion]
) -> Float[Tensor, " s"]:
    """Return mean |log p_engine − log p_trainer| in nats of each source; its maximum keeps NaN."""
    gaps: dict[str, list[float]] = {}
    trainer = iter(trainer_log_probs(policy, prompts, completions).tolist())
    for completion in completions:
        if not completion.log_probs:
            raise LogprobMismatchError(
                f"{completion.source} gives completions without log-probs, by which an engine on "
                f"servers is compared with the trainer; return them"
            )
        of_source = gaps.setdefault(completion.source, [])
        of_source.extend(abs(log_prob - next(trainer)) for log_prob in completion.log_probs)
    return torch.tensor([sum(values) / len(values) for values in gaps.values()])


@torch.no_grad()
def trainer_log_probs(
    policy: Policy, prompts: Sequence[Sequence[int]], completions: Sequence[Completion]
) -> Float[Tensor, " n"]:
    """Return the trainer's log p(id | prefix) of completion tokens at temperature 1, on the CPU."""
    ids = [completion.ids for completion in completions]
    hidden = policy.hidden_states(prompts, ids)
    tokens = torch.tensor([token for row in ids for token in row], device=hidden.device)
    return fused_log_probs(hidden, policy.lm_head, tokens).log_prob.cpu()


@contextmanager
def restoring(policy: Policy) -> Iterator[None]:
    """Restore the adapter bit by bit after the block."""
    before = [parameter.detach().clone() for parameter in policy.trainable]
    try:
        yield
    finally:
        set_trained(policy, before)


@torch.no_grad()
def set_trained(policy: Policy, values: Sequence[Tensor]) -> None:
    for parameter, value in zip(policy.trainable, values, strict=True):
        parameter.copy_(value)


@torch.no_grad()
def perturb(policy: Policy, scale: float) -> None:
    """Add noise of this standard deviation to every B of the adapter, the same in every call."""
    # On the CPU: the same noise on every device.
    generator = torch.Generator().manual_seed(0)
    for name, parameter in policy.model.named_parameters():
        # B is 0 at the start: noise on A alone would change nothing.
        if parameter.requires_grad and "lora_B" in name:
            noise = torch.randn(parameter.shape, generator=generator)
            parameter.add_(scale * noise.to(parameter.device, parameter.dtype))
