"""The objective against the paper's equations in float64: values, gradients, and properties."""

import dataclasses
import inspect
import math
from collections.abc import Callable, Sequence
from fractions import Fraction
from itertools import product
from typing import Any, get_args

import pytest
import torch
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.testing import assert_close

import reference_float64
from paint.config.schema import ClipMode, Config, Reduction
from paint.objective.divergences import DIVERGENCES
from paint.objective.fused import fused_paint_loss
from paint.objective.loss import (
    Loss,
    clipped_divergence,
    entropy,
    entropy_ratio,
    interpolate,
    paint_loss,
    select_positions,
    token_log_probs,
    token_weights,
)
from paint.objective.loss_options import PAPER_LOSS, Objective
from paint.resolve.check import check_config

KINDS = [name for name, d in DIVERGENCES.items() if not d.is_sampled]
CLIP_MODES: tuple[ClipMode, ...] = get_args(ClipMode)
REDUCTIONS: tuple[Reduction, ...] = get_args(Reduction)
PAPER: dict[str, Any] = {
    "temperature": 1.1,
    "interpolation_weight": 0.03,
    "top_fraction": 0.03,
    "clip": 0.06,
    "clip_mode": "pointwise",
    "divergence": "forward_kl",
    "reduction": "completion",
}
# Enough interpolation and clipping for a handful of tokens to show both.
BUSY: dict[str, Any] = PAPER | {"interpolation_weight": 0.3, "top_fraction": 0.4}


def views(n: int, v: int = 7, *, seed: int = 0, scale: float = 2.0) -> tuple[Tensor, Tensor]:
    """Student and teacher logits that resemble each other, as two views of one model do."""
    generator = torch.Generator().manual_seed(seed)
    shared, student, teacher = torch.randn(3, n, v, generator=generator, dtype=torch.float64)
    return scale * (shared + student / 2), scale * (shared + teacher / 2)


def awkward_views() -> tuple[Tensor, Tensor]:
    """Peaked, flat, shifted, contradicting and partly ruled-out (−inf) predictions, one a row."""
    out = -math.inf
    rows = [
        ([0.0, 0.0, 0.0, 0.0], [0.0, 0.0, 0.0, 50.0]),
        ([40.0, 0.0, 0.0, 0.0], [40.0, 1.0, 0.0, 0.0]),
        ([40.0, 0.0, 0.0, -3.0], [0.0, 40.0, 0.0, -3.0]),
        ([0.0, 300.0, 0.0, 0.0], [0.0, 0.0, 300.0, 0.0]),
        ([1e4, 1e4 + 1, 1e4 + 2, 1e4], [-1e4, -1e4, 1 - 1e4, -1e4]),
        ([1.0, 2.0, out, 0.5], [1.5, 0.5, out, 0.5]),
        ([out, 2.0, out, out], [out, 1.0, out, out]),
    ]
    student, teacher = torch.tensor(rows, dtype=torch.float64).unbind(1)
    return student, teacher


def student_gradient(loss: Callable[[Tensor], Tensor], student: Tensor) -> Tensor:
    student = student.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(loss(student), student)
    return gradient


def loss_gradient(student: Tensor, teacher: Tensor, lengths: list[int], **options: Any) -> Tensor:
    """The gradient of paint_loss with respect to the student's logits."""
    return student_gradient(lambda z: paint_loss(z, teacher, lengths, **options).value, student)


def exact_loss(
    student: Tensor,
    teacher: Tensor,
    lengths: list[int],
    tokens: Sequence[int] | None = None,
    **options: Any,
) -> reference_float64.Loss:
    """The same loss by the reference in float64 Python."""
    views, exact = (student.tolist(), teacher.tolist()), reference_float64.Options(**options)
    return reference_float64.paint_loss(*views, lengths, exact, tokens)


