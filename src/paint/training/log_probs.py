"""The comparison of engine, behavior-policy and trainer log-probs."""

import math
from collections.abc import Sequence

from paint.inference.adapter_sync_check import CAUSES, LogprobMismatchError
from paint.inference.engine import STORED
from paint.inference.rollouts import Rollout

OFF_POLICY_KL_WARNING = 0.05
"""Nats of off_policy_kl above which a run warns (docs/concepts/off-policy.md)."""

ON_POLICY = {"off_policy_kl": 0.0, "off_policy_ess": 1.0, "off_policy_max": 1.0}
"""Off-policy metrics of a step whose completions the trained policy itself sampled."""


def logprob_mismatches(scored: Sequence[Rollout]) -> list[float]:
    """Return |log p_engine − log p_trainer| of the sampled tokens at temperature 1, nats, sorted.

    Off-policy, of tokens with behavior log-probs; of stored completions none.
    """
    gaps: list[float] = []
    for s in scored:
        if s.completion.source == STORED:
            continue
        behavior = s.behavior_log_probs
        trainer = s.tokens.get("student_log_prob", ()) if behavior is None else behavior
        sampled = s.completion.log_probs
        # () is a row that was not scored under its behavior policy.
        if trainer and sampled:
            pairs = zip(sampled, trainer, strict=True)
            gaps += [abs(engine - value) for engine, value in pairs]
    return sorted(gaps)


def off_policy_metrics(scored: Sequence[Rollout]) -> dict[str, float]:
    """Distance of the trained policy p from the behavior policy p', from the ratios w = p / p'.

    off_policy_kl   mean of w − 1 − log w, an estimate of KL(p' ‖ p) in nats that is never negative
    off_policy_ess  (Σ w)² / (n Σ w²), the effective sample size as a share of the n tokens
    off_policy_max  the largest w

    Empty when the data is on-policy or behavior log-probs are missing.
    """
    logs: list[float] = []
    for s in scored:
        if s.tokens and s.behavior_log_probs:
            pairs = zip(s.tokens["student_log_prob"], s.behavior_log_probs, strict=True)
            logs += [now - then for now, then in pairs]
    if not logs:
        return {}

    ratios = [math.exp(log) for log in logs]
    return {
        "off_policy_kl": sum(w - 1 - log for w, log in zip(ratios, logs, strict=True)) / len(logs),
        "off_policy_ess": sum(ratios) ** 2 / (len(logs) * sum(w * w for w in ratios)),
        "off_policy_max": max(ratios),
    }


def check_logprob_mismatch(scored: Sequence[Rollout], bound: float, step: int) -> None:
    """Raise LogprobMismatchError if the mean mismatch of a source is over ``bound`` nats."""
    for source in sorted({s.completion.source for s in scored}):
        gaps = logprob_mismatches([s for s in scored if s.completion.source == source])
        if not gaps:
            continue
        mean, p99 = sum(gaps) / len(gaps), gaps[int(0.99 * (len(gaps) - 1))]

        if not mean <= bound:  # true for NaN, too
            raise LogprobMismatchError(
                f"step {step}: engine ({source}) and trainer differ by {mean:.3g} nats on the "
                f"sampled tokens (99th percentile {p99:.3g}), over rollout.max_logprob_mismatch "
                f"{bound:g}; nothing was updated. Check {CAUSES}. If all are right, raise the "
                f"limit with `paint resume RUN --max-logprob-mismatch NATS`"
            )
