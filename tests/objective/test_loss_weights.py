"""Weights of completions by their verdicts and of tokens by their figures, in the loss."""

import math
from typing import Any

import pytest
import torch

from paint import ConfigError
from paint.core.plugins import spec_of
from paint.objective.fused import fused_paint_loss
from paint.objective.loss import paint_loss
from paint.objective.options import Impl, Objective
from paint.objective.weights import find_position_weights, position_factors, verdict_weights

VERDICTS, LENGTHS = [True, False, False], [5, 3, 1]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, [1, 1, 1]),
        ({"wrong_weight": 0}, [3, 0, 0]),
        ({"correct_weight": 2}, [1.5, 0.75, 0.75]),
        # 4, 2 and 0 tokens count behind the first: Σ v c = 10, Σ c = 6.
        ({"correct_weight": 2, "reduction": "token", "skip_tokens": 1}, [1.2, 0.6, 0.6]),
        ({"wrong_weight": 0, "reduction": "token", "skip_tokens": 5}, [0, 0, 0]),
    ],
)
def test_verdict_weights_have_mean_one(options: dict[str, Any], expected: list[float]) -> None:
    found = verdict_weights(VERDICTS, LENGTHS, Objective(**options))
    assert found == pytest.approx(expected)


@pytest.mark.parametrize("impl", ["reference", "chunked", "triton"])
def test_loss_factors_weigh_values_and_gradients(impl: Impl) -> None:
    """Beside Σ_i 1/(b |y_i|) Σ_n f_n Σ_v min(p (log p − log q), τ), with a head that is trained."""
    generator = torch.Generator().manual_seed(0)
    student, teacher, head = (
        torch.randn(n, 6, generator=generator, dtype=torch.float64) for n in (9, 9, 40)
    )
    factors = torch.tensor([1.5, 0, 2, 1, 0.5, 0, 0, 0, 3], dtype=torch.float64)
    inputs = student.requires_grad_(), head.requires_grad_()

    log_p = (teacher @ head.detach().T / 1.1).log_softmax(-1)
    log_q = (student @ head.T / 1.1).log_softmax(-1)
    per_token = factors * (log_p.exp() * (log_p - log_q)).clamp(max=0.06).sum(-1)
    value = sum((part.mean() for part in per_token.split(LENGTHS)), torch.zeros(())) / 3
    expected = value, per_token, *torch.autograd.grad(value, inputs)

    options: dict[str, Any] = {"factors": factors, "top_fraction": 0.0, "interpolation_weight": 0.0}
    if impl == "reference":
        logits = student @ head.T, teacher @ head.T
        loss = paint_loss(*logits, LENGTHS, **options)
    else:  # in chunks of four, which the first completion exceeds
        options |= {"impl": impl, "chunk_tokens": 4}
        loss = fused_paint_loss(student, teacher, head, LENGTHS, **options)
    found = loss.value, loss.per_token, *torch.autograd.grad(loss.value, inputs)
    for mine, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("impl", ["reference", "chunked", "triton"])
