"""Triton kernels of the fused loss: two passes over the logits, one program per token.

    measure         one pass over a view's logits: normalisation, entropy, log-probability of the
                    sampled token
    differentiate   two passes over both views' logits: the loss and its statistics, then dD/dz in
                    place; for selected tokens, an additional first pass normalises the interpolated
                    target

With logits in float32, a token moves 7 v floats in all. Each lane accumulates v / BLOCK terms in
the logits' dtype: more exact than one running sum, and one reduction between threads a row.
"""

from typing import no_type_check

import torch
import triton
import triton.language as tl
from torch import Tensor

from paint.objective.loss_options import Objective

# At 1,024 entries a block, a multiprocessor of an H100 holds 48 or more warps of either kernel; at
# 2,048, 24 to 32, by the registers of the compiled kernels. Which is faster is for a GPU to say, as
# is pipelining the loads in more than one stage.
BLOCK, WARPS, STAGES = 1024, 8, 1
# Replaces log 0: still 0 as a probability at any temperature, and finite, so that 0 log 0 is 0.
LOWEST = tl.constexpr(-1e30)


def measure(logits: Tensor, tokens: Tensor | None, temperature: float) -> dict[str, Tensor]:
    """As paint.objective.fused.measure; the logits (r v) stay.

    highest and log_sum normalise a row for differentiate: log p = (z − highest) / T − log_sum.
    """
    rows, vocabulary = logits.shape
    metrics = {
        name: logits.new_empty(rows) for name in ("highest", "log_sum", "entropy", "log_prob")
    }
    if rows:
        _measure[(rows,)](
            logits,
            logits.stride(0),
            tokens,
            *metrics.values(),
            vocabulary,
            TEMPERATURE=temperature,
            SAMPLED=tokens is not None,
            BLOCK=BLOCK,
            STAGES=STAGES,
            num_warps=WARPS,
        )
    if tokens is None:
        del metrics["log_prob"]
    return metrics


def differentiate(
    student: Tensor,
    teacher: Tensor,
    student_view: dict[str, Tensor],
    teacher_view: dict[str, Tensor],
    selected: Tensor,
    tokens: Tensor | None,
    slope: Tensor | None,
    options: Objective,
) -> dict[str, Tensor]:
    """As paint.objective.fused.differentiate, from both views' logits (r v), which stay."""
    rows, vocabulary = student.shape
    metrics = {
        name: student.new_empty(rows) for name in ("per_token", "kl", "clipped", "unclipped_mass")
    }
    if rows:
        _differentiate[(rows,)](
            student,
            teacher,
            slope,
            student.stride(0),
            teacher.stride(0),
            slope.stride(0) if slope is not None else 0,
            student_view["highest"],
            student_view["log_sum"],
            teacher_view["highest"],
            teacher_view["log_sum"],
            selected,
            tokens,
            *metrics.values(),
            vocabulary,
            TEMPERATURE=options.temperature,
            MIX=options.interpolation_weight,
            CLIP=options.clip,
            KIND=options.divergence.name,
            CLIP_MODE=options.clip_mode,
            GRADIENT=slope is not None,
            BLOCK=BLOCK,
            STAGES=STAGES,
            num_warps=WARPS,
        )
    return metrics


def build(device: torch.device) -> None:
    """Build both kernels and run them on one row; raises what Triton, compiler and driver raise."""
    # At its first launch, Triton needs a C compiler and Python's headers.
    row, selected = torch.zeros(1, 2, device=device), torch.ones(1, dtype=torch.bool, device=device)
    view = measure(row, None, 1.0)
    differentiate(row, row, view, view, selected, None, row, Objective(temperature=1.0))


