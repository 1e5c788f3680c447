"""Reference implementation of the PAINT objective in plain torch.

    log p_S, log p_T -> H_S, H_T -> R = H_T / H_S -> top f_top -> interpolated target -> clipped KL

It is exact, over the full vocabulary, with one equation a line, and holds several n × v tensors at
once. Faster implementations are tested against it (paint.objective.fused).

Axes: b rows (completions), n completion tokens of a batch laid end to end, v vocabulary.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from paint.config.schema import ClipMode, Reduction
from paint.core.errors import ConfigError
from paint.core.user_code import user_errors
from paint.objective.divergences import Divergence
from paint.objective.loss_options import PAPER_LOSS, Objective, with_changes

Lengths = Sequence[int] | Int[Tensor, "b"]

# Nats. Below it, probabilities are lost to float32's range; above it, entropies keep their order.
ENTROPY_FLOOR = 1e-30


def entropy(log_probs: Float[Tensor, "*n v"]) -> Float[Tensor, "*n"]:
    """H = −Σ_v p(v) log p(v) in nats, in [0, log v]; 0 log 0 is 0 (paper: Eq. entropy_ratio).

    Takes normalised log-probabilities. Small entropies are as precise as the unlikely entries.
    """
    # Near 1, a probability is most precise as 1 minus the sum of the others.
    log_top, top = log_probs.max(-1, keepdim=True)
    others = log_probs.exp().scatter(-1, top, 0.0)
    rest = others.sum(-1, keepdim=True)
    log_top = torch.where(rest < 0.5, torch.log1p(-rest.clamp(max=0.5)), log_top)

    return -(log_top.exp() * log_top).squeeze(-1) - (others * finite(log_probs)).sum(-1)


def entropy_ratio(
    teacher_entropy: Float[Tensor, "*n"], student_entropy: Float[Tensor, "*n"]
) -> Float[Tensor, "*n"]:
    """R = H_T / max(H_S, ENTROPY_FLOOR), used as a rank (paper: Eq. entropy_ratio; floor: ours)."""
    return teacher_entropy / student_entropy.clamp(min=ENTROPY_FLOOR)


def select_positions(
    entropy_ratio: Float[Tensor, "n"], top_fraction: float, *, skip_tokens: int = 0
) -> Bool[Tensor, "n"]:
    """Select the ⌈f_top n⌉ largest ratios of ONE completion (paper: Eq. sparse_selector_objective).

    top_fraction is in [0, 1]. The paper leaves ties open; here the earliest position wins. The
    first skip_tokens positions, at least 0, are never selected and do not count in n.
    """
    valid = entropy_ratio[skip_tokens:]

    # 0.07 * 100 is 7.000000000000001 in floating point, and must still select 7.
    budget = math.ceil(top_fraction * len(valid) - 1e-9)

    ranking = skip_tokens + valid.sort(descending=True, stable=True).indices
    selected = torch.zeros_like(entropy_ratio, dtype=torch.bool)
    selected[ranking[:budget]] = True
    return selected


def interpolate(
    teacher_log_probs: Float[Tensor, "*n v"],
    student_log_probs: Float[Tensor, "*n v"],
    interpolation_weight: float,
) -> Float[Tensor, "*n v"]:
    """Move teacher energies to the student's (paper: Eqs. sparse_energy_interp, teacher_interp).

        log p̃_T = (1 − k) log p_T + k log p_S − log Z,     so p̃_T ∝ p_T^(1−k) p_S^k

    An energy is −log p, and k is interpolation_weight, in [0, 1]. Takes and returns normalised
    log-probabilities of positions that the caller selects. With k = 0 the result is exactly the
    teacher, and equal views are returned exactly. For 0 < k < 1, an entry that is −inf in either
    view has probability 0, though its logarithm is finite.
    """
    if interpolation_weight == 0:
        return teacher_log_probs

    log_p = finite(teacher_log_probs)
    mixed = torch.lerp(log_p, finite(student_log_probs), interpolation_weight)

    # The teacher's log Z is 0 up to rounding. Subtracting it as well makes equal views exact.
    return mixed - (mixed.logsumexp(-1, keepdim=True) - log_p.logsumexp(-1, keepdim=True))


def clipped_divergence(
    target_log_probs: Float[Tensor, "*n v"],
    student_log_probs: Float[Tensor, "*n v"],
    *,
    divergence: str | Divergence = "forward_kl",
    clip: float = 0.06,
    clip_mode: ClipMode = "pointwise",
) -> Float[Tensor, "*n"]:
    """Clipped divergence of target P and student Q per token, in nats (paper: Eq. clipped_fkl).

        forward_kl   Σ_v P(v) [log P(v) − log Q(v)]                 the paper's
        reverse_kl   Σ_v Q(v) [log Q(v) − log P(v)]
        jsd          ½ KL(P‖M) + ½ KL(Q‖M),  M = ½ (P + Q)          at most log 2

        pointwise    Σ_v min(summand(v), clip)                      the paper's, clip = τ
        huber        D if D ≤ clip, else 2 √(clip D) − clip         D = Σ_v summand(v)
        token        min(Σ_v summand(v), clip)
        none         Σ_v summand(v)

    It is exactly zero where P = Q. huber is Huber's loss of √D: its gradient is that of D times
    min(1, √(clip / D)), so it is 0 where P = Q alone, and points where that of D does. With the
    pointwise clip it is not a divergence: large summands are cut and negative ones kept, so the sum
    can be negative, and descent lowers the logit of a clipped entry although the teacher's
    probability there is higher (docs/concepts/clip.md).

    It is differentiable in both arguments; paint_loss holds the target fixed. Raises ValueError for
    an unknown divergence or clip_mode, a clip that is applied but not positive, and sampled_token,
    which needs tokens.
    """
    options = with_changes(PAPER_LOSS, divergence=divergence, clip=clip, clip_mode=clip_mode)
    found = options.divergence
    if found.is_sampled:
        raise ConfigError(
            f"divergence {found.name!r} needs sampled tokens, which only paint_loss takes"
        )

    terms = divergence_terms(target_log_probs, student_log_probs, found)
    return clipped_sum(terms, options)[0]


def token_weights(
    lengths: Lengths, *, reduction: Reduction = "completion", skip_tokens: int = 0
) -> Float[Tensor, "n"]:
    """Weight of each token: value = Σ_n weight_n per_token_n (paper: Eqs. per-token, opsd).

        completion   1 / (b |ŷ|)     mean over a completion's tokens, then over completions (paper)
        token        1 / n           mean over all tokens

    The first skip_tokens of a completion have weight 0 and count neither in |ŷ| nor in n. A
    completion in which every weight is 0 still counts in b. The values of micro-batches of
    b' completions (n' tokens), each times b'/b (n'/n), sum to the batch's value. float64, on the
    CPU.
    """
    lengths = _length_list(lengths)
    weighted = [max(length - skip_tokens, 0) for length in lengths]
    b, n = len(lengths), sum(weighted)

    weights: list[float] = []
    for length, tokens in zip(lengths, weighted, strict=True):
        weight = {"completion": 1 / (b * max(tokens, 1)), "token": 1 / max(n, 1)}[reduction]
        weights += [0.0] * (length - tokens) + [weight] * tokens
    return torch.tensor(weights, dtype=torch.float64)


def weighted_sum(
    per_token: Float[Tensor, "n"], lengths: Lengths, options: Objective
) -> Float[Tensor, ""]:
    """Return the sum of values of tokens, each times its weight (``token_weights``)."""
    weights = token_weights(lengths, reduction=options.reduction, skip_tokens=options.skip_tokens)
    # The dtype first: a device may not support float64.
    return (weights.to(per_token.dtype).to(per_token.device) * per_token).sum()


@dataclass(frozen=True)
class Loss:
    """Loss and its per-token statistics. Only value carries a gradient; the others are detached.

    value            Σ_n token_weights_n per_token_n, nats
    per_token        the clipped divergence, or its estimate by the sampled token, times its factor
    stats            floating point, one value a token
      kl               the divergence without the clip: never negative (except sampled_token), while
                       the loss may be
      clipped          1 where the clip cut at least one vocabulary entry (clip_mode huber and
                       token: the token)
      unclipped_mass   P_A, the target's probability on the entries that were not cut (huber: the
                       factor of the token's gradient)
      student_entropy, teacher_entropy, entropy_ratio     H_S, H_T before interpolation, and R
      selected         1 where the target is interpolated
      student_log_prob, teacher_log_prob     of the sampled tokens, at temperature 1; only with
                                             tokens were passed
    """

    value: Float[Tensor, ""]
    per_token: Float[Tensor, "n"]
    stats: dict[str, Float[Tensor, "n"]]


def paint_loss(
    student_logits: Float[Tensor, "n v"],
    teacher_logits: Float[Tensor, "n v"],
    lengths: Lengths,
    options: Objective = PAPER_LOSS,
    *,
    tokens: Int[Tensor, "n"] | None = None,
    factors: Float[Tensor, "n"] | None = None,
    **changes: Any,
) -> Loss:
    """Return the PAINT loss of completions (paper: Eq. main_loss, Algorithm adaptive_opsd).

        p = softmax(z / T) for both views,      I the f_top largest R of each completion,
        target p̃_T on I and p_T elsewhere,      value = mean over completions of mean over n of
                                                        D(target, p_S)

    lengths are the numbers of tokens of the completions, in order; an empty completion adds 0 and
    still counts. options are the paper's (``Objective``) unless they are given; keywords change
    some of them. interpolation_weight or top_fraction 0 leaves the teacher as it is. The gradient
    reaches student_logits through D's second argument alone, not through target or selection. Half
    precision is computed in float32. The first skip_tokens of a completion have weight 0 and are
    not selected; their stats are computed. Passing the sampled tokens adds their log-probabilities
    to the stats. factors multiply the loss of each token, and nothing else; None: 1.

    D is one of divergence or, with divergence sampled_token, a policy gradient on the sampled
    tokens ŷ_n (paper: appendix 'Training Algorithm', which names 'sampled-token objectives' and
    reports none; the form is ours):

        D_n = −A_n,     dD_n/dz_i = −A_n ([i = ŷ_n] − q_i) / T,
                                                A_n = log p̃_T(ŷ_n) − log q(ŷ_n) held fixed

    Over ŷ_n drawn from q = p_S at temperature T both have the mean of reverse_kl without a clip;
    one D_n may be negative. It needs tokens, and clip_mode none or huber, which limits A_n to
    [−clip, clip]. Choose clip for it: 0.06 is meant for a KL (docs/concepts/clip.md).

    Raises ValueError for views that do not match, lengths that do not sum to n, and options out of
    range.
    """
    options = with_changes(options, **changes)
    vocabulary, teacher_vocabulary = student_logits.shape[-1], teacher_logits.shape[-1]
    if vocabulary != teacher_vocabulary:
        raise ValueError(
            "student and teacher must share one vocabulary: "
            f"the student's logits have {vocabulary} entries, the teacher's {teacher_vocabulary}"
        )
    lengths = check_inputs(len(student_logits), len(teacher_logits), lengths, tokens, options)

    temperature = options.temperature
    dtype = torch.promote_types(student_logits.dtype, torch.float32)
    student_log_probs = (student_logits.to(dtype) / temperature).log_softmax(-1)
    # The target is held fixed, and the selection is not differentiable.
    with torch.no_grad():
        teacher_log_probs = (teacher_logits.to(dtype) / temperature).log_softmax(-1)
        student_entropy, teacher_entropy = entropy(student_log_probs), entropy(teacher_log_probs)
        ratio = entropy_ratio(teacher_entropy, student_entropy)
        selected = select(ratio, lengths, options)
        weight = options.interpolation_weight
        interpolated = interpolate(teacher_log_probs, student_log_probs, weight)
        target_log_probs = torch.where(selected[:, None], interpolated, teacher_log_probs)

    divergence = options.divergence
    terms = divergence_terms(target_log_probs, student_log_probs, divergence, tokens)
    per_token, kept = clipped_sum(terms, options)
    with torch.no_grad():
        stats = {
            "kl": terms.sum(-1),
            "clipped": (kept.amin(-1) < 1).to(dtype),
            "unclipped_mass": (target_log_probs.exp() * kept).sum(-1),
            "student_entropy": student_entropy,
            "teacher_entropy": teacher_entropy,
            "entropy_ratio": ratio,
            "selected": selected.to(dtype),
        }
        if tokens is not None:
            stats["student_log_prob"] = token_log_probs(student_logits, tokens)
            stats["teacher_log_prob"] = token_log_probs(teacher_logits, tokens)

    if factors is not None:
        per_token = per_token * factors
    value = weighted_sum(per_token, lengths, options)
    return Loss(value, per_token.detach(), stats)


def token_log_probs(
    logits: Float[Tensor, "n v"], tokens: Int[Tensor, "n"], *, temperature: float = 1.0
) -> Float[Tensor, "n"]:
    """log p(ŷ_n) of each sampled token, in nats, at most 0; engine and trainer must agree on it."""
    dtype = torch.promote_types(logits.dtype, torch.float32)
    log_probs = (logits.to(dtype) / temperature).log_softmax(-1)
    return log_probs.gather(-1, tokens[:, None])[:, 0]


# Parts of the loss above that paint.objective.fused also uses.


def select(
    entropy_ratio: Float[Tensor, "n"], lengths: Sequence[int], options: Objective
) -> Bool[Tensor, "n"]:
    """Return the selected positions of each completion (``select_positions``)."""
    selected = torch.zeros_like(entropy_ratio, dtype=torch.bool)
    share, skip = options.top_fraction, options.skip_tokens
    for part, ratios in zip(selected.split(lengths), entropy_ratio.split(lengths), strict=True):
        part.copy_(select_positions(ratios, share, skip_tokens=skip))  # a view of selected
    return selected


def clipped_sum(
    terms: Float[Tensor, "*n v"], options: Objective
) -> tuple[Float[Tensor, "*n"], Float[Tensor, "*n v"]]:
    """Sum each token's terms with the clip, and return the factor of each entry's gradient.

    The factor is 1 for the entries that the clip does not change (paper: Eq. clipped_fkl, the set
    A), 0 for those that it cuts, and with huber min(1, √(clip / D)) for all entries of a token, or
    min(1, clip / |A_n|) with a sampled divergence.
    """
    clip = options.clip
    # Numbers, because computing with Boolean tensors is several times slower.
    match options.clip_mode:
        case "pointwise":
            kept = torch.le(terms.detach(), clip, out=torch.empty_like(terms))
            return terms.clamp(max=clip).sum(-1), kept
        case "huber" if options.divergence.is_sampled:
            # The terms are 0 but for the sampled token's, log q - log p, of either sign.
            total = terms.sum(-1)
            factor = clip / total.detach().abs().clamp(min=clip)
            return total * factor, factor[..., None].expand_as(terms)
        case "huber":
            total = terms.sum(-1)
            bounded = 2 * (clip * total.clamp(min=clip)).sqrt() - clip
            factor = (clip / total.detach().clamp(min=clip)).sqrt()[..., None]
            return torch.where(total <= clip, total, bounded), factor.expand_as(terms)
        case "token":
            total = terms.sum(-1)
            kept = (total <= clip).to(terms.dtype)[..., None]
            return total.clamp(max=clip), kept.expand_as(terms)
        case "none":
            return terms.sum(-1), torch.ones_like(terms)


def check_inputs(
    student_rows: int,
    teacher_rows: int,
    lengths: Lengths,
    tokens: Tensor | None,
    options: Objective,
) -> list[int]:
    """Return the lengths as a list. Raises ValueError for mismatched inputs or missing tokens."""
    if student_rows != teacher_rows:
        raise ValueError(
            "both views must score the same tokens: "
            f"student has {student_rows} rows, teacher {teacher_rows}"
        )
    lengths = _length_list(lengths)
    if sum(lengths) != student_rows:
        raise ValueError(
            f"lengths must sum to the {student_rows} rows of each view, got {sum(lengths)}"
        )
    divergence = options.divergence
    if tokens is None and divergence.is_sampled:
        raise ValueError(f"divergence {divergence.name!r} needs tokens, the sampled ones")
    if tokens is not None and len(tokens) != student_rows:
        raise ValueError(
            f"tokens must be one for each of the {student_rows} rows of each view, "
            f"got {len(tokens)}"
        )
    return lengths


def divergence_terms(
    target_log_probs: Float[Tensor, "*n v"],
    student_log_probs: Float[Tensor, "*n v"],
    divergence: Divergence,
    tokens: Int[Tensor, "*n"] | None = None,
) -> Float[Tensor, "*n v"]:
    """Terms of the divergence, one a vocabulary entry; the pointwise clip bounds each."""
    log_p, log_q = finite(target_log_probs), finite(student_log_probs)
    terms = divergence.terms(log_p.exp(), log_p, log_q.exp(), log_q)
    if not divergence.is_sampled:
        return terms
    assert tokens is not None
    sampled = torch.arange(log_q.shape[-1], device=log_q.device) == tokens[..., None]
    weight = (sampled * terms).detach()
    # The second term is exactly 0, and its gradient is REINFORCE's: weight × ∇ log q.
    return weight + weight * (log_q - log_q.detach())


def require_slope(divergence: Divergence) -> None:
    """Raise ConfigError for a divergence whose slope is not ∂ term / ∂ log q, by autograd."""
    # One probability of 1/7 to 1 − 7e-7 in P and in Q, of the same entry or another.
    sharp = torch.linspace(0, 16, 33, dtype=torch.float64)
    waves = torch.linspace(-3, 3, 7, dtype=torch.float64)
    peaks = torch.eye(7, dtype=torch.float64)
    log_p = (waves.cos() / 4 + sharp[:, None, None, None] * peaks[0]).log_softmax(-1)
    log_q = (waves.sin() / 4 + sharp[:, None, None] * peaks[:2]).log_softmax(-1)
    log_p, log_q = (x.reshape(-1, 7) for x in torch.broadcast_tensors(log_p, log_q))

    place = f"objective.divergence {divergence.name}"
    with user_errors(place, ConfigError, "correct the divergence"), torch.enable_grad():
        variable = log_q.clone().requires_grad_()
        term = divergence.term(log_p.exp(), log_p.clone(), variable.exp(), variable)
        (expected,) = torch.autograd.grad(term.sum(), variable)
        given = log_p.exp(), log_p.clone(), log_q.exp(), log_q.clone()
        divergence.term(*given)  # both get the same tensors, as in Divergence.evaluate
        slope = divergence.slope(*given)
        is_whole = term.shape == slope.shape == log_q.shape and bool(term.isfinite().all())
        is_derivative = torch.allclose(slope, expected, rtol=1e-6, atol=1e-9)
    if not (is_whole and is_derivative):
        raise ConfigError(
            f"{place}: its slope is not the derivative of its term with respect to log q, or they "
            f"are not one finite number for each entry; correct the divergence"
        )
    if not all(map(torch.equal, given, (log_p.exp(), log_p, log_q.exp(), log_q))):
        raise ConfigError(f"{place}: it changes its arguments, which are not copied")


def finite(log_probs: Float[Tensor, "*n v"]) -> Float[Tensor, "*n v"]:
    """Replace log 0 by the lowest finite number: its exp is still 0, and 0 log 0 is 0, not NaN."""
    return log_probs.clamp(min=torch.finfo(log_probs.dtype).min)


def _length_list(lengths: Lengths) -> list[int]:
    values: list[int] = lengths.tolist() if isinstance(lengths, Tensor) else list(lengths)
    return values