@pytest.mark.parametrize("name", ["entropy_gap", "answer", "extensions.late:late"])
def test_loss_position_weights_match_weighted_formula(impl: Impl, name: str) -> None:
    """Beside Σ_i 1/(b |y_i|) Σ_n w_n D_n / mean w, without the first token; w held fixed."""
    lengths = [7, 3, 1, 0]
    pieces = [b"So", b" ", b"\\boxed", b"{", b"42", b"}", b".", b"x", b"\\boxed{", b"7", b"y"]
    is_answer = torch.tensor([0, 0, 1, 1, 1, 1, 0, 0, 1, 1, 0], dtype=torch.float64)
    generator = torch.Generator().manual_seed(1)
    student, teacher, head = (
        torch.randn(n, 6, generator=generator, dtype=torch.float64) for n in (11, 11, 40)
    )
    inputs = student.requires_grad_(), head.requires_grad_()
    log_p = (teacher @ head.detach().T).log_softmax(-1)
    log_q = (student @ head.T).log_softmax(-1)
    kl = (log_p.exp() * (log_p - log_q)).sum(-1)
    gap = ((log_p.exp() * log_p).sum(-1) - (log_q.exp() * log_q).sum(-1)).abs().detach()
    value = torch.zeros((), dtype=torch.float64)
    late = torch.cat([(torch.arange(n) >= n // 2).double() for n in lengths])
    by_name = {"entropy_gap": gap, "answer": is_answer, "extensions.late:late": late}
    for losses, weights in zip(kl.split(lengths), by_name[name].split(lengths), strict=True):
        n = len(losses)
        if n > 1:
            value = value + (weights * losses)[1:].sum() / weights[1:].sum().clamp(min=1e-9) / 4
    expected = value, *torch.autograd.grad(value, inputs)

    plain: dict[str, Any] = {"interpolation_weight": 0.0, "clip_mode": "none", "temperature": 1.0}
    options = Objective(position_weights=name, skip_tokens=1, impl=impl, **plain)
    loss = fused_paint_loss(student, teacher, head, lengths, options, pieces=pieces, chunk_tokens=4)
    found = loss.value, *torch.autograd.grad(loss.value, inputs)
    for mine, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-10, atol=1e-10)


def test_position_factors_of_equal_views_are_zero_and_multiply_others() -> None:
    options = Objective(position_weights="entropy_gap")
    student, teacher = torch.tensor([1.0, 2, 3, 4]), torch.tensor([1.0, 2, 4, 7])
    stats = {"student_entropy": student, "teacher_entropy": teacher}
    found = position_factors(stats, [2, 2], options, torch.tensor([1.0, 1, 2, 2]))
    assert found is not None
    assert found.tolist() == [0, 0, 1, 3]
    assert position_factors(stats, [2, 2], Objective()) is None


def test_position_weights_unknown_or_without_pieces_are_refused() -> None:
    with pytest.raises(ConfigError, match="uniform, entropy_gap, answer, or module:name"):
        find_position_weights("gap")
    with pytest.raises(ConfigError, match="answer needs pieces"):
        paint_loss(torch.zeros(1, 4), torch.zeros(1, 4), [1], position_weights="answer")
    with pytest.raises(ConfigError, match="not a function"):
        find_position_weights(f"{__name__}:LENGTHS")


OF_ONES_OWN: dict[str, tuple[Any, str]] = {
    "negative": (lambda stats: stats["kl"] * 0 - 0.9, "negative"),
    "alternating": (lambda stats: (stats["kl"] * 0 - 1).cumprod(0), "negative"),
    "nan": (lambda stats: stats["kl"] * math.nan, "not finite"),
    "huge": (lambda stats: stats["kl"] * 0 + 1e38, "too large to sum"),
    "short": (lambda stats: stats["kl"][1:], r"shape \(11,\), not \(12,\)"),
    "table": (lambda stats: stats["kl"][:, None], r"shape \(12, 1\)"),
    "list": (lambda stats: stats["kl"].tolist(), "not a tensor"),
    "nothing": (lambda stats: None, "returned None, not a tensor"),
    "unknown": (lambda stats: stats["entropy"], "KeyError: 'entropy'"),
}


@pytest.mark.parametrize("case", OF_ONES_OWN)
def test_position_factors_invalid_weights_are_refused_by_name(case: str) -> None:
    function, message = OF_ONES_OWN[case]
    name = spec_of(function, "mine", module="weights_of_mine")
    options = Objective(position_weights=name)
    with pytest.raises(ConfigError, match=f"objective.position_weights {name}.*{message}"):
        position_factors({"kl": torch.ones(12)}, [12], options)


def test_position_factors_take_marks_as_weights() -> None:
    name = spec_of(lambda stats: stats["kl"] > 0, "marks", module="weights_of_mine")
    options = Objective(position_weights=name)
    factors = position_factors({"kl": torch.tensor([1.0, 0.0])}, [2], options)
    assert factors is not None
    assert factors.tolist() == [2.0, 0.0]