def assert_is_naive(loss: Loss, expected: reference_float64.Loss) -> None:
    found = {"value": loss.value.detach(), "per_token": loss.per_token} | loss.stats
    wanted = {"value": expected.value, "per_token": expected.per_token} | expected.stats
    assert found.keys() == wanted.keys()
    for name, figures in found.items():
        exact = torch.tensor(wanted[name], dtype=torch.float64)
        assert_close(figures, exact, rtol=1e-8, atol=1e-12, msg=f"{name}: {{}}".format)


@settings(max_examples=100)
@given(
    seed=st.integers(0, 10_000),
    scale=st.sampled_from([0.1, 1.0, 3.0, 8.0]),
    lengths=st.lists(st.integers(0, 6), min_size=1, max_size=4).filter(any),
    temperature=st.sampled_from([0.6, 1.0, 1.1]),
    interpolation_weight=st.sampled_from([0.0, 0.03, 0.5, 1.0]),
    top_fraction=st.sampled_from([0.0, 0.03, 0.34, 0.5, 1.0]),
    clip=st.sampled_from([1e-3, 0.06, 1.0]),
    clip_mode=st.sampled_from(CLIP_MODES),
    divergence=st.sampled_from(KINDS),
    reduction=st.sampled_from(REDUCTIONS),
)
def test_paint_loss_matches_float64_reference(
    seed: int, scale: float, lengths: list[int], **options: Any
) -> None:
    student, teacher = views(sum(lengths), seed=seed, scale=scale)
    expected = exact_loss(student, teacher, lengths, **options)
    assert_is_naive(paint_loss(student, teacher, lengths, **options), expected)


@pytest.mark.parametrize("divergence", KINDS)
@pytest.mark.parametrize("clip_mode", CLIP_MODES)
def test_paint_loss_extreme_logits_match_reference(divergence: str, clip_mode: ClipMode) -> None:
    student, teacher = awkward_views()
    options = BUSY | {"divergence": divergence, "clip_mode": clip_mode}
    expected = exact_loss(student, teacher, [3, 4], **options)
    assert_is_naive(paint_loss(student, teacher, [3, 4], **options), expected)


def test_paint_loss_defaults_match_paper() -> None:
    student, teacher = views(70)
    defaults = paint_loss(student, teacher, [40, 30])
    assert_is_naive(defaults, exact_loss(student, teacher, [40, 30], **PAPER))
    assert torch.split(defaults.stats["selected"], [40, 30])[0].sum() == 2
    assert 0 < defaults.stats["clipped"].mean() < 1


def test_entropy_is_zero_when_certain_and_log_v_when_uniform() -> None:
    rows = [[-math.inf, 0.0, -math.inf, -math.inf], [-math.log(4)] * 4]
    certain, flat = torch.tensor(rows).double()
    assert entropy(certain) == 0
    assert_close(entropy(flat), torch.tensor(math.log(4)).double())


def test_entropy_ratio_of_certain_student_is_finite() -> None:
    teacher, student = torch.tensor([[0.5, 0.5, 0.0], [0.25, 0.0, 0.0]], dtype=torch.float64)
    assert entropy_ratio(teacher, student).tolist() == pytest.approx([2.0, 0.5e30, 0.0])


def test_entropy_ratio_ranks_tiny_entropies() -> None:
    teacher, student = torch.tensor([[1e-9, 1e-7, 1e-26], [1e-12, 1e-8, 1e-29]])
    assert entropy_ratio(teacher, student).tolist() == pytest.approx([1e3, 10.0, 1e3])


def test_interpolate_zero_weight_is_bitwise_teacher() -> None:
    student, teacher = (logits.log_softmax(-1) for logits in awkward_views())
    assert torch.equal(interpolate(teacher, student, 0.0), teacher)


def test_interpolate_disjoint_supports_keep_intersection() -> None:
    teacher = torch.tensor([0.25, 0.75, 0.0, 0.0], dtype=torch.float64).log()
    student = torch.tensor([0.50, 0.00, 0.5, 0.0], dtype=torch.float64).log()
    assert interpolate(teacher, student, 0.5).exp().tolist() == pytest.approx([1, 0, 0, 0])
    assert interpolate(teacher, student, 1.0).exp().tolist() == pytest.approx([0.5, 0, 0.5, 0])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("divergence", KINDS)
