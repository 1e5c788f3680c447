"""Weights of completions by their verdicts, and the factors of tokens in the loss."""

import pytest
import torch

from paint.objective.fused import fused_paint_loss
from paint.objective.loss import paint_loss
from paint.objective.options import Impl, ObjectiveConfig
from paint.objective.weights import verdict_weights

VERDICTS, LENGTHS = [True, False, False], [5, 3, 1]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, [1, 1, 1]),
        ({"wrong_weight": 0}, [3, 0, 0]),
        ({"correct_weight": 2}, [1.5, 0.75, 0.75]),
        # 4, 2 and 0 tokens count behind the first: Σ v c = 10, Σ c = 6.
        ({"correct_weight": 2, "reduction": "token", "skip_tokens": 1}, [1.2, 0.6, 0.6]),
        ({"correct_weight": 0, "wrong_weight": 0}, [0, 0, 0]),
        ({"wrong_weight": 0, "reduction": "token", "skip_tokens": 5}, [0, 0, 0]),
    ],
)
def test_verdict_weights_have_mean_one_unless_none_counts(
    options: dict[str, float], expected: list[float]
) -> None:
    found = verdict_weights(VERDICTS, LENGTHS, ObjectiveConfig(**options))
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

    options = {"factors": factors, "top_fraction": 0.0, "interpolation_weight": 0.0}
    if impl == "reference":
        logits = student @ head.T, teacher @ head.T
        loss = paint_loss(*logits, LENGTHS, **options)
    else:  # in chunks of four, which the first completion exceeds
        loss = fused_paint_loss(
            student, teacher, head, LENGTHS, impl=impl, chunk_tokens=4, **options
        )
    found = loss.value, loss.per_token, *torch.autograd.grad(loss.value, inputs)
    for mine, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-11, atol=1e-11)
