"""The terms of a completion: the reference's values, the likeliest tokens, derivatives."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from paint.objective.detail import detail
from paint.objective.divergences import find_divergence
from paint.objective.loss import paint_loss
from paint.objective.loss_options import Objective


def heads(vocabulary: int, hidden: int) -> tuple[nn.Linear, nn.Linear]:
    torch.manual_seed(0)
    made = [nn.Linear(hidden, vocabulary, bias=False).double() for _ in range(2)]
    return made[0], made[1]


OPTIONS: list[dict[str, Any]] = [
    {},
    {"divergence": "reverse_kl"},
    {"divergence": "jsd", "clip": 0.01},
    {"clip_mode": "pointwise"},
    {"clip_mode": "pointwise", "divergence": "reverse_kl"},
    {"clip_mode": "pointwise", "divergence": "jsd", "clip": 0.01},
    {"clip_mode": "token"},
    {"clip_mode": "none", "top_fraction": 0.5, "interpolation_weight": 0.5},
    {"divergence": "sampled_token", "clip_mode": "none"},
    {"clip_mode": "huber", "divergence": "sampled_token"},
    {"skip_tokens": 5, "top_fraction": 0.2},
    {"clip_mode": "pointwise", "skip_tokens": 5, "top_fraction": 0.2},
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("chunk", [10**9, 7 * 50])
def test_detail_values_and_gradients_match_complete_loss(
    options: dict[str, Any], chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the chunks: also the selection, which is a rank over the whole completion."""
    monkeypatch.setattr("paint.objective.detail.CHUNK_LOGITS", chunk)
    student_head, teacher_head = heads(50, 8)
    torch.manual_seed(1)
    student, teacher = torch.randn(2, 40, 8, dtype=torch.float64) * 2
    tokens = torch.randint(50, (40,))
    loaded = dict(options)
    if "divergence" in options:
        loaded["divergence"] = find_divergence(options["divergence"])
    settings = Objective(temperature=1.1, **loaded)
    found = detail(student, teacher, (student_head, teacher_head), tokens, settings)

    logits = student_head(student).detach().requires_grad_()
    loss = paint_loss(logits, teacher_head(teacher).detach(), [40], settings, tokens=tokens)
    for name, value in {"loss": loss.per_token, **loss.stats}.items():
        np.testing.assert_allclose(found.values[name], value.detach(), rtol=1e-5, atol=1e-6)
    loss.value.backward()
    assert logits.grad is not None
    slope = logits.grad.gather(1, tokens[:, None])[:, 0] * (40 - settings.skip_tokens)
    weighed = slice(settings.skip_tokens, None)  # the others are looked at, too, and weigh nothing
    np.testing.assert_allclose(found.values["slope"][weighed], slope[weighed], atol=1e-6)


def test_detail_includes_likeliest_tokens_of_all_distributions() -> None:
    student_head, teacher_head = heads(50, 8)
    student, teacher = torch.randn(2, 30, 8, dtype=torch.float64)
    tokens = torch.randint(50, (30,))
    options = Objective(temperature=0.9, top_fraction=0.3, interpolation_weight=0.4)
    found = detail(student, teacher, (student_head, teacher_head), tokens, options)
    log_q = (student_head(student) / 0.9).log_softmax(-1)
    log_p = (teacher_head(teacher) / 0.9).log_softmax(-1)
    mixed = (0.6 * log_p + 0.4 * log_q).log_softmax(-1)
    selected = torch.tensor(found.values["selected"])[:, None] > 0
    views = {"student": log_q, "teacher": log_p, "target": torch.where(selected, mixed, log_p)}
    for i in range(30):
        part = slice(found.edges[i], found.edges[i + 1])
        entries = found.entries[part].tolist()
        assert entries[0] == tokens[i]
        assert len(set(entries)) == len(entries)
        for name, view in views.items():
            assert set(view[i].topk(5).indices.tolist()) <= set(entries)
            wanted = view[i, entries].detach()
            np.testing.assert_allclose(found.log_probs[name][part], wanted, atol=1e-5)


def test_detail_pull_is_derivative_of_log_prob_towards_teacher() -> None:
    student_head, teacher_head = heads(6, 6)
    student, teacher = torch.randn(2, 6, 6, dtype=torch.float64)
    tokens, options = torch.arange(6), Objective(temperature=1.1)
    found = detail(student, teacher, (student_head, teacher_head), tokens, options)
    of_student, of_teacher = student_head(student).detach(), teacher_head(teacher).detach()

    def log_prob(a: float) -> Tensor:
        log_probs: Tensor = torch.lerp(of_student / 1.1, of_teacher / 1.1, a).log_softmax(-1)
        return log_probs.gather(-1, tokens[:, None])[:, 0]

    derivative = (log_prob(1e-5) - log_prob(-1e-5)) / 2e-5
    np.testing.assert_allclose(found.values["pull"], derivative, rtol=1e-4, atol=1e-6)