@pytest.mark.parametrize("interpolation_weight", [0.0, 0.03, 0.5, 0.97, 1.0])
def test_paint_loss_of_equal_views_is_zero(
    dtype: torch.dtype, divergence: str, interpolation_weight: float
) -> None:
    ruled_out = torch.full((4, 101), -math.inf, dtype=torch.float64)
    logits = torch.cat([views(60, 101, scale=5)[0], ruled_out])
    logits[60:, :5] = torch.arange(20.0).reshape(4, 5)
    logits = logits.to(dtype)
    for clip_mode in CLIP_MODES:
        options: dict[str, Any] = {"clip_mode": clip_mode, "divergence": divergence}
        options |= {"interpolation_weight": interpolation_weight, "top_fraction": 0.5}
        loss = paint_loss(logits, logits.clone(), [50, 14], **options)
        assert loss.value == 0
        assert not loss.per_token.any()
        assert not loss.stats["kl"].any()
        assert not loss.stats["clipped"].any()


def slopes(loss: Callable[[list[list[float]]], float], logits: Tensor) -> Tensor:
    """The loss's gradient by central differences."""
    found, step = torch.zeros_like(logits), 1e-5
    for place in product(*map(range, logits.shape)):
        moved = torch.zeros_like(logits)
        moved[place] = step
        above, below = (loss(x.tolist()) for x in (logits + moved, logits - moved))
        found[place] = (above - below) / (2 * step)
    return found


@pytest.mark.parametrize("clip_mode", CLIP_MODES)
@pytest.mark.parametrize("divergence", KINDS)
@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_paint_loss_gradient_matches_finite_differences_of_reference(
    divergence: str, clip_mode: ClipMode, reduction: Reduction
) -> None:
    student, teacher = views(5, 4, seed=3)
    lengths = [3, 0, 2]
    options = BUSY | {"divergence": divergence, "clip_mode": clip_mode, "clip": 0.1}
    options |= {"reduction": reduction}
    exact = reference_float64.Options(**options)
    target, _ = reference_float64.targets(student.tolist(), teacher.tolist(), lengths, exact)
    expected = slopes(lambda z: reference_float64.rollout_loss(target, z, lengths, exact), student)
    gradient = loss_gradient(student, teacher, lengths, **options)
    assert_close(gradient, expected, rtol=1e-6, atol=1e-9)
    assert gradient.abs().max() > 1e-3


def two_views(seed: int, scale: float, v: int) -> tuple[Tensor, Tensor]:
    """Log-probabilities of a target and a student, from nearly equal to contradicting."""
    generator = torch.Generator().manual_seed(seed)
    shared, teacher, student = torch.randn(3, 1, v, generator=generator, dtype=torch.float64)
    return (shared + scale * teacher).log_softmax(-1), (shared + scale * student).log_softmax(-1)


def divergence_and_gradient(
    target: Tensor, student: Tensor, **options: Any
) -> tuple[Tensor, Tensor]:
    """The divergence of one token, and its gradient with respect to the student's logits."""
    logits = student.clone().requires_grad_()
    value = clipped_divergence(target, logits.log_softmax(-1), **options)
    return value.detach(), torch.autograd.grad(value.sum(), logits)[0]


