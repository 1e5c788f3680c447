"""What a step works on: completions, what the teacher reads, and what the loss made of them.

The log-probs of sampled tokens are known twice, from the engine that drew them and from the
trainer that scores them. Where the two differ, training is off-policy, for whatever reason.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from paint.data.problems import Problem
from paint.grading.base import Grade
from paint.inference.adapter_sync_check import CAUSES, LogprobMismatchError
from paint.inference.engine import Completion

OFF_POLICY_KL_WARNING = 0.05
"""Nats of off_policy_kl above which a run warns (docs/concepts/off-policy.md)."""


@dataclass(frozen=True)
class TeacherPrompt:
    """What the teacher reads before the completion.

    Attributes:
        context: what it is shown of a solution; None is nothing.
        complete: that is announced as a whole solution.
        prompt: token ids of the privileged prompt.
        rationale: what it wrote itself about the context first; None where it does not.
    """

    context: str | None
    complete: bool
    prompt: list[int]
    rationale: str | None = None


@dataclass(frozen=True)
class Rollout:
    """One problem, a completion of it, and what a method makes of them before its loss.

    Attributes:
        row: place in the minibatch.
        prompt: token ids that the student reads before the completion.
        text: the completion, decoded.
        view: the teacher's, in distillation.
        figures: numbers that belong to the whole completion: overlap, mask_ratio, reward, ...
            (docs/reference/metrics.md).
        behavior_log_probs: the trainer's log-probs, in nats, under the adapter that wrote it, where
            that is not the one that is trained; () where they were not computed.
        grade: of the grader, where the method needed it.
    """

    row: int
    problem: Problem
    prompt: list[int]
    completion: Completion
    text: str
    teacher_prompt: TeacherPrompt | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)
    behavior_log_probs: tuple[float, ...] | None = None
    grade: Grade | None = None


@dataclass(frozen=True)
class ScoredRollout:
    """A rollout after the loss, with its values at every token (docs/reference/metrics.md)."""

    rollout: Rollout
    tokens: dict[str, list[float]]


def logprob_mismatches(scored: Sequence[ScoredRollout]) -> list[float]:
    """|log p_engine − log p_trainer| of the sampled tokens at temperature 1, in nats, sorted.

    Of every token; where others wrote than is trained, of those that were scored by them.
    """
    gaps: list[float] = []
    for s in scored:
        author = s.rollout.behavior_log_probs
        trainer = s.tokens.get("student_log_prob", ()) if author is None else author
        if trainer:
            pairs = zip(s.rollout.completion.log_probs, trainer, strict=True)
            gaps += [abs(engine - value) for engine, value in pairs]
    return sorted(gaps)


def off_policy_metrics(scored: Sequence[ScoredRollout]) -> dict[str, float]:
    """How far the policy that is trained is from the one that wrote, over the tokens of w = p / p'.

    off_policy_kl   mean of w − 1 − log w, an estimate of KL(p' ‖ p) in nats that is never negative
    off_policy_ess  (Σ w)² / (n Σ w²), the share of tokens that importance weights would leave
    off_policy_max  the largest w

    Nothing where the policy that is trained wrote, or nothing was scored by who wrote.
    Source: docs/reference/metrics.md.
    """
    logs = [
        now - then
        for s in scored
        if s.rollout.behavior_log_probs
        for now, then in zip(
            s.tokens["student_log_prob"], s.rollout.behavior_log_probs, strict=True
        )
    ]
    if not logs:
        return {}

    ratios = [math.exp(log) for log in logs]
    return {
        "off_policy_kl": sum(w - 1 - log for w, log in zip(ratios, logs, strict=True)) / len(logs),
        "off_policy_ess": sum(ratios) ** 2 / (len(logs) * sum(w * w for w in ratios)),
        "off_policy_max": max(ratios),
    }


def check_logprob_mismatch(scored: Sequence[ScoredRollout], bound: float, step: int) -> None:
    """Refuse a step if the mean gap of any engine's tokens exceeds ``bound`` nats.

    Each source of completions counts for itself: one wrong server among many is not averaged away.

    Raises:
        LogprobMismatchError: with the source and the figures, before anything is updated.
    """
    for source in sorted({s.rollout.completion.source for s in scored}):
        gaps = logprob_mismatches([s for s in scored if s.rollout.completion.source == source])
        if not gaps:
            continue
        mean, p99 = sum(gaps) / len(gaps), gaps[int(0.99 * (len(gaps) - 1))]

        if not mean <= bound:  # also where the mean is not a number
            raise LogprobMismatchError(
                f"step {step}: engine ({source}) and trainer differ by {mean:.3g} nats on the "
                f"sampled tokens (99th percentile {p99:.3g}), over rollout.max_logprob_mismatch "
                f"{bound:g}; nothing was updated. Look at {CAUSES}. Where all are "
                f"right, `paint resume RUN --max-logprob-mismatch NATS` takes a larger limit"
            )
