"""RLSD, SDAR and β-OPSD by their papers' equations, in float64 and one row at a time."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
import torch
from accelerate import Accelerator
from torch import Tensor

from conftest import DEMO, logits_alone, move
from paint.algorithms.paint import add_teacher_prompts
from paint.algorithms.variant import Variant
from paint.core.display import Clock, Display
from paint.data.problems import Problem
from paint.inference.engine import Completion
from paint.inference.rollouts import Rollout
from paint.models.policy import load_policy
from paint.training import train_step
from paint.training.train_step import Setup
from paintvariants.beta_opsd import BetaOpsd, returns
from paintvariants.rlsd import Rlsd
from paintvariants.sdar import Sdar
from runs import changed, opened_setup, variant

ADVANTAGES = (1.25, -0.75, 0.0, -0.5)  # exact in float32, in which weights of tokens are
SMALL: dict[str, dict[str, Any]] = {
    "rollout": {"samples_per_problem": 4, "temperature": 1.3},
    "objective": {"impl": "reference"},
    "train": {"batch_size": 4},
    "context": {"mask_ratio_wrong": 0.0, "mask_ratio_correct": 0.0},
}
Terms = Callable[[Tensor, Tensor, float, Tensor], Tensor]
"""The loss of a completion's tokens, of log-probs (n v) of student and teacher, its advantage and
its ids."""


@contextmanager
def opened(
    method: type[Variant], accelerator: Accelerator, problem: Problem, **options: Any
) -> Iterator[tuple[Variant, Setup, list[Rollout]]]:
    """The method, what its step works with, and four completions with advantages, in float64."""
    config = changed("demo-paint", SMALL, variant(method, **options))
    policy = load_policy(DEMO, seed=0)
    move(policy)
    policy.model.double()
    with opened_setup(config, policy, accelerator, [problem]) as setup:
        prompt, ids = policy.student_prompt(problem), policy.solution_ids(problem.solution)
        rollouts = []
        for row, advantage in enumerate(ADVANTAGES):
            cut = (*ids[: 8 + 3 * row], *ids[2 : 4 + row])  # right, and then not
            completion = Completion(cut, (0.0,) * len(cut), truncated=True)
            rollouts.append(Rollout(row, problem, prompt, completion, policy.decode(cut)))
            rollouts[-1] = replace(rollouts[-1], metrics={"advantage": advantage})
        algorithm = setup.resolved.algorithm
        assert isinstance(algorithm, method)
        yield algorithm, setup, add_teacher_prompts(setup, rollouts, 0)


def assert_is(setup: Setup, rollouts: Sequence[Rollout], value: Tensor, terms: Terms) -> None:
    """The loss's gradient and value are those of the terms' mean."""
    value.backward()
    gradient = [p.grad for p in setup.policy.trainable]
    for p in setup.policy.trainable:
        p.grad = None
    means = []
    for r in rollouts:
        assert r.teacher_prompt is not None
        ids, model = r.completion.ids, setup.policy.model
        student = (logits_alone(model, r.prompt, ids) / 1.3).log_softmax(-1)
        with model.disable_adapter(), torch.no_grad():
            teacher = (logits_alone(model, r.teacher_prompt.prompt, ids) / 1.3).log_softmax(-1)
        advantage = r.metrics["advantage"]
        means.append(terms(student, teacher, advantage, torch.tensor(ids)).mean())
    expected = torch.stack(means).mean()
    expected.backward()
    assert value.item() == pytest.approx(expected.item(), rel=1e-8)
    for p, ours in zip(setup.policy.trainable, gradient, strict=True):
        assert p.grad is not None
        assert ours is not None
        # Norms are computed in float32 whatever the weights are.
        torch.testing.assert_close(ours, p.grad, rtol=1e-6, atol=1e-6 * float(p.grad.abs().max()))


def sampled(log_probs: Tensor, ids: Tensor) -> Tensor:
    return log_probs[torch.arange(len(ids)), ids]


def test_rlsd_loss_is_its_papers_in_float64(
    accelerator: Accelerator, problems: list[Problem]
) -> None:
    weight = 0.35

    def terms(student: Tensor, teacher: Tensor, advantage: float, ids: Tensor) -> Tensor:
        log_p, log_t = sampled(student, ids), sampled(teacher, ids)
        sign = (advantage > 0) - (advantage < 0)
        ratio = (sign * (log_t - log_p.detach())).exp()
        kept = [(1 - weight) + weight * min(max(float(w), 0.8), 1.2) for w in ratio]
        assert advantage == 0 or len({round(k, 6) for k in kept}) > 2
        # Less its own value, as the ratio is 1, and has the gradient of log p.
        return -advantage * torch.tensor(kept, dtype=torch.float64) * (1 + log_p - log_p.detach())

    # Of this problem, some tokens' weights lie between the bounds in every completion.
    with opened(Rlsd, accelerator, problems[3]) as (method, setup, rollouts):
        value, _ = method.weighted_score(setup, weight, rollouts)  # type: ignore[attr-defined]
        assert_is(setup, rollouts, value, terms)


def test_sdar_loss_is_its_papers_in_float64(
    accelerator: Accelerator, problems: list[Problem]
) -> None:
    def terms(student: Tensor, teacher: Tensor, advantage: float, ids: Tensor) -> Tensor:
        log_p, log_t = sampled(student, ids), sampled(teacher, ids)
        gate = 1 / (1 + (-5.0 * (log_t - log_p.detach())).exp())
        assert float(gate.min()) < 0.4
        assert float(gate.max()) > 0.5
        reward = -advantage * (1 + log_p - log_p.detach())
        return reward + 2 * gate * (log_t - log_p)

    with opened(Sdar, accelerator, problems[0], coefficient=2.0) as (method, setup, rollouts):
        value, values = method.score(setup, rollouts)
        assert_is(setup, rollouts, value, terms)
        assert values["gate"].shape == values["sdar_loss"].shape == values["student_log_prob"].shape


def test_beta_opsd_gradient_is_its_papers_in_float64(
    accelerator: Accelerator, problems: list[Problem], monkeypatch: pytest.MonkeyPatch
) -> None:
    discount, weight = 0.9, 0.65

    def terms(student: Tensor, teacher: Tensor, advantage: float, ids: Tensor) -> Tensor:
        mixed = ((1 - weight) * student + weight * teacher).log_softmax(-1).detach()
        ratios = (sampled(student, ids).detach() - sampled(mixed, ids)).tolist()
        sums = [
            sum(discount**k * later for k, later in enumerate(ratios[n:]))
            for n in range(len(ratios))
        ]
        return torch.tensor(sums, dtype=torch.float64) * sampled(student, ids)

    found: dict[str, Any] = {}

    def learn(setup: Setup, rollouts: Sequence[Rollout], score: Any, *_: Any) -> Any:
        found["value"], found["values"] = score(rollouts)
        [found["weight"]] = {r.metrics["teacher_weight"] for r in rollouts}
        return [], 0.0

    monkeypatch.setattr(train_step, "learn", learn)
    # The second step is half of the way to the end.
    options = {"weight": 2 * weight - 1, "weight_end": 1.0, "weight_steps": 2, "discount": discount}
    with opened(BetaOpsd, accelerator, problems[0], **options) as (method, setup, rollouts):
        monkeypatch.setattr(method, "rollouts", lambda *_: rollouts)
        method.step(setup, [], 1, Clock(Display()))
        assert found["weight"] == pytest.approx(weight)
        assert_is(setup, rollouts, found["value"], terms)
        assert found["values"]["kl"].abs().max() > 0.01


def test_returns_are_of_each_completion_alone() -> None:
    values = torch.tensor([1.0, 2.0, 4.0, 8.0, 16.0], dtype=torch.float64)
    assert returns(values, [2, 0, 3], 0.5).tolist() == [2.0, 2.0, 12.0, 16.0, 16.0]
    assert returns(values, [5], 1.0).tolist() == [31.0, 30.0, 28.0, 24.0, 16.0]