@settings(max_examples=300)
@given(
    seed=st.integers(0, 10_000),
    scale=st.sampled_from([1e-3, 0.1, 1.0, 3.0, 8.0]),
    v=st.integers(2, 40),
    clip=st.sampled_from([1e-3, 0.06, 0.5]),
    divergence=st.sampled_from(KINDS),
)
def test_huber_clip_points_to_teacher_and_is_bounded(
    seed: int, scale: float, v: int, clip: float, divergence: str
) -> None:
    target, student = two_views(seed, scale, v)
    options: dict[str, Any] = {"clip": clip, "divergence": divergence}
    plain, plain_gradient = divergence_and_gradient(target, student, clip_mode="none", **options)
    assume(plain > 1e-12)  # else rounding decides the sign
    value, gradient = divergence_and_gradient(target, student, clip_mode="huber", **options)

    # The plain divergence's gradient times a positive factor.
    factor = math.sqrt(min(1.0, clip / plain.item()))
    assert_close(gradient, factor * plain_gradient, atol=1e-14, rtol=1e-9)
    # Never 0, nor away from the teacher, along the line from the student's logits to its logits.
    assert (gradient * (target - student)).sum() < 0
    if divergence == "forward_kl":
        p, q = target.exp(), student.exp()
        assert_close(gradient, factor * (q - p), atol=1e-14, rtol=1e-9)
        assert (gradient * (p - q)).sum() < 0
    by_pinsker = math.sqrt(clip / 2)
    most = {
        "forward_kl": by_pinsker,
        "reverse_kl": by_pinsker + math.sqrt(clip * max(plain.item(), clip)),
        "jsd": by_pinsker / 2,
    }
    assert gradient.abs().sum() / 2 <= most[divergence] * (1 + 1e-9)
    assert 0 < value <= plain * (1 + 1e-12)
    if plain <= clip:
        assert torch.equal(value, plain)
        assert torch.equal(gradient, plain_gradient)


def test_pointwise_clip_pushes_away_from_teacher_where_views_differ() -> None:
    """The paper's form reverses: where a likely entry is clipped, descent lowers it further."""
    target = torch.tensor([[0.9, 0.1]], dtype=torch.float64).log()
    student = torch.tensor([[0.7, 0.3]], dtype=torch.float64).log()
    value, gradient = divergence_and_gradient(target, student, clip=0.06, clip_mode="pointwise")
    assert value.item() == pytest.approx(0.06 + 0.1 * math.log(0.1 / 0.3), rel=1e-9)
    assert value.item() < 0
    assert gradient.tolist()[0] == pytest.approx([0.07, -0.07], rel=1e-9)
    assert (gradient * (target - student)).sum() > 0
    _, bounded = divergence_and_gradient(target, student, clip=0.06, clip_mode="huber")
    assert (bounded * (target - student)).sum() < 0


@pytest.mark.parametrize("divergence", KINDS)
def test_paint_loss_target_has_no_gradient(divergence: str) -> None:
    student, teacher = (logits.requires_grad_() for logits in views(6))
    # With interpolation_weight and top fraction 1 the target is the student itself, held fixed:
    # every gradient path through the target would show, and forward KL to oneself has none of its
    # own.
    options: dict[str, Any] = {"top_fraction": 1.0, "divergence": divergence, "clip_mode": "none"}
    loss = paint_loss(student, teacher, [6], interpolation_weight=1.0, **options)
    assert not loss.per_token.requires_grad
    assert not any(figures.requires_grad for figures in loss.stats.values())
    torch.autograd.backward(loss.value)
    assert teacher.grad is None
    assert student.grad is not None
    assert_close(student.grad, torch.zeros_like(student))

    gradient = loss_gradient(student.detach(), teacher, [6], interpolation_weight=0.5, **options)
    log_p, log_q = (logits.detach() / 1.1 for logits in (teacher, student))
    target = ((log_p.log_softmax(-1) + log_q.log_softmax(-1)) / 2).log_softmax(-1)

    def mean_divergence(z: Tensor) -> Tensor:
        log_q = (z / 1.1).log_softmax(-1)
        return clipped_divergence(target, log_q, divergence=divergence, clip_mode="none").mean()

    assert_close(gradient, student_gradient(mean_divergence, student.detach()))


