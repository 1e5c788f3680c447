"""GRPO: several completions of a problem, rewarded by their grades.

Source: paper, section 'Compared post-training recipes'. There is no correction for an engine that
differs from the policy: such a step is refused.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

import torch
from jaxtyping import Float
from torch import Tensor

from paint.core.display import Clock
from paint.core.distributed import all_gather_objects
from paint.inference.rollouts import Rollout
from paint.objective.loss import weighted_sum
from paint.resolve.algorithm import GrpoOptions
from paint.training.log_probs import check_logprob_mismatch
from paint.training.train_step import (
    Batch,
    Setup,
    accumulate,
    completion_lengths,
    generate_rollouts,
    student_log_probs,
    update,
)
from paint.training.weighting import factors

# TRL's value, as in OPSD's scripts (docs/fidelity.md, where each setting comes from).
SPREAD_FLOOR = 1e-4
# Added to the standard deviation of a group's rewards, which may be 0.


def grpo_step(
    setup: Setup, batch: Batch, step_index: int, clock: Clock
) -> tuple[list[Rollout], float]:
    """Sample groups of completions of one problem, and update the student on them."""
    options = setup.resolved.algorithm.options
    rollouts = generate_rollouts(setup, batch, step_index, clock)

    with clock("reward"):
        rollouts = reward(setup, rollouts)

    first: list[Rollout] = []
    for _ in range(options.iterations):
        with clock("loss"):
            old = {s.row: s.tokens["tempered_log_prob"] for s in first}
            scored = accumulate(setup, rollouts, partial(score_group, setup, options, old), clock)
            # Later updates move the policy away from the one that sampled, as they should.
            if not first:
                first = scored
                check_logprob_mismatch(
                    first, setup.config.rollout.max_logprob_mismatch, step_index + 1
                )

        with clock("update"):
            gradient_norm = update(setup, step_index)

    # The values of the last update, where the ratio is furthest from 1; log-probs of the sampling.
    as_sampled = []
    for s, last in zip(first, scored, strict=True):
        of_sampling = {"student_log_prob": s.tokens["student_log_prob"]}
        as_sampled.append(replace(last, tokens=last.tokens | of_sampling))
    return as_sampled, gradient_norm


def reward(setup: Setup, rollouts: Sequence[Rollout]) -> list[Rollout]:
    """Return this rank's rows with reward and advantage; a group may lie on several ranks."""
    rewards = [(r.row, r.grade.reward if r.grade else None) for r in rollouts]
    by_row = dict(all_gather_objects(rewards))
    found = group_values(by_row, setup.config.rollout.samples_per_problem)
    return [replace(r, metrics={**r.metrics, **found[r.row]}) for r in rollouts]


