"""Factors of tokens in the loss, by which variants weigh completions and tokens."""

from typing import Any

import pytest
import torch

from paint.config.schema import Impl
from paint.objective.fused import fused_paint_loss
from paint.objective.loss import paint_loss

LENGTHS = [5, 3, 1]


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