SAMPLED: dict[str, Any] = BUSY | {"divergence": "sampled_token", "clip_mode": "none"}
CLAMPED: dict[str, Any] = SAMPLED | {"clip_mode": "huber", "clip": 0.5}


@settings(max_examples=50)
@given(
    seed=st.integers(0, 10_000),
    scale=st.sampled_from([0.1, 1.0, 8.0]),
    lengths=st.lists(st.integers(0, 6), min_size=1, max_size=4).filter(any),
    temperature=st.sampled_from([0.6, 1.0, 1.1]),
    interpolation_weight=st.sampled_from([0.0, 0.03, 1.0]),
    top_fraction=st.sampled_from([0.0, 0.34, 1.0]),
    reduction=st.sampled_from(REDUCTIONS),
    clip=st.sampled_from([1e-3, 0.06, 1.0]),
    clip_mode=st.sampled_from(["huber", "none"]),
)
def test_sampled_token_loss_matches_float64_reference(
    seed: int, scale: float, lengths: list[int], **options: Any
) -> None:
    student, teacher = views(sum(lengths), seed=seed, scale=scale)
    tokens = torch.randint(7, (len(student),), generator=torch.Generator().manual_seed(seed))
    loss = paint_loss(student, teacher, lengths, **SAMPLED | options, tokens=tokens)
    assert_close(loss.stats.pop("student_log_prob"), token_log_probs(student, tokens))
    assert_close(loss.stats.pop("teacher_log_prob"), token_log_probs(teacher, tokens))
    expected = exact_loss(student, teacher, lengths, tokens.tolist(), **SAMPLED | options)
    assert_is_naive(loss, expected)
    bound = options["clip"] if options["clip_mode"] == "huber" else math.inf
    assert_close(loss.per_token, loss.stats["kl"].clamp(-bound, bound))
    assert torch.equal(loss.stats["clipped"], (loss.stats["kl"].abs() > bound).double())


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("sampled", [SAMPLED, CLAMPED], ids=["plain", "clamped"])
def test_sampled_token_gradient_is_policy_gradient(
    reduction: Reduction, sampled: dict[str, Any]
) -> None:
    student, teacher = views(5, 4, seed=3)
    lengths, tokens = [3, 0, 2], [1, 3, 0, 0, 2]
    options = sampled | {"reduction": reduction}
    exact = reference_float64.Options(**options)
    target, _ = reference_float64.targets(student.tolist(), teacher.tolist(), lengths, exact)
    advantages = [
        reference_float64.energies(z, options["temperature"])[token] - target[n][token]
        for n, (z, token) in enumerate(zip(student.tolist(), tokens, strict=True))
    ]
    assert min(advantages) < -0.5 < 0.1 < max(advantages)
    if options["clip_mode"] == "huber":
        advantages = [max(-0.5, min(advantage, 0.5)) for advantage in advantages]

    expected = slopes(
        lambda z: reference_float64.policy_loss(advantages, z, lengths, tokens, exact), student
    )
    teacher.requires_grad_()
    gradient = loss_gradient(student, teacher, lengths, **options, tokens=torch.tensor(tokens))
    assert_close(gradient, expected, rtol=1e-6, atol=1e-9)
    assert gradient.abs().max() > 1e-2
    assert teacher.grad is None


def test_sampled_token_gradient_in_expectation_is_reverse_kl() -> None:
    student, teacher = views(12, 7)
    lengths = [8, 4]
    q = (student / SAMPLED["temperature"]).softmax(-1)
    mean_gradient, mean_per_token = torch.zeros_like(student), torch.zeros(12, dtype=torch.float64)
    negative = False
    for v in range(7):
        tokens = torch.full((12,), v)
        loss = paint_loss(student, teacher, lengths, **SAMPLED, tokens=tokens)
        gradient = loss_gradient(student, teacher, lengths, **SAMPLED, tokens=tokens)
        mean_gradient += q[:, v, None] * gradient
        mean_per_token += q[:, v] * loss.per_token
        negative |= bool((loss.per_token < 0).any())
    assert negative

    full = SAMPLED | {"divergence": "reverse_kl"}
    assert_close(mean_per_token, paint_loss(student, teacher, lengths, **full).per_token)
    assert_close(mean_gradient, loss_gradient(student, teacher, lengths, **full))


