"""Rollout records and the comparison of engine, behavior-policy and trainer log-probs."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from paint.data.contexts import Attempt
from paint.data.problems import Problem, item_of
from paint.grading.contract import Grade, Item
from paint.inference.adapter_sync_check import CAUSES, LogprobMismatchError
from paint.inference.engine import STORED, Completion, TurnPart
from paint.models.policy import Policy
from paint.training.teacher_views import TeacherPrompt

OFF_POLICY_KL_WARNING = 0.05
"""Nats of off_policy_kl above which a run warns (docs/concepts/off-policy.md)."""

ON_POLICY = {"off_policy_kl": 0.0, "off_policy_ess": 1.0, "off_policy_max": 1.0}
"""Off-policy metrics of a step whose completions the trained policy itself sampled."""


class Draws(NamedTuple):
    """What came of drawing a problem several times."""

    tokens: tuple[int, ...]  # of the row's completion in each attempt
    solved: bool  # whether one of the problem's completions is right


@dataclass(frozen=True)
class Rollout:
    """A problem, one completion, and what a method computes from them."""

    row: int  # index in the minibatch
    problem: Problem
    prompt: list[int]  # token ids of the student's prompt
    completion: Completion
    text: str  # the decoded completion
    teacher_prompt: TeacherPrompt | None = None  # the teacher's prompt, in distillation
    metrics: Mapping[str, float] = field(default_factory=dict)  # overlap, mask_ratio, ...
    behavior_log_probs: tuple[float, ...] | None = None  # in nats; None: on-policy, (): unknown
    grade: Grade | None = None  # None before grading, and with grading.grader "none"
    draws: Draws | None = None  # None with rollout.max_attempts 1
    # The loss's values at every token, by name; none before it, and if it is not learned from.
    tokens: dict[str, list[float]] = field(default_factory=dict)

    @property
    def sampled_tokens(self) -> int:
        """Tokens that were sampled for the row, those of other attempts included."""
        return sum(self.draws.tokens) if self.draws else len(self.completion.ids)

    @property
    def student_parts(self) -> list[TurnPart]:
        """What was sampled after each of the student's prompts: one, or one for each turn."""
        conversation = self.completion.conversation
        prompts = [t.prompt for t in conversation.turns] if conversation else [self.prompt]
        return self.completion.after(prompts)

    @property
    def teacher_parts(self) -> list[TurnPart]:
        """The same after the teacher's prompts; [] without a teacher."""
        view = self.teacher_prompt
        return self.completion.after([view.prompt, *view.later]) if view else []

    @property
    def attempt(self) -> Attempt:
        """What the teacher's context may depend on, without what other completions add."""
        return Attempt(self.text, self.grade, self.row, self.problem.id)

    @property
    def is_correct(self) -> bool:
        """Whether the grader accepts the completion; False without a grade."""
        return self.grade is not None and self.grade.correct


def rollout_of(
    policy: Policy,
    row: int,
    problem: Problem,
    prompt: list[int],
    completion: Completion,
    *,
    behavior_log_probs: tuple[float, ...] | None = None,
) -> Rollout:
    """The rollout of a completion; of a conversation with its environment's grade, if it gave one.

    The text of a conversation is that of all turns of the student.
    """
    rollout = Rollout(
        row,
        problem,
        prompt,
        completion,
        policy.decode(completion.ids),
        behavior_log_probs=behavior_log_probs,
    )
    conversation = completion.conversation
    if conversation is None:
        return rollout
    texts = [policy.decode(ids) for _, ids in rollout.student_parts]
    return replace(
        rollout,
        problem=conversation.problem,
        prompt=conversation.turns[0].prompt,
        text="\n\n".join(texts),
        metrics={
            "turns": len(conversation.turns),
            "tool_calls": conversation.calls,
            "tool_errors": conversation.failed_calls,
        },
        grade=conversation.grade,
    )


def items_of(policy: Policy, rollouts: Sequence[Rollout]) -> list[Item]:
    """What a grader reads of each completion, with the thought that its prompt opened.

    Of a conversation it is the last turn.
    """
    return [
        item_of(
            r.problem,
            policy.transcript(*r.student_parts[-1]),
            truncated=r.completion.truncated,
            tags=policy.conventions.tags,
        )
        for r in rollouts
    ]


def logprob_mismatches(scored: Sequence[Rollout]) -> list[float]:
    """|log p_engine − log p_trainer| of the sampled tokens at temperature 1, in nats, sorted.

    Uses every token; off-policy, only tokens with behavior log-probs. Of stored completions, none:
    the trainer does not have the policy that sampled them; nor of an engine without log-probs.
    """
    gaps: list[float] = []
    for s in (s for s in scored if s.completion.source != STORED):
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
    logs = []
    for s in scored:
        if s.tokens and s.behavior_log_probs:
            for now, then in zip(s.tokens["student_log_prob"], s.behavior_log_probs, strict=True):
                logs.append(now - then)
    if not logs:
        return {}

    ratios = [math.exp(log) for log in logs]
    return {
        "off_policy_kl": sum(w - 1 - log for w, log in zip(ratios, logs, strict=True)) / len(logs),
        "off_policy_ess": sum(ratios) ** 2 / (len(logs) * sum(w * w for w in ratios)),
        "off_policy_max": max(ratios),
    }


def check_logprob_mismatch(scored: Sequence[Rollout], bound: float, step: int) -> None:
    """Raise LogprobMismatchError if an engine's mean log-prob mismatch exceeds ``bound`` nats.

    Each source of completions is checked separately, so that one wrong server among many is found.
    """
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
