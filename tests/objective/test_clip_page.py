"""The numbers of docs/concepts/clip.md, computed."""

import re
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from torch import Tensor

from paint.objective.loss import clipped_divergence

PAGE = (Path(__file__).parents[2] / "docs" / "concepts" / "clip.md").read_text(encoding="utf-8")
FAVOURITE = (0.9, 0.1)


def table(head: str) -> list[list[str]]:
    """The cells of the table whose head begins so, without code marks."""
    lines = PAGE[PAGE.index(f"| {head}") :].partition("\n\n")[0].splitlines()
    return [
        [cell.strip(" `") for cell in line.strip("|").split("|")] for line in (lines[0], *lines[2:])
    ]


def value_and_gradient(
    p: tuple[float, ...], logits: Tensor, mode: str, clip: float = 0.06
) -> tuple[float, Tensor]:
    target = torch.tensor(p, dtype=torch.float64).log()
    z = logits.detach().requires_grad_()
    value = clipped_divergence(target, z.log_softmax(-1), clip=clip, clip_mode=mode)  # type: ignore[arg-type]
    return value.item(), torch.autograd.grad(value, z)[0]


def logits_of(first: float) -> Tensor:
    return torch.tensor([first, 1 - first], dtype=torch.float64).log()


def test_clip_page_table_of_pushes_is_computed() -> None:
    (_, _, *modes), *rows = table("q of that token")
    assert modes == ["none", "huber", "pointwise", "token"]
    assert len(rows) == 7
    for q, kl, *pushes in rows:
        logits = logits_of(float(q))
        assert float(kl) == pytest.approx(
            value_and_gradient(FAVOURITE, logits, "none")[0], abs=6e-4
        )
        for mode, push in zip(modes, pushes, strict=True):
            gradient = value_and_gradient(FAVOURITE, logits, mode)[1]
            assert float(push) == pytest.approx(-gradient[0].item(), abs=6e-4), (q, mode)


def test_clip_page_table_of_small_thresholds_is_computed() -> None:
    (_, *modes), *rows = table("τ |")
    assert modes == ["huber", "pointwise"]
    for clip, *pushes in rows:
        for mode, push in zip(modes, pushes, strict=True):
            gradient = value_and_gradient(FAVOURITE, logits_of(0.88), mode, float(clip))[1]
            assert float(push) == pytest.approx(-gradient[0].item(), abs=6e-5), (clip, mode)
    # huber's push falls with the threshold, the pointwise one is turned around and stays.
    assert all(float(a[1]) >= float(b[1]) for a, b in pairwise(rows))


@pytest.mark.slow
def test_clip_page_table_of_ends_is_computed() -> None:
    _, *rows = table("| q | KL")
    assert [mode for mode, *_ in rows] == ["none", "huber", "pointwise", "token"]
    for mode, end, kl in rows:
        logits = logits_of(0.7)
        for _ in range(2000):
            logits = logits - 0.5 * value_and_gradient(FAVOURITE, logits, mode)[1]
        found = logits.softmax(-1).tolist()
        assert list(map(float, end.strip("()").split(", "))) == pytest.approx(found, abs=6e-4), mode
        distance = value_and_gradient(FAVOURITE, logits, "none")[0]
        assert float(kl) == pytest.approx(distance, abs=6e-3), mode


def test_clip_page_worked_example_is_computed() -> None:
    logits = logits_of(0.7)
    value, gradient = value_and_gradient(FAVOURITE, logits, "pointwise")
    assert f"**The loss is −{-value:.3f}**" in PAGE
    assert gradient.tolist() == pytest.approx([0.07, -0.07])
    assert "(+0.07, −0.07)" in PAGE
    plain, slope = value_and_gradient(FAVOURITE, logits, "none")
    assert f"the KL, {plain:.3f}" in PAGE
    assert slope.tolist() == pytest.approx([-0.2, 0.2])
    bounded = value_and_gradient(FAVOURITE, logits, "huber")[1].tolist()
    assert f"`huber` (−{-bounded[0]:.3f}, +{bounded[1]:.3f})" in PAGE

    three = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64).log()
    assert value_and_gradient((0.6, 0.3, 0.1), three, "none")[0] == pytest.approx(0.040, abs=5e-4)
    first = value_and_gradient((0.6, 0.3, 0.1), three, "pointwise")[1][0].item()
    assert first == pytest.approx(0.20)

    # Where an entry begins to be clipped.
    for q, p in re.findall(r"q < (0\.\d+) where p = (0\.\d+)", PAGE):
        bound = float(p) * torch.tensor(-0.06 / float(p)).exp().item()
        assert float(q) == pytest.approx(bound, abs=6e-3)