@settings(max_examples=50)
@given(
    seed=st.integers(0, 10_000),
    scale=st.sampled_from([0.1, 1.0, 3.0]),
    clip=st.sampled_from([1e-3, 0.06, 1.0]),
)
def test_sampled_token_clamp_in_expectation_points_to_teacher(
    seed: int, scale: float, clip: float
) -> None:
    """By the student's own measure: the mean gradient is q times what lowers the log-ratio."""
    student, teacher = views(1, seed=seed, scale=scale)
    options = SAMPLED | {"interpolation_weight": 0.0, "clip_mode": "huber", "clip": clip}
    temperature = options["temperature"]
    q = (student / temperature).softmax(-1)
    ratio = (student / temperature).log_softmax(-1) - (teacher / temperature).log_softmax(-1)
    mean_gradient = torch.zeros_like(student)
    for v in range(student.shape[-1]):
        token = torch.tensor([v])
        mean_gradient += q[:, v] * loss_gradient(student, teacher, [1], **options, tokens=token)

    bounded = ratio.clamp(-clip, clip)
    expected = q * (bounded - (q * bounded).sum()) / temperature
    assert_close(mean_gradient, expected, atol=1e-14, rtol=1e-9)
    assert (mean_gradient * -ratio).sum() < 0
    assert mean_gradient.abs().sum() <= 2 * clip / temperature


@pytest.mark.parametrize("divergence", KINDS)
@pytest.mark.parametrize("clip_mode", CLIP_MODES)
def test_paint_loss_masked_entries_have_no_gradient(divergence: str, clip_mode: ClipMode) -> None:
    options = BUSY | {"divergence": divergence, "clip_mode": clip_mode}
    plain, masked = views(8), torch.full((8, 3), -math.inf, dtype=torch.float64)
    student, teacher = (torch.cat([logits, masked], dim=1) for logits in plain)
    gradient = loss_gradient(student, teacher, [5, 3], **options)
    assert_close(gradient[:, :7], loss_gradient(*plain, [5, 3], **options))
    assert not gradient[:, 7:].any()


@pytest.mark.parametrize("divergence", KINDS)
def test_paint_loss_entries_masked_in_one_view_stay_finite(divergence: str) -> None:
    options = BUSY | {"divergence": divergence}
    student, teacher = views(8)
    student[::2, 1] = -math.inf
    teacher[:, 4] = -math.inf
    expected = exact_loss(student, teacher, [5, 3], **options)
    loss = paint_loss(student, teacher, [5, 3], **options)
    assert_close(loss.per_token, torch.tensor(expected.per_token, dtype=torch.float64))
    assert loss_gradient(student, teacher, [5, 3], **options).isfinite().all()


def test_log_prob_functions_have_no_nan_gradient_at_zero_probability() -> None:
    teacher = torch.tensor([0.25, 0.75, 0.0, 0.0], dtype=torch.float64).log().requires_grad_()
    student = torch.tensor([0.50, 0.25, 0.0, 0.25], dtype=torch.float64).log().requires_grad_()
    results = [entropy(teacher), interpolate(teacher, student, 0.3).exp().sum()]
    results += [clipped_divergence(teacher, student, divergence=divergence) for divergence in KINDS]
    for result in results:
        for gradient in torch.autograd.grad(result, (teacher, student), allow_unused=True):
            assert gradient is None or gradient.isfinite().all()


