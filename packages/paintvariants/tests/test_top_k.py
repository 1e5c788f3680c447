"""The loss of k entries of a teacher: its equations in float64, and the complete teacher's."""

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from paint.objective.fused import fused_paint_loss
from paint.objective.loss_options import Objective
from paintvariants.top_k import top_k_loss

LENGTHS, VOCABULARY, T = [4, 7], 23, 1.3
OPTIONS: dict[str, dict[str, Any]] = {
    "paint": {},
    "by entry": {"interpolation_weight": 0.0, "reduction": "token", "skip_tokens": 1},
    "by token": {"clip_mode": "token", "clip": 0.2, "top_fraction": 0.0},
    "no clip": {"clip_mode": "none", "interpolation_weight": 0.0},
}


@pytest.fixture(scope="module")
def views() -> tuple[Tensor, Tensor, nn.Linear, Tensor]:
    """States of student and teacher, a head, and tokens; a sure teacher at the first of them."""
    torch.manual_seed(0)
    student, teacher = torch.randn(2, 11, 6, dtype=torch.float64)
    teacher[0] *= 20
    head = nn.Linear(6, VOCABULARY, dtype=torch.float64)
    return student.requires_grad_(), teacher, head, torch.randint(VOCABULARY, (11,))


def top_of(teacher: Tensor, head: nn.Linear, k: int) -> tuple[Tensor, Tensor]:
    with torch.no_grad():
        top = (head(teacher) / T).log_softmax(-1).topk(k)
    return top.indices, top.values


def plain_term(p: Sequence[float], q: Sequence[float], clip: float, clip_mode: str) -> float:
    """Σ min(p log p / q, τ) of two lists of probabilities, as its equation reads."""
    terms = [a * math.log(a / b) if a else 0.0 for a, b in zip(p, q, strict=True)]
    if clip_mode == "pointwise":
        return math.fsum(min(term, clip) for term in terms)
    total = math.fsum(terms)
    return min(total, clip) if clip_mode == "token" else total


@pytest.mark.parametrize("clip_mode", ["pointwise", "token", "none"])
@pytest.mark.parametrize("k", [1, 5, 22])
def test_top_k_loss_is_that_of_plain_equations(
    views: tuple[Tensor, Tensor, nn.Linear, Tensor], k: int, clip_mode: str
) -> None:
    student, teacher, head, tokens = views
    ids, log_probs = top_of(teacher, head, k)
    options: dict[str, Any] = {"clip_mode": clip_mode, "interpolation_weight": 0.0}
    found = top_k_loss(
        student, head, LENGTHS, ids, log_probs, tokens=tokens, temperature=T, **options
    )
    per_token, entropies = [], []
    for n, logits in enumerate((head(student) / T).tolist()):
        total = math.fsum(map(math.exp, logits))
        q = [math.exp(z) / total for z in logits]
        entropies.append(-math.fsum(x * math.log(x) for x in q))
        kept = ids[n].tolist()
        p = [math.exp(value) for value in log_probs[n].tolist()]
        others = math.fsum(q[i] for i in range(VOCABULARY) if i not in kept)
        p, q = [*p, max(1 - math.fsum(p), 0.0)], [*(q[i] for i in kept), others]
        per_token.append(plain_term(p, q, 0.06, clip_mode))
    assert found.per_token.tolist() == pytest.approx(per_token, abs=1e-12)
    # Of the whole vocabulary, whatever k is.
    assert found.stats["student_entropy"].tolist() == pytest.approx(entropies, abs=1e-12)
    first, second = per_token[:4], per_token[4:]
    assert float(found.value.detach()) == pytest.approx((sum(first) / 4 + sum(second) / 7) / 2)


@pytest.mark.parametrize("case", OPTIONS)
def test_top_k_loss_of_whole_vocabulary_is_the_complete_loss(
    views: tuple[Tensor, Tensor, nn.Linear, Tensor], case: str
) -> None:
    student, teacher, head, tokens = views
    options = Objective(temperature=T, **OPTIONS[case])
    whole = fused_paint_loss(student, teacher, head, LENGTHS, options, tokens=tokens)
    inputs = [student, head.weight]
    expected = torch.autograd.grad(whole.value, inputs)
    # With one entry less than the vocabulary, the rest is that entry.
    for k in (VOCABULARY, VOCABULARY - 1):
        ids, log_probs = top_of(teacher, head, k)
        arguments = (student, head, LENGTHS, ids, log_probs, options)
        found = top_k_loss(*arguments, tokens=tokens, chunk_tokens=3)
        assert found.value.detach().allclose(whole.value.detach(), rtol=1e-12, atol=1e-14)
        for gradient, other in zip(torch.autograd.grad(found.value, inputs), expected, strict=True):
            assert gradient.allclose(other, rtol=1e-9, atol=1e-13)
        for name, values in found.stats.items():
            assert values.allclose(whole.stats[name], rtol=1e-6, atol=1e-9), name


def test_top_k_loss_nears_the_complete_one_from_below(
    views: tuple[Tensor, Tensor, nn.Linear, Tensor],
) -> None:
    student, teacher, head, tokens = views
    options = Objective(temperature=T, **OPTIONS["no clip"])
    whole = fused_paint_loss(student, teacher, head, LENGTHS, options, tokens=tokens)
    values = []
    for k in range(1, VOCABULARY):
        top = top_of(teacher, head, k)
        found = top_k_loss(student, head, LENGTHS, *top, options, tokens=tokens)
        values.append(found.per_token)
        assert (found.per_token <= whole.per_token + 1e-12).all()
    # A bin that is split in two makes the divergence larger, at each token.
    assert all((b >= a - 1e-12).all() for a, b in pairwise(values))