def group_values(by_row: Mapping[int, float | None], size: int) -> dict[int, dict[str, float]]:
    """Return, by row, its reward, its advantage, and 1 where all rewards of its group are equal.

    A group is what is left of ``size`` neighbours. One that is left alone has the advantage 0.
    """
    groups: dict[int, list[int]] = {}
    for row in sorted(by_row):
        groups.setdefault(row // size, []).append(row)
    found: dict[int, dict[str, float]] = {}
    # Groups of one size at once; where no call of the grader failed, these are all.
    for count in sorted({len(group) for group in groups.values()}):
        rows = [row for group in groups.values() if len(group) == count for row in group]
        rewards = torch.tensor([by_row[row] for row in rows], dtype=torch.float64)
        advantage, is_flat = torch.zeros_like(rewards), torch.ones_like(rewards)
        if count > 1:
            advantage = advantages(rewards, count)
            spread = rewards.view(-1, count).std(dim=1)
            is_flat = (spread == 0).double().repeat_interleave(count)
        columns = rewards.tolist(), advantage.tolist(), is_flat.tolist()
        for row, *values in zip(rows, *columns, strict=True):
            names = ("reward", "advantage", "frac_reward_zero_std")
            found[row] = dict(zip(names, values, strict=True))
    return found


def score_group(
    setup: Setup,
    options: GrpoOptions,
    old: Mapping[int, list[float]],
    rollouts: Sequence[Rollout],
    student_hidden: Tensor | None = None,
) -> tuple[Tensor, dict[str, Tensor]]:
    """Return the clipped surrogate of some completions, at the sampling temperature.

    old has, by row, log-probs of its tokens before the first update; in that update it is empty.
    """
    lengths, temperature = completion_lengths(rollouts), setup.config.loss_temperature

    base_log_prob = None
    if options.kl:
        # Before the student's own graph is built: two at once would need twice the memory.
        with setup.teacher.view():
            base = student_log_probs(setup, rollouts, temperature, head=setup.teacher.lm_head)
            base_log_prob = base.log_prob

    scores = student_log_probs(setup, rollouts, temperature, hidden=student_hidden)
    old_log_prob = scores.log_prob.detach()
    if old:
        old_log_prob = old_log_prob.new_tensor([x for r in rollouts for x in old[r.row]])
    per_token, values = grpo_terms(
        scores.log_prob,
        old_log_prob,
        token_advantages(rollouts, old_log_prob.device),
        clip=options.clip,
        kl=options.kl,
        base_log_prob=base_log_prob,
    )

    values |= {"loss": per_token.detach(), "student_entropy": scores.entropy}
    values |= {"student_log_prob": scores.untempered, "tempered_log_prob": old_log_prob}
    return weighted_sum(per_token, lengths, setup.resolved.objective), values


def token_advantages(rollouts: Sequence[Rollout], device: torch.device) -> Float[Tensor, " n"]:
    """Return the advantage of each token (n): that of its completion."""
    by_row = {rollout.row: rollout.metrics["advantage"] for rollout in rollouts}
    return factors(by_row, rollouts, device)


def advantages(rewards: Float[Tensor, " b"], group_size: int) -> Float[Tensor, " b"]:
    """A = (r − mean) / (std + 1e-4) within each group of neighbours, of two or more.

    The standard deviation has Bessel's correction, as TRL's. A is 0 for a group whose rewards are
    all equal: it teaches nothing (paper: section 'Main Results').

    Source: Shao et al. 2024, "DeepSeekMath", section 4.1.2.
    """
    groups = rewards.view(-1, group_size)
    centred = groups - groups.mean(dim=1, keepdim=True)
    return (centred / (groups.std(dim=1, keepdim=True) + SPREAD_FLOOR)).view(-1)


def grpo_terms(
    log_prob: Float[Tensor, " n"],
    old_log_prob: Float[Tensor, " n"],
    advantage: Float[Tensor, " n"],
    *,
    clip: float = 0.2,
    kl: float = 0.0,
    base_log_prob: Float[Tensor, " n"] | None = None,
) -> tuple[Float[Tensor, " n"], dict[str, Float[Tensor, " n"]]]:
    """Return GRPO's loss of each token, and its metrics.

        w = p / p_old
        loss = −min(w A, clamp(w, 1 − ε, 1 + ε) A) + β (p_base / p − log(p_base / p) − 1)

    ε is ``clip`` and β is ``kl``. Figures: ``clipped``, 1 where the clip takes the gradient away;
    ``base_kl``, the last bracket.

    Source: Shao et al. 2024, "DeepSeekMath", equations 3 and 4. Raises ValueError for a kl without
    base_log_prob.
    """
    if kl and base_log_prob is None:
        raise ValueError(f"kl {kl} needs the log-probabilities of the base model")

    ratio = (log_prob - old_log_prob).exp()
    held = ratio.clamp(1 - clip, 1 + clip)
    loss = -torch.minimum(ratio * advantage, held * advantage)
    metrics = {"clipped": (held * advantage < ratio * advantage).to(loss)}

    if base_log_prob is not None:
        log_ratio = base_log_prob - log_prob
        penalty = log_ratio.exp() - log_ratio - 1
        loss = loss + kl * penalty
        metrics["base_kl"] = penalty.detach()
    return loss, metrics