@given(thousandths=st.integers(0, 1000), n=st.integers(0, 300))
@example(thousandths=30, n=100)
@example(thousandths=70, n=100)
@example(thousandths=290, n=100)
@example(thousandths=30, n=1024)
def test_select_positions_takes_ceiling_of_fraction(thousandths: int, n: int) -> None:
    selected = select_positions(torch.arange(float(n)), thousandths / 1000)
    budget = math.ceil(Fraction(thousandths, 1000) * n)
    assert selected.tolist() == [False] * (n - budget) + [True] * budget


@given(
    ratios=st.lists(st.sampled_from([0.0, 0.5, 1.0, 2.0, 5e5]), max_size=40),
    top_fraction=st.sampled_from([0.0, 0.03, 0.1, 0.5, 0.9, 1.0]),
)
def test_select_positions_ties_prefer_earliest(ratios: list[float], top_fraction: float) -> None:
    selected = select_positions(torch.tensor(ratios, dtype=torch.float64), top_fraction)
    assert selected.tolist() == reference_float64.select(ratios, top_fraction)


def test_token_weights_count_empty_completions() -> None:
    assert token_weights([1, 0, 2, 0]).tolist() == [1 / 4, 1 / 8, 1 / 8]
    assert token_weights(torch.tensor([1, 0, 2, 0]), reduction="token").tolist() == [1 / 3] * 3
    assert token_weights([0, 0], reduction="token").tolist() == []


def test_token_weights_skip_first_tokens() -> None:
    assert token_weights([3, 1, 2], skip_tokens=1).tolist() == [0, 1 / 6, 1 / 6, 0, 0, 1 / 3]
    by_token = token_weights([3, 1, 2], reduction="token", skip_tokens=1)
    assert by_token.tolist() == [0, 1 / 3, 1 / 3, 0, 0, 1 / 3]
    assert token_weights([2, 1], reduction="token", skip_tokens=5).tolist() == [0, 0, 0]


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("chunk_tokens", [None, 3, 100])
def test_paint_loss_skip_tokens_is_of_rest(reduction: Reduction, chunk_tokens: int | None) -> None:
    """Values, selection and gradients; the first tokens have statistics and no gradient."""
    lengths, skip = [7, 1, 0, 9], 2
    kept = torch.cat([torch.arange(n) >= skip for n in lengths])
    student, teacher = views(17)
    options = BUSY | {"reduction": reduction}

    def loss(rows: Tensor, lengths: list[int], skip_tokens: int) -> tuple[Loss, Tensor]:
        states = student[rows].clone().requires_grad_()
        identity = torch.eye(states.shape[1], dtype=states.dtype)
        asked = options | {"skip_tokens": skip_tokens}
        if chunk_tokens is None:
            made = paint_loss(states, teacher[rows], lengths, **asked)
        else:
            asked |= {"chunk_tokens": chunk_tokens}
            made = fused_paint_loss(states, teacher[rows], identity, lengths, **asked)
        made.value.backward()
        assert states.grad is not None
        return made, states.grad

    whole, gradient = loss(torch.arange(17), lengths, skip)
    rest, rest_gradient = loss(kept.nonzero()[:, 0], [max(n - skip, 0) for n in lengths], 0)
    assert_close(whole.value, rest.value)
    assert_close(gradient[kept], rest_gradient)
    assert not gradient[~kept].any()
    assert not whole.stats["selected"][~kept].any()
    for name, values in rest.stats.items():
        assert_close(whole.stats[name][kept], values)
    assert whole.stats["kl"][~kept].all()


@pytest.mark.parametrize("lengths", [[], [0, 0]])
def test_paint_loss_without_tokens_is_zero_and_differentiable(lengths: list[int]) -> None:
    student = torch.zeros(0, 7, requires_grad=True)
    loss = paint_loss(student, torch.zeros(0, 7), lengths)
    torch.autograd.backward(loss.value)
    assert loss.value == 0
    assert student.grad is not None
    assert student.grad.shape == (0, 7)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_paint_loss_half_precision_is_computed_in_float32(dtype: torch.dtype) -> None:
    half = [logits.to(dtype) for logits in views(50, 300)]
    single = [logits.float() for logits in half]
    found, expected = (paint_loss(s, t, [30, 20], **BUSY) for s, t in (half, single))
    assert torch.equal(found.value, expected.value)
    for name, figures in expected.stats.items():
        assert figures.dtype == torch.float32
        assert torch.equal(found.stats[name], figures)
    gradients = [loss_gradient(s, t, [30, 20], **BUSY) for s, t in (half, single)]
    assert torch.equal(gradients[0], gradients[1].to(dtype))