@triton.jit
@no_type_check
def _measure(
    logits,
    stride,
    tokens,
    highest_out,
    log_sum_out,
    entropy_out,
    log_prob_out,
    vocabulary,
    TEMPERATURE: tl.constexpr,
    SAMPLED: tl.constexpr,
    BLOCK: tl.constexpr,
    STAGES: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    logits += row * stride
    dtype = logits.dtype.element_ty

    # With d = (z − highest) / T: mass is Σ exp(d), moment is Σ exp(d) d, and
    # H = log mass − moment / mass. Both are rescaled when the highest logit so far rises. Entries
    # equal to it are counted separately: added to 1, the mass of the others would be rounded away.
    highest = tl.full((), LOWEST, dtype)
    tops = tl.zeros((BLOCK,), dtype)
    others = tl.zeros((BLOCK,), dtype)
    moment = tl.zeros((BLOCK,), dtype)
    mass_at_1 = tl.zeros((BLOCK,), dtype)
    for start in tl.range(0, vocabulary, BLOCK, num_stages=STAGES):
        z = _load(logits, start, vocabulary, BLOCK)
        higher = tl.maximum(highest, tl.max(z))
        rise = (higher - highest) * (1 / TEMPERATURE)
        highest = higher
        if rise > 0:
            moment = tl.exp(-rise) * (moment - rise * (others + tops))
            others = tl.exp(-rise) * (others + tops)
            tops = tl.zeros_like(tops)
            if SAMPLED:
                mass_at_1 *= tl.exp(-rise * TEMPERATURE)

        d = (z - highest) * (1 / TEMPERATURE)
        moment += tl.exp(d) * d
        others += tl.where(d < 0, tl.exp(d), 0.0)
        tops += tl.where(d < 0, 0.0, 1.0)
        if SAMPLED:
            mass_at_1 += tl.exp(z - highest)

    count, rest = tl.sum(tops), tl.sum(others)
    log_sum = tl.log(count) + _log1p(rest / count)
    tl.store(highest_out + row, highest)
    tl.store(log_sum_out + row, log_sum)
    tl.store(entropy_out + row, log_sum - tl.sum(moment) / (count + rest))
    if SAMPLED:
        z = tl.load(logits + tl.load(tokens + row))
        tl.store(log_prob_out + row, z - highest - tl.log(tl.sum(mass_at_1)))


@triton.jit
@no_type_check
def _differentiate(
    student,
    teacher,
    slope,
    student_stride,
    teacher_stride,
    slope_stride,
    student_highest,
    student_log_sum,
    teacher_highest,
    teacher_log_sum,
    selected,
    tokens,
    per_token_out,
    kl_out,
    clipped_out,
    unclipped_mass_out,
    vocabulary,
    TEMPERATURE: tl.constexpr,
    MIX: tl.constexpr,
    CLIP: tl.constexpr,
    KIND: tl.constexpr,
    CLIP_MODE: tl.constexpr,
    GRADIENT: tl.constexpr,
    BLOCK: tl.constexpr,
    STAGES: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    student += row * student_stride
    teacher += row * teacher_stride
    dtype = student.dtype.element_ty
    highest_q, log_sum_q = tl.load(student_highest + row), tl.load(student_log_sum + row)
    highest_p, log_sum_p = tl.load(teacher_highest + row), tl.load(teacher_log_sum + row)

    token = tl.full((), -1, tl.int64)
    if KIND == "sampled_token":
        token = tl.load(tokens + row)

    log_z = tl.full((), 0.0, dtype)
    chosen = tl.load(selected + row) & (MIX > 0)
    if chosen:
        # The teacher's log Z is 0 up to rounding. Subtracting it as well makes equal views exact.
        highest = tl.full((), LOWEST, dtype)
        own_highest = tl.full((), LOWEST, dtype)
        mass = tl.zeros((BLOCK,), dtype)
        own_mass = tl.zeros((BLOCK,), dtype)

        for start in tl.range(0, vocabulary, BLOCK, num_stages=STAGES):
            log_p = _log_probs(teacher, start, vocabulary, highest_p, log_sum_p, TEMPERATURE, BLOCK)
            log_q = _log_probs(student, start, vocabulary, highest_q, log_sum_q, TEMPERATURE, BLOCK)
            highest, mass = _add_exp(highest, mass, _lerp(log_p, log_q, MIX))
            own_highest, own_mass = _add_exp(own_highest, own_mass, log_p)
        log_z = highest + tl.log(tl.sum(mass)) - (own_highest + tl.log(tl.sum(own_mass)))

    # First pass: the loss and its statistics, and Σ g over the unclipped entries.
    clip = tl.full((), CLIP, dtype)  # a Python constant would be rounded to float32
    clipped_sum = tl.zeros((BLOCK,), dtype)
    plain_sum = tl.zeros((BLOCK,), dtype)
    kept_mass = tl.zeros((BLOCK,), dtype)
    kept_g = tl.zeros((BLOCK,), dtype)
    cut = tl.zeros((BLOCK,), dtype)

    for start in tl.range(0, vocabulary, BLOCK, num_stages=STAGES):
        log_p = _log_probs(teacher, start, vocabulary, highest_p, log_sum_p, TEMPERATURE, BLOCK)
        log_q = _log_probs(student, start, vocabulary, highest_q, log_sum_q, TEMPERATURE, BLOCK)
        if chosen:
            log_p = _lerp(log_p, log_q, MIX) - log_z

        summand, g = _summand(log_p, log_q, start + tl.arange(0, BLOCK) == token, KIND)
        plain_sum += summand
        if CLIP_MODE == "pointwise":
            kept = summand <= CLIP
            clipped_sum += tl.minimum(summand, clip)
            kept_mass += tl.where(kept, tl.exp(log_p), 0.0)
            kept_g += tl.where(kept, g, 0.0)
            cut = tl.maximum(cut, tl.where(kept, 0.0, 1.0))
        else:
            kept_mass += tl.exp(log_p)
            kept_g += g

    plain = tl.sum(plain_sum)
    if CLIP_MODE == "pointwise":
        per_token = tl.sum(clipped_sum)
        factor = tl.full((), 1.0, dtype)
        clipped = tl.max(cut)
    elif CLIP_MODE == "huber" and KIND == "sampled_token":
        factor = clip / tl.maximum(tl.abs(plain), clip)
        per_token = plain * factor
        clipped = tl.where(tl.abs(plain) <= clip, 0.0, 1.0)
    elif CLIP_MODE == "huber":
        most = tl.maximum(plain, clip)
        factor = tl.sqrt(clip / most)
        per_token = tl.where(plain <= clip, plain, 2 * tl.sqrt(clip * most) - clip)
        clipped = tl.where(plain <= clip, 0.0, 1.0)
    elif CLIP_MODE == "token":
        per_token = tl.minimum(plain, clip)
        factor = tl.where(plain <= CLIP, 1.0, 0.0).to(dtype)
        clipped = tl.where(plain <= CLIP, 0.0, 1.0)
    else:
        per_token = plain
        factor = tl.full((), 1.0, dtype)
        clipped = 0.0

    g_sum = tl.sum(kept_g)
    tl.store(per_token_out + row, per_token)
    tl.store(kl_out + row, plain)
    tl.store(clipped_out + row, clipped)
    tl.store(unclipped_mass_out + row, factor * tl.sum(kept_mass))

    # Second pass: dD/dz_i = factor (g_i [i ∈ A] − q_i Σ_{v∈A} g_v) / T.
    if GRADIENT:
        slope += row * slope_stride
        for start in tl.range(0, vocabulary, BLOCK, num_stages=STAGES):
            log_p = _log_probs(teacher, start, vocabulary, highest_p, log_sum_p, TEMPERATURE, BLOCK)
            log_q = _log_probs(student, start, vocabulary, highest_q, log_sum_q, TEMPERATURE, BLOCK)
            if chosen:
                log_p = _lerp(log_p, log_q, MIX) - log_z

            entries = start + tl.arange(0, BLOCK)
            summand, g = _summand(log_p, log_q, entries == token, KIND)
            if CLIP_MODE == "pointwise":
                g = tl.where(summand <= CLIP, g, 0.0)

            dz = factor * (g - tl.exp(log_q) * g_sum) / TEMPERATURE
            tl.store(slope + entries, dz, mask=entries < vocabulary)


@triton.jit
@no_type_check
def _log_probs(
    logits, start, vocabulary, highest, log_sum, TEMPERATURE: tl.constexpr, BLOCK: tl.constexpr
):
    # Subtract before dividing: the difference of logits is exact, their quotients are not.
    return (_load(logits, start, vocabulary, BLOCK) - highest) * (1 / TEMPERATURE) - log_sum


@triton.jit
@no_type_check
def _load(logits, start, vocabulary, BLOCK: tl.constexpr):
    """Load a block of logits, with log 0 in the lanes beyond the vocabulary."""
    entries = start + tl.arange(0, BLOCK)
    return tl.maximum(tl.load(logits + entries, mask=entries < vocabulary, other=LOWEST), LOWEST)


@triton.jit
@no_type_check
def _add_exp(highest, mass, x):
    """Update a lane-wise running Σ exp(x − highest), rescaled when the highest rises."""
    higher = tl.maximum(highest, tl.max(x))
    return higher, tl.exp(highest - higher) * mass + tl.exp(x - higher)


@triton.jit
@no_type_check
def _lerp(a, b, MIX: tl.constexpr):
    """(1 − k) a + k b: exactly a where a = b, at k = 0, and exactly b at k = 1."""
    return a + MIX * (b - a) if MIX < 0.5 else b - (1 - MIX) * (b - a)


@triton.jit
@no_type_check
def _summand(log_p, log_q, sampled, KIND: tl.constexpr):
    if KIND == "forward_kl":
        p = tl.exp(log_p)
        summand, g = p * (log_p - log_q), -p
    elif KIND == "reverse_kl":
        q = tl.exp(log_q)
        summand = q * (log_q - log_p)
        g = summand + q
    elif KIND == "sampled_token":
        # Held fixed as the weight of a policy gradient at the sampled token.
        summand = tl.where(sampled, log_q - log_p, 0.0)
        g = summand
    else:
        tl.static_assert(KIND == "jsd")
        log_m = tl.maximum(log_p, log_q) + _log_mean_exp(-tl.abs(log_p - log_q))
        q_term = tl.exp(log_q) * (log_q - log_m) / 2
        summand, g = tl.exp(log_p) * (log_p - log_m) / 2 + q_term, q_term
    return summand, g


@triton.jit
@no_type_check
def _log1p(x):
    """log (1 + x) of x ≥ 0."""
    # A series near 0, where 1 + x would be rounded.
    close = tl.minimum(x, 1e-3)
    near = close * (1 - close * (1 / 2 - close * (1 / 3 - close * (1 / 4 - close / 5))))
    return tl.where(x < 1e-3, near, tl.log(1 + x))


@triton.jit
@no_type_check
def _log_mean_exp(x):
    """log ½ (1 + exp x) of x ≤ 0."""
    # A series near 0: a GPU's fast log has a large relative error near log 1.
    close = tl.maximum(x, -0.25)
    y = close * close
    near = close / 2 + y * (1 / 8 - y * (1 / 192 - y * (1 / 2880 - y * (17 / 645120))))
    return tl.where(x > -0.25, near, tl.log((1 + tl.exp(x)) / 2))