def test_paint_loss_float32_is_close_to_float64() -> None:
    student, teacher = (logits.float() for logits in views(50, 300))
    single = paint_loss(student, teacher, [30, 20], **BUSY)
    double = paint_loss(student.double(), teacher.double(), [30, 20], **BUSY)
    assert double.value.dtype == torch.float64
    assert_close(single.per_token.double(), double.per_token, rtol=1e-5, atol=2e-6)


# Errors. As users run it: the tests' shape checker would object first, in words of its own.


STUDENT, TEACHER = views(6)
WRONG: Any = "beta"  # no choice of any option


def loss_of(teacher: Tensor = TEACHER, lengths: Any = (6,), **options: Any) -> Callable[[], Loss]:
    return lambda: paint_loss(STUDENT, teacher, lengths, **options)


SAMPLED_ONLY: dict[str, Any] = {"divergence": "sampled_token"}


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (loss_of(TEACHER[:, :5]), "share one vocabulary: .* 7 entries, .* 5"),
        (loss_of(TEACHER[:4]), "same tokens: student has 6 rows, teacher 4"),
        (loss_of(lengths=[3, 2]), "sum to the 6 rows of each view, got 5"),
        (loss_of(clip=0.0), "clip must be above 0, got 0.0"),
        (
            loss_of(**SAMPLED_ONLY, tokens=torch.arange(6)),
            'must be "huber" or "none" .*, got "pointwise"',
        ),
        (loss_of(**SAMPLED_ONLY, clip_mode="none"), "divergence 'sampled_token' needs tokens"),
        (lambda: clipped_divergence(STUDENT, TEACHER, **SAMPLED_ONLY, clip_mode="none"), "sampled"),
        (loss_of(reduction=WRONG), 'reduction must be one of .* got "beta"'),
    ],
)
@pytest.mark.usefixtures("unchecked")
def test_objective_invalid_arguments_are_refused(call: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()


def test_loss_defaults_match_objective_config() -> None:
    assert check_config(Config()).objective == Objective()
    # Of the settings, the clip alone is not the paper's.
    assert dataclasses.replace(Objective(), clip_mode="pointwise") == PAPER_LOSS
    record = dataclasses.asdict(PAPER_LOSS) | {"divergence": PAPER_LOSS.divergence.name}
    defaults = inspect.signature(clipped_divergence).parameters
    names = ("divergence", "clip", "clip_mode")
    assert all(defaults[name].default == record[name] for name in names)
    assert inspect.signature(token_weights).parameters["reduction"].default == record["reduction"]


def test_objective_temperature_defaults_to_rollout_temperature() -> None:
    cooler = Config().changed("rollout", temperature=0.7)
    assert check_config(cooler).objective == dataclasses.replace(Objective(), temperature=0.7)
    own = cooler.changed("objective", temperature=1.3)
    assert check_config(own).objective == dataclasses.replace(Objective(), temperature=1.3)


@pytest.mark.parametrize("temperature", [1.0, 1.1, 0.3])
def test_token_log_probs_match_float64_reference(temperature: float) -> None:
    logits, _ = views(5)
    tokens = torch.tensor([0, 6, 3, 3, 1])
    found = token_log_probs(logits, tokens, temperature=temperature)
    expected = [
        -reference_float64.energies(row, temperature)[token]
        for row, token in zip(logits.tolist(), tokens.tolist(), strict=True)
    ]
    assert_close(found, torch.tensor(expected, dtype=torch.float64))
